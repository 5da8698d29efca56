"""One run of the judge, from outside the worker: what to ask, and what the answers mean.

Kernels of different sources are checked in requests of their own, so that a crash or a hang is the
verdict of the one that caused it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..database import Measurement
from ..errors import InputError
from ..hashing import digest
from ..workload import Workload
from .protocol import WorkerFailure, WorkerStartError
from .verdict import Reason
from .worker import Worker

JUDGE_VERSION = "strict-1"
CHECK_S = 60.0
TIME_S = 180.0
ROUNDS = 25

Entry = Mapping[str, Any]  # source, plan and tunables of one candidate, and its kernel's hash
Progress = Callable[[str], None]


def job_id(line: Mapping[str, Any]) -> str:
    """Return the identity of a job: what its results must name."""
    from ..database.identity import canonical_json

    return digest(canonical_json(dict(line)))[:32]


class Session:
    """A worker with the folder of prepared references.

    Parameters
    ----------
    worker
        Owns the GPU.
    folder
        Where prepared references stand; what is missing is built there.
    check_s, time_s
        Seconds that one kernel's check, and the timing of one workload, may take.
    neighbours
        How many other shapes a kernel is tried at.
    progress
        Receives one line a step.
    """

    def __init__(
        self,
        worker: Worker,
        folder: Path,
        *,
        check_s: float = CHECK_S,
        time_s: float = TIME_S,
        neighbours: int = 5,
        progress: Progress = lambda _: None,
    ) -> None:
        self.worker, self.folder = worker, folder.absolute()
        self.check_s, self.time_s = check_s, time_s
        self.neighbours = neighbours
        self.progress = progress

    # -- requests --------------------------------------------------------------------------------

    def check(
        self,
        workload: Workload,
        entries: Sequence[Entry],
        *,
        seed: int = 0,
        recipes: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the verdict of each variant of one kernel: ``verdict``, ``detail``, ``evidence``.

        Parameters
        ----------
        workload
            With M fixed.
        entries
            Variants of one kernel, see :meth:`.candidate.Candidate.as_job`.
        seed
            Of the inputs.
        recipes
            Which inputs; by default all.
        """
        job = {"do": "check", "workload": workload.key, "seed": seed, "recipes": recipes}
        job["neighbours"] = self.neighbours
        try:
            found: list[dict[str, Any]] = self.worker.run(
                {**job, "candidates": [_bare(entry) for entry in entries]}, self.check_s
            )
            return found
        except WorkerStartError:
            raise
        except WorkerFailure as failure:
            if len(entries) == 1:
                return [_failed(failure)]
        # One of them brought the worker down; which one shows when each is alone.
        return [self.check(workload, [e], seed=seed, recipes=recipes)[0] for e in entries]

    def references(self, workload: Workload, seed: int = 0) -> list[dict[str, Any]]:
        """Return the verdict of each spelling of TVM's reference schedule."""
        job = {"do": "reference", "workload": workload.key, "seed": seed}
        try:
            found: list[dict[str, Any]] = self.worker.run(
                {**job, "folder": str(self.folder)}, self.time_s
            )
            return found
        except WorkerStartError:
            raise
        except WorkerFailure as failure:
            answer = _failed(failure)
            answer["detail"] = f"{answer['verdict']}: {answer['detail']}"
            answer["verdict"] = Reason.NO_VALID_REFERENCE.value
            return [answer]

    def time(
        self, workload: Workload, entries: Sequence[Entry], spellings: Sequence[str], rounds: int
    ) -> dict[str, Any]:
        """Time variants and references side by side."""
        job = {"do": "time", "workload": workload.key, "rounds": rounds}
        result: dict[str, Any] = self.worker.run(
            {
                **job,
                "folder": str(self.folder),
                "spellings": list(spellings),
                "candidates": [_bare(entry) for entry in entries],
            },
            self.time_s,
        )
        return result

    # -- a whole run -------------------------------------------------------------------------------

    def judge(
        self,
        workload: Workload,
        entries: Sequence[Entry],
        *,
        rounds: int = ROUNDS,
        seed: int = 0,
        job: str = "",
        against_reference: bool = True,
    ) -> list[Measurement]:
        """Check and time candidates beside TVM's reference.

        Parameters
        ----------
        workload
            With M fixed.
        entries
            Candidates of any number of kernels.
        rounds
            Interleaved passes of each; 0 to check only.
        seed
            Of the inputs of the check.
        job
            Identity of the job that this answers, see :func:`job_id`.
        against_reference
            False to leave TVM's schedule out: what is timed then has no rival.

        Returns
        -------
        list of Measurement
            One for each spelling's reference and one for each candidate, in their order; the
            times of one call compare.

        Raises
        ------
        InputError
            When the workload has no fixed M, or nothing to compute.
        WorkerStartError
            When the worker does not start.
        """
        if workload.m is None or workload.is_empty:
            raise InputError(f"judge {workload.key}: give M, N and batch a size")
        verdicts: list[dict[str, Any]] = [{} for _ in entries]
        for places in _by_kernel(entries):
            found = self.check(workload, [entries[i] for i in places], seed=seed)
            for place, answer in zip(places, found, strict=True):
                verdicts[place] = answer
                self.progress(f"{answer.get('name') or 'kernel'}: {_said(answer)}")
        references = self.references(workload, seed) if rounds and against_reference else []
        right = [i for i, answer in enumerate(verdicts) if answer["verdict"] == Reason.ACCEPTED]
        spellings = [
            r["evidence"]["spelling"] for r in references if r["verdict"] == Reason.ACCEPTED
        ]
        timed = self._timed(workload, entries, right, spellings, rounds, verdicts)
        return _measurements(workload, entries, verdicts, references, timed, job)

    def _timed(
        self,
        workload: Workload,
        entries: Sequence[Entry],
        right: list[int],
        spellings: list[str],
        rounds: int,
        verdicts: list[dict[str, Any]],
    ) -> dict[str, Any] | None:
        """Time the right ones; where that fails, find out which one it was, and go on without."""
        if not rounds or not (right or spellings):
            return None
        try:
            timed = self.time(workload, [entries[i] for i in right], spellings, rounds)
        except WorkerStartError:
            raise
        except WorkerFailure as failure:
            if not right:
                return None
            if len(right) == 1:
                (only,) = right
                verdicts[only]["verdict"] = failure.reason.value
                verdicts[only]["detail"] = f"while it was timed: {failure}"
                return self._timed(workload, entries, [], spellings, rounds, verdicts)
            kept = []
            for i in right:
                alone = self._timed(workload, entries, [i], [], 5, verdicts)
                if alone is not None and verdicts[i]["verdict"] == Reason.ACCEPTED:
                    kept.append(i)
            if len(kept) == len(right):  # each is right alone; together they are not to be trusted
                return None
            return self._timed(workload, entries, kept, spellings, rounds, verdicts)
        for i, answer in zip(right, timed["kernels"], strict=True):
            if answer["verdict"] != Reason.ACCEPTED:
                verdicts[i]["verdict"], verdicts[i]["detail"] = answer["verdict"], answer["detail"]
            verdicts[i]["evidence"] |= answer["evidence"]
            verdicts[i]["time"] = answer["time"]
        return timed


def _bare(entry: Entry) -> dict[str, Any]:
    return {name: entry[name] for name in ("source", "plan", "tunables")}


def _failed(failure: WorkerFailure) -> dict[str, Any]:
    detail = str(failure)
    return {"name": "", "verdict": failure.reason.value, "detail": detail, "evidence": {}}


def _said(answer: Mapping[str, Any]) -> str:
    verdict, detail = answer["verdict"], answer["detail"]
    return f"{verdict} ({detail})" if detail else str(verdict)


def _by_kernel(entries: Sequence[Entry]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        places.setdefault(entry["kernel"], []).append(number)
    return list(places.values())


def _measurements(
    workload: Workload,
    entries: Sequence[Entry],
    verdicts: Sequence[dict[str, Any]],
    references: Sequence[dict[str, Any]],
    timed: dict[str, Any] | None,
    job: str,
) -> list[Measurement]:
    now = datetime.datetime.now(datetime.UTC)
    timed = timed or {}
    arch, device = timed.get("arch"), timed.get("device")
    if arch is None or device is None:
        from ..toolchain import local_device

        arch, device = local_device() or ("sm_90", "unknown")
    run = digest(workload.key, now.isoformat(), *(entry["kernel"] for entry in entries))[:16]
    common = {"judge": JUDGE_VERSION, "date": now.date().isoformat(), **timed.get("facts", {})}
    if job:
        common["job"] = job

    def record(
        answer: Mapping[str, Any], entry: Entry | None, times: Sequence[float] | None
    ) -> Measurement:
        median, low, high = times or (None, None, None)
        detail = {"detail": answer["detail"]} if answer["detail"] else {}
        return Measurement(
            workload=workload.key,
            arch=arch,
            device=device,
            subject="reference" if entry is None else "kernel",
            kernel=None if entry is None else entry["kernel"],
            tunables={} if entry is None else dict(entry["tunables"]),
            run=run,
            verdict=answer["verdict"],
            median_us=median,
            low_us=low,
            high_us=high,
            evidence={**common, **answer["evidence"], **detail},
        )

    times = timed.get("references", {})
    found = [record(answer, None, times.get(answer["name"])) for answer in references]
    for entry, answer in zip(entries, verdicts, strict=True):
        kept = answer.get("time") if answer["verdict"] == Reason.ACCEPTED else None
        found.append(record(answer, entry, kept))
    return found
