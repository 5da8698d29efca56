"""Is an output right: how far it is from float64, and what an honest kernel of its class shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..workload import Workload

# Unit roundoff of the output types, and of the sums: 2^-24 for float32 accumulators; a TF32
# operand is rounded to 11 bits.
_UNIT = {"f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_OPERAND_UNIT = {"tf32": 2.0**-11}
# Root-mean-square of a uniform rounding error is u/sqrt(3) at the top of a binade and half of that
# at its bottom; 0.75 u leaves room for neither a second rounding nor a coarser type.
_ROUNDING = 0.75


@dataclass(frozen=True)
class Numerics:
    """What the comparison with float64 found.

    Parameters
    ----------
    verdict
        ``accepted`` or the reason why not.
    rms
        Root-mean-square error over the root-mean-square of the result.
    allowed_rms
        The most that is accepted.
    max_abs, max_rel
        Largest error, absolute and relative to the result's root-mean-square.
    where
        Index of the largest error.
    """

    verdict: str
    rms: float
    allowed_rms: float
    max_abs: float
    max_rel: float
    where: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for records."""
        return asdict(self)


def allowed_rms(workload: Workload, kind: str) -> float:
    """Return the largest relative root-mean-square error of an honest kernel.

    One rounding of the output, plus the sum's: a float32 sum of K terms of random sign wanders by
    about ``sqrt(K)`` roundings of a partial sum of average size (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., section 3.1 and 4.2); blocked sums show less.
    """
    out = _UNIT.get(workload.out, 0.0)
    exact_sum = kind == "integers" and workload.a != "tf32"
    total = 0.0 if exact_sum else 2.0**-24 * (8 + np.sqrt(max(workload.k, 1)))
    total += _OPERAND_UNIT.get(workload.a, 0.0)
    if exact_sum and not workload.epilogue:
        return _ROUNDING * out if workload.out != "f32" else 0.0
    # Activations amplify relative error where they bend; float32 arithmetic adds a few roundings.
    steps = 2.0 if workload.epilogue else 1.0
    return float(
        _ROUNDING * out * (1.25 if workload.epilogue else 1.0)
        + steps * total
        + 2.0**-22 * (1 if workload.epilogue else 0)
    )


def compare(workload: Workload, kind: str, got: np.ndarray, want: np.ndarray) -> Numerics:
    """Compare an output with float64, every element.

    Parameters
    ----------
    workload
        Names the precision class.
    kind
        Of the inputs, see :data:`tvm_vibegemm.judge.inputs.KINDS`.
    got
        The kernel's output, in its stored type.
    want
        The float64 result.

    Returns
    -------
    Numerics
        Verdict and figures.
    """
    value = got.astype(np.float64).reshape(want.shape)
    limit = allowed_rms(workload, kind)
    if value.size == 0:
        return Numerics("accepted", 0.0, limit, 0.0, 0.0, ())
    bad = ~np.isfinite(value) & np.isfinite(want)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        return Numerics("not finite or not written", np.inf, limit, np.inf, np.inf, where)
    error = np.abs(value - want)
    scale = float(np.sqrt(np.mean(want * want))) or 1.0
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    rms = float(np.sqrt(np.mean(error * error))) / scale
    largest = float(error[place])
    # No element may stand out: a single wrong one hardly moves the root-mean-square.
    unit = _UNIT.get(workload.out, 0.0)
    bound = 1.01 * unit * np.abs(want) + 8 * max(limit, 2.0**-22) * scale
    verdict = "accepted"
    if rms > limit:
        verdict = "error above the precision class"
    elif (error > bound).any():
        verdict = "wrong elements"
        place = np.unravel_index(int(np.argmax(error - bound)), error.shape)
    return Numerics(verdict, rms, limit, largest, largest / scale, tuple(int(i) for i in place))
