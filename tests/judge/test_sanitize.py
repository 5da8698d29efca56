"""Running the sanitizer: a stand-in for the tool, one for the driver, and our own child between."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_compile import refused
from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import InputError, PlanError, ToolchainError
from tvm_vibegemm.judge import sanitize as subject
from tvm_vibegemm.judge.concrete import concrete_launches
from tvm_vibegemm.judge.sanitize import (
    TOOLS,
    Finding,
    command_line,
    find_sanitizer,
    sanitize,
    sanitize_tools,
    small_workloads,
)
from tvm_vibegemm.judge.sanitize_child import fill, values
from tvm_vibegemm.kernel.build import Binary, full_source
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.resources import schedules_dir
from tvm_vibegemm.toolchain import cxx_compiler
from tvm_vibegemm.workload import Workload

from .test_sanitizer_report import BARRIER, CLEAN, CLEAN_RACE, OUT_OF_BOUNDS, RACE, UNSUPPORTED

DEVICE = device_for("sm_90")
KERNELS = sorted((schedules_dir() / "sm_90" / "kernels").glob("*.cu"))
# Runs its target as the real tool does, then writes what the test wants to its log.
STAND_IN = """\
    #!{python}
    import json, pathlib, subprocess, sys
    words = sys.argv[1:]
    answer = json.loads(pathlib.Path({answer!r}).read_text())
    tool, log = words[words.index("--tool") + 1], words[words.index("--log-file") + 1]
    target = words[words.index("--log-file") + 2 :]
    jobs = json.loads(pathlib.Path(target[-1]).read_text())["jobs"]
    status = subprocess.run(target).returncode if answer["run"] else 0
    only = answer["only"]
    hit = only is None or any(job["workload"] == only for job in jobs)
    text = answer["texts"].get(tool) if hit else None
    clean = {clean_race!r} if tool == "racecheck" else {clean!r}
    if answer["log"]:
        pathlib.Path(log).write_text(clean if text is None else text)
    sys.exit(status or (0 if text is None else 86))
    """


@dataclass
class Bench:
    """A machine with a stand-in sanitizer and driver."""

    answer: Path
    log: Path

    def says(
        self,
        texts: dict[str, str] | None = None,
        *,
        run: bool = True,
        only: str | None = None,
        log: bool = True,
    ) -> None:
        data = {"texts": texts or {}, "run": run, "only": only, "log": log}
        self.answer.write_text(json.dumps(data))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_driver.cc")
    made = str(folder / "libcuda.so.1")
    subprocess.run(
        [cxx_compiler(), "-shared", "-fPIC", str(source), "-o", made, "-ldl"], check=True
    )
    return folder


@pytest.fixture
def bench(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    def unbuilt(kernel: Kernel, workload: Workload, device: Any, tunables: Any) -> Binary:
        return Binary("unbuilt", b"cubin", *full_source(kernel, workload, device, tunables or {}))

    bench = Bench(tmp_path / "answer.json", tmp_path / "driver.log")
    bench.says()
    script = tmp_path / "compute-sanitizer"
    texts = {"clean": CLEAN, "clean_race": CLEAN_RACE, "answer": str(bench.answer)}
    script.write_text(textwrap.dedent(STAND_IN).format(python=sys.executable, **texts))
    script.chmod(0o755)
    monkeypatch.setattr(subject, "build", unbuilt)
    monkeypatch.setenv("VIBEGEMM_SANITIZER", str(script))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("CUDA_FAKE_LOG", str(bench.log))
    return bench


def shipped(name: str) -> Kernel:
    return Kernel.load(schedules_dir() / "sm_90" / "kernels" / f"{name}.cu")


MMA = shipped("general_mma_16bit")
SMALL = [Workload(33, 72, 40), Workload(5, 7, 37)]


# -- the runs --------------------------------------------------------------------------------------


def test_clean_means_that_every_launch_ran_under_every_tool(bench: Bench) -> None:
    lines: list[str] = []
    assert sanitize(MMA, SMALL, {}, DEVICE, progress=lines.append) == []
    assert [line.split()[1] for line in lines] == [f"{tool}:" for tool in TOOLS]
    assert all("0 findings, 2 launches" in line for line in lines)
    log = bench.log.read_text().splitlines()
    assert sum(line.startswith("launch") for line in log) == 2 * len(TOOLS)
    # Exact sizes, and no copy to the output, of each workload.
    for m, n, k in ((33, 72, 40), (5, 7, 37)):
        a, b, d = 2 * m * k, 2 * k * n, 2 * m * n
        assert [f"alloc {a}", f"alloc {b}", f"alloc {d}"] == [
            line for line in log if line in (f"alloc {a}", f"alloc {b}", f"alloc {d}")
        ][:3]
        assert not any(line.startswith(f"copy {d} ") for line in log)


def test_what_reaches_the_driver(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, workload = shipped("sm90_wgmma_16bit"), Workload(130, 264, 136)
    monkeypatch.setenv("CUDA_FAKE_WIDTHS", "88884444")
    tunables = {"CLUSTER": 2, "STAGES": 3}
    list(sanitize_tools(kernel, [workload], tunables, DEVICE, tools=["memcheck"]))
    (launch,) = concrete_launches(kernel, workload, DEVICE, tunables)["launches"]
    log = bench.log.read_text().splitlines()
    assert f"attribute 8 = {launch['shared_bytes']}" in log
    assert "map type 6 at 10000 dims 136 130 1 strides 272 35360 box 64/1 128/1 1/1 0 3 3 0" in log
    size = launch["shared_bytes"]
    shape = f"1 1 of 384 1 1 shared {size} attribute 4: 2 1 1 {'5a5a5a5a5a5a5a5a ' * 3}"
    launches = [line for line in log if line.startswith("launch")]
    # D, M, N, K, batch; and once as with two multiprocessors, so that the loop over tiles runs.
    assert launches == [
        f"launch {launch['grid'][0]} {shape}30000 82 108 88 1",
        f"launch 2 {shape}60000 82 108 88 1",
    ]


def test_findings_name_their_workload(bench: Bench) -> None:
    name = concrete_launches(MMA, SMALL[1], DEVICE)["launches"][0]["entry"]
    text = RACE.replace("vg_0123456789abcdef0123_0", name)
    bench.says({"racecheck": text}, only=SMALL[1].key)
    findings = sanitize(MMA, SMALL, None, DEVICE)
    assert [(f.tool, f.kind, f.workload) for f in findings] == [
        ("racecheck", "race", SMALL[1].key)
    ] * 2
    assert findings[0].where.kernel == "gemm_mma" and findings[0].count == 508


def test_each_tool_is_heard(bench: Bench) -> None:
    bench.says({"memcheck": OUT_OF_BOUNDS, "racecheck": RACE, "synccheck": BARRIER})
    found = sanitize(MMA, SMALL[:1], {}, DEVICE)
    assert {(f.tool, f.kind) for f in found} >= {
        ("memcheck", "invalid-global-write"),
        ("racecheck", "race"),
        ("synccheck", "barrier-error"),
    }
    (tool,) = sanitize_tools(MMA, SMALL[:1], {}, DEVICE, tools=["synccheck"])
    assert tool.tool == "synccheck" and tool.launches == 1 and tool.seconds > 0


def failed(findings: list[Finding]) -> str:
    assert [finding.kind for finding in findings] == ["run-failed"], findings
    return findings[0].message


def test_a_launch_that_fails_is_a_finding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("cuLaunchKernelEx", "cuCtxSynchronize"):
        monkeypatch.setenv("CUDA_FAKE_FAULT", call)
        text = failed(sanitize(MMA, SMALL[:1], {}, DEVICE, tools=["memcheck"]))
        assert text.startswith("0 of 1 launches done") and call in text


def test_time_limit_is_a_finding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = bench.answer.with_name("slow")
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("VIBEGEMM_SANITIZER", str(slow))
    found = sanitize(MMA, SMALL, {}, DEVICE, tools=["memcheck"], timeout_s=0.3)
    assert "took longer than 0.3 s" in failed(found)


def test_no_silent_pass(bench: Bench) -> None:
    # A tool that says all is well, and has run nothing.
    bench.says(run=False)
    assert "0 of 1 launches" in failed(sanitize(MMA, SMALL[:1], {}, DEVICE, tools=["memcheck"]))
    # Every launch ran, but there is no summary.
    bench.says({"memcheck": "========= COMPUTE-SANITIZER\n"})
    assert "no summary" in failed(sanitize(MMA, SMALL[:1], {}, DEVICE, tools=["memcheck"]))
    # Its exit status tells of errors, its text does not.
    bench.says({"memcheck": CLEAN})
    assert "does not name" in failed(sanitize(MMA, SMALL[:1], {}, DEVICE, tools=["memcheck"]))


# -- a tool that does not work ---------------------------------------------------------------------


@pytest.fixture
def one_line() -> Callable[..., None]:
    def check(*parts: str) -> None:
        with pytest.raises(ToolchainError) as caught:
            sanitize(MMA, SMALL[:1], {}, DEVICE, tools=["memcheck"])
        assert "\n" not in str(caught.value)
        for part in parts:
            assert part in str(caught.value)

    return check


def test_unsupported_device(
    bench: Bench, one_line: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_FAKE_FAULT", "cuInit")
    bench.says({"memcheck": UNSUPPORTED})
    one_line("does not run here", "Device not supported")
    bench.says({})
    one_line("does not run here", "cuInit")


def test_tool_that_dies(bench: Bench, one_line: Callable[..., None]) -> None:
    bench.says(run=False, log=False)
    one_line("does not run here")


def test_tool_that_is_missing(
    one_line: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VIBEGEMM_SANITIZER", str(tmp_path / "nothing"))
    one_line("VIBEGEMM_SANITIZER", "no program")
    monkeypatch.delenv("VIBEGEMM_SANITIZER")
    monkeypatch.setattr(subject, "find_sanitizer", lambda: None)
    one_line("not found", "pip install nvidia-cuda-sanitizer-api")


def test_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def put(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    wheel = put("site/nvidia/cu13/compute-sanitizer/compute-sanitizer")
    home, first = put("cuda/bin/compute-sanitizer"), put("path/compute-sanitizer")
    named = put("mine/tool")
    for name in ("VIBEGEMM_SANITIZER", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path / "site/nvidia")]})
    monkeypatch.setattr(subject.importlib.util, "find_spec", lambda _: spec)
    if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        assert find_sanitizer() == wheel
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert find_sanitizer() == home
    monkeypatch.setenv("PATH", str(first.parent))
    assert find_sanitizer() == first
    monkeypatch.setenv("VIBEGEMM_SANITIZER", str(named))
    assert find_sanitizer() == named


# -- command line and small things -----------------------------------------------------------------


def test_command_line() -> None:
    words = command_line(Path("/x/cs"), "memcheck", Path("/t/log"), Path("/t/job"), "python")
    assert words[:3] == ["/x/cs", "--tool", "memcheck"]
    for option, value in {
        "--error-exitcode": "86",
        "--padding": "4096",
        "--destroy-on-device-error": "kernel",
        "--log-file": "/t/log",
    }.items():
        assert words[words.index(option) + 1] == value
    assert words[-4:] == ["python", "-P", str(subject.CHILD), "/t/job"]
    for tool in ("racecheck", "initcheck", "synccheck"):
        others = command_line(Path("/x/cs"), tool, Path("/t/log"), Path("/t/job"))
        assert "--padding" not in others  # memcheck's own
        assert ("--num-cuda-barriers" in others) == (tool != "initcheck")
    with pytest.raises(InputError, match="unknown"):
        command_line(Path("/x/cs"), "lint", Path("/t/log"), Path("/t/job"))


def test_child_imports_neither_tvm_nor_this_package() -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='child');"
        "print([m for m in sys.modules if m.split('.')[0] in ('tvm', 'tvm_vibegemm', 'numpy')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(subject.CHILD)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("dtype", ["f32", "tf32", "f16", "bf16", "f64", "s8", "u8", "s32"])
def test_inputs_are_finite_values(dtype: str) -> None:
    import ml_dtypes
    import numpy as np

    kinds = {"tf32": "f4", "bf16": ml_dtypes.bfloat16, "f16": "f2", "f32": "f4", "f64": "f8"}
    kind = np.dtype(kinds.get(dtype, {"s8": "i1", "u8": "u1", "s32": "i4"}.get(dtype, "u1")))
    got = np.frombuffer(fill(dtype, 1000 * kind.itemsize, 1), kind).astype(np.float64)
    assert np.isfinite(got).all() and 0.5 < np.abs(got).max() <= 255
    assert len(set(got.tolist())) > 100


def test_fp8_inputs_have_neither_nan_nor_infinity() -> None:
    for dtype, top in (("f8e4m3", 0x7F), ("f8e5m2", 0x7C)):
        assert all((value[0] & 0x7F) < top for value in values(dtype))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_small_workloads_cover_a_plan(path: Path) -> None:
    plan = Kernel.load(path).plan
    found = small_workloads(plan, DEVICE)
    assert {(w.a, w.layout) for w in found} == {(t.a, x) for t in plan.types for x in plan.layouts}
    assert any(w.epilogue for w in found) == plan.epilogue
    assert any(w.batch > 1 for w in found) == plan.batched
    assert all(w.m is not None and w.flops() < 2e7 for w in found)


def test_nothing_to_run(bench: Bench) -> None:
    with pytest.raises(InputError, match="no workload"):
        sanitize(MMA, [], {}, DEVICE)
    with pytest.raises(PlanError, match="not valid"):
        sanitize(shipped("sm90_wgmma_16bit"), [Workload(8, 7, 8)], {}, DEVICE)


# -- the verb --------------------------------------------------------------------------------------


def verb(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the verb in this process, as ``main`` would."""
    import contextlib
    import io

    from tvm_vibegemm.cli.sanitize import command
    from tvm_vibegemm.errors import VibeGEMMError

    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.main([str(word) for word in words], standalone_mode=False)
        except VibeGEMMError as error:
            print(f"error: {error}", file=err)
            status = error.exit_status
        except SystemExit as stop:
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def test_verb_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_vibegemm.toolchain.local_device", lambda index=0: None)
    refused(verb(KERNELS[0]), "there is no GPU here")


def test_verb(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tvm_vibegemm.toolchain.local_device", lambda index=0: ("sm_90", "NVIDIA H200")
    )
    words = ["--workload", SMALL[0].key, "--tool", "memcheck", KERNELS[0]]
    done = verb(*words, "--json", "--tunable", "BM=32")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["clean"] and row["tunables"]["BM"] == 32 and row["workloads"] == [SMALL[0].key]
    assert row["tools"][0]["seconds"] > 0 and row["tools"][0]["launches"] == 1
    assert "memcheck: 0 findings, 1 launches" in done.stderr
    bench.says({"memcheck": OUT_OF_BOUNDS})
    done = verb(*words)
    assert done.returncode == 1
    assert "invalid-global-write" in done.stdout and SMALL[0].key in done.stdout
    done = verb(*words, "--json")
    assert done.returncode == 1 and not json.loads(done.stdout)["clean"]
