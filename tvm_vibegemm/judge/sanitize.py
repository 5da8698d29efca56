"""Admission: NVIDIA's compute-sanitizer over a kernel, on small shapes with exact allocations."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..device import Device
from ..errors import InputError, PlanError, ToolchainError
from ..kernel.build import build
from ..kernel.kernel import Kernel
from ..kernel.plan import Plan
from ..kernel.validity import why_not
from ..workload import EpilogueOp, Workload
from .concrete import concrete_launches
from .sanitizer_report import (
    RUN_FAILED,
    TOOLS,
    Finding,
    Report,
    Where,
    allowed,
    parse_report,
)

__all__ = [
    "TOOLS",
    "Finding",
    "Report",
    "ToolRun",
    "Where",
    "allowed",
    "command_line",
    "concrete_launches",
    "find_sanitizer",
    "parse_report",
    "sanitize",
    "sanitize_tools",
    "sanitizer_version",
    "small_workloads",
]

CHILD = Path(__file__).with_name("sanitize_child.py")
ERROR_EXIT = 86
_VARIABLE = "VIBEGEMM_SANITIZER"
_PROGRAM = "compute-sanitizer"
_COMMON = (
    *("--error-exitcode", str(ERROR_EXIT)),
    *("--print-limit", "200"),
    *("--show-backtrace", "device"),
    # A faulty launch is stopped alone: those after it are still checked.
    *("--destroy-on-device-error", "kernel"),
)
# The allocations are exact, but the driver lays them side by side: without padding, an access
# just past one may hit the next. The child checks the answer of every call itself.
_MEMCHECK = ("--padding", "4096", "--report-api-errors", "no")
# mbarriers in dynamic shared memory are unknown to the compiler, by whose count the tool goes.
_BARRIERS = ("--num-cuda-barriers", "256")
_OPTIONS = {"memcheck": _MEMCHECK, "racecheck": _BARRIERS, "synccheck": _BARRIERS}
# Only what the loader and the driver need: a kernel's run has no business with keys and tokens.
_KEEP = re.compile(
    r"PATH|HOME|LANG|TMPDIR|VIRTUAL_ENV|PYTHONPATH|LD_LIBRARY_PATH|CUDA_\w+|NVIDIA_\w+"
    r"|NV_COMPUTE_SANITIZER_\w+"
)
_FEW_SMS = (2, 8)
_RAGGED = ((33, 72, 328), (130, 264, 136), (16, 200, 2120), (1, 1, 1), (5, 7, 37))


@dataclass(frozen=True)
class ToolRun:
    """What one tool found.

    Parameters
    ----------
    tool
        One of :data:`TOOLS`.
    findings
        All of them, allowed ones too.
    seconds
        Wall time of the tool's runs.
    launches
        Kernels that were launched under it.
    """

    tool: str
    findings: tuple[Finding, ...]
    seconds: float
    launches: int


def find_sanitizer() -> Path | None:
    """Return the executable of compute-sanitizer, or None.

    Looked for in this order: ``VIBEGEMM_SANITIZER``, ``PATH``, ``CUDA_HOME/bin``,
    ``/usr/local/cuda/bin``, and the wheel ``nvidia-cuda-sanitizer-api``.

    Raises
    ------
    ToolchainError
        When ``VIBEGEMM_SANITIZER`` is set to something that cannot be run.
    """
    if given := os.environ.get(_VARIABLE):
        found = shutil.which(given)
        if found is None:
            raise ToolchainError(f"{_VARIABLE}={given}: no program that can be run")
        return Path(found)
    places = [_PROGRAM]
    if home := os.environ.get("CUDA_HOME"):
        places.append(str(Path(home) / "bin" / _PROGRAM))
    places.append(f"/usr/local/cuda/bin/{_PROGRAM}")
    # The wheel's bin/ holds only a shell script that calls this one.
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or []) if spec else []
    places += [str(Path(root) / "cu13" / _PROGRAM / _PROGRAM) for root in roots]
    return next((Path(found) for place in places if (found := shutil.which(place))), None)


def command_line(
    sanitizer: Path, tool: str, log: Path, job: Path, python: str = sys.executable
) -> list[str]:
    """Return the command that runs one tool over one description file.

    Parameters
    ----------
    sanitizer
        The executable.
    tool
        One of :data:`TOOLS`.
    log
        Where the tool writes.
    job
        The description that the child reads.
    python
        Interpreter of the child.

    Raises
    ------
    InputError
        For an unknown tool.
    """
    if tool not in TOOLS:
        raise InputError(f"sanitizer tool {tool!r} is unknown; known: {', '.join(TOOLS)}")
    options = ["--tool", tool, *_COMMON, *_OPTIONS.get(tool, ()), "--log-file", str(log)]
    # -P: the child's folder holds modules whose names could hide others.
    return [str(sanitizer), *options, python, "-P", str(CHILD), str(job)]


def small_workloads(
    plan: Plan, device: Device, tunables: Mapping[str, int] | None = None
) -> list[Workload]:
    """Return small workloads that a plan serves, every type and layout among them.

    The shapes are ragged, deep enough in K to wrap a ring of stages, and tiny where the plan
    allows it; one has a batch, and one an epilogue with operands, where the plan takes them.

    Parameters
    ----------
    plan, device, tunables
        Whose, and for what; tunables left out take their defaults.
    """

    def serves(**fields: Any) -> list[Workload]:
        tried = [Workload(m, n, k, **fields) for m, n, k in _RAGGED]
        return [workload for workload in tried if why_not(plan, workload, device, tunables) is None]

    found: dict[str, Workload] = {}
    for number, types in enumerate(plan.types):
        for position, layout in enumerate(plan.layouts):
            fields: dict[str, Any] = {
                "a": types.a,
                "b": types.b,
                "acc": types.acc,
                "out": types.out[(number + position) % len(types.out)],
                "trans_a": layout[0] == "t",
                "trans_b": layout[1] == "t",
            }
            epilogue = (
                EpilogueOp("bias", types.out[0]),
                EpilogueOp("gelu_erf"),
                EpilogueOp("residual", types.out[0]),
            )
            plain = serves(**fields)
            # All shapes once; afterwards one or two of each combination.
            chosen = plain if number == position == 0 else plain[:1]
            chosen += serves(**fields, epilogue=epilogue)[1 - bool(number) :][:1]
            if number == 0:
                chosen += serves(**fields, batch=3)[:1]
            found |= {workload.key: workload for workload in chosen}
    return list(found.values())


def sanitize(
    kernel: Kernel,
    workloads: Sequence[Workload],
    tunables: Mapping[str, int] | None,
    device: Device,
    *,
    tools: Sequence[str] = TOOLS,
    timeout_s: float = 300.0,
    index: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """Run a kernel under compute-sanitizer and return what it found.

    Parameters
    ----------
    kernel, workloads, tunables, device
        What is launched; small workloads, M fixed (see :func:`small_workloads`).
    tools
        Which of :data:`TOOLS`.
    timeout_s
        Seconds that one tool may take over all workloads.
    index
        Number of the GPU.
    progress
        Receives one line a tool.

    Returns
    -------
    list of Finding
        Those that :func:`allowed` excuses too. An empty list means that every launch ran under
        every tool and that each said it found nothing.

    Raises
    ------
    ToolchainError
        When compute-sanitizer is not there, or does not run on this machine.
    InputError, PlanError, SourceError, BuildError
        When there is nothing to run, or the kernel does not build.
    """
    findings: list[Finding] = []
    for run in sanitize_tools(
        kernel, workloads, tunables, device, tools=tools, timeout_s=timeout_s, index=index
    ):
        progress(
            f"{kernel.name} {run.tool}: {len(run.findings)} findings, {run.launches} launches,"
            f" {run.seconds:.1f} s"
        )
        findings += run.findings
    return findings


def sanitize_tools(
    kernel: Kernel,
    workloads: Sequence[Workload],
    tunables: Mapping[str, int] | None,
    device: Device,
    *,
    tools: Sequence[str] = TOOLS,
    timeout_s: float = 300.0,
    index: int = 0,
) -> Iterator[ToolRun]:
    """Yield the run of each tool as it ends; see :func:`sanitize` for parameters and errors."""
    if not workloads:
        raise InputError(f"sanitize {kernel.name}: no workload to run")
    sanitizer = find_sanitizer()
    if sanitizer is None:
        raise ToolchainError(
            f"compute-sanitizer: not found (looked at {_VARIABLE}, the wheel"
            " nvidia-cuda-sanitizer-api, PATH, CUDA_HOME and /usr/local/cuda); "
            "pip install nvidia-cuda-sanitizer-api brings it"
        )
    with tempfile.TemporaryDirectory(prefix="vibegemm-sanitize-") as folder:
        session = _Session(sanitizer, Path(folder), timeout_s, index)
        jobs = _jobs(kernel, workloads, tunables, device, session.folder)
        for tool in tools:
            started = time.monotonic()
            checked = session.check(tool, jobs)
            findings = checked.findings
            if findings and len(jobs) > 1 and not checked.timed_out:
                findings = session.by_workload(tool, jobs, findings)
            seconds = time.monotonic() - started
            yield ToolRun(tool, tuple(findings), seconds, checked.launches)


def _jobs(
    kernel: Kernel,
    workloads: Sequence[Workload],
    tunables: Mapping[str, int] | None,
    device: Device,
    folder: Path,
) -> list[dict[str, Any]]:
    """Evaluate and build the launches of every workload."""
    cases = []
    for workload in workloads:
        job = concrete_launches(kernel, workload, device, tunables)
        if not job["launches"]:
            raise PlanError(f"plan {kernel.name}: launches nothing at {workload.key}")
        cases.append((job, workload, device))
        cases += _crowded(kernel, workload, tunables, device, job)

    def built(number: int) -> dict[str, Any]:
        job, workload, model = cases[number]
        cubin = folder / f"{number}.cubin"
        cubin.write_bytes(build(kernel, workload, model, tunables).cubin)
        return {**job, "cubin": str(cubin), "repeats": 1}

    # NVRTC runs in processes of its own; threads wait for them.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(built, range(len(cases))))


def _crowded(
    kernel: Kernel,
    workload: Workload,
    tunables: Mapping[str, int] | None,
    device: Device,
    usual: Mapping[str, Any],
) -> list[tuple[dict[str, Any], Workload, Device]]:
    """Return the launches of a persistent kernel as if the device were small, or none.

    A small shape gives each block of a persistent kernel one tile, and its loop over tiles, with
    the races between one tile's end and the next one's start, would never run.
    """
    for count in _FEW_SMS:
        model = replace(device, num_sms=count)
        try:
            job = concrete_launches(kernel, workload, model, tunables)
        except PlanError:
            continue  # its clusters do not fit so few
        grids = [[launch["grid"] for launch in x["launches"]] for x in (job, usual)]
        return [(job, workload, model)] if job["launches"] and grids[0] != grids[1] else []
    return []


@dataclass(frozen=True)
class _Checked:
    findings: list[Finding]
    launches: int
    timed_out: bool


@dataclass(frozen=True)
class _Session:
    """Runs of the tools on one device, through files in one folder."""

    sanitizer: Path
    folder: Path
    timeout_s: float
    index: int

    def by_workload(
        self, tool: str, jobs: Sequence[dict[str, Any]], together: list[Finding]
    ) -> list[Finding]:
        """Run the workloads one by one, to say which of them a finding belongs to."""
        found = [finding for job in jobs for finding in self.check(tool, [job]).findings]
        # What shows only after other launches is still a finding.
        seen = {(finding.kind, finding.where.kernel, finding.where.offset) for finding in found}
        return found + [
            finding
            for finding in together
            if (finding.kind, finding.where.kernel, finding.where.offset) not in seen
            and not (found and finding.kind == RUN_FAILED)
        ]

    def check(self, tool: str, jobs: Sequence[dict[str, Any]]) -> _Checked:
        """Run one tool over some jobs.

        Raises
        ------
        ToolchainError
            When the tool cannot work here: that is neither a clean kernel nor a bad one.
        """
        log, description = self.folder / "log", self.folder / "job.json"
        log.unlink(missing_ok=True)
        description.write_text(json.dumps({"device": self.index, "jobs": list(jobs)}))
        status, out, err = self._run(command_line(self.sanitizer, tool, log, description))
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        names = {new: old for job in jobs for new, old in job["entries"].items()}
        report, answer = parse_report(text, tool, names), _answer(out)
        launches = int(answer.get("launches", 0))
        expected = sum(job["repeats"] * len(job["launches"]) for job in jobs)
        workload = jobs[0]["workload"] if len(jobs) == 1 else ""
        findings = [replace(finding, workload=workload) for finding in report.findings]
        problem = ""
        if status is None:
            problem = f"took longer than {self.timeout_s:g} s"
        elif not findings and not launches and self._cannot_work(report, answer):
            why = report.refused or answer.get("error") or _last(err) or f"exit status {status}"
            raise ToolchainError(
                f"compute-sanitizer {tool} ({self.sanitizer}): does not run here:"
                f" {why.removeprefix('Error: ')}"
            )
        elif launches != expected or answer.get("error") or status not in (0, ERROR_EXIT):
            why = answer.get("error") or _last(err) or f"exit status {status}"
            problem = f"{launches} of {expected} launches done: {why}"
        elif report.refused or not report.complete:
            problem = f"every launch ran, but {report.refused or 'the tool printed no summary'}"
        elif status == ERROR_EXIT and not findings:
            problem = "the tool tells of errors that it does not name"
        if problem:
            findings.append(Finding(tool, RUN_FAILED, problem[:500], workload=workload))
        return _Checked(findings, launches, status is None)

    @staticmethod
    def _cannot_work(report: Report, answer: Mapping[str, Any]) -> bool:
        silent = not report.complete and not answer
        return report.refused is not None or silent or answer.get("stage") == "setup"

    def _run(self, command: list[str]) -> tuple[int | None, str, str]:
        """Return exit status (None past the time limit), standard output and error."""
        env = {key: value for key, value in os.environ.items() if _KEEP.fullmatch(key)}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolchainError(f"compute-sanitizer {command[0]}: {error.strerror}") from error
        status: int | None = None
        try:
            out, err = child.communicate(timeout=self.timeout_s)
            status = child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        return status, out, err


def _answer(out: str) -> dict[str, Any]:
    """Return the child's last JSON object, or an empty one."""
    for line in reversed(out.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return {}


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


@cache
def sanitizer_version(sanitizer: Path) -> str:
    """Return the tool's version, e.g. ``2026.4.0.0``, or ``unknown``."""
    try:
        done = subprocess.run(
            [str(sanitizer), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    match = re.search(r"Version (\S+)", done.stdout)
    return match.group(1) if match else "unknown"
