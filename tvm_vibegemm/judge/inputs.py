"""Which inputs a kernel is checked on, and why: recipes that the device and NumPy both follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ..kernel.preamble import DEFAULT_SCALE
from ..rivals.reference import operand_shapes
from ..workload import DTYPES, BatchMap, EpilogueOp, Workload

Array = np.ndarray[Any, np.dtype[Any]]


class Kind(IntEnum):
    """How the elements of one operand are drawn; numbers as in ``trusted.cu``."""

    INTEGERS = 0
    SPARSE = 1
    UNIFORM = 2
    NORMAL = 3
    WIDE = 4


# Recipes, in the order of a check. The exact ones first: they say most clearly what is wrong.
PRECISE_A, PRECISE_B, DENSE = "precise-a", "precise-b", "dense"
UNIFORM, NORMAL, WIDE, SPECIAL = "uniform", "normal", "wide", "special"
EXACT = (PRECISE_A, PRECISE_B, DENSE)
STATISTICAL = (UNIFORM, NORMAL, WIDE)
RECIPES = (*EXACT, *STATISTICAL, SPECIAL)

# Largest integers that fill a type's mantissa: rounding an operand to a lower class changes them.
_FULL = {
    # Four of them, and what a bias and a residual add, stay under float32's 2^24.
    **{"f32": 2**21 - 1, "tf32": 2**11 - 1, "f16": 2**11 - 1, "bf16": 2**8 - 1},
    **{"s8": 127, "f8e4m3": 15, "f8e5m2": 7},
}
# Exponents of the recipe with a large dynamic range: what a product of two may reach must stay
# inside the narrowest type around.
_SPREAD = {"f32": 12, "tf32": 12, "bf16": 12, "f16": 3, "f8e4m3": 2, "f8e5m2": 3, "s8": 0}
# Standard deviation of the sums of the dense recipe: beyond what an fp16 accumulator holds exactly
# (2^11) and, at four times that, within what fp16 can say at all. FP8 tensor cores of Hopper keep
# fewer bits of a sum than float32.
_BENT = ("gelu_erf", "gelu_tanh", "silu")
_DENSE_SUM = 8192.0
_DENSE_SUM_FP8 = 512.0
_DEVIATIONS = 8  # further than that from zero is no sum, in any output that fits a machine


@dataclass(frozen=True)
class Draw:
    """How one operand is drawn.

    Parameters
    ----------
    kind
        Of values.
    top
        Largest integer, largest exponent, or what normal values are multiplied by.
    """

    kind: Kind
    top: float = 1.0


def draws(workload: Workload, recipe: str) -> list[Draw]:
    """Return how A, B and the epilogue's operands are drawn in a recipe.

    Parameters
    ----------
    workload
        Fixes types and K.
    recipe
        One of :data:`RECIPES`. ``precise-a``: A holds integers of a full mantissa, B at most four
        ±1 a column, so that the result is exact in the claimed class and in no lower one;
        ``precise-b``: the other way round (before an activation A is small, so that it is checked
        where it bends). ``dense``: small integers everywhere, whose sums are
        exact in a float32 accumulator and not in an fp16 one. ``uniform`` in [0, 1), ``normal``,
        ``wide``: normal times 2^i. ``special``: normal, with what :func:`specials` names.
    """
    bent = any(op.kind in _BENT for op in workload.epilogue)
    if recipe == PRECISE_A:
        # Up to 12 in sum where an activation follows: of large numbers it is a line.
        pair = [Draw(Kind.INTEGERS, 3.0 if bent else _FULL[workload.a]), Draw(Kind.SPARSE)]
    elif recipe == PRECISE_B:
        pair = [Draw(Kind.SPARSE), Draw(Kind.INTEGERS, _FULL[workload.b])]
    elif recipe == DENSE:
        top = dense_top(workload)
        pair = [Draw(Kind.INTEGERS, top), Draw(Kind.INTEGERS, top)]
    elif recipe == UNIFORM:
        pair = [Draw(Kind.UNIFORM)] * 2
    elif recipe == NORMAL and bent:  # sums of about 1
        pair = [Draw(Kind.NORMAL, max(workload.k, 1) ** -0.25)] * 2
    elif recipe == WIDE:
        spread = min(_SPREAD[x] for x in (workload.a, workload.b))
        if workload.out == "f16":
            spread = min(spread, _SPREAD["f16"])
        pair = [Draw(Kind.WIDE, spread)] * 2
    else:
        pair = [Draw(Kind.NORMAL)] * 2
    if "s8" in (workload.a, workload.b):  # nothing but integers there, and all of them exact
        pair = [
            x if x.kind in (Kind.INTEGERS, Kind.SPARSE) else Draw(Kind.INTEGERS, 127.0)
            for x in pair
        ]
    # As large as the operands: what is added wrongly must not look like rounding.
    full = 3.0 if bent and recipe == PRECISE_A else float(_FULL[workload.a])
    return pair + [
        Draw(Kind.INTEGERS, min(full, _FULL.get(op.dtype, full)))
        if recipe in EXACT or workload.acc == "s32"
        else Draw(Kind.NORMAL)
        for op in workload.epilogue
        if op.dtype is not None
    ]


def dense_top(workload: Workload) -> float:
    """Return the largest integer of the dense recipe.

    Integers uniform in ±t have variance near t²/3, so a sum of K products of two deviates by
    sqrt(K) t²/3; every partial sum stays under K t² <= 2^24, where float32 is exact.
    """
    k = max(workload.k, 1)
    fp8 = workload.a.startswith("f8")
    wanted = math.sqrt(3 * (_DENSE_SUM_FP8 if fp8 else _DENSE_SUM) / math.sqrt(k))
    full = min(_FULL[workload.a], _FULL[workload.b])
    if workload.acc == "s32":
        return float(full)
    return float(max(1, math.floor(min(wanted, math.sqrt(2**24 / k), full))))


def is_exact(workload: Workload, recipe: str) -> bool:
    """Return True where an honest kernel gives the rounded true result bit for bit.

    Activations and factors that are no power of two round on their way, and so does whatever needs
    more than the 24 bits of float32: a factor of 1/8 takes three of them.
    """
    if recipe not in EXACT and workload.acc != "s32":
        return False
    if not workload.epilogue:
        return True
    full = min(_FULL[workload.a], _FULL[workload.b])
    largest = _DEVIATIONS * _DENSE_SUM if recipe == DENSE else 4.0 * full
    if workload.acc == "s32":
        largest = float(max(workload.k, 1) * full * full)
    finest = 1.0
    for op in workload.epilogue:
        if op.kind == "scale":
            factor = abs(scale_of(op))
            if math.frexp(factor)[0] not in (0.5, 0.0):
                return False
            largest, finest = largest * factor, finest * min(factor, 1.0)
        elif op.dtype is not None:
            largest += min(_FULL[workload.a], _FULL.get(op.dtype, _FULL[workload.a]))
        elif op.kind != "relu":
            return False
        if finest == 0 or largest / finest > 2**24:
            return False
    return True


def scale_of(op: EpilogueOp) -> float:
    """Return the factor of a ``scale`` as the kernel multiplies by it: rounded to float32."""
    return float(np.float32(DEFAULT_SCALE if op.value is None else op.value))


def specials(workload: Workload) -> list[tuple[int, float, float]]:
    """Return (operand, place, value) of what the special recipe sets: place in [0, 1) of it.

    An infinity, a NaN, and a value whose products pass fp16's range but not that of the float32
    accumulator, which an honest kernel may overflow; most rows and columns stay without, and must
    be right.
    """
    if "s8" in (workload.a, workload.b):
        return []
    large = min(LARGEST[workload.a] / 2, 1e30)
    found = [(0, 0.21, math.inf), (1, 0.43, math.nan), (0, 0.67, large)]
    if not workload.a.startswith("f8") and not workload.b.startswith("f8"):
        found.append((1, 0.89, -math.inf))
    return [x for x in found if not (x[2] == math.inf and workload.a == "f8e4m3")]


#: Largest finite value of a type.
LARGEST = {
    **{"f32": 3.4028234663852886e38, "tf32": 3.4e38, "f16": 65504.0},
    **{"bf16": 3.3895313892515355e38, "s8": 127.0, "s32": 2147483647.0},
    **{"f8e4m3": 448.0, "f8e5m2": 57344.0},
}


@dataclass(frozen=True)
class Operand:
    """Where one operand stands in memory: matrices of rows × cols, row-major.

    Parameters
    ----------
    dtype
        Canonical type.
    matrices, rows, cols
        Extents as stored.
    k_rows
        True where the summed dimension runs along ``rows``.
    """

    dtype: str
    matrices: int
    rows: int
    cols: int
    k_rows: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.matrices * self.rows * self.cols

    @property
    def bytes(self) -> int:
        """Bytes that they take."""
        return self.size * DTYPES[self.dtype].bytes


def operands(workload: Workload) -> list[Operand]:
    """Return A, B, the epilogue's operands and D last."""
    m = workload.m
    assert m is not None and workload.a_batch is not None and workload.b_batch is not None
    n, k = workload.n, workload.k
    a = (k, m) if workload.trans_a else (m, k)
    b = (n, k) if workload.trans_b else (k, n)
    found = [
        Operand(workload.a, workload.a_batch.mod, *a, workload.trans_a),
        Operand(workload.b, workload.b_batch.mod, *b, not workload.trans_b),
    ]
    for op in workload.epilogue:
        if op.kind == "bias":
            found.append(Operand(op.dtype or "f32", 1, 1, n, False))
        elif op.kind == "residual":
            found.append(Operand(op.dtype or "f32", workload.batch, m, n, False))
    return [*found, Operand(workload.out, workload.batch, m, n, False)]


# -- the same in NumPy: for tests, and to check the device's own product ------------------------


def numpy_dtype(storage: str) -> np.dtype[Any]:
    """Return NumPy's type for a stored type; bfloat16 and fp8 come from ml_dtypes."""
    try:
        return np.dtype(storage)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, storage))


def make_inputs(workload: Workload, recipe: str, seed: int) -> list[Array]:
    """Return A, B and the epilogue's operands, drawn by NumPy, in the stored types."""
    random = np.random.default_rng(seed)
    arrays = []
    shapes = operand_shapes(workload)[:-1]
    for operand, draw, (shape, storage) in zip(
        operands(workload)[:-1], draws(workload, recipe), shapes, strict=True
    ):
        values = _drawn(random, operand, draw).reshape(shape)
        arrays.append(values.astype(numpy_dtype(storage)))
    return arrays


def _drawn(random: np.random.Generator, x: Operand, draw: Draw) -> Array:
    shape = (x.matrices, x.rows, x.cols)
    match draw.kind:
        case Kind.INTEGERS:
            return random.integers(-int(draw.top), int(draw.top) + 1, shape).astype(np.float64)
        case Kind.UNIFORM:
            return random.random(shape)
        case Kind.NORMAL:
            return random.standard_normal(shape) * draw.top
        case Kind.WIDE:
            top = int(draw.top)
            return random.standard_normal(shape) * np.exp2(random.integers(-top, top + 1, shape))
    k, others = (x.rows, x.cols) if x.k_rows else (x.cols, x.rows)
    values = np.zeros((x.matrices, k, others))
    if k:
        other = np.arange(others)
        first = other % k
        last = k - 1 - other % min(k, 32)
        for place in (first, np.minimum(first ^ 1, k - 1), last, random.integers(0, k, others)):
            values[:, place, other] = random.choice([-1.0, 1.0], (x.matrices, others))
    return values if x.k_rows else values.swapaxes(1, 2)


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
    return _finished(workload, inputs, np.matmul(*_pair(workload, inputs)))[0]


def magnitude(workload: Workload, inputs: list[Array]) -> Array:
    """Return the sum of magnitudes behind each element: what honest errors are a multiple of."""
    a, b = _pair(workload, inputs)
    return _finished(workload, inputs, np.matmul(a, b), np.matmul(np.abs(a), np.abs(b)))[1]


def _pair(workload: Workload, inputs: list[Array]) -> tuple[Array, Array]:
    a = _matrices(inputs[0], workload.a_batch, workload.batch, workload.trans_a)
    b = _matrices(inputs[1], workload.b_batch, workload.batch, workload.trans_b)
    return a, b


def _finished(
    workload: Workload, inputs: list[Array], product: Array, size: Array | None = None
) -> tuple[Array, Array]:
    shape = (workload.batch, *product.shape[-2:])
    value = np.broadcast_to(product, shape)
    size = np.broadcast_to(np.abs(product) if size is None else size, shape)
    rest = iter(inputs[2:])
    for op in workload.epilogue:
        operand = next(rest).astype(np.float64) if op.dtype is not None else None
        value = apply_step(op, value, operand)
        if operand is not None:
            size = size + np.abs(operand.reshape(shape) if op.kind == "residual" else operand)
        elif op.kind == "scale":
            size = size * abs(scale_of(op))
        elif op.kind != "relu":
            size = size * 1.13  # bounds the slope of every activation
    if workload.batch != 1:
        return value, size
    return value[0], size[0]


def apply_step(op: EpilogueOp, value: Array, operand: Array | None) -> Array:
    """Return one step of the epilogue in float64."""
    if operand is not None:
        return value + (operand.reshape(value.shape) if op.kind == "residual" else operand)
    match op.kind:
        case "relu":
            return np.maximum(value, 0)
        case "scale":
            return value * scale_of(op)
        case "gelu_erf":
            return 0.5 * value * (1 + erf(value / np.sqrt(2.0)))
        case "gelu_tanh":
            # 1 + tanh(u) = 2 / (1 + exp(-2u)), which does not cancel.
            inner = np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)
            with np.errstate(over="ignore"):
                return value / (1 + np.exp(-2 * inner))
        case "silu":
            with np.errstate(over="ignore"):
                return value / (1 + np.exp(-value))
    raise AssertionError(op.kind)


def erf(x: Array) -> Array:
    """Return erf in float64.

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
