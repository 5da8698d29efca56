"""NumPy outputs of honest kernels and of faulty ones, for tests of the judge's mathematics.

``python -m tests.judge.faults`` prints how far each stands from what is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from tvm_vibegemm.judge.inputs import (
    LARGEST,
    RECIPES,
    SPECIAL,
    Array,
    apply_step,
    erf,
    magnitude,
    make_inputs,
    numpy_dtype,
    scale_of,
    specials,
    truth,
)
from tvm_vibegemm.judge.numerics import Stats, allowed_rms, stats_of, verdict
from tvm_vibegemm.judge.verdict import Reason
from tvm_vibegemm.workload import DTYPES, EpilogueOp, Workload

K_SIZES = (64, 4096, 65536)
Product = Callable[[Array, Array], Array]
Make = Callable[[Workload, list[Array]], Array]

# -- rounding -----------------------------------------------------------------------------------


def rounded(x: Array, bits: int, mode: str = "even") -> Array:
    """Round float64 to a significand of so many bits: ``even``, ``away`` (RNA) or ``zero``."""
    drop = 53 - bits
    raw = np.ascontiguousarray(x, np.float64).view(np.uint64)
    if mode == "even":
        raw = raw + (np.uint64((1 << (drop - 1)) - 1) + ((raw >> np.uint64(drop)) & np.uint64(1)))
    elif mode == "away":
        raw = raw + np.uint64(1 << (drop - 1))
    return (raw & ~np.uint64((1 << drop) - 1)).view(np.float64)


def _half(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


# -- products: a (M × K) and b (K × N) in float64, the accumulator as result --------------------


def chunks(a: Array, b: Array, width: int) -> Array:
    """Return the sums of ``width`` products each, in float64, as K/width × M × N."""
    short = -a.shape[1] % width
    if short:
        a, b = np.pad(a, ((0, 0), (0, short))), np.pad(b, ((0, short), (0, 0)))
    left = a.reshape(a.shape[0], -1, width).swapaxes(0, 1)
    return np.matmul(left, b.reshape(-1, width, b.shape[1]))


def sequential(a: Array, b: Array, block: int = 256) -> Array:
    """Sum one product after the other in float32, each rounded before it is added."""
    total = np.zeros((1, a.shape[0], b.shape[1]), np.float32)
    left, right = a.T.astype(np.float32), b.astype(np.float32)
    for k in range(0, len(right), block):
        products = left[k : k + block, :, None] * right[k : k + block, None, :]
        # Along the first axis NumPy adds row after row.
        total = np.add.reduce(np.concatenate([total, products]), axis=0, keepdims=True)
    return total[0]


def fused(a: Array, b: Array) -> Array:
    """Sum one product after the other, fused: what ``fmaf`` in order gives."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    product = np.empty(total.shape)
    for x, y in zip(np.ascontiguousarray(a.T)[:, :, None], b, strict=True):
        np.multiply(x, y, out=product)
        np.add(product, total, out=product)
        total[...] = product
    return total


def blocked(a: Array, b: Array) -> Array:
    """Sum 16 products in order in float32, then add that to the total."""
    parts = np.zeros((-(-a.shape[1] // 16), a.shape[0], b.shape[1]), np.float32)
    left, right = a.T.astype(np.float32), b.astype(np.float32)
    for j in range(16):
        products = left[j::16, :, None] * right[j::16, None, :]
        parts[: len(products)] += products
    return np.add.reduce(parts, axis=0)


def pairwise(a: Array, b: Array) -> Array:
    """Sum in float32 as a balanced tree."""
    return _tree(a.T.astype(np.float32), b.astype(np.float32))


def _tree(left: Array, right: Array) -> Array:
    if len(left) > 1024:
        middle = len(left) // 2
        return _tree(left[:middle], right[:middle]) + _tree(left[middle:], right[middle:])
    parts = left[:, :, None] * right[:, None, :]
    while len(parts) > 1:
        rest = parts[len(parts) // 2 * 2 :]
        parts = np.concatenate([parts[0 : len(parts) // 2 * 2 : 2] + parts[1::2], rest])
    return parts.sum(0)


def stepwise(a: Array, b: Array, width: int, after: Callable[[Array], Array]) -> Array:
    """Add ``width`` products at a time to the accumulator, rounding it by ``after`` each time."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for part in chunks(a, b, width):
        total = after(total + part)
    return total


def tensor_core(a: Array, b: Array, width: int = 16) -> Array:
    """Sum as a tensor core does: ``width`` products at a time, truncated to float32's 24 bits."""
    return stepwise(a, b, width, partial(rounded, bits=24, mode="zero")).astype(np.float32)


def promoted(a: Array, b: Array, width: int, by: int, inner: Callable[[Array], Array]) -> Array:
    """Sum ``by`` products by steps of ``width`` rounded by ``inner``; add those in float32."""
    parts = chunks(a, b, width)
    short = -len(parts) % (by // width)
    parts = np.pad(parts, ((0, short), (0, 0), (0, 0)))
    parts = parts.reshape(-1, by // width, *parts.shape[1:])
    total = np.zeros_like(parts[:, 0])
    for j in range(by // width):
        total = inner(total + parts[:, j])
    return np.add.reduce(total.astype(np.float32), axis=0)


def tf32(a: Array, b: Array, mode: str = "away") -> Array:
    """Sum in tensor cores after rounding both operands to TF32."""
    return tensor_core(rounded(a, 11, mode), rounded(b, 11, mode), 8)


def _split(x: Array, bits: int, terms: int) -> list[Array]:
    parts = []
    for _ in range(terms):
        parts.append(rounded(x, bits))
        x = x - parts[-1]
    return parts


def split(a: Array, b: Array, bits: int, terms: int, width: int = 8, chained: bool = True) -> Array:
    """Emulate float32 by products of parts of ``bits`` bits, the least ones left out.

    ``chained``: all in one tensor-core accumulator; else 32 products a time, then float32.
    """
    with np.errstate(invalid="ignore"):
        left, right = _split(a, bits, terms), _split(b, bits, terms)
        pairs = sorted(
            ((i, j) for i in range(terms) for j in range(terms) if i + j < terms),
            key=lambda pair: -sum(pair),
        )
        # The parts of one step stand side by side along k: small ones first, as kernels do.
        k = a.shape[1]
        short = -k % width
        a_long = [_blocks(left[i], 1, width, short) for i, _ in pairs]
        b_long = [_blocks(right[j], 0, width, short) for _, j in pairs]
        both = np.stack(a_long, 2).reshape(a.shape[0], -1)
        other = np.stack(b_long, 1).reshape(-1, b.shape[1])
    if chained:
        return tensor_core(both, other, width)
    truncate = partial(rounded, bits=24, mode="zero")
    return promoted(both, other, width, 32 * len(pairs), truncate)


def _blocks(x: Array, axis: int, width: int, short: int) -> Array:
    pad = [(0, 0), (0, 0)]
    pad[axis] = (0, short)
    x = np.pad(x, pad)
    if axis == 1:
        return x.reshape(x.shape[0], -1, width)
    return x.reshape(-1, width, x.shape[1])


def int32(a: Array, b: Array) -> Array:
    """Sum int8 products exactly."""
    return a @ b


def int16(a: Array, b: Array) -> Array:
    """Sum int8 products in 16 bits that wrap around."""
    return (a @ b).astype(np.int64).astype(np.int16).astype(np.float64)


# -- whole kernels ------------------------------------------------------------------------------


def pair(workload: Workload, inputs: list[Array]) -> tuple[Array, Array]:
    """Return A as M × K and B as K × N in float64."""
    a, b = (x.astype(np.float64) for x in inputs[:2])
    return (a.T if workload.trans_a else a), (b.T if workload.trans_b else b)


def epilogue(workload: Workload, value: Array, operands: list[Array]) -> Array:
    """Apply the epilogue in float32, as kernels do."""
    rest = iter(operands)
    for op in workload.epilogue:
        value = value.astype(np.float32)
        match op.kind:
            case "bias" | "residual":
                value = value + next(rest).astype(np.float32)
            case "relu":
                value = np.maximum(value, np.float32(0))
            case "scale":
                value = value * np.float32(scale_of(op))
            case "gelu_erf":
                inner = erf(value.astype(np.float64) * math.sqrt(0.5)).astype(np.float32)
                value = np.float32(0.5) * value * (1 + inner)
            case _:
                value = apply_step(op, value.astype(np.float64), None).astype(np.float32)
    return value


def stored(workload: Workload, value: Array) -> Array:
    """Round to the output's type, once."""
    dtype = numpy_dtype(DTYPES[workload.out].storage)
    if np.issubdtype(dtype, np.integer):
        bound = np.iinfo(dtype)
        return np.clip(np.rint(value), bound.min, bound.max).astype(dtype)
    if workload.out.startswith("f8"):
        value = np.clip(value, -LARGEST[workload.out], LARGEST[workload.out])
    if workload.out == "bf16":
        value = value.astype(np.float32)
    return value.astype(dtype)


def kernel(product: Product) -> Make:
    """Return a kernel around a product."""

    def make(workload: Workload, inputs: list[Array]) -> Array:
        with np.errstate(all="ignore"):
            value = product(*pair(workload, inputs))
            return stored(workload, epilogue(workload, value, inputs[2:]))

    return make


def reference(workload: Workload) -> Make:
    """Return the honest kernel that the judge's own device code is."""
    if workload.acc == "s32":
        return kernel(int32)
    if workload.a == "tf32":
        return kernel(tf32)
    return kernel(tensor_core if workload.a in ("f16", "bf16") else fused)


def specialised(workload: Workload, inputs: list[Array]) -> list[Array]:
    """Return the inputs with what the special recipe sets."""
    inputs = [x.copy() for x in inputs]
    for operand, place, value in specials(workload):
        flat = inputs[operand].reshape(-1)
        flat[min(int(place * flat.size), flat.size - 1)] = value
    return inputs


# -- faults -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A faulty kernel.

    Parameters
    ----------
    make
        Returns its output.
    reason
        What the judge must say of it.
    k
        The sizes at which it makes a difference.
    of_honest
        True where ``make`` gets the honest output in place of the inputs.
    """

    make: Make
    reason: Reason
    k: tuple[int, ...] = K_SIZES
    of_honest: bool = False


def _low(product: Product) -> Fault:
    return Fault(kernel(product), Reason.BELOW_PRECISION)


def _changed(change: Callable[[Workload, Array], Array], reason: Reason) -> Fault:
    def make(workload: Workload, honest: list[Array]) -> Array:
        with np.errstate(all="ignore"):
            return stored(workload, change(workload, honest[0].astype(np.float64)))

    return Fault(make, reason, of_honest=True)


def _wrong(change: Callable[[Workload, Array], Array]) -> Fault:
    return _changed(change, Reason.WRONG_ELEMENTS)


def _one(by: Callable[[Workload, float], float]) -> Callable[[Workload, Array], Array]:
    """Change the largest finite element."""

    def change(workload: Workload, got: Array) -> Array:
        at = np.argmax(np.where(np.isfinite(got), np.abs(got), -1))
        got.reshape(-1)[at] = by(workload, got.reshape(-1)[at])
        return got

    return change


_BITS = {"f32": 24, "f16": 11, "bf16": 8, "s32": 31}


def _ulps(workload: Workload, value: float) -> float:
    return value + 64 * math.ldexp(1.0, math.frexp(value)[1] - _BITS[workload.out])


def _set(value: float) -> Callable[[Workload, Array], Array]:
    def change(_: Workload, got: Array) -> Array:
        got[got.shape[0] // 2, got.shape[1] // 3] = value
        return got

    return change


def _last_row(workload: Workload, inputs: list[Array]) -> Array:
    got = reference(workload)(workload, inputs)
    other = [inputs[0][::-1].copy(), *inputs[1:]]
    got[-1] = reference(workload)(workload, other)[-1]
    return got


def _zero_row(_: Workload, got: Array) -> Array:
    got[-1] = 0
    return got


def _without(last: int) -> Product:
    return lambda a, b: tensor_core(a[:, :-last], b[:-last])


def _one_product(a: Array, b: Array) -> Array:
    got = a @ b
    k = a.shape[1] // 2
    row, k = np.unravel_index(np.argmax(np.abs(a) * (b[:, 0] != 0)), a.shape)
    got[row, 0] -= a[row, k] * b[k, 0]
    return got


def _misread(a: Array, b: Array) -> Array:
    return tensor_core(a.reshape(a.shape[::-1]).T, b)


def _skips(kind: str) -> Make:
    """Leave the first step of that kind out, and its operand."""

    def make(workload: Workload, inputs: list[Array]) -> Array:
        rest, value = list(inputs[2:]), tensor_core(*pair(workload, inputs))
        with np.errstate(all="ignore"):
            for op in workload.epilogue:
                operand = [rest.pop(0)] if op.dtype is not None else []
                if op.kind != kind:
                    step = Workload(1, 1, 1, epilogue=(op,))
                    value = epilogue(step, value, operand)
            return stored(workload, value)

    return make


def _rounds_first(workload: Workload, inputs: list[Array]) -> Array:
    """Round the product to the output's type before the epilogue, and again after it."""
    with np.errstate(all="ignore"):
        early = stored(workload, tensor_core(*pair(workload, inputs)))
        return stored(workload, epilogue(workload, early.astype(np.float32), inputs[2:]))


def _as(kind: str) -> Make:
    """Apply another activation than the one asked for."""

    def make(workload: Workload, inputs: list[Array]) -> Array:
        steps = tuple(
            EpilogueOp(kind) if op.kind in ("gelu_erf", "gelu_tanh", "silu") else op
            for op in workload.epilogue
        )
        other = Workload(
            *(workload.m, workload.n, workload.k, workload.a, workload.b, workload.acc),
            *(workload.out, workload.trans_a, workload.trans_b),
            epilogue=steps,
        )
        return reference(workload)(other, inputs)

    return make


def _finite(workload: Workload, got: Array) -> Array:
    return np.nan_to_num(got, nan=0.0, posinf=LARGEST[workload.out], neginf=-LARGEST[workload.out])


def _accumulators() -> dict[str, Fault]:
    eighth = partial(rounded, bits=8)
    return {
        "fp16 accumulator": _low(lambda a, b: stepwise(a, b, 16, _half)),
        "bf16 accumulator": _low(lambda a, b: stepwise(a, b, 16, eighth)),
        "fp16 sums of 32": _low(lambda a, b: promoted(a, b, 1, 32, _half)),
        "fp16 sums of 32 by mma": _low(lambda a, b: promoted(a, b, 16, 32, _half)),
        "fp16 sums of 16": _low(lambda a, b: promoted(a, b, 16, 16, _half)),
        "bf16 sums of 32": _low(lambda a, b: promoted(a, b, 16, 32, eighth)),
    }


def _structural() -> dict[str, Fault]:
    return {
        "drops the last k": Fault(kernel(_without(1)), Reason.WRONG_ELEMENTS),
        "drops the last 16 k": Fault(kernel(_without(16)), Reason.WRONG_ELEMENTS),
        "one element lacks a product": Fault(kernel(_one_product), Reason.WRONG_ELEMENTS),
        "one element off by 64 ulp": _wrong(_one(_ulps)),
        "one element off by 1 %": _wrong(_one(lambda _, x: x * 1.01)),
        "last row zero": _wrong(_zero_row),
        "last row stale": Fault(_last_row, Reason.WRONG_ELEMENTS),
        "D transposed": _wrong(lambda _, x: x.T.reshape(x.shape)),
        "A misread as transposed": Fault(kernel(_misread), Reason.WRONG_ELEMENTS),
        "constant": _wrong(lambda _, x: np.full_like(x, np.nanmedian(x))),
        "zeros": _wrong(lambda _, x: np.zeros_like(x)),
    }


def _not_finite() -> dict[str, Fault]:
    return {
        "a NaN": _changed(_set(math.nan), Reason.NOT_FINITE),
        "an infinity": _changed(_set(math.inf), Reason.NOT_FINITE),
        "finite for Inf and NaN": _wrong(_finite),
    }


def _outputs(out: str) -> dict[str, Fault]:
    if out == "f32":
        other = {"rounded to f16 first": partial(rounded, bits=11)}
    else:
        other = {
            "f16": {"rounded to bf16 first": partial(rounded, bits=8)},
            "bf16": {"rounded to f16 first": _half},
        }[out]
        other["truncated output"] = partial(rounded, bits=_BITS[out], mode="zero")

    def make(change: Callable[[Array], Array]) -> Make:
        def run(workload: Workload, inputs: list[Array]) -> Array:
            with np.errstate(all="ignore"):
                value = tensor_core(*pair(workload, inputs))
                value = epilogue(workload, value, inputs[2:])
                return stored(workload, change(value.astype(np.float64)))

        return run

    return {name: Fault(make(f), Reason.BELOW_PRECISION) for name, f in other.items()}


def _operands(bits: dict[str, int]) -> dict[str, Fault]:
    faults = {}
    for name, width in bits.items():

        def both(a: Array, b: Array, width: int = width) -> Array:
            return blocked(rounded(a, width), rounded(b, width))

        def left(a: Array, b: Array, width: int = width) -> Array:
            return blocked(rounded(a, width), b)

        def right(a: Array, b: Array, width: int = width) -> Array:
            return blocked(a, rounded(b, width))

        faults |= {name: _low(both), f"{name}, A only": _low(left), f"{name}, B only": _low(right)}
    return faults


# -- classes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Class:
    """Kernels of one class: types and epilogue, honest kernels and faults.

    Parameters
    ----------
    types
        A, B, accumulator and output.
    honest, faults
        By name.
    epilogue
        What follows the product.
    """

    types: tuple[str, str, str, str]
    honest: dict[str, Make]
    faults: dict[str, Fault]
    epilogue: tuple[EpilogueOp, ...] = ()

    def workload(self, k: int) -> Workload:
        """Return the workload of a size: small, as NumPy adds K products in many ways."""
        m, n = (8, 32) if k > 10_000 else (32, 40)
        return Workload(m, n, k, *self.types, epilogue=self.epilogue)


def _honest(*products: Product) -> dict[str, Make]:
    return {product.__name__: kernel(product) for product in products}


_F32 = {
    **_honest(sequential, blocked, pairwise),
    "3xTF32": kernel(partial(split, bits=11, terms=2, chained=False)),
    "bf16x3": kernel(partial(split, bits=8, terms=3, width=16, chained=False)),
}
_LOWER = {
    **_operands({"TF32": 11, "bf16": 8}),
    "bf16x2": _low(partial(split, bits=8, terms=2, width=16, chained=False)),
    # Three products a term into one accumulator that truncates: an error that grows as K.
    "3xTF32 in one accumulator": Fault(
        kernel(partial(split, bits=11, terms=2)), Reason.BELOW_PRECISION, K_SIZES[1:]
    ),
}


def _narrow(a: str, out: str, *epilogue: EpilogueOp, **more: Fault) -> Class:
    honest = _honest(tensor_core, blocked) if epilogue else {}
    honest = honest or _honest(sequential, blocked, pairwise, tensor_core)
    faults = _accumulators() | _outputs(out) | _structural() | _not_finite() | more
    return Class((a, a, "f32", out), honest, faults, epilogue)


def _fault(make: Make, reason: Reason = Reason.WRONG_ELEMENTS) -> Fault:
    return Fault(make, reason)


_GELU = EpilogueOp("gelu_erf")
_EARLY = {"rounded before the epilogue": _fault(_rounds_first, Reason.BELOW_PRECISION)}
CLASSES: dict[str, Class] = {
    "f16": _narrow("f16", "f16"),
    "bf16": _narrow("bf16", "bf16"),
    "f16 to f32": _narrow("f16", "f32"),
    "bf16 to f32": _narrow("bf16", "f32"),
    "f32": Class(
        ("f32", "f32", "f32", "f32"), _F32, _LOWER | _accumulators() | _structural() | _not_finite()
    ),
    "tf32": Class(
        ("tf32", "tf32", "f32", "f32"),
        {
            "rounded": kernel(tf32),
            "truncated": kernel(partial(tf32, mode="zero")),
            "rounded, blocked": kernel(lambda a, b: blocked(rounded(a, 11), rounded(b, 11))),
            "float32": kernel(blocked),
        },
        _operands({"bf16": 8}) | _accumulators() | _structural() | _not_finite(),
    ),
    "s8": Class(
        ("s8", "s8", "s32", "s32"),
        _honest(int32),
        # An ulp of 31 bits is less than 1.
        {"int16 accumulator": _fault(kernel(int16))}
        | {name: it for name, it in _structural().items() if not name.endswith("64 ulp")},
    ),
    "f16 bias relu": _narrow(
        *("f16", "f16", EpilogueOp("bias", "f16"), EpilogueOp("relu")),
        **_EARLY,
        **{"bias ignored": _fault(_skips("bias")), "relu ignored": _fault(_skips("relu"))},
    ),
    "f16 residual": _narrow(
        *("f16", "f16", EpilogueOp("residual", "f16")),
        **_EARLY,
        **{"residual ignored": _fault(_skips("residual"))},
    ),
    "f16 scale": _narrow(
        *("f16", "f16", EpilogueOp("scale", value=0.3)),
        **_EARLY,
        **{"scale ignored": _fault(_skips("scale"))},
    ),
    "f16 gelu": _narrow(
        "f16", "f16", _GELU, **{"gelu_tanh for gelu_erf": _fault(_as("gelu_tanh"))}
    ),
    # At K = 65536 the two forms differ by less than what rounding the sum and D may do.
    "bf16 gelu": _narrow(
        *("bf16", "bf16", _GELU),
        **{"gelu_tanh for gelu_erf": replace(_fault(_as("gelu_tanh")), k=K_SIZES[:2])},
    ),
    "f32 gelu": Class(
        ("f32", "f32", "f32", "f32"),
        {name: _F32[name] for name in ("sequential", "blocked", "3xTF32")},
        _LOWER
        | _accumulators()
        | _structural()
        | _not_finite()
        | {"gelu_tanh for gelu_erf": _fault(_as("gelu_tanh"))},
        (_GELU,),
    ),
}


@dataclass
class Outcome:
    """What the judge says of one output on one recipe."""

    name: str
    recipe: str
    reason: Reason
    stats: Stats
    allowed: float

    @property
    def of_allowed(self) -> float:
        """Root-mean-square error over the accepted one; 0 where only elements are judged."""
        return self.stats.rms / self.allowed if math.isfinite(self.allowed) else 0.0

    @property
    def of_bound(self) -> float:
        """Largest error over its bound."""
        return self.stats.max_ratio

    def __str__(self) -> str:
        figures = f"{self.of_allowed:.3g} of rms, {self.of_bound:.3g} of bound"
        return f"{self.name} [{self.recipe}]: {self.reason} ({figures}, {self.stats.wrong} wrong)"


@dataclass
class Report:
    """All outcomes of the honest kernels, and of each fault those up to the first refusal."""

    honest: list[Outcome] = field(default_factory=list)
    faults: dict[str, list[Outcome]] = field(default_factory=dict)


@cache
def report(name: str, k: int, seed: int = 1) -> Report:
    """Judge all honest and faulty outputs of a class at one K."""
    case, found = CLASSES[name], Report()
    workload = case.workload(k)
    for number, recipe in enumerate(RECIPES):
        inputs = make_inputs(workload, recipe, seed * 64 + number)
        if recipe == SPECIAL:
            inputs = specialised(workload, inputs)
        with np.errstate(all="ignore"):
            want, size = truth(workload, inputs), magnitude(workload, inputs)
        honest = reference(workload)(workload, inputs)

        def judged(label: str, got: Array, args: Any = (recipe, want, size, honest)) -> Outcome:
            recipe, want, size, honest = args
            stats = stats_of(workload, recipe, got, want, size, honest)
            allowed = allowed_rms(workload, recipe, stats.honest_rms)
            return Outcome(label, recipe, verdict(workload, recipe, stats), stats, allowed)

        found.honest.append(judged("reference", honest))
        for label, make in case.honest.items():
            found.honest.append(judged(label, make(workload, inputs)))
        for label, fault in case.faults.items():
            seen = found.faults.setdefault(label, [])
            if k in fault.k and (not seen or seen[-1].reason is Reason.ACCEPTED):
                given = [honest] if fault.of_honest else inputs
                seen.append(judged(label, fault.make(workload, given)))
    return found


def margins() -> str:
    """Return a table of how near honest kernels come to the limits, and how far faults pass."""
    lines = [
        "    K  class          kernel                        recipe      rms/allowed  of bound"
    ]
    for name in CLASSES:
        for k in K_SIZES:
            found = report(name, k)
            rms = max(found.honest, key=lambda x: x.of_allowed)
            bound = max(found.honest, key=lambda x: x.of_bound)
            rows = [rms, bound] + [seen[-1] for seen in found.faults.values() if seen]
            for i, x in enumerate(rows):
                label = f"honest: {x.name}" if i < 2 else x.name
                lines.append(
                    f"{k:6} {name:14} {label:30} {x.recipe:10} {x.of_allowed:10.3g} "
                    f"{x.of_bound:10.3g} {x.reason} {x.stats.wrong}/{x.stats.compared}"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    print(margins())
