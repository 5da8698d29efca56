"""Is a kernel fast: all that is right, timed side by side, and checked again while it is timed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import tvm

from ..device import Device
from ..rivals.reference import operand_shapes
from ..workload import Workload
from .arena import JUNK_WORD, NAN_WORD, fill_inputs, operand_seed
from .correctness import Subject
from .inputs import NORMAL, draws, operands
from .numerics import figures, verdict
from .timing import Time, Timer, reset_persisting_l2
from .trusted import Memory, Trusted
from .verdict import Reason

# What must lie between two uses of the same input: more than twice the L2.
_COLD = 2.2
_MAX_SETS = 48
_SAMPLES = 512
# Clocks may stand above those that a peak is stated for, and reads alone go faster than copies.
_FLOP_SLACK = 1.12
_BYTE_SLACK = 1.15


def floor_us(workload: Workload, device: Device, cold: bool) -> float:
    """Return the time below which no kernel can be on this device, in microseconds.

    Operations over the peak rate of the operand type; where the inputs come from DRAM, their bytes
    over the measured bandwidth too (what is written may stay in the L2).
    """
    bound = workload.flops() / (device.peak_tflops(workload.a) * 1e6 * _FLOP_SLACK)
    if cold:
        *inputs, _ = operands(workload)
        read = sum(operand.bytes for operand in inputs)
        bound = max(bound, read / (device.dram_gbps * 1e3 * _BYTE_SLACK))
    return bound


class Race:
    """Rotating inputs and one output each, shared by all that is timed at one workload.

    Parameters
    ----------
    trusted, workload, device
        What draws, what is computed, and on what.
    """

    def __init__(self, trusted: Trusted, workload: Workload, device: Device) -> None:
        self.trusted, self.workload, self.device = trusted, workload, device
        self.layout = operands(workload)[:-1]
        self.draws = draws(workload, NORMAL)
        self.sets = min(
            _MAX_SETS,
            max(2, math.ceil(_COLD * device.l2_bytes / max(workload.min_bytes(), 1))),
        )
        self.cold = self.sets * workload.min_bytes() > 2 * device.l2_bytes
        shapes = operand_shapes(workload)
        out_shape, out_type = shapes[-1]
        self.memories = [
            [Memory(operand.bytes + 4, trusted.dev) for operand in self.layout]
            for _ in range(self.sets)
        ]
        self.inputs = [
            [
                memory.view(shape, dtype, 0)
                for memory, (shape, dtype) in zip(row, shapes[:-1], strict=True)
            ]
            for row in self.memories
        ]
        self.out_bytes = operands(workload)[-1].bytes
        self.outputs = [Memory(self.out_bytes + 4, trusted.dev) for _ in range(self.sets)]
        self.results = [memory.view(out_shape, out_type, 0) for memory in self.outputs]
        self.scratch = Memory(int(2 * device.l2_bytes), trusted.dev)
        self.problems = [trusted.problem(workload, self.addresses(i)) for i in range(self.sets)]
        self.changes: list[tuple[int, int]] = []
        # Not from a seed that a kernel's author could know.
        self.random = random.SystemRandom()
        for number in range(self.sets):
            fill_inputs(trusted, workload, self.addresses(number), NORMAL, number)

    def addresses(self, number: int) -> list[int]:
        """Return where one set of inputs stands."""
        return [memory.address for memory in self.memories[number]]

    def change(self) -> None:
        """Change one place of the summed dimension of A in every set: all of D changes."""
        if self.workload.k == 0:
            return
        seed = self.random.getrandbits(40)
        at = seed % self.workload.k
        self.changes.append((seed, at))
        for number in range(self.sets):
            self._change(self.memories[number][0].address, number, seed, at)

    def _change(self, address: int, number: int, seed: int, at: int) -> None:
        mine = operand_seed(seed, number)
        self.trusted.change(address, self.layout[0], self.draws[0], mine, at)

    def clear(self) -> None:
        """Poison the outputs, and leave an L2 without dirty or persisting lines."""
        for memory in self.outputs:
            self.trusted.fill(memory.address, memory.size // 4 * 4, NAN_WORD)
        reset_persisting_l2()
        self.trusted.read_all(self.scratch)
        self.trusted.sync()

    def verify(self, subjects: Sequence[tuple[Subject, Callable[[int], Any]]]) -> None:
        """Call each once more on changed inputs, and compare all of one output with the truth."""
        self.change()
        number = self.random.randrange(self.sets)
        kept = []
        for subject, call in subjects:
            self.clear()
            for i in range(self.sets):
                call(i)
            self.trusted.sync()
            copy = Memory(self.out_bytes, self.trusted.dev)
            source = self.outputs[number].view([self.out_bytes], "uint8", 0)
            source.copyto(copy.view([self.out_bytes], "uint8", 0))
            kept.append((subject, copy))
        fresh = [Memory(operand.bytes + 4, self.trusted.dev) for operand in self.layout]
        addresses = [memory.address for memory in fresh]
        fill_inputs(self.trusted, self.workload, addresses, NORMAL, number)
        for seed, at in self.changes:
            self._change(addresses[0], number, seed, at)
        problem = self.trusted.problem(self.workload, addresses)
        truth = self.trusted.product(self.workload, problem)
        for mine, operand, theirs in zip(
            self.memories[number], self.layout, addresses, strict=True
        ):
            if self.trusted.different(mine.address, theirs, operand.bytes):
                for subject, _ in kept:
                    subject.refuse(Reason.INPUT_MODIFIED, "an input changed while it was timed")
                return
        for subject, copy in kept:
            found = self.trusted.compare(self.workload, NORMAL, copy.address, truth, NAN_WORD)
            self.trusted.honest(self.workload, problem, copy.address, truth, found)
            stats = self.trusted.stats(found)
            reason = verdict(self.workload, NORMAL, stats)
            if reason is not Reason.ACCEPTED:
                subject.refuse(Reason.STATEFUL, f"after timing: {reason.meaning}")
                subject.evidence["after_timing"] = figures(self.workload, NORMAL, stats)


def race(
    trusted: Trusted,
    workload: Workload,
    device: Device,
    kernels: Sequence[Subject],
    references: Sequence[tuple[str, Callable[[list[Any]], Any]]],
    rounds: int,
) -> tuple[dict[str, Time], dict[str, Any]]:
    """Time kernels and references in interleaved passes.

    Parameters
    ----------
    trusted, workload, device
        As of :class:`Race`.
    kernels
        Right ones; a verdict of ``stateful``, ``too-fast`` or ``input-modified`` goes into them.
    references
        Name and ``call(inputs)`` of the rivals.
    rounds
        Passes of each.

    Returns
    -------
    dict, dict
        Times by name, and the circumstances.
    """
    course = Race(trusted, workload, device)
    calls: dict[str, list[Callable[[], Any]]] = {}
    runs: list[tuple[Subject, Callable[[int], Any]]] = []
    spaces = []
    for subject in kernels:
        space = None
        if subject.workspace:
            memory = Memory(subject.workspace, trusted.dev)
            trusted.fill(memory.address, subject.workspace // 4 * 4, JUNK_WORD)
            spaces.append(memory)
            space = memory.view([subject.workspace], "uint8", 0)

        def run(number: int, subject: Subject = subject, space: Any = space) -> Any:
            return subject.call(course.inputs[number], course.results[number], space)

        runs.append((subject, run))
        calls[subject.name] = [_bound(run, number) for number in range(course.sets)]
    for name, reference in references:
        calls[name] = [_bound(_on(reference, course), number) for number in range(course.sets)]
    found = {subject.name: trusted.no_stats() for subject in kernels}

    def before(_: str) -> None:
        course.change()
        course.clear()

    def after(name: str) -> None:
        if name in found:
            number = course.random.randrange(course.sets)
            output = course.outputs[number].address
            seed = course.random.getrandbits(60)
            args = (course.problems[number], output, seed, _SAMPLES, found[name])
            trusted.sample(workload, *args)

    times = Timer(tvm.cuda(trusted.dev.index), calls).run(rounds, before, after) if calls else {}
    least = floor_us(workload, device, course.cold)
    for subject in kernels:
        stats = trusted.stats(found[subject.name])
        subject.evidence["timed_samples"] = stats.compared
        if stats.wrong or stats.not_finite or stats.finite:
            subject.refuse(Reason.STATEFUL, "elements were wrong while it was timed")
        elif times[subject.name].median_us < least:
            took = times[subject.name].median_us
            subject.refuse(Reason.TOO_FAST, f"{took:.2f} µs, and the device needs {least:.2f} µs")
    right = [(subject, run) for subject, run in runs if subject.right]
    if right:
        course.verify(right)
    facts = {
        "sets": course.sets,
        "cold": course.cold,
        "floor_us": round(least, 3),
        "timing": "interleaved CUDA graphs over rotating inputs that change",
    }
    return times, facts


def _bound(run: Callable[[int], Any], number: int) -> Callable[[], Any]:
    return lambda: run(number)


def _on(reference: Callable[[list[Any]], Any], course: Race) -> Callable[[int], Any]:
    return lambda number: reference(course.inputs[number])
