"""Builds a kernel for a workload and a device: one cubin, its entries renamed by hash."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..config import settings
from ..device import Device
from ..errors import BuildError, BuildTimeout, ResourceError
from ..hashing import digest
from ..resources import codegen_dir
from ..toolchain import fingerprint, include_dirs
from ..workload import Workload
from . import expr
from .cache import cached
from .cubin import CHECKS, check_cubin, check_ptx
from .kernel import Kernel
from .plan import Launch, Plan
from .preamble import preamble
from .source import check_source, rename

SOURCE_NAME = "kernel.cu"
# Of any block; what is above it has to be dynamic.
MAX_STATIC_SHARED = 48 * 1024
_WARP = 32
_REGISTER_UNIT = 8  # a thread's registers are handed out in eights
_ZERO_ENTRY = "vg_zero"
_ZERO_SOURCE = """\
extern "C" __global__ void vg_zero(uint4* p, long long words) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        p[i] = make_uint4(0, 0, 0, 0);
}
"""


@dataclass(frozen=True)
class EntryReport:
    """What ptxas says of one entry: 32-bit registers a thread; bytes of the rest."""

    registers: int = 0
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class Binary:
    """A built kernel.

    Parameters
    ----------
    key
        Hash of everything that went into it.
    cubin
        Machine code, an ELF file.
    source
        The whole text that NVRTC was given.
    entries
        Name in the kernel's source → unique name in the cubin.
    report
        ptxas's report by name in the source.
    log
        Compiler log: warnings and the report.
    """

    key: str
    cubin: bytes
    source: str
    entries: dict[str, str]
    report: dict[str, EntryReport] = field(default_factory=dict)
    log: str = ""


def full_source(
    kernel: Kernel, workload: Workload, device: Device, tunables: Mapping[str, int]
) -> tuple[str, dict[str, str]]:
    """Return the text for NVRTC, entries renamed, and the map of their names.

    The new names are a hash of source, constants, launches and architecture: TVM merges modules,
    and two cubins with one entry name would silently run the wrong kernel.
    """
    plan = kernel.plan
    env = plan.env(workload, device, tunables, m=1)
    constants = {name: env[name] for name in (*plan.tunables, *plan.constants)}
    before = preamble(workload, constants, device.arch)
    # TVM raises an entry's shared-memory limit once, so two launch sizes are two names.
    fixed = [
        expr.evaluate(launch.shared_bytes, env)
        for launch in plan.launches
        if not _depends_on_m(launch.shared_bytes)
    ]
    launches = json.dumps([launch.model_dump(mode="json") for launch in plan.launches])
    name = digest(before, kernel.source, launches, device.nvrtc_arch, str(fixed))[:20]
    entries = {launch.entry: f"vg_{name}_{index}" for index, launch in _distinct(plan.launches)}
    renamed = rename(kernel.source, entries)
    return f'{before}#line 1 "{SOURCE_NAME}"\n{renamed}', entries


def _distinct(launches: list[Launch]) -> list[tuple[int, Launch]]:
    seen: dict[str, tuple[int, Launch]] = {}
    for launch in launches:
        seen.setdefault(launch.entry, (len(seen), launch))
    return list(seen.values())


def _depends_on_m(text: str | int) -> bool:
    return isinstance(text, str) and "M" in expr.names(text)


def build(
    kernel: Kernel,
    workload: Workload,
    device: Device,
    tunables: Mapping[str, int] | None = None,
    *,
    cache: bool = True,
) -> Binary:
    """Compile a kernel.

    Parameters
    ----------
    kernel
        Source and plan.
    workload
        Types, layouts, batch maps and epilogue to build for. M, N and K are not compiled in,
        unless a constant of the plan uses N or K.
    device
        What to build for.
    tunables
        Compile-time choices; those left out take their defaults.
    cache
        False to compile in any case.

    Returns
    -------
    Binary
        The cubin with its report.

    Raises
    ------
    SourceError
        When source or cubin break the contract (state between calls, host code, …).
    BuildError
        When NVRTC refuses it, or takes longer than ``VIBEGEMM_BUILD_TIMEOUT_S``.
    ResourceError
        When a block of it can never start: see :func:`check_resources`.
    """
    check_source(kernel.source, kernel.plan)
    source, entries = full_source(kernel, workload, device, tunables or {})
    binary = _compile(kernel.name, source, entries, device, cache)
    check_resources(kernel.plan, workload, device, tunables or {}, binary.report)
    return binary


def check_resources(
    plan: Plan,
    workload: Workload,
    device: Device,
    tunables: Mapping[str, int],
    report: Mapping[str, EntryReport],
) -> None:
    """Refuse blocks that need more registers or shared memory than a multiprocessor has.

    Parameters
    ----------
    plan, workload, device, tunables
        Give the launches' sizes. What depends on a dynamic M is not looked at.
    report
        ptxas's, by entry.

    Raises
    ------
    ResourceError
        One line: the entry, what it asks for, and what there is.
    """
    if workload.is_empty:
        return
    env = plan.env(workload, device, tunables, m=1)

    def known(*texts: str | int) -> bool:
        return workload.m is not None or not any(map(_depends_on_m, texts))

    for launch in plan.launches:
        entry = report.get(launch.entry)
        if entry is None or (known(launch.when) and not expr.evaluate(launch.when, env)):
            continue
        place, static = f"kernel {plan.name}, entry {launch.entry}", entry.shared_bytes
        if static > MAX_STATIC_SHARED:
            raise ResourceError(
                f"{place}: {static} bytes of static shared memory; at most {MAX_STATIC_SHARED}:"
                " use extern __shared__ and shared_bytes"
            )
        dynamic = expr.evaluate(launch.shared_bytes, env) if known(launch.shared_bytes) else 0
        if static + dynamic > device.smem_per_block:
            raise ResourceError(
                f"{place}: {static} bytes of static and {dynamic} of dynamic shared memory;"
                f" {device.arch} has {device.smem_per_block} for a block"
            )
        if not known(*launch.block):
            continue
        threads = math.prod(expr.evaluate(size, env) for size in launch.block)
        each = -(-entry.registers // _REGISTER_UNIT) * _REGISTER_UNIT
        needed = -(-threads // _WARP) * _WARP * each
        if needed > device.regs_per_sm:
            raise ResourceError(
                f"{place}: {threads} threads of {entry.registers} registers need {needed};"
                f" {device.arch} has {device.regs_per_sm}: use __launch_bounds__({threads})"
            )


@functools.cache
def build_zero(device: Device) -> Binary:
    """Build the launcher's own kernel that zeroes a workspace: ``(uint4*, int64 words)``."""
    name = f"vg_zero_{digest(_ZERO_SOURCE, device.nvrtc_arch)[:12]}"
    source = _ZERO_SOURCE.replace(_ZERO_ENTRY, name)
    return _compile(_ZERO_ENTRY, source, {_ZERO_ENTRY: name}, device, True)


def _compile(
    name: str, source: str, entries: dict[str, str], device: Device, cache: bool
) -> Binary:
    includes = [*map(str, include_dirs()), str(codegen_dir() / "include")]
    flags = [
        f"--gpu-architecture={device.nvrtc_arch}",
        "-std=c++17",
        "--ptxas-options=-v",
        "--diag-suppress=177",  # unused functions of the prelude
    ]
    prelude = (codegen_dir() / "include" / "vibegemm.cuh").read_text()
    key = digest(source, prelude, *flags, fingerprint(), str(CHECKS))
    options = [*flags, *(f"--include-path={folder}" for folder in includes)]

    def produce() -> dict[str, str]:
        answer = _run_child(name, source, options)
        check_ptx(answer["ptx"], name)
        check_cubin(bytes.fromhex(answer["cubin"]), list(entries.values()), name)
        return {"cubin": answer["cubin"], "log": answer["log"]}

    answer = cached(settings().cubin_cache, key, produce) if cache else produce()
    report = _report(answer["log"], entries)
    return Binary(key, bytes.fromhex(answer["cubin"]), source, entries, report, answer["log"])


def _run_child(name: str, source: str, options: list[str]) -> dict[str, str]:
    limit = settings().build_timeout_s
    request = json.dumps(
        {"source": source, "name": "preamble.cu", "options": options, "seconds": 2 * limit}
    )
    # Only what the loader needs: a compiler has no business with keys and tokens.
    keep = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "TMPDIR")
    env = {key: os.environ[key] for key in keep if key in os.environ}
    package = Path(__file__).resolve().parents[2]
    env["PYTHONPATH"] = os.pathsep.join([str(package), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, "-m", "tvm_vibegemm.kernel.nvrtc_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
        cwd=Path("/"),
    )
    try:
        out, err = child.communicate(request, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise BuildTimeout(
            f"kernel {name}: NVRTC took longer than {limit:g} s (VIBEGEMM_BUILD_TIMEOUT_S)"
        ) from error
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    try:
        answer = json.loads(out)
    except ValueError as error:
        last = (err.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise BuildError(f"kernel {name}: NVRTC died ({last})", err) from error
    if not answer["ok"]:
        raise BuildError(
            f"kernel {name}: does not compile: {_first_error(answer['log'])}", answer["log"]
        )
    return dict(answer)


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"\b(?:error|fatal)\b", line, re.IGNORECASE):
            return line
    return lines[0] if lines else "no log"


_FUNCTION = re.compile(r"Function properties for '?(\w+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def _report(log: str, entries: Mapping[str, str]) -> dict[str, EntryReport]:
    """Read ptxas's verbose report: the properties of a function, then what it used."""
    names = {new: old for old, new in entries.items()}
    found: dict[str, dict[str, int]] = {}
    current: str | None = None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            current = names.get(match.group(1))
        elif match := _FUNCTION.search(line):
            current = names.get(match.group(1), current)
        if current is None:
            continue
        values = found.setdefault(current, {})
        if match := _STACK.search(line):
            # Functions that were not inlined follow their entry, and count with it.
            spills = int(match.group(2)) + int(match.group(3))
            values["stack_bytes"] = values.get("stack_bytes", 0) + int(match.group(1))
            values["spill_bytes"] = values.get("spill_bytes", 0) + spills
        if match := _USED.search(line):
            values["registers"] = int(match.group(1))
            values["shared_bytes"] = int(match.group(2) or 0)
    return {name: EntryReport(**values) for name, values in found.items()}


def report_dict(binary: Binary) -> dict[str, dict[str, int]]:
    """Return the report as plain data, for ``--json``."""
    return {name: asdict(entry) for name, entry in binary.report.items()}
