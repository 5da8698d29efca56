"""The toolchain: wheels only, a stand-in driver, and clear lines where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_vibegemm import toolchain
from tvm_vibegemm.config import settings
from tvm_vibegemm.errors import ToolchainError

ROOT = Path(__file__).parents[1]
COMPILE = """
import sys, shutil
assert shutil.which("nvcc") is None
from tvm_vibegemm.toolchain import tvm_environment
tvm_environment()
import tvm
from tvm import relax
builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorStructInfo((64, 64), "float16")) if hasattr(
    relax, "TensorStructInfo") else relax.Var("x", relax.TensorType((64, 64), "float16"))
with builder.function("main", [x]):
    with builder.dataflow():
        y = builder.emit_output(builder.emit(relax.op.matmul(x, x)))
    builder.emit_func_output(y)
from tvm_vibegemm.device import device_for
from tvm_vibegemm.kernel.module import cuda_target
target = cuda_target(device_for("sm_90"))
with target:
    library = tvm.compile(builder.get(), target)
library.export_library(sys.argv[1])
"""


def run_bare(code: str, cache: Path, *args: str, path: str = "/usr/bin:/bin") -> str:
    """Run Python without a CUDA toolkit, nvcc or a driver stub made before."""
    drop = ("CUDA_PATH", "CUDA_HOME", "CXX")
    env = {key: value for key, value in os.environ.items() if key not in drop}
    env |= {"PATH": path, "VIBEGEMM_CUBIN_CACHE": str(cache / "cubin"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, timeout=300
    )
    return done.stdout + done.stderr if done.returncode == 0 else f"FAILED\n{done.stderr}"


def test_tvm_compiles_from_wheels_alone_and_stores_machine_code(tmp_path: Path) -> None:
    out = tmp_path / "library.so"
    said = run_bare(COMPILE, tmp_path, str(out))
    assert out.is_file(), said
    data = out.read_bytes()
    assert data.count(b"\x7fELF") >= 2  # the library itself, and a cubin in it
    assert b"__global__" not in data


def test_one_stub_however_many_ask(tmp_path: Path) -> None:
    if toolchain.has_driver():
        pytest.skip("a driver is here")
    code = (
        "from tvm_vibegemm.toolchain import ensure_driver, has_driver, local_device\n"
        "ensure_driver(); import tvm_ffi\n"
        "print(tvm_ffi.get_global_func('ffi.Module.create.cuda'), has_driver(), local_device())"
    )
    env = {**os.environ, "VIBEGEMM_CUBIN_CACHE": str(tmp_path / "cubin"), "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for child in runs:
        assert "False None" in child.communicate(timeout=120)[0]
    assert [path.name for path in tmp_path.glob("driver-stub-*/*")] == ["libcuda.so.1"]


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError, match=r"C\+\+ compiler: none found") as caught:
        toolchain.cxx_compiler()
    assert "\n" not in str(caught.value)


def test_cxx_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "mine"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert toolchain.cxx_compiler() == str(compiler)


def test_compiler_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBEGEMM_CUBIN_CACHE", str(tmp_path / "cubin"))
    monkeypatch.setenv("CXX", "/bin/false")
    settings.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="cannot build"):
            toolchain._stub_driver()
    finally:
        settings.cache_clear()
    assert not list(tmp_path.rglob("libcuda*"))


def test_a_cuda_path_that_works_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "ensure_driver", lambda: None)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    toolchain.tvm_environment()
    assert os.environ["CUDA_PATH"] == str(tmp_path)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "gone"))
    toolchain.tvm_environment()
    home = Path(os.environ["CUDA_PATH"])
    assert (home / "include" / "cuda_fp16.h").is_file()
    assert (home / "targets" / "x86_64-linux" / "include" / "cccl" / "cuda").is_dir()


def test_probe_finds_what_tests_need() -> None:
    checks = {check.name: check for check in toolchain.probe()}
    assert set(checks) == {"TVM", "NVRTC", "CUDA headers", "C++ compiler", "driver", "device"}
    assert checks["NVRTC"].ok and checks["NVRTC"].detail == "13.0"
    for check in checks.values():
        assert check.detail
        assert check.ok == (check.consequence == "")
