"""Small questions about Relax tensors: types, dimensions, constants, identity."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax, sym, tirx

from ..workload import dtype_from_storage

FLOATS = ("f32", "f16", "bf16")
Dim = Any  # int, or a TIR expression


def key(var: Any) -> int:
    """Return the identity of a node, the same through every Python handle to it.

    ``==`` on a variable of scalar type builds an expression, so nodes are never compared by it.
    """
    return hash(var)


def op_name(value: Any) -> str | None:
    """Return the name of the operator that ``value`` calls (``relax.matmul``), or None."""
    if isinstance(value, relax.Call) and isinstance(value.op, ir.Op):
        return str(value.op.name)
    return None


def dims(expr: Any) -> tuple[Dim, ...] | None:
    """Return the dimensions of a tensor, integers where static; None where they are unknown."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return tuple(int(x) if isinstance(x, tirx.IntImm) else x for x in ty.shape.values)


def dtype(expr: Any) -> str | None:
    """Return the canonical element type of a tensor (``f16``), or None."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.dtype is None:
        return None
    return dtype_from_storage(str(ty.dtype.dtype))


def same_dim(x: Dim, y: Dim) -> bool:
    """Return True where two dimensions are provably equal."""
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    return bool(sym.Analyzer().can_prove_equal(_expr(x), _expr(y)))


def same_shape(x: tuple[Dim, ...], y: tuple[Dim, ...]) -> bool:
    """Return True where two shapes are provably equal, leading ones aside."""
    x, y = strip_ones(x), strip_ones(y)
    return len(x) == len(y) and all(same_dim(p, q) for p, q in zip(x, y, strict=True))


def strip_ones(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return a shape without its leading ones."""
    start = 0
    while start < len(shape) and isinstance(shape[start], int) and shape[start] == 1:
        start += 1
    return shape[start:]


def product(values: tuple[Dim, ...]) -> Dim:
    """Return the product of dimensions: a number where all are."""
    result: Dim = 1
    for value in values:
        result = result * value
    return result


def all_static(values: tuple[Dim, ...]) -> bool:
    """Return True where every dimension is a number."""
    return all(isinstance(value, int) for value in values)


def scalar(expr: Any) -> float | None:
    """Return the value of a finite one-element floating-point constant, else None."""
    if not isinstance(expr, ir.GenericConst) or dtype(expr) not in (*FLOATS, "f64"):
        return None
    shape = dims(expr)
    if shape is None or not all_static(shape) or product(shape) != 1:
        return None
    value = float(expr.value.numpy().reshape(()))
    return value if math.isfinite(value) else None


def on_gpu(expr: Any) -> bool:
    """Return False where a tensor is pinned to a device that is no CUDA GPU."""
    vdevice = expr.ty.vdevice
    return vdevice is None or vdevice.target is None or vdevice.target.kind.name == "cuda"


def inferable(params: list[Any], others: list[Any]) -> bool:
    """Return True where the shapes of ``params`` define every symbol that any shape uses."""
    defined: set[int] = set()
    used: set[int] = set()
    for expr in params:
        defined.update(key(v) for v in relax.analysis.definable_tir_vars_in_type(expr.ty))
    for expr in (*params, *others):
        used.update(key(v) for v in relax.analysis.tir_vars_in_type(expr.ty))
    return used <= defined


def _expr(x: Dim) -> Any:
    return tirx.IntImm("int64", x) if isinstance(x, int) else x
