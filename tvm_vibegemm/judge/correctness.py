"""Is a kernel right: all recipes, all elements, and what it does to the memory around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import last_line
from ..workload import Workload
from .arena import FINITE_WORD, JUNK_WORD, NAN_WORD, Arena, fill_inputs
from .inputs import RECIPES, SPECIAL, is_exact, numpy_dtype, operands
from .numerics import Stats, error_map, figures, verdict
from .protocol import FatalDeviceError
from .trusted import Memory, Trusted, Truth, storage
from .verdict import Reason

Call = Callable[[list[Any], Any, Any], Any]
_OTHER = 1 << 32  # between the seeds of inputs that must not be mixed up


@dataclass
class Subject:
    """Something that is checked: ``call(inputs, output, workspace)`` fills the output.

    Parameters
    ----------
    name
        For lines of progress.
    call
        Launches it on TVM's current stream.
    workspace
        Bytes that it needs.
    reason, detail
        The verdict so far, and one line on it.
    evidence
        Figures by recipe, error map, properties.
    """

    name: str
    call: Call
    workspace: int = 0
    reason: Reason = Reason.ACCEPTED
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """True while nothing was found against it."""
        return self.reason is Reason.ACCEPTED

    def refuse(self, reason: Reason, detail: str) -> None:
        """Set the verdict."""
        self.reason, self.detail = reason, " ".join(detail.split())[:300]


def check(
    trusted: Trusted,
    workload: Workload,
    subjects: Sequence[Subject],
    seed: int,
    recipes: Sequence[str] = RECIPES,
) -> None:
    """Check variants of one kernel; the verdict goes into each subject.

    The float64 result is made after all of them ran, from inputs drawn again in memory that no
    kernel was told of. Variants of one kernel share it; kernels of different authors should not
    share a call, as one may write into what another left behind.
    """
    for number, recipe in enumerate(recipes):
        alive = [subject for subject in subjects if subject.right]
        if not alive:
            return
        _check_recipe(trusted, workload, alive, recipe, seed * 64 + number)


def _check_recipe(
    trusted: Trusted, workload: Workload, subjects: list[Subject], recipe: str, seed: int
) -> None:
    runs = [_Runs(trusted, workload, subject, recipe, seed) for subject in subjects]
    runs = [run for run in runs if run.first()]
    if not runs:
        return
    fresh = [Memory(operand.bytes + 4, trusted.dev) for operand in operands(workload)[:-1]]
    addresses = [memory.address for memory in fresh]
    fill_inputs(trusted, workload, addresses, recipe, seed)
    problem = trusted.problem(workload, addresses)
    truth = trusted.product(workload, problem)
    for run in runs:
        run.judge(addresses, problem, truth)


class _Runs:
    """The runs of one subject on the inputs of one recipe."""

    def __init__(
        self, trusted: Trusted, workload: Workload, subject: Subject, recipe: str, seed: int
    ) -> None:
        self.trusted, self.workload, self.subject = trusted, workload, subject
        self.recipe, self.seed = recipe, seed
        self.arena = Arena(trusted, workload, subject.workspace)
        self.out_bytes = self.arena.out_layout.bytes
        self.kept: Memory | None = None
        self.second: Memory | None = None

    def _run(self, guards: int, poison: int, workspace: int | None) -> Memory:
        """Run it and keep the output; without a fill the workspace is as a call on others left it.

        Those other inputs stand at the same addresses: what was kept of them must not come back.
        """
        arena = self.arena
        if workspace is None and arena.workspace is not None:
            arena.draw(self.recipe, self.seed + _OTHER, guards)
            arena.run(self.subject.call, poison, JUNK_WORD)
        arena.draw(self.recipe, self.seed, guards)
        arena.run(self.subject.call, poison, workspace)
        return self._copy()

    def _copy(self) -> Memory:
        kept = Memory(self.out_bytes, self.trusted.dev)
        self._raw().copyto(kept.view([self.out_bytes], "uint8", 0))
        return kept

    def _raw(self) -> Any:
        offset = self.arena.output.address - self.arena.output._memory.address
        return self.arena.output._memory.view([self.out_bytes], "uint8", offset)

    def _differs(self, other: Memory) -> bool:
        assert self.kept is not None
        return self.trusted.different(self.kept.address, other.address, self.out_bytes) != 0

    def first(self) -> bool:
        """Run it the first times; False where that alone refuses it."""
        subject = self.subject
        try:
            self.kept = self._run(NAN_WORD, NAN_WORD, None)
            outside = self.arena.written_outside()
            if outside is None:
                # Again, with other junk everywhere.
                self.second = self._run(FINITE_WORD, FINITE_WORD, JUNK_WORD)
                outside = self.arena.written_outside()
            if outside is not None:
                subject.refuse(Reason.OUT_OF_BOUNDS_WRITE, f"{self.recipe} inputs: {outside}")
                return False
        except FatalDeviceError:
            raise
        except Exception as error:
            self._launch_failed(error)
            return False
        return True

    def _launch_failed(self, error: Exception) -> None:
        self.trusted.sync()  # raises where the device failed for good
        self.subject.refuse(Reason.LAUNCH_FAILED, last_line(error, 200))

    def judge(self, addresses: list[int], problem: Memory, truth: Truth) -> None:
        """Compare what the runs left with the truth."""
        subject, trusted, recipe = self.subject, self.trusted, self.recipe
        assert self.kept is not None
        for number, (mine, theirs) in enumerate(zip(self.arena.inputs, addresses, strict=True)):
            if trusted.different(mine.address, theirs, mine.size):
                subject.refuse(Reason.INPUT_MODIFIED, f"{recipe} inputs: operand {number}")
                return
        stats = self._compare(self.kept, truth, NAN_WORD, problem)
        subject.evidence.setdefault("numerics", {})[recipe] = figures(self.workload, recipe, stats)
        if recipe == SPECIAL and stats.inf_as_nan:
            subject.evidence["inf_becomes_nan"] = True
        reason = verdict(self.workload, recipe, stats)
        assert self.second is not None
        if reason is Reason.ACCEPTED and not self._differs(self.second):
            return
        reason, stats = self._explain(reason, stats)
        subject.refuse(reason, f"{recipe} inputs: {reason.meaning}")
        subject.evidence["numerics"][recipe] = figures(self.workload, recipe, stats)
        if stats.listed:
            subject.evidence["error_map"] = error_map(self.workload, stats)
            subject.evidence["error_map"]["recipe"] = recipe
            subject.evidence["error_map"]["values"] = self._values(stats, truth)

    def _compare(
        self, output: Memory, truth: Truth, poison: int, problem: Memory | None = None
    ) -> Stats:
        found = self.trusted.compare(self.workload, self.recipe, output.address, truth, poison)
        if problem is not None and not is_exact(self.workload, self.recipe):
            self.trusted.honest(self.workload, problem, output.address, truth, found)
        return self.trusted.stats(found)

    def _explain(self, reason: Reason, stats: Stats) -> tuple[Reason, Stats]:
        """Run it in other surroundings, to say why the result is wrong or does not repeat."""
        # Surroundings that must make no difference, and what it is called where they do.
        trials: list[tuple[Reason, int, int, int | None]] = [
            (Reason.DIRTY_WORKSPACE, NAN_WORD, NAN_WORD, JUNK_WORD),
            (Reason.DIRTY_WORKSPACE, NAN_WORD, NAN_WORD, 0),
            (Reason.OUT_OF_BOUNDS_READ, FINITE_WORD, NAN_WORD, None),
            (Reason.NOT_WRITTEN, NAN_WORD, FINITE_WORD, None),
        ]
        if not self.subject.workspace:
            trials = trials[2:]
        unstable = Reason.NOT_REPEATABLE if reason is Reason.ACCEPTED else reason
        try:
            if self._differs(self._run(NAN_WORD, NAN_WORD, None)):
                return unstable, stats
            for found, guards, poison, workspace in trials:
                if self._differs(self._run(guards, poison, workspace)):
                    # The difference must come from the surroundings, not from one run to the next.
                    same = not self._differs(self._run(NAN_WORD, NAN_WORD, None))
                    return (found if same else unstable), stats
        except FatalDeviceError:
            raise
        except Exception as error:
            self._launch_failed(error)
            return self.subject.reason, stats
        if reason is Reason.ACCEPTED:
            return Reason.NOT_REPEATABLE, stats
        return reason, stats

    def _values(self, stats: Stats, truth: Truth) -> list[list[float | None]]:
        """Return [got, wanted] of the elements that the error map lists."""
        assert self.kept is not None
        dtype = numpy_dtype(storage(self.workload.out))
        got = self.kept.view([self.out_bytes], "uint8", 0).numpy().view(dtype)
        size = self.arena.out_layout.size
        want = truth.want.view([size], "float64", 0).numpy()
        pairs = [(float(got[i]), float(want[i])) for i in sorted(stats.listed)[:8]]
        return [[x if math.isfinite(x) else None for x in pair] for pair in pairs]
