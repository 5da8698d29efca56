"""Runs a compiled model on the GPU beside ONNX Runtime on the CPU, on random inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .onnx_load import load_model


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
    result = machine["main"](*[tvm.runtime.tensor(x, device) for x in inputs.values()])
    outputs = [result] if hasattr(result, "numpy") else list(result)
    return [output.numpy() for output in outputs]


def onnx_runtime(model: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Run a model in ONNX Runtime on the CPU.

    Its CPU provider has no bfloat16 products: such a model is to be given in float32.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "check: ONNX Runtime is missing; pip install 'tvm-vibegemm[check]'"
        ) from error
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, inputs))


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
    if any(x.dtype.name == "bfloat16" for x in inputs.values()):
        raise InputError(
            f"check {path}: ONNX Runtime has no bfloat16 products on the CPU;"
            " check the float32 model"
        )
    return errors(got, onnx_runtime(model, inputs))
