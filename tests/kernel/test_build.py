"""Building with the real NVRTC: names, reports, errors, limits and the cache."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.config import settings
from tvm_vibegemm.device import device_for, known_archs
from tvm_vibegemm.errors import BuildError, ResourceError, SourceError
from tvm_vibegemm.kernel import build as build_module
from tvm_vibegemm.kernel.build import EntryReport, _report, build, build_zero, check_resources
from tvm_vibegemm.kernel.cubin import read_elf
from tvm_vibegemm.kernel.kernel import Kernel, lookup, register
from tvm_vibegemm.kernel.nvrtc_child import MEMORY_LIMIT
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.workload import Workload

H200 = device_for("sm_90")
WORKLOAD = Workload.parse("vg1:f16.f16.f32.f16:nn:x1:m*:n512:k1024:-")


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VIBEGEMM_CUBIN_CACHE", str(tmp_path / "cubin"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def kernel(make_plan: Callable[..., Plan], source: str) -> Kernel:
    return Kernel(source, make_plan())


def changed(kernel: Kernel, old: str, new: str) -> Kernel:
    assert old in kernel.source
    return dataclasses.replace(kernel, source=kernel.source.replace(old, new))


def no_compiler(*_: Any) -> dict[str, str]:
    raise AssertionError("compiled again")


def test_entry_is_renamed_and_reported(kernel: Kernel) -> None:
    binary = build(kernel, WORKLOAD, H200)
    (name,) = binary.entries.values()
    assert name != "gemm" and name.startswith("vg_")
    sections = read_elf(binary.cubin).sections
    assert f".text.{name}" in sections and ".text.gemm" not in sections
    assert binary.report["gemm"].registers > 0
    assert "// gemm is the entry" in binary.source


def test_names_follow_all_that_shapes_the_code(
    kernel: Kernel, make_plan: Callable[..., Plan]
) -> None:
    def name(one: Kernel, workload: Workload = WORKLOAD, **tunables: int) -> str:
        return build_module.full_source(one, workload, H200, tunables)[1]["gemm"]

    other_launch = make_plan(launch={"block": [64, 1, 1]})
    names = [
        name(kernel),
        name(kernel, BM=64),
        name(kernel, dataclasses.replace(WORKLOAD, out="f32")),
        name(changed(kernel, "ROWS", "ROWS + 1")),
        name(Kernel(kernel.source, other_launch)),
    ]
    assert len(set(names)) == len(names)
    # N and K are in no constant: one binary serves them all.
    assert name(kernel, dataclasses.replace(WORKLOAD, n=77, k=3)) == names[0]


def test_cache_is_used_and_a_damaged_entry_rebuilt(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(kernel, WORKLOAD, H200)
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "_run_child", no_compiler)
        assert build(kernel, WORKLOAD, H200) == first
        with pytest.raises(AssertionError):
            build(kernel, WORKLOAD, H200, cache=False)
    (path,) = settings().cubin_cache.rglob("*.json")
    path.write_bytes(path.read_bytes()[:100])
    assert build(kernel, WORKLOAD, H200).cubin == first.cubin


def test_error_names_the_line_of_the_kernel(kernel: Kernel) -> None:
    with pytest.raises(BuildError, match=r"kernel plain: .*kernel\.cu\(3\): error") as caught:
        build(changed(kernel, "ROWS", "no_such_name"), WORKLOAD, H200)
    assert "\n" not in str(caught.value)
    assert "1 error" in caught.value.log


def test_assembler_errors_and_cheats_are_refused(kernel: Kernel) -> None:
    with pytest.raises(BuildError, match="does not compile: ptxas"):
        build(changed(kernel, "if (", 'asm("no.such;"); if ('), WORKLOAD, H200)
    with pytest.raises(SourceError, match="line 1"):
        build(changed(kernel, 'extern "C"', '__device__ int s; extern "C"'), WORKLOAD, H200)


def test_endless_compile_is_killed(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBEGEMM_BUILD_TIMEOUT_S", "2")
    settings.cache_clear()
    monkeypatch.setattr(
        build_module.sys, "executable", _sleeper(settings().cubin_cache.parent), raising=True
    )
    with pytest.raises(BuildError, match=r"longer than 2 s"):
        build(kernel, WORKLOAD, H200)
    assert not list(settings().cubin_cache.rglob("*.json"))


def _sleeper(folder: Path) -> str:
    """Write a stand-in for Python that hangs, as a compiler may."""
    path = folder / "sleeper"
    path.write_text("#!/bin/sh\nsleep 60\n")
    path.chmod(0o755)
    return str(path)


def test_child_that_dies_is_a_build_error(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dies"
    path.write_text("#!/bin/sh\ncat > /dev/null\necho out of memory >&2\nexit 9\n")
    path.chmod(0o755)
    monkeypatch.setattr(build_module.sys, "executable", str(path))
    with pytest.raises(BuildError, match=r"NVRTC died \(out of memory\)"):
        build(kernel, WORKLOAD, H200)


def test_child_sees_no_keys(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "env"
    path.write_text(f'#!/bin/sh\nenv > {tmp_path}/seen\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("VIBEGEMM_API_KEY", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-2")
    monkeypatch.setattr(build_module.sys, "executable", str(path))
    build(kernel, WORKLOAD, H200)
    assert "secret" not in (tmp_path / "seen").read_text()


@pytest.mark.parametrize("arch", known_archs())
def test_zeroing_kernel_builds_everywhere(arch: str) -> None:
    assert build_zero(device_for(arch)).report["vg_zero"].registers > 0


def test_report_counts_functions_that_were_not_inlined() -> None:
    log = """\
ptxas info    : Compiling entry function 'vg_1' for 'sm_90a'
ptxas info    : Function properties for vg_1
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem
ptxas info    : Function properties for _Z1fi
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    (entry,) = _report(log, {"gemm": "vg_1"}).values()
    assert (entry.registers, entry.shared_bytes) == (40, 256)
    assert (entry.stack_bytes, entry.spill_bytes) == (24, 20)


@pytest.mark.parametrize(
    ("launch", "entry", "says"),
    [
        ({}, EntryReport(registers=255), None),
        ({"block": [256, 1, 1]}, EntryReport(registers=255), None),
        ({"block": [1024, 1, 1]}, EntryReport(registers=64), None),
        ({"block": [1024, 1, 1]}, EntryReport(registers=65), "1024 threads of 65 registers"),
        # 72 registers a thread and 29 warps are what these come to.
        ({"block": [897, 1, 1]}, EntryReport(registers=66), "need 66816"),
        ({"block": ["BM * 8", 1, 1]}, EntryReport(registers=65), "registers"),
        ({"block": ["BM * 8", 1, 1], "when": "M > 9"}, EntryReport(registers=65), "registers"),
        ({"block": ["min(M, 1) * 1024", 1, 1]}, EntryReport(registers=65), None),
        ({"block": ["BM * 8", 1, 1], "when": "N < 9"}, EntryReport(registers=65), None),
        ({"shared_bytes": 232448 - 512}, EntryReport(shared_bytes=512), None),
        ({"shared_bytes": 232448 - 511}, EntryReport(shared_bytes=512), "static and 231937 of dyn"),
        ({"shared_bytes": 0}, EntryReport(shared_bytes=48 * 1024), None),
        ({"shared_bytes": 0}, EntryReport(shared_bytes=48 * 1024 + 1), "static shared memory"),
    ],
)
def test_resources(
    launch: dict[str, Any], entry: EntryReport, says: str | None, make_plan: Callable[..., Plan]
) -> None:
    plan, report = make_plan(launch=launch), {"gemm": entry}
    if says is None:
        check_resources(plan, WORKLOAD, H200, {}, report)
        return
    with pytest.raises(ResourceError, match=f"kernel plain, entry gemm: .*{says}"):
        check_resources(plan, WORKLOAD, H200, {}, report)
    check_resources(plan, dataclasses.replace(WORKLOAD, n=0), H200, {}, report)


def test_resources_follow_a_fixed_m(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan(launch={"block": ["M", 1, 1], "when": "M < 1000"})
    report = {"gemm": EntryReport(registers=128)}
    for m in (512, 1024):
        check_resources(plan, dataclasses.replace(WORKLOAD, m=m), H200, {}, report)
    with pytest.raises(ResourceError, match="513 threads"):
        check_resources(plan, dataclasses.replace(WORKLOAD, m=513), H200, {}, report)


def test_orphaned_compiler_dies() -> None:
    # Its input stays open here, so that only its parent's death can end it.
    source, ours = os.pipe()
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'tvm_vibegemm.kernel.nvrtc_child'],"
        f" stdin={source}, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[source]) as parent:
        assert parent.stdout is not None
        os.close(source)
        limits = Path(f"/proc/{int(parent.stdout.readline())}/limits")
        end = time.monotonic() + 20
        # It limits its memory once it has tied its life to its parent's.
        while f" {MEMORY_LIMIT} " not in limits.read_text() and time.monotonic() < end:
            time.sleep(0.05)
        # Both hold this pipe: it is at its end when both have died.
        assert not select.select([parent.stdout], [], [], 0)[0]
        parent.kill()
        assert select.select([parent.stdout], [], [], 10)[0], "the child outlived its parent"
    os.close(ours)


def test_kernel_saves_loads_and_registers(kernel: Kernel, tmp_path: Path) -> None:
    path = kernel.save(tmp_path)
    again = Kernel.load(path)
    assert again == kernel and again.hash == kernel.hash
    first = path.with_suffix(".json").read_bytes()
    kernel.save(tmp_path)
    assert path.with_suffix(".json").read_bytes() == first
    assert json.loads(first)["name"] == "plain"
    assert lookup(register(kernel)) == kernel
    assert lookup("0" * 64) is None
