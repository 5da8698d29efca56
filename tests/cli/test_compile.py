"""``vibegemm compile``: each bad input is one line and exit status 2, with nothing left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def run(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    code = "from tvm_vibegemm.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )


def here(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: a refusal needs no fresh one, which takes seconds."""
    from tvm_vibegemm.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in lines[0], lines[0]


def mlp(path: Path, dtype: int = TensorProto.FLOAT, n: int = 64) -> Path:
    """Write ``relu(x·w + b)`` with a dynamic batch."""
    random = np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    stored = [
        numpy_helper.from_array(random.standard_normal(shape).astype(kind), name)
        for name, shape in (("w", (32, n)), ("b", (n,)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", dtype, ["batch", 32])],
        [helper.make_tensor_value_info("y", dtype, ["batch", n])],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(path))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return mlp(tmp_path / "mlp.onnx")


def test_compiles_and_says_what_became_of_each_product(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "mlp.so"
    words = ("compile", model, "--shape", "x:8,32", "--arch", "sm_90a", "-o", output)
    done = run(*words, "--select", "valid", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (site,) = result["sites"]
    assert site["decision"] == "kernel" and site["op"] == "matmul"
    assert site["workload"].endswith(":m8:n64:k32:bias(f32)+relu")
    assert {"reason", "expected_us"} <= site.keys()
    text = output.read_bytes()
    # Every kernel in the library is machine code; none is source to be compiled at load.
    assert text.count(b"\x7fELF") > 1
    assert b"__global__" not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.onnx", "mlp.so"]


def test_an_architecture_without_kernels_compiles_and_says_so(model: Path, tmp_path: Path) -> None:
    done = run("compile", model, "--shape", "x:8,32", "--arch", "sm_80", "-o", tmp_path / "o.so")
    assert done.returncode == 0, done.stderr
    assert "No kernel won for sm_80" in done.stdout
    assert (tmp_path / "o.so").is_file()


def test_table_and_explanation(model: Path) -> None:
    words = ("compile", model, "--shape", "x:8,32", "--arch", "sm_90", "--select", "valid")
    table = run(*words)
    assert table.returncode == 0, table.stderr
    assert "1 × matmul" in table.stdout and "1 of 1 products run" in table.stdout
    assert "reading" in table.stderr and "reading" not in table.stdout
    explained = run(*words, "--explain")
    assert "matmul_0" in explained.stdout and "Seconds: import" in explained.stdout


def test_plain_has_no_products_to_show(model: Path) -> None:
    done = run("compile", model, "--shape", "x:8,32", "--arch", "sm_90", "--plain", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sites"] == []


def test_no_such_file(tmp_path: Path) -> None:
    refused(here("compile", tmp_path / "no.onnx", "--arch", "sm_90"), "no.onnx", "no such file")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, b"\x08\x07" * 50])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    refused(here("compile", tmp_path / "x.onnx", "--arch", "sm_90"), "not an ONNX model")


def test_truncated(model: Path) -> None:
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2])
    refused(here("compile", model, "--shape", "x:8,32", "--arch", "sm_90"), "mlp.onnx")


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ("x:8,33", "axis 1"),
        ("x:8,32,1", "2 dimensions"),
        ("y:8,32", "no input 'y'"),
        ("x", "NAME:"),
        ("x:a,b", "NAME:"),
        ("x:-1,32", "no extent"),
        ("x:99999999999999999999,32", "no extent"),
        ("x:", "not 0"),
    ],
)
def test_shape_that_does_not_fit(model: Path, shape: str, part: str) -> None:
    refused(here("compile", model, "--shape", shape, "--arch", "sm_90"), part)


def test_a_shape_given_twice(model: Path) -> None:
    words = ("compile", model, "--shape", "x:8,32", "--shape", "x:9,32", "--arch", "sm_90")
    refused(here(*words), "'x' has a shape already")


def test_dynamic_input_without_a_shape(model: Path) -> None:
    refused(here("compile", model, "--arch", "sm_90"), "'x' is dynamic", "--shape x:")


@pytest.mark.parametrize("arch", ["sm_91", "turing", "sm_", ""])
def test_unknown_arch(model: Path, arch: str) -> None:
    refused(here("compile", model, "--shape", "x:8,32", "--arch", arch), "arch")


def test_output_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    words = ("compile", model, "--shape", "x:8,32", "--arch", "sm_90", "-o")
    refused(here(*words, tmp_path), "folder")
    refused(here(*words, tmp_path / "no" / "o.so"), "does not exist")


def test_corrupt_database(model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"SQLite format 3\x00" + b"rubbish" * 1000)
    before = bad.read_bytes()
    words = ("compile", model, "--shape", "x:8,32", "--arch", "sm_90")
    refused(run(*words, VIBEGEMM_DATABASE=str(bad)), "bad.sqlite")
    refused(here(*words, "--database", bad), "bad.sqlite")
    assert bad.read_bytes() == before


def test_no_compiler_is_one_line(model: Path, tmp_path: Path) -> None:
    words = ("compile", model, "--shape", "x:8,32", "--arch", "sm_90", "-o", tmp_path / "o.so")
    refused(run(*words, PATH="/nowhere", CXX=""), "C++ compiler", "install")


def test_external_data_outside_the_folder(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 32 * 64 * 4)
    inner = tmp_path / "inner"
    inner.mkdir()
    for number, location in enumerate(("../secret.bin", str(secret), "link.bin")):
        (inner / "link.bin").unlink(missing_ok=True)
        (inner / "link.bin").symlink_to(secret)
        loaded = onnx.load(str(model))
        tensor = loaded.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
        path = inner / f"m{number}.onnx"
        path.write_bytes(loaded.SerializeToString())
        refused(here("compile", path, "--shape", "x:8,32", "--arch", "sm_90"), "outside")


def test_check_needs_a_gpu(model: Path) -> None:
    from tvm_vibegemm.toolchain import local_device

    if local_device() is not None:
        pytest.skip("there is a GPU")
    refused(here("compile", model, "--shape", "x:8,32", "--arch", "sm_90", "--check"), "GPU")
    refused(here("compile", model, "--shape", "x:8,32"), "--arch")


def test_check_of_what_cannot_run_here(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_vibegemm import toolchain

    monkeypatch.setattr(toolchain, "local_device", lambda: ("sm_90", "NVIDIA H200"))
    words = ("compile", model, "--shape", "x:8,32", "--check")
    refused(here(*words, "--arch", "sm_80"), "sm_90 (NVIDIA H200)", "compiled for sm_80")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(here(*words), "ONNX Runtime is missing", "pip install")


def test_an_operator_that_cannot_be_imported(model: Path) -> None:
    """TVM's importer prints; the answer stays one line, and names the operator."""
    loaded = onnx.load(str(model))
    loaded.graph.node[0].input[1] = "b"  # a product with a vector of the wrong length
    onnx.save(loaded, str(model))
    words = ("compile", model, "--shape", "x:8,32", "--arch", "sm_90")
    refused(run(*words), "cannot import it (operator MatMul)")


def test_usage_errors() -> None:
    refused(here("compile"), "MODEL")
    refused(here("nonsense"), "nonsense")
    refused(here("compile", "x.onnx", "--select", "best"), "best")


def test_no_verb_is_help() -> None:
    done = here()
    assert done.returncode == 0 and "doctor" in done.stdout
    assert here("--version").stdout.startswith("vibegemm, version ")


def test_a_file_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_vibegemm import toolchain

    def full() -> None:
        raise OSError(28, "No space left on device", "/cache/x.cubin")

    monkeypatch.setattr(toolchain, "probe", full)
    refused(here("doctor"), "/cache/x.cubin: No space left on device")


def test_help_imports_no_tvm() -> None:
    code = """
import sys
from tvm_vibegemm.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
assert "tvm" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in ("compile", "doctor", "judge"):
        assert verb in done.stdout
