"""The judge's work inside a worker: one request checks a kernel, another times what was right."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm

from ..device import Device, device_for
from ..errors import BuildError, DeviceError, InputError, VibeGEMMError, last_line
from ..rivals.reference import spellings
from ..toolchain import local_device
from ..workload import Workload
from .candidate import Candidate, kernel_subject, reference_call
from .correctness import Subject, check
from .inputs import DENSE, EXACT, NORMAL, RECIPES
from .neighbours import COUNT, neighbours
from .protocol import FatalDeviceError
from .race import race
from .timing import Time, gpu_facts
from .trusted import Trusted
from .verdict import Reason, reason_of

# A kernel that is right is right here in milliseconds; this many variants share a few neighbours.
_FEW = 4
# Relative root-mean-square error past which a reference's result is no result.
_REFERENCE_RMS = 0.1
_STATE: dict[int, tuple[Device, Trusted]] = {}

Progress = Callable[[str], None]


def run_job(job: dict[str, Any], index: int, progress: Progress) -> Any:
    """Answer one request of :mod:`.session`.

    Parameters
    ----------
    job
        ``do`` names it: ``check``, ``reference`` or ``time``; the rest are its arguments.
    index
        Number of the GPU.
    progress
        Receives what is being done, as JSON.

    Returns
    -------
    Any
        JSON: for ``check`` one verdict a variant, for ``reference`` one a spelling, for ``time``
        the times, the verdicts and the circumstances.
    """
    device, trusted = _state(index)
    workload = Workload.parse(job["workload"])
    seed = int(job.get("seed", 0))
    if job["do"] == "check":
        candidates = [Candidate.from_job(entry) for entry in job["candidates"]]
        recipes = job.get("recipes") or RECIPES
        near = job.get("neighbours", COUNT)
        return _check(trusted, device, workload, candidates, seed, recipes, near, progress)
    folder = Path(job["folder"])
    if job["do"] == "reference":
        return _references(trusted, device, workload, folder, seed)
    candidates = [Candidate.from_job(entry) for entry in job["candidates"]]
    return _time(trusted, device, workload, candidates, job, folder)


def _state(index: int) -> tuple[Device, Trusted]:
    if index not in _STATE:
        found = local_device(index)
        if found is None:
            raise DeviceError(f"judge: there is no GPU {index} here")
        device = device_for(*found)
        _STATE[index] = (device, Trusted(device, tvm.cuda(index)))
    return _STATE[index]


def _check(
    trusted: Trusted,
    device: Device,
    workload: Workload,
    candidates: Sequence[Candidate],
    seed: int,
    recipes: Sequence[str],
    near: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    started = time.perf_counter()
    verdicts: list[Subject] = []
    ready: list[tuple[Candidate, Subject]] = []
    for number, candidate in enumerate(candidates):
        progress(json.dumps({"build": number}))
        try:
            subject = kernel_subject(workload, device, candidate)
            ready.append((candidate, subject))
        except VibeGEMMError as error:
            subject = Subject(candidate.kernel.name, _never)
            subject.refuse(reason_of(error, Reason.BUILD_FAILED), str(error))
            log = getattr(error, "log", "")
            if log:
                subject.evidence["log"] = log[:4000]
        verdicts.append(subject)
    progress(json.dumps({"check": workload.key}))
    check(trusted, workload, [subject for _, subject in ready], seed, recipes)
    for candidate, subject in ready:
        if subject.right:
            count = near if len(ready) <= _FEW else min(near, 2)
            _check_neighbours(trusted, device, workload, candidate, subject, seed, count, progress)
    seconds = round(time.perf_counter() - started, 3)
    return [{**_told(subject), "seconds": seconds} for subject in verdicts]


def _never(*_: Any) -> Any:
    raise AssertionError("it was refused before it could run")


def _check_neighbours(
    trusted: Trusted,
    device: Device,
    workload: Workload,
    candidate: Candidate,
    subject: Subject,
    seed: int,
    count: int,
    progress: Progress,
) -> None:
    tried = []
    plan = candidate.kernel.plan
    for other in neighbours(plan, workload, device, candidate.tunables, count):
        progress(json.dumps({"neighbour": other.key}))
        tried.append(other.key)
        try:
            near = kernel_subject(other, device, candidate)
        except (VibeGEMMError, ValueError) as error:
            subject.refuse(Reason.NEIGHBOUR_WRONG, f"{other.key}: {last_line(error)}")
            return
        check(trusted, other, [near], seed + 7, (EXACT[0], DENSE))
        if not near.right:
            subject.refuse(Reason.NEIGHBOUR_WRONG, f"{other.key}: {near.detail}")
            subject.evidence["neighbour"] = {"workload": other.key, **near.evidence}
            return
    subject.evidence["neighbours"] = tried


def _told(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "verdict": subject.reason.value,
        "detail": subject.detail,
        "evidence": subject.evidence,
    }


def _references(
    trusted: Trusted, device: Device, workload: Workload, folder: Path, seed: int
) -> list[dict[str, Any]]:
    found = []
    for spelling in spellings(device):
        subject = Subject(f"reference {spelling}", _never, evidence={"spelling": spelling})
        try:
            call = reference_call(workload, device, spelling, folder, trusted.dev)
            subject.call = _into(call)
            _judge_reference(trusted, workload, subject, seed)
        except BuildError as error:
            subject.refuse(Reason.NO_VALID_REFERENCE, str(error))
        found.append(_told(subject))
    return found


def _into(call: Callable[[list[Any]], Any]) -> Callable[[list[Any], Any, Any], Any]:
    def run(inputs: list[Any], output: Any, _: Any) -> Any:
        call(inputs).copyto(output)
        return output

    return run


def _judge_reference(trusted: Trusted, workload: Workload, subject: Subject, seed: int) -> None:
    """Note its errors. TVM adds fp16 products up in fp16: that is its class, and no fault.

    No valid result is one whose error reaches the result's root-mean-square, or that is not
    finite.
    """
    for recipe in (NORMAL, "uniform", DENSE):
        probe = Subject(subject.name, subject.call)
        check(trusted, workload, [probe], seed, (recipe,))
        numbers = probe.evidence.get("numerics", {}).get(recipe)
        if numbers is None:
            subject.refuse(Reason.NO_VALID_REFERENCE, f"{probe.reason.value}: {probe.detail}")
            return
        subject.evidence.setdefault("numerics", {})[recipe] = numbers
        rms = numbers["rms"]
        broken = probe.reason in (Reason.NOT_FINITE, Reason.NOT_WRITTEN, Reason.NOT_REPEATABLE)
        if broken or rms is None or rms > _REFERENCE_RMS:
            subject.refuse(Reason.NO_VALID_REFERENCE, f"{recipe} inputs: {probe.detail}")
            return


def _time(
    trusted: Trusted,
    device: Device,
    workload: Workload,
    candidates: Sequence[Candidate],
    job: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    subjects = []
    for number, candidate in enumerate(candidates):
        subject = kernel_subject(workload, device, candidate)
        subject.name = f"candidate {number}"
        subject.evidence = {}
        subjects.append(subject)
    references = [
        (f"reference {spelling}", reference_call(workload, device, spelling, folder, trusted.dev))
        for spelling in job["spellings"]
    ]
    try:
        times, facts = race(trusted, workload, device, subjects, references, int(job["rounds"]))
    except FatalDeviceError:
        raise
    except Exception as error:
        raise InputError(f"timing {workload.key}: {last_line(error)}") from error
    return {
        "kernels": [{**_told(s), "time": _timed(times.get(s.name))} for s in subjects],
        "references": {name: _timed(times[name]) for name, _ in references},
        "facts": {**facts, **gpu_facts(trusted.dev.index)},
        "arch": device.arch,
        "device": device.name,
    }


def _timed(time: Time | None) -> list[float] | None:
    if time is None:
        return None
    return [round(time.median_us, 3), round(time.low_us, 3), round(time.high_us, 3)]
