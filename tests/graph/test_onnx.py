"""ONNX files to Relax: shapes, external data, element types; and the check's arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxslim
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from tvm_vibegemm.bench.models import EncoderShape, encoder
from tvm_vibegemm.errors import DeviceError, InputError
from tvm_vibegemm.graph import onnx_load
from tvm_vibegemm.graph.onnx import compile_onnx, import_onnx
from tvm_vibegemm.graph.onnx_check import (
    errors,
    has_bfloat16,
    onnx_runtime,
    random_inputs,
    run_library,
    widened,
)
from tvm_vibegemm.graph.onnx_load import load_model

SMALL = EncoderShape(layers=1, batch=2, sequence=8, hidden=32, heads=2, feed_forward=64)


def save(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    stored: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write a model of ``nodes`` whose output is ``y``."""
    output = helper.make_value_info("y", helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    tensors = [numpy_helper.from_array(value, name) for name, value in (stored or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())
    return path


def value(name: str, shape: list[Any] | None, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(rows: int, cols: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32)


MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"])


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", [MATMUL], [value("x", ["n", 16])], {"w": weight(16, 8)})


def test_shapes_are_fixed(dynamic: Path) -> None:
    module, model = import_onnx(dynamic, {"x": (5, 16)})
    assert [int(n) for n in module["main"].params[0].ty.shape] == [5, 16]
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [5, 16]


def test_an_input_of_unknown_rank(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [MATMUL], [value("x", None)], {"w": weight(16, 8)})
    with pytest.raises(InputError, match=r"'x' is of unknown rank.*--shape x:"):
        import_onnx(path)
    module, _ = import_onnx(path, {"x": (5, 16)})
    assert [int(n) for n in module["main"].params[0].ty.shape] == [5, 16]


def test_an_input_that_is_no_tensor(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    node = helper.make_node("SequenceAt", ["x", "i"], ["y"])
    stored = {"i": np.array(0, np.int64)}
    path = save(tmp_path / "m.onnx", [node], [helper.make_value_info("x", kind)], stored)
    with pytest.raises(InputError, match="'x' is a sequence"):
        import_onnx(path)
    with pytest.raises(InputError, match="'x' is a sequence"):
        import_onnx(path, {"x": (2,)})


def test_a_shape_that_the_model_cannot_take(tmp_path: Path) -> None:
    """The input is free in the file, but a Reshape inside is not."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    stored = {"s": np.array([4, 16], np.int64)}
    path = save(tmp_path / "m.onnx", nodes, [value("x", ["n", 16])], stored)
    import_onnx(path, {"x": (4, 16)})
    with pytest.raises(InputError) as caught:
        compile_onnx(path, {"x": (3, 16)}, "sm_90")
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_an_operator_that_tvm_does_not_have(tmp_path: Path) -> None:
    node = helper.make_node("Nonsense", ["x"], ["y"], domain="made.up")
    path = save(tmp_path / "m.onnx", [node], [value("x", [4, 16])])
    with pytest.raises(InputError) as caught:
        import_onnx(path)
    assert "\n" not in str(caught.value) and "Nonsense" in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_element_types_are_kept(tmp_path: Path, dtype: str) -> None:
    onnx.save(encoder(dtype, SMALL), str(tmp_path / "m.onnx"))
    module, _ = import_onnx(tmp_path / "m.onnx")
    main = module["main"]
    assert str(main.params[0].ty.dtype) == dtype
    assert str(main.ret_ty.dtype) == dtype
    text = module.script(show_meta=False)
    products = [line for line in text.splitlines() if "R.matmul(" in line]
    assert products and all(f'dtype="{dtype}"' in line for line in products)


def test_bytes_of_a_value_are_those_of_onnx() -> None:
    for number, size in onnx_load._ITEM_BYTES.items():
        assert helper.tensor_dtype_to_np_dtype(number).itemsize == size, number


def external(path: Path, location: str) -> None:
    """Move the first stored tensor of a model to a file that it names."""
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    path.write_bytes(model.SerializeToString())


def test_external_data_inside_the_folder(dynamic: Path) -> None:
    values = weight(16, 8)
    (dynamic.parent / "data").mkdir()
    (dynamic.parent / "data" / "w.bin").write_bytes(values.tobytes())
    external(dynamic, "data/w.bin")
    model = load_model(dynamic, {"x": (5, 16)})
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), values)


def test_external_data_that_is_missing_or_short(dynamic: Path) -> None:
    external(dynamic, "w.bin")
    with pytest.raises(InputError, match=r"'w\.bin' is missing"):
        load_model(dynamic, {"x": (5, 16)})
    (dynamic.parent / "w.bin").write_bytes(b"\0" * 7)
    with pytest.raises(InputError, match="'w' has 7 bytes, its shape needs 512"):
        load_model(dynamic, {"x": (5, 16)})


def test_the_folder_is_that_of_the_path_even_where_the_model_is_a_link(dynamic: Path) -> None:
    """A link elsewhere must not make data beside the link's target, or beside the link, pass."""
    (dynamic.parent / "w.bin").write_bytes(weight(16, 8).tobytes())
    external(dynamic, "w.bin")
    other = dynamic.parent / "other"
    other.mkdir()
    (other / "m.onnx").symlink_to(dynamic)
    (other / "w.bin").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="outside"):
        load_model(other / "m.onnx", {"x": (5, 16)})


def test_external_data_of_a_function_is_checked_too(dynamic: Path) -> None:
    model = onnx.load(str(dynamic))
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/hostname"
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("made.up", "F", [], ["c"], [node], opset))
    dynamic.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="outside"):
        load_model(dynamic, {"x": (5, 16)})


def test_weights_set_aside_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models past the limit of a protobuf are simplified without their large weights."""
    path = tmp_path / "m.onnx"
    onnx.save(encoder("float32", SMALL), str(path))
    whole = load_model(path, {})
    monkeypatch.setattr(onnx_load, "_LARGE_MODEL", 0)
    monkeypatch.setattr(onnx_load, "_LARGE_TENSOR", 32 * 32 * 4)
    seen: list[int] = []
    real = onnxslim.slim

    def slim(model: Any, **options: Any) -> Any:
        seen.append(max(len(tensor.raw_data) for tensor in model.graph.initializer))
        return real(model, **options)

    monkeypatch.setattr(onnxslim, "slim", slim)
    parted = load_model(path, {})
    assert seen[0] < 32 * 32 * 4
    assert [value.name for value in parted.graph.input] == ["x"]
    inputs = random_inputs(whole)
    (want,), (got,) = onnx_runtime(whole, inputs), onnx_runtime(parted, inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_onnx_runtime_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(encoder("float32", SMALL), str(tmp_path / "m.onnx"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    module, model = import_onnx(tmp_path / "m.onnx")
    assert "R.matmul" in module.script(show_meta=False)
    with pytest.raises(InputError, match=r"ONNX Runtime is missing; pip install"):
        onnx_runtime(model, random_inputs(model))


def test_unknown_arch_before_the_model_is_read(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="sm_91"):
        compile_onnx(tmp_path / "no.onnx", arch="sm_91")


def test_a_failed_compilation_leaves_nothing(
    dynamic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a half library nor a work folder, and an older library stays as it was."""
    output = dynamic.parent / "m.so"
    output.write_bytes(b"older")

    def full(self: Any, name: str, *_: Any, **__: Any) -> None:
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tvm.relax.VMExecutable, "export_library", full)
    with pytest.raises(InputError, match="No space left"):
        compile_onnx(dynamic, {"x": (5, 16)}, "sm_90", output, offload=False)
    assert output.read_bytes() == b"older"
    assert sorted(path.name for path in dynamic.parent.iterdir()) == ["m.onnx", "m.so"]


def test_without_an_output_there_is_an_executable(dynamic: Path) -> None:
    compiled = compile_onnx(dynamic, {"x": (5, 16)}, "sm_90", offload=False)
    assert compiled.library is None and compiled.executable is not None
    assert compiled.seconds.keys() == {"import", "compile"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_widened_model_is_the_same_function_in_float32(dtype: str) -> None:
    model = encoder(dtype, SMALL)
    assert has_bfloat16(model) == (dtype == "bfloat16")
    wide = widened(model)
    assert not has_bfloat16(wide)
    kinds = {tensor.data_type for tensor in wide.graph.initializer}
    assert kinds <= {TensorProto.FLOAT, TensorProto.INT64}
    inputs = random_inputs(model)
    assert inputs["x"].dtype == np.dtype(
        {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    )
    (got,) = onnx_runtime(wide, {"x": inputs["x"].astype(np.float32)})
    (want,) = onnx_runtime(encoder("float32", SMALL), {"x": inputs["x"].astype(np.float32)})
    # The weights were rounded, so near, not equal.
    assert 0 < np.abs(got - want).max() < 0.2
    for wide_tensor, tensor in zip(wide.graph.initializer, model.graph.initializer, strict=True):
        np.testing.assert_array_equal(
            numpy_helper.to_array(wide_tensor),
            numpy_helper.to_array(tensor).astype(numpy_helper.to_array(wide_tensor).dtype),
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_library_runs_on_what_random_inputs_gives(tmp_path: Path, dtype: str) -> None:
    """On the CPU here, as on a GPU: element types survive the way in and out."""
    onnx.save(encoder(dtype, SMALL), str(tmp_path / "m.onnx"))
    module, model = import_onnx(tmp_path / "m.onnx")
    inputs = random_inputs(model)
    (got,) = run_library(tvm.compile(module, target="llvm"), inputs, tvm.cpu())
    assert got.dtype.name == dtype
    wide = {name: x.astype(np.float32) for name, x in inputs.items()}
    found = errors([got], onnx_runtime(widened(model), wide))
    assert found["max_rel"] < {"float32": 1e-4, "float16": 2e-2, "bfloat16": 2e-1}[dtype], found


def test_errors() -> None:
    want = np.array([3.0, -4.0, 0.0, 0.0], np.float32)
    got = want + np.array([0.0, 0.5, 0.0, 0.0], np.float32)
    assert errors([got], [want]) == {"max_abs": 0.5, "max_rel": pytest.approx(0.2)}
    assert errors([want], [want]) == {"max_abs": 0.0, "max_rel": 0.0}
    got[1] = np.nan
    assert errors([got], [want])["max_abs"] == float("inf")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        errors([want], [want, want])


def test_onnx_runtime_refusal_is_one_line(tmp_path: Path) -> None:
    node = helper.make_node("Nonsense", ["x"], ["y"], domain="made.up")
    path = save(tmp_path / "m.onnx", [node], [value("x", [4])])
    with pytest.raises(InputError) as caught:
        onnx_runtime(onnx.load(str(path)), {"x": np.zeros(4, np.float32)})
    assert "\n" not in str(caught.value)
