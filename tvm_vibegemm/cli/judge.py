"""``vibegemm judge``: run judge jobs on this machine's GPU, or prepare them where there is none."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DeviceError, InputError

if TYPE_CHECKING:
    from ..judge.candidate import Candidate
    from ..workload import Workload


@dataclass(frozen=True)
class Job:
    """One line of a file of jobs: candidates at a workload."""

    id: str
    workload: Workload
    candidates: list[Candidate]


def read_jobs(path: Path) -> list[Job]:
    """Read a file of jobs, one JSON object a line.

    Each has ``workload`` (a key) and ``kernels``, a list of ``{"kernel": PATH, "tunables": {…}}``;
    paths are relative to the file's folder, and ``"tunables": "all"`` stands for every variant.

    Raises
    ------
    InputError
        Naming file and line.
    """
    from ..errors import VibeGEMMError
    from ..judge.candidate import Candidate
    from ..judge.session import job_id
    from ..kernel.kernel import Kernel
    from ..workload import Workload

    jobs = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"jobs {path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = json.loads(line)
            candidates = []
            for entry in job["kernels"]:
                kernel = Kernel.load(path.parent / entry["kernel"])
                tunables = entry.get("tunables", {})
                variants = kernel.plan.variants() if tunables == "all" else [tunables]
                candidates += [Candidate(kernel, kernel.plan.check_tunables(v)) for v in variants]
            workload = Workload.parse(job["workload"])
            jobs.append(Job(_identity(job_id, workload, candidates), workload, candidates))
        except (ValueError, KeyError, TypeError, VibeGEMMError) as error:
            raise InputError(f"jobs {path}, line {number}: {error!s:.300}") from error
    return jobs


def _identity(job_id: Any, workload: Workload, candidates: list[Candidate]) -> str:
    """Return the identity of what is asked for, wherever its files lie."""
    asked = [[c.kernel.hash, dict(c.tunables)] for c in candidates]
    identity: str = job_id({"workload": workload.key, "candidates": asked})
    return identity


def _prepare(workload: Workload, candidates: list[Candidate], arch: str, folder: Path) -> None:
    from ..device import device_for
    from ..judge.candidate import prepare

    prepare(workload, device_for(arch), candidates, folder)


@click.command("judge")
@click.argument("jobs", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the results go.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("judge-work"),
    show_default=True,
    help="Folder of prepared references.",
)
@click.option("--prepare", "only_prepare", is_flag=True, help="Build everything, run nothing.")
@click.option("--arch", default="sm_90", show_default=True, help="With --prepare: build for.")
@click.option("--workers", type=click.IntRange(1), default=2, help="Processes that build.")
@click.option("--rounds", type=click.IntRange(0), default=25, help="Timed passes; 0: check only.")
@click.option("--index", type=click.IntRange(0), default=0, help="Number of the GPU.")
@click.option(
    "--neighbours", type=click.IntRange(0), default=5, help="Other shapes that each is tried at."
)
@click.option("--timeout", type=float, default=120.0, help="Seconds for one kernel's check.")
@click.option("--seconds", type=float, default=None, help="Start no job after so many seconds.")
def command(
    jobs: Path,
    output: Path | None,
    work: Path,
    only_prepare: bool,
    arch: str,
    workers: int,
    rounds: int,
    index: int,
    neighbours: int,
    timeout: float,
    seconds: float | None,
) -> None:
    """Check and time the kernels of JOBS (JSON lines) beside TVM's reference schedule."""
    import time

    from ..toolchain import local_device

    listed = read_jobs(jobs)
    if only_prepare:
        with ProcessPoolExecutor(workers) as pool:
            waiting: list[Any] = [
                pool.submit(_prepare, job.workload, job.candidates, arch, work) for job in listed
            ]
            for position, future in enumerate(waiting, 1):
                future.result()
                click.echo(f"prepared {position} of {len(waiting)}", err=True)
        return
    if output is None:
        raise InputError("judge: say where the results go, with -o RESULTS.jsonl")
    if local_device(index) is None:
        raise DeviceError("judge: there is no GPU here; --prepare builds the jobs without one")
    from ..judge.session import Session
    from ..judge.worker import Worker

    started = time.monotonic()
    with output.open("a", encoding="utf-8") as file, Worker(index) as worker:
        session = Session(worker, work, neighbours=neighbours, time_s=timeout, check_s=timeout)
        for position, job in enumerate(listed, 1):
            if seconds is not None and time.monotonic() - started > seconds:
                left = len(listed) - position + 1
                click.echo(f"stopped after {seconds:g} s; {left} jobs are left", err=True)
                break
            entries = [{**c.as_job(), "kernel": c.kernel.hash} for c in job.candidates]
            begun = time.monotonic()
            results = session.judge(job.workload, entries, rounds=rounds, job=job.id)
            for result in results:
                file.write(result.to_json() + "\n")
            file.flush()
            _show(position, len(listed), job.workload, results, time.monotonic() - begun)


def _show(
    position: int, count: int, workload: Workload, results: list[Any], seconds: float
) -> None:
    click.echo(f"[{position}/{count}] {workload.key}, {seconds:.1f} s", err=True)
    for result in results:
        name = result.subject if result.kernel is None else result.kernel[:8]
        what = result.evidence.get("spelling") or result.tunables or ""
        time = f"{result.median_us:.2f} µs" if result.median_us is not None else "-"
        why = f" ({result.evidence['detail']})" if "detail" in result.evidence else ""
        click.echo(f"    {name} {what}: {result.verdict}{why}, {time}", err=True)
