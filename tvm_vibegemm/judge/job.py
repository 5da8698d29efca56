"""One run of the judge: a workload's candidates and TVM's reference, checked and timed."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..database import Measurement
from ..device import Device
from ..errors import BuildError, PlanError, SourceError, VibeGEMMError, last_line
from ..kernel.build import report_dict
from ..kernel.kernel import Kernel
from ..kernel.launch import Branch, Hosted, host_function, workspace_bytes
from ..kernel.module import link
from ..kernel.validity import why_not
from ..rivals.reference import build_reference, operand_shapes, spellings
from ..workload import Workload
from .inputs import make_inputs, numpy_dtype, truth
from .numerics import Numerics, compare
from .timing import Time, gpu_facts, measure

JUDGE_VERSION = "plain-1"
CHECKED = ("integers", "normal")
# What must lie between two uses of the same input: more than twice the L2.
_COLD = 2.2
_MAX_SETS = 48
# TVM accumulates fp16 products in fp16, so its own error is noted, not judged by our classes: it
# is no valid result only where the largest error reaches the result's root-mean-square.
_REFERENCE_LIMIT = 1.0


@dataclass(frozen=True)
class Candidate:
    """A kernel with its tunables."""

    kernel: Kernel
    tunables: Mapping[str, int]


@dataclass
class _Subject:
    """Something that is checked and timed: ``call(inputs, output, workspace) -> output``."""

    name: str
    call: Callable[[list[Any], Any, Any], Any]
    workspace: int = 0
    numerics: dict[str, Numerics] | None = None
    verdict: str = "accepted"
    candidate: Candidate | None = None
    facts: dict[str, Any] | None = None


def reference_path(folder: Path, workload: Workload, spelling: str) -> Path:
    """Return where the prepared library of a reference stands."""
    name = hashlib.sha256(workload.key.encode()).hexdigest()[:20]
    return folder / f"reference-{spelling}-{name}.so"


def prepare(
    workload: Workload, device: Device, candidates: Sequence[Candidate], folder: Path
) -> None:
    """Build everything of a run, with no GPU: the references' libraries, the kernels' cubins.

    A failure is left for the run to report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for spelling in spellings(device):
        path = reference_path(folder, workload, spelling)
        if not path.exists():
            try:
                build_reference(workload, device, spelling, path)
            except BuildError as error:
                path.with_suffix(".error").write_text(str(error))
    for candidate in candidates:
        try:
            _host(workload, device, candidate, "prepared")
        except VibeGEMMError:
            continue


def _host(workload: Workload, device: Device, candidate: Candidate, name: str) -> Hosted:
    reason = why_not(candidate.kernel.plan, workload, device, candidate.tunables)
    if reason is not None:
        raise PlanError(reason)
    branch = Branch(candidate.kernel, candidate.tunables)
    *inputs, output = operand_shapes(workload)
    outputs: list[tuple[Sequence[int], str]] = [output]
    size = workspace_bytes(workload, device, [branch])
    if size:
        outputs.append(((size,), "uint8"))
    return host_function(name, workload, device, [branch], inputs, outputs)


def judge(
    workload: Workload,
    device: Device,
    candidates: Sequence[Candidate],
    folder: Path,
    *,
    rounds: int = 25,
    index: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Measurement]:
    """Check and time candidates beside TVM's reference, in one run on this machine's GPU.

    Parameters
    ----------
    workload, device, candidates
        What is judged, and on what; M is fixed.
    folder
        Of prepared references, see :func:`prepare`; what is missing there is built.
    rounds
        Interleaved passes that are timed.
    index
        Number of the GPU.
    progress
        Receives one line a step.

    Returns
    -------
    list of Measurement
        One for each spelling's reference and each candidate; their times compare.
    """
    dev = tvm.cuda(index)
    subjects, failures = _subjects(workload, device, candidates, folder, dev)
    *_, (out_shape, out_type) = operand_shapes(workload)
    wants = {}
    for seed, kind in enumerate(CHECKED):
        inputs = make_inputs(workload, kind, seed)
        wants[kind] = (inputs, truth(workload, inputs))
    for subject in subjects:
        _check(subject, workload, wants, out_shape, out_type, dev)
        progress(f"{subject.name}: {subject.verdict}")

    right = [subject for subject in subjects if subject.verdict == "accepted"]
    per_set = max(workload.min_bytes(), 1)
    sets = min(_MAX_SETS, max(2, math.ceil(_COLD * device.l2_bytes / per_set)))
    base = [tvm.runtime.tensor(x, dev) for x in wants["normal"][0]]
    rotating = [base] + [[_copy(x, dev) for x in base] for _ in range(sets - 1)]
    outputs = [tvm.runtime.empty(out_shape, out_type, dev) for _ in range(sets)]
    space = max([subject.workspace for subject in right] or [0])
    workspace = tvm.runtime.empty((max(space, 1),), "uint8", dev)

    def bind(subject: _Subject, number: int) -> Callable[[], Any]:
        room = workspace
        if subject.workspace and subject.workspace != space:
            room = tvm.runtime.empty((subject.workspace,), "uint8", dev)
        return lambda: subject.call(rotating[number], outputs[number], room)

    calls: dict[str, Sequence[Callable[[], Any]]] = {
        s.name: [bind(s, number) for number in range(sets)] for s in right
    }
    times = measure(dev, calls, rounds=rounds) if right else {}
    run = _run_id(workload, device, [subject.name for subject in subjects])
    common = {
        "judge": JUDGE_VERSION,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "sets": sets,
        "cold": bool(sets * per_set > 2 * device.l2_bytes),
        "timing": "interleaved CUDA graphs over rotating inputs",
        **gpu_facts(index),
    }

    def record(
        candidate: Candidate | None, verdict: str, time: Time | None, evidence: dict[str, Any]
    ) -> Measurement:
        return Measurement(
            workload=workload.key,
            arch=device.arch,
            device=device.name,
            subject="kernel" if candidate else "reference",
            kernel=candidate.kernel.hash if candidate else None,
            tunables=dict(candidate.tunables) if candidate else {},
            run=run,
            verdict=verdict[:500],
            median_us=round(time.median_us, 3) if time else None,
            low_us=round(time.low_us, 3) if time else None,
            high_us=round(time.high_us, 3) if time else None,
            evidence=evidence,
        )

    found = []
    for subject in subjects:
        evidence = dict(common, **(subject.facts or {}))
        if subject.numerics:
            evidence["numerics"] = {k: _plain(n.as_dict()) for k, n in subject.numerics.items()}
        time = times.get(subject.name)
        found.append(record(subject.candidate, subject.verdict, time, evidence))
    return found + [record(candidate, reason, None, common) for candidate, reason in failures]


def _run_id(workload: Workload, device: Device, names: list[str]) -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    text = "\n".join([workload.key, device.name, now, *names])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: (None if isinstance(value, float) and not math.isfinite(value) else value)
        for key, value in data.items()
    }


def _copy(x: Any, dev: Any) -> Any:
    other = tvm.runtime.empty(x.shape, x.dtype, dev)
    x.copyto(other)
    return other


def _subjects(
    workload: Workload, device: Device, candidates: Sequence[Candidate], folder: Path, dev: Any
) -> tuple[list[_Subject], list[tuple[Candidate | None, str]]]:
    subjects: list[_Subject] = []
    failures: list[tuple[Candidate | None, str]] = []
    for spelling in spellings(device):
        path = reference_path(folder, workload, spelling)
        try:
            if path.with_suffix(".error").exists():
                raise BuildError(path.with_suffix(".error").read_text())
            if not path.exists():
                build_reference(workload, device, spelling, path)
        except BuildError as error:
            failures.append((None, f"no valid reference: {error}"))
            continue
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), dev)
        main = machine["main"]
        subjects.append(
            _Subject(
                f"reference {spelling}",
                _reference_call(main),
                facts={"spelling": spelling},
            )
        )
    for number, candidate in enumerate(candidates):
        name = f"judged_{number}"
        try:
            hosted = _host(workload, device, candidate, name)
            module = link([hosted], device)
        except (BuildError, PlanError, SourceError) as error:
            failures.append((candidate, f"does not build: {error}"))
            continue
        size = workspace_bytes(workload, device, [Branch(candidate.kernel, candidate.tunables)])
        reports = [report_dict(code.binary) for code in hosted.codes[:1]]
        subjects.append(
            _Subject(
                f"{candidate.kernel.name} {dict(candidate.tunables)}",
                _launcher(module[name], bool(size)),
                workspace=int(size),
                candidate=candidate,
                facts={"ptxas": reports[0] if reports else {}},
            )
        )
    return subjects, failures


def _reference_call(main: Any) -> Callable[[list[Any], Any, Any], Any]:
    return lambda inputs, _output, _workspace: main(*inputs)


def _launcher(function: Any, with_workspace: bool) -> Callable[[list[Any], Any, Any], Any]:
    def call(inputs: list[Any], output: Any, space: Any) -> Any:
        if with_workspace:
            function(*inputs, output, space)
        else:
            function(*inputs, output)
        return output

    return call


def _check(
    subject: _Subject,
    workload: Workload,
    wants: dict[str, tuple[list[np.ndarray], np.ndarray]],
    out_shape: tuple[int, ...],
    out_type: str,
    dev: Any,
) -> None:
    subject.numerics = {}
    poison = np.full(out_shape, np.nan, np.float32).astype(numpy_dtype(out_type))
    dirt = np.full((max(subject.workspace, 1),), 0xA5, np.uint8)
    try:
        for kind, (arrays, want) in wants.items():
            inputs = [tvm.runtime.tensor(x, dev) for x in arrays]
            workspace = tvm.runtime.tensor(dirt, dev)
            got = []
            for _ in range(2):
                output = tvm.runtime.tensor(poison, dev)
                got.append(subject.call(inputs, output, workspace).numpy())
            dev.sync()
            numerics = compare(workload, kind, got[0], want)
            subject.numerics[kind] = numerics
            if subject.candidate is None:
                if not numerics.max_rel < _REFERENCE_LIMIT:
                    subject.verdict = f"no valid reference: {kind} inputs: {numerics.verdict}"
                continue
            if numerics.verdict != "accepted":
                subject.verdict = f"{kind} inputs: {numerics.verdict}"
            elif got[0].tobytes() != got[1].tobytes():
                subject.verdict = f"{kind} inputs: two runs differ"
            for array, tensor in zip(arrays, inputs, strict=True):
                if array.tobytes() != tensor.numpy().tobytes():
                    subject.verdict = f"{kind} inputs: an input was written to"
            if subject.verdict != "accepted":
                return
    except Exception as error:  # a crash of the candidate is its verdict
        subject.verdict = f"run failed: {last_line(error, 200)}"
