"""Runs a compiled model on the GPU beside ONNX Runtime on the CPU, on random inputs."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, last_line
from .onnx_load import load_model, stored_tensors

_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16 = 1, 10, 11, 16  # element types of ONNX
_NARROW = (_FLOAT16, _BFLOAT16)
_PROTOBUF_LIMIT = 2**31 - 1


def random_inputs(model: Any, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs of a model with fixed shapes: N(0, 1), and small whole numbers."""
    import onnx

    random = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
            inputs[value.name] = random.integers(0, 2, shape).astype(dtype)
        else:
            inputs[value.name] = random.standard_normal(shape, dtype=np.float32).astype(dtype)
    return inputs


def run_library(
    executable: Any, inputs: dict[str, np.ndarray[Any, Any]], device: Any
) -> list[np.ndarray[Any, Any]]:
    """Run a compiled model (library module or executable) and return its outputs."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, device)
    return arrays(machine["main"](*[tvm.runtime.tensor(x, device) for x in inputs.values()]))


def arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of a virtual machine's call (a tensor, or several) as NumPy arrays."""
    outputs = [result] if hasattr(result, "numpy") else list(result)
    return [output.numpy() for output in outputs]


def widened_truth(
    model: Any, inputs: dict[str, np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Return what ONNX Runtime makes of a model and inputs with every 16-bit float widened."""
    wide = {
        name: x.astype(np.float32) if x.dtype.name in ("bfloat16", "float16") else x
        for name, x in inputs.items()
    }
    return onnx_runtime(widened(model), wide)


def widened(model: Any, double: bool = False) -> Any:
    """Return a model with every 16-bit float type made float32, values unchanged.

    What it computes is the same function of the same (rounded) weights, without the roundings in
    between: the truth that a 16-bit model is measured against.

    Parameters
    ----------
    model
        An onnx.ModelProto; it stays as it is.
    double
        True to make float64 of every float type, float32 included.
    """
    import onnx

    narrow = (*_NARROW, _FLOAT) if double else _NARROW
    width, dtype = (_DOUBLE, np.float64) if double else (_FLOAT, np.float32)

    wide = copy.deepcopy(model)
    del wide.graph.value_info[:]
    for value in [*wide.graph.input, *wide.graph.output]:
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = width
    for tensor in stored_tensors(wide):
        if tensor.data_type in narrow:
            array = onnx.numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for node in wide.graph.node:
        for attribute in node.attribute:
            # Cast names its type "to", generators such as EyeLike "dtype".
            if attribute.name in ("to", "dtype") and attribute.i in narrow:
                attribute.i = width
    return wide


def has_bfloat16(model: Any) -> bool:
    """Return True where a model holds or makes bfloat16 values."""
    if any(tensor.data_type == _BFLOAT16 for tensor in stored_tensors(model)):
        return True
    values = [*model.graph.input, *model.graph.output]
    if any(value.type.tensor_type.elem_type == _BFLOAT16 for value in values):
        return True
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    return any(x.name in ("to", "dtype") and x.i == _BFLOAT16 for x in attributes)


def onnx_runtime(model: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Run a model in ONNX Runtime on the CPU.

    Its CPU provider has no bfloat16 products: give it such a model :func:`widened`.

    Raises
    ------
    InputError
        When ONNX Runtime is not installed, or refuses the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "check: ONNX Runtime is missing; pip install 'tvm-vibegemm[check]'"
        ) from error
    with tempfile.TemporaryDirectory(prefix="vibegemm-check-") as folder:
        try:
            session = onnxruntime.InferenceSession(
                _servable(model, Path(folder)), providers=["CPUExecutionProvider"]
            )
            return list(session.run(None, inputs))
        except Exception as error:  # it raises its own
            reason = last_line(error)
            raise InputError(f"check: ONNX Runtime cannot run the model: {reason}") from error


def _servable(model: Any, folder: Path) -> bytes | str:
    """Return the model as bytes, or, past what a protobuf may hold, as a file with its data."""
    import onnx

    size = sum(len(tensor.raw_data) for tensor in stored_tensors(model))
    if size < _PROTOBUF_LIMIT // 2:
        return bytes(model.SerializeToString())
    path = folder / "model.onnx"
    onnx.save_model(copy.deepcopy(model), str(path), save_as_external_data=True)
    return str(path)


def errors(got: list[np.ndarray[Any, Any]], want: list[np.ndarray[Any, Any]]) -> dict[str, float]:
    """Return the largest error: absolute, and relative to the output's root-mean-square."""
    absolute = relative = 0.0
    for x, y in zip(got, want, strict=True):
        difference = np.abs(x.astype(np.float64) - y.astype(np.float64))
        scale = float(np.sqrt(np.mean(np.square(y.astype(np.float64))))) or 1.0
        absolute = max(absolute, float(difference.max(initial=0.0)))
        relative = max(relative, float(difference.max(initial=0.0)) / scale)
        if not np.isfinite(x.astype(np.float64)).all():
            absolute = relative = float("inf")
    return {"max_abs": absolute, "max_rel": relative}


def check_model(path: Path, shapes: dict[str, tuple[int, ...]], compiled: Any) -> dict[str, float]:
    """Compare a compiled model with ONNX Runtime on one set of random inputs.

    A model with bfloat16 in it is compared with its float32 form, on the same rounded weights and
    inputs.

    Parameters
    ----------
    path, shapes
        The model as it was compiled.
    compiled
        The result of :func:`.onnx.compile_onnx`.

    Returns
    -------
    dict
        ``max_abs`` and ``max_rel``.
    """
    import tvm

    model = load_model(path, shapes)
    inputs = random_inputs(model)
    executable = compiled.executable
    if executable is None:
        executable = tvm.runtime.load_module(str(compiled.library))
    got = run_library(executable, inputs, tvm.cuda(0))
    if not has_bfloat16(model):
        return errors(got, onnx_runtime(model, inputs))
    return errors(got, widened_truth(model, inputs))
