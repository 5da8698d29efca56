"""Inputs of a check, and the float64 result that they must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernel.preamble import DEFAULT_SCALE
from ..rivals.reference import operand_shapes
from ..workload import BatchMap, EpilogueOp, Workload

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = ("integers", "normal", "uniform")
# Largest integer whose products stay exact in the class, and which a lower class would round:
# 11 bits fill fp16 and exceed bf16's 8; 12 bits exceed TF32's 11.
_INTEGER_RANGE = {"f32": 2047, "f16": 15, "bf16": 15, "tf32": 31}


def numpy_dtype(storage: str) -> np.dtype[Any]:
    """Return NumPy's type for a stored type; bfloat16 and fp8 come from ml_dtypes."""
    try:
        return np.dtype(storage)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, storage))


def make_inputs(workload: Workload, kind: str, seed: int) -> list[Array]:
    """Return A, B and the epilogue's operands.

    Parameters
    ----------
    workload
        Fixes shapes and types.
    kind
        ``integers``: products and sums are exact in the claimed accumulator, so an honest kernel
        of that class has no error but the last rounding; ``normal``: N(0, 1); ``uniform``: [0, 1).
    seed
        Of the generator.

    Returns
    -------
    list of numpy.ndarray
        Arrays in the stored types.
    """
    random = np.random.default_rng(seed)
    arrays = []
    for position, (shape, storage) in enumerate(operand_shapes(workload)[:-1]):
        if kind == "integers":
            top = _INTEGER_RANGE.get(workload.a, 7) if position < 2 else 7
            if workload.a == "f32" and position < 2:
                # |sum| < 2^24 keeps every partial sum exact in float32, whatever the order.
                top = int(min(top, np.sqrt(2**24 / max(workload.k, 1))))
            values = random.integers(-top, top + 1, shape).astype(np.float32)
        elif kind == "normal":
            values = random.standard_normal(shape, dtype=np.float32)
        else:
            values = random.random(shape, dtype=np.float32)
        arrays.append(values.astype(numpy_dtype(storage)))
    return arrays


def _matrices(x: Array, mapping: BatchMap | None, batch: int, transposed: bool) -> Array:
    x = x.astype(np.float64)
    x = x.reshape((-1, *x.shape[-2:])) if x.ndim > 2 else x[None]
    if transposed:
        x = x.swapaxes(-1, -2)
    assert mapping is not None
    if mapping.mod == 1:
        return x  # broadcast by NumPy, without a copy
    index = np.arange(batch) // mapping.div % mapping.mod
    return x if mapping == BatchMap(1, batch) else x[index]


def truth(workload: Workload, inputs: list[Array]) -> Array:
    """Return the float64 result, shaped like D, before the rounding to the output type."""
    a = _matrices(inputs[0], workload.a_batch, workload.batch, workload.trans_a)
    b = _matrices(inputs[1], workload.b_batch, workload.batch, workload.trans_b)
    m, n = a.shape[-2], b.shape[-1]
    value = np.broadcast_to(a @ b, (workload.batch, m, n))
    operands = iter(inputs[2:])
    for op in workload.epilogue:
        operand = next(operands).astype(np.float64) if op.dtype is not None else None
        value = apply_step(op, value, operand)
    return value if workload.batch != 1 else value[0]


def apply_step(op: EpilogueOp, value: Array, operand: Array | None) -> Array:
    """Return one step of the epilogue in float64."""
    if operand is not None:
        return value + (operand.reshape(value.shape) if op.kind == "residual" else operand)
    match op.kind:
        case "relu":
            return np.maximum(value, 0)
        case "scale":
            return value * np.float64(np.float32(DEFAULT_SCALE if op.value is None else op.value))
        case "gelu_erf":
            return 0.5 * value * (1 + erf(value / np.sqrt(2.0)))
        case "gelu_tanh":
            inner = np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)
            return 0.5 * value * (1 + np.tanh(inner))
        case "silu":
            with np.errstate(over="ignore"):
                return value / (1 + np.exp(-value))
    raise AssertionError(op.kind)


def erf(x: Array) -> Array:
    """Return erf to about 1e-7·|x|⁰: Abramowitz and Stegun 7.1.26 is too coarse, so by its series.

    For |x| < 3 the Maclaurin series of Abramowitz and Stegun 7.1.6 (all terms positive), else the
    continued fraction's leading terms; the error stays under 1e-12 for |x| < 3 and 1e-9 above.
    """
    z = np.abs(x)
    small = np.minimum(z, 3.0)
    term = np.ones_like(small)
    total = np.ones_like(small)
    for k in range(1, 60):
        term = term * (2 * small * small) / (2 * k + 1)
        total = total + term
    series = 2 / np.sqrt(np.pi) * small * np.exp(-small * small) * total
    large = np.maximum(z, 3.0)
    fraction = large.copy()
    for k in range(40, 0, -1):
        fraction = large + (k / 2) / fraction
    tail = 1 - np.exp(-large * large) / (np.sqrt(np.pi) * fraction)
    return np.sign(x) * np.where(z < 3.0, series, tail)
