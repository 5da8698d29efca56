"""Is an output right: what the comparison with float64 found, and what it means.

The comparison itself runs on the device (``trusted.cu``); :func:`stats_of` is the same in NumPy.
Everything here is arithmetic on its figures, so that it can be tested without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..workload import Workload
from .inputs import EXACT, LARGEST, STATISTICAL, is_exact
from .verdict import Reason

# Unit roundoff and half the spacing of subnormal numbers of the output types.
_UNIT = {"f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_UNIT |= {"f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3, "s8": 0.0, "s32": 0.0}
_SMALLEST = {"f32": 2.0**-150, "tf32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
_SMALLEST |= {"f8e4m3": 2.0**-10, "f8e5m2": 2.0**-17, "s8": 0.5, "s32": 0.5}
_SATURATES = ("s8", "s32", "f8e4m3", "f8e5m2")
# A TF32 operand keeps 11 bits, which hardware that is given all 24 gets by dropping the others.
_OPERAND_UNIT = {"tf32": 2.0**-10}
_ACTIVATIONS = ("gelu_erf", "gelu_tanh", "silu")
# How many times the error of an honest kernel of the class, on the same inputs, is accepted. An
# output of 16 bits or fewer is rounded once, whatever the order of the sum. In float32 the orders
# of honest sums differ: sequential, blocked, in tensor cores that truncate.
RMS_FACTOR_NARROW = 1.25
RMS_FACTOR_F32 = 4.0
# An error of a lower class is small beside the sum of magnitudes behind the element: fp8 operands
# would give 2^-3, bf16 ones 2^-7. What is wrong in place or number gives more.
_CLASS_SHARE = 2.0**-6
MAP = 32
LISTED = 31


@dataclass(frozen=True)
class Limits:
    """The most that one element may be off: ``unit_out |want| + smallest + per_size size``."""

    unit_out: float
    smallest: float
    per_size: float
    largest: float
    saturates: bool


def limits(workload: Workload, recipe: str) -> Limits:
    """Return the elementwise bound of an honest kernel of the workload's class on a recipe.

    The sum of K products in float32 is off by a random walk of sqrt(K) roundings of the sum of
    magnitudes, or by K/16 truncations in tensor cores that add 16 products at a time (Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 3.1 and 4.2; Fasi et al.,
    Numerical behavior of NVIDIA tensor cores, PeerJ CS 2021); four times that is let pass. TF32
    takes 11 bits of both operands first. On an exact recipe only the epilogue rounds.
    """
    k = max(workload.k, 1)
    per_size = 2.0**-24 * (4 * math.sqrt(k) + k / 4 + 16)
    if recipe in EXACT:
        return _limits(workload, 0.0)
    per_size += 2.02 * _OPERAND_UNIT.get(workload.a, 0.0)
    if workload.a.startswith("f8"):
        per_size += 2.0**-10  # FP8 tensor cores of Hopper keep 14 bits of a sum
    if workload.acc == "s32":
        per_size = 0.0
    return _limits(workload, per_size)


def _limits(workload: Workload, per_size: float) -> Limits:
    per_size += 2.0**-23 * len(workload.epilogue)  # each step may round
    if any(op.kind in _ACTIVATIONS for op in workload.epilogue):
        per_size += 2.0**-20
    return Limits(
        _UNIT[workload.out],
        _SMALLEST[workload.out],
        per_size,
        LARGEST[workload.out],
        workload.out in _SATURATES,
    )


@dataclass
class Stats:
    """What a comparison counted; see ``Stats`` in ``trusted.cu``.

    Parameters
    ----------
    error2, want2
        Sums of squares over the finite elements: of the error, and of the truth.
    honest2, sampled2, honest_want2
        On elements drawn at random, the squares of the error of an honest kernel of the class, of
        this one, and of the truth.
    max_error, max_ratio, max_share
        Largest error: absolute, over its bound, over the sum of magnitudes.
    wrong, inexact, poisoned, not_finite, finite, inf_as_nan, compared
        Elements past their bound (or, where the recipe is exact, not the rounded truth); not the
        rounded truth; still as they were poisoned; not finite though the truth is; finite though
        it is not; NaN for an infinity; finite and compared.
    listed
        Places of some wrong elements, as index into D.
    map
        32 × 32 counts of wrong elements over M × N.
    """

    error2: float = 0.0
    want2: float = 0.0
    honest2: float = 0.0
    sampled2: float = 0.0
    honest_want2: float = 0.0
    max_error: float = 0.0
    max_ratio: float = 0.0
    max_share: float = 0.0
    wrong: int = 0
    inexact: int = 0
    poisoned: int = 0
    not_finite: int = 0
    finite: int = 0
    inf_as_nan: int = 0
    compared: int = 0
    listed: list[int] = field(default_factory=list)
    map: Sequence[int] = ()

    @property
    def rms(self) -> float:
        """Root-mean-square error over the root-mean-square of the truth."""
        return _relative(self.error2, self.want2)

    @property
    def honest_rms(self) -> float:
        """The same of the honest kernel."""
        return _relative(self.honest2, self.honest_want2)

    @property
    def sampled_rms(self) -> float:
        """Error of this kernel on the same elements: a few large ones may dominate it."""
        return _relative(self.sampled2, self.honest_want2)


def _relative(error2: float, want2: float) -> float:
    return math.sqrt(error2 / want2) if want2 > 0 else math.sqrt(max(error2, 0.0))


def allowed_rms(workload: Workload, recipe: str, honest_rms: float) -> float:
    """Return the largest relative root-mean-square error that is accepted.

    Parameters
    ----------
    workload, recipe
        Name the class and the inputs.
    honest_rms
        Of an honest kernel on these inputs.
    """
    if is_exact(workload, recipe) or recipe not in STATISTICAL or workload.acc == "s32":
        return math.inf  # judged element by element
    factor = RMS_FACTOR_F32 if workload.out in ("f32", "tf32") else RMS_FACTOR_NARROW
    if workload.a.startswith("f8"):
        return 8 * honest_rms + 2.0**-10
    if workload.a == "tf32":
        # Dropped bits, not rounded ones, make every product of one sign 2^-11 too small.
        return max(factor * honest_rms, 2 * 2.0**-11)
    activations = any(op.kind in _ACTIVATIONS for op in workload.epilogue)
    # Where few large elements dominate, an honest error may be next to nothing by chance.
    chance = 2.0**-22 if workload.out == "f32" else 2.0**-24
    return factor * honest_rms + (2.0**-20 if activations else chance)


def verdict(workload: Workload, recipe: str, stats: Stats) -> Reason:
    """Return what the figures of one recipe say of a kernel."""
    if stats.poisoned:
        return Reason.NOT_WRITTEN
    if stats.not_finite:
        return Reason.NOT_FINITE
    if stats.finite:
        return Reason.WRONG_ELEMENTS
    exact = is_exact(workload, recipe)
    if stats.wrong:
        if stats.max_share > _CLASS_SHARE or workload.acc == "s32":
            return Reason.WRONG_ELEMENTS
        # A lower class shows in many elements. One that stands out is simply wrong.
        few = stats.wrong < 0.001 * max(stats.compared, 1) and not exact
        return Reason.WRONG_ELEMENTS if few else Reason.BELOW_PRECISION
    if stats.sampled_rms > allowed_rms(workload, recipe, stats.honest_rms):
        return Reason.BELOW_PRECISION
    return Reason.ACCEPTED


def figures(workload: Workload, recipe: str, stats: Stats) -> dict[str, Any]:
    """Return the figures of one recipe as plain data, for records."""
    allowed = allowed_rms(workload, recipe, stats.honest_rms)
    found: dict[str, Any] = {
        "rms": _short(stats.rms),
        "sampled_rms": _short(stats.sampled_rms),
        "honest_rms": _short(stats.honest_rms),
        "allowed_rms": _short(allowed),
        "max_abs": _short(stats.max_error),
        "of_bound": _short(stats.max_ratio),
        "exact": is_exact(workload, recipe),
    }
    names = ("wrong", "inexact", "poisoned", "not_finite", "finite", "inf_as_nan")
    return found | {name: getattr(stats, name) for name in names if getattr(stats, name)}


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def error_map(workload: Workload, stats: Stats) -> dict[str, Any]:
    """Return where an output is wrong, for a person or a model that repairs the kernel.

    Returns
    -------
    dict
        ``shape``: of D; ``elements``: some wrong places as [batch, m, n]; ``rows`` and
        ``columns``: first and last cell with errors, in elements; ``map``: 32 lines of 32 letters,
        ``.`` for none, ``1``–``9`` and ``#`` for the tenths of the fullest cell.
    """
    m, n = workload.m or 0, workload.n
    cells = np.asarray(stats.map if len(stats.map) else [0] * MAP * MAP).reshape(MAP, MAP)
    top = max(int(cells.max()), 1)
    lines = ["".join(_letter(int(x), top) for x in row) for row in cells]
    rows, columns = np.nonzero(cells.any(1))[0], np.nonzero(cells.any(0))[0]
    return {
        "shape": [workload.batch, m, n],
        "elements": [[i // (m * n), i // n % m, i % n] for i in sorted(stats.listed)[:LISTED]],
        "rows": _span(rows, m),
        "columns": _span(columns, n),
        "map": lines,
    }


def _letter(count: int, top: int) -> str:
    return "." if count == 0 else "123456789#"[min(9, count * 10 // (top + 1))]


def _span(cells: np.ndarray[Any, Any], extent: int) -> list[int]:
    if len(cells) == 0:
        return []
    return [
        int(cells[0]) * extent // MAP,
        min(-(-(int(cells[-1]) + 1) * extent // MAP), extent) - 1,
    ]


def stats_of(
    workload: Workload,
    recipe: str,
    got: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    size: np.ndarray[Any, Any],
    honest: np.ndarray[Any, Any] | None = None,
) -> Stats:
    """Count in NumPy what the device's comparison counts, but for poison.

    Parameters
    ----------
    workload, recipe
        Name the class and the inputs.
    got
        The output in its stored type.
    want, size
        The float64 result and the sum of magnitudes behind each element.
    honest
        The output of an honest kernel of the class.
    """
    limit = limits(workload, recipe)
    want = want.reshape(-1).astype(np.float64)
    if limit.saturates:
        want = np.clip(want, -limit.largest, limit.largest)
    with np.errstate(all="ignore"):
        best = _round_to(want, got.dtype)
        value = got.astype(np.float64).reshape(-1)
        beyond = ~np.isfinite(best) | (np.abs(want) > 0.998 * limit.largest)
        beyond &= not limit.saturates
        surely = beyond & (
            np.isnan(want) | (~np.isfinite(best) & (np.abs(want) > 1.002 * limit.largest))
        )
        finite = surely & np.isfinite(value)
        not_finite = ~beyond & ~np.isfinite(value)
        fine = ~beyond & np.isfinite(value)
        error = np.where(fine, np.abs(value - want), 0.0)
        scale = size.reshape(-1)
        bound = 1.01 * limit.unit_out * np.abs(want) + limit.smallest + limit.per_size * scale
        inexact = fine & (value != best)
        wrong = fine & (error > bound)
        if is_exact(workload, recipe):
            wrong |= inexact
        ratio = np.where(error > 0, error / bound, 0.0)
        share = np.where(error > 0, error / scale, 0.0)
    stats = Stats(
        error2=float(np.sum(error * error)),
        want2=float(np.sum(np.where(fine, want * want, 0.0))),
        max_error=float(error.max(initial=0.0)),
        max_ratio=float(np.nan_to_num(ratio, posinf=1e300).max(initial=0.0)),
        max_share=float(np.nan_to_num(share, posinf=1e300).max(initial=0.0)),
        wrong=int(wrong.sum()),
        inexact=int(inexact.sum()),
        not_finite=int(not_finite.sum()),
        finite=int(finite.sum()),
        inf_as_nan=int((beyond & np.isinf(best) & np.isnan(value)).sum()),
        compared=int(fine.sum()),
    )
    bad = np.flatnonzero(wrong | finite | not_finite)
    m, n = workload.m or 1, workload.n
    cells = np.zeros((MAP, MAP), np.int64)
    np.add.at(cells, (bad // n % m * MAP // m, bad % n * MAP // n), 1)
    stats.map = tuple(int(x) for x in cells.reshape(-1))
    stats.listed = [int(i) for i in bad[:LISTED]]
    if honest is not None:
        other = honest.astype(np.float64).reshape(-1)
        with np.errstate(invalid="ignore"):
            off = np.where(fine & np.isfinite(other), other - want, 0.0)
        stats.honest2, stats.honest_want2 = float(np.sum(off * off)), stats.want2
        stats.sampled2 = stats.error2
    return stats


def _round_to(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if np.issubdtype(dtype, np.integer):
        return np.rint(values)
    if dtype.name == "bfloat16":
        # By way of float32 it would be rounded twice: to odd first, then to nearest.
        narrow = values.astype(np.float32)
        bits = narrow.view(np.uint32)
        inexact = narrow.astype(np.float64) != values
        toward = np.abs(narrow.astype(np.float64)) > np.abs(values)
        bits = np.where(inexact & toward, bits - 1, bits)
        bits = np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32)
        return bits.view(np.float32).astype(dtype).astype(np.float64)
    return values.astype(dtype).astype(np.float64)
