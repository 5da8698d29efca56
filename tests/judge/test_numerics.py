"""The judge's mathematics: honest rounding passes, each numerical fault is caught."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_vibegemm.judge.inputs import erf, make_inputs, truth
from tvm_vibegemm.judge.numerics import allowed_rms, compare
from tvm_vibegemm.workload import BatchMap, EpilogueOp, Workload

K_SIZES = (64, 4096, 65536)


def blocked_float32(a: np.ndarray, b: np.ndarray, block: int = 32) -> np.ndarray:
    """Sum in float32, block by block, as a kernel does."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], block):
        total += a[:, k : k + block].astype(np.float32) @ b[k : k + block].astype(np.float32)
    return total


def round_bits(x: np.ndarray, bits: int) -> np.ndarray:
    """Round float32 to a mantissa of so many bits (TF32: 11, bf16: 8)."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


def verdict(workload: Workload, kind: str, got: np.ndarray, want: np.ndarray) -> str:
    return compare(workload, kind, got, want).verdict


@pytest.mark.parametrize("k", K_SIZES)
@pytest.mark.parametrize("kind", ["integers", "normal", "uniform"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_honest_float32_sums_pass(k: int, kind: str, dtype: str) -> None:
    workload = Workload(24, 32, k, dtype, dtype, out=dtype)
    a, b = make_inputs(workload, kind, 0)
    want = truth(workload, [a, b])
    if dtype == "f16" and np.abs(want).max() > 6e4:
        pytest.skip("the result overflows fp16")
    got = blocked_float32(a, b).astype(a.dtype)
    assert verdict(workload, kind, got, want) == "accepted"


@pytest.mark.parametrize("k", K_SIZES)
@pytest.mark.parametrize("bits", [11, 8])
def test_lower_class_posing_as_float32_is_caught(k: int, bits: int) -> None:
    workload = Workload(24, 32, k, "f32", "f32", out="f32")
    a, b = make_inputs(workload, "normal", 0)
    got = blocked_float32(round_bits(a, bits), round_bits(b, bits))
    result = compare(workload, "normal", got, truth(workload, [a, b]))
    assert result.verdict != "accepted"
    assert result.rms > 5 * result.allowed_rms  # caught with room to spare


@pytest.mark.parametrize("k", K_SIZES[1:])
def test_half_accumulator_is_caught(k: int) -> None:
    workload = Workload(24, 32, k)
    a, b = make_inputs(workload, "normal", 0)
    total = np.zeros((24, 32), np.float16)
    for start in range(0, k, 16):
        piece = a[:, start : start + 16].astype(np.float32) @ b[start : start + 16].astype(
            np.float32
        )
        total = (total + piece.astype(np.float16)).astype(np.float16)
    assert verdict(workload, "normal", total, truth(workload, [a, b])) != "accepted"


@pytest.mark.parametrize("k", K_SIZES)
def test_dropped_k_wrong_element_and_nan_are_caught(k: int) -> None:
    workload = Workload(24, 32, k, "f32", "f32", out="f32")
    a, b = make_inputs(workload, "normal", 0)
    want = truth(workload, [a, b])
    right = blocked_float32(a, b)
    assert verdict(workload, "normal", blocked_float32(a[:, :-1], b[:-1]), want) != "accepted"
    one = right.copy()
    one[7, 9] += np.sqrt(k) * 0.05
    spotted = compare(workload, "normal", one, want)
    assert spotted.verdict != "accepted" and spotted.where == (7, 9)
    unwritten = right.copy()
    unwritten[-1] = np.nan
    result = compare(workload, "normal", unwritten, want)
    assert result.verdict == "not finite or not written" and result.where == (23, 0)


def test_truth_follows_layouts_batches_and_epilogue() -> None:
    workload = Workload(
        5,
        7,
        9,
        "f32",
        "f32",
        out="f32",
        trans_a=True,
        trans_b=True,
        batch=6,
        a_batch=BatchMap(3, 2),
        b_batch=BatchMap(1, 1),
        epilogue=(EpilogueOp("bias", "f32"), EpilogueOp("relu"), EpilogueOp("residual", "f32")),
    )
    a, b, bias, residual = make_inputs(workload, "normal", 0)
    got = truth(workload, [a, b, bias, residual])
    for index in range(6):
        product = a[index // 3].T.astype(np.float64) @ b.reshape(7, 9).T.astype(np.float64)
        want = np.maximum(product + bias, 0) + residual[index]
        np.testing.assert_allclose(got[index], want, rtol=1e-12)


def test_erf() -> None:
    import math

    x = np.concatenate([np.linspace(-6, 6, 1001), [2.9999999, 3.0, 3.0000001]])
    want = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), want, atol=3e-10)


@pytest.mark.parametrize("k", K_SIZES)
def test_small_errors_everywhere_are_caught_by_their_mean(k: int) -> None:
    """No element stands out, so only the root-mean-square can tell."""
    workload = Workload(24, 32, k, "f32", "f32", out="f32")
    a, b = make_inputs(workload, "normal", 0)
    want = truth(workload, [a, b])
    scale = np.sqrt(np.mean(want * want))
    signs = np.where(np.arange(want.size).reshape(want.shape) % 2, 1.0, -1.0)
    for factor, expected in ((0.5, "accepted"), (3.0, "error above the precision class")):
        got = want + factor * allowed_rms(workload, "normal") * scale * signs
        assert verdict(workload, "normal", got, want) == expected


@pytest.mark.parametrize("k", K_SIZES)
def test_one_error_that_the_mean_hides_is_caught_by_its_bound(k: int) -> None:
    workload = Workload(24, 32, k, "f32", "f32", out="f32")
    want = truth(workload, make_inputs(workload, "normal", 0))
    step = allowed_rms(workload, "normal") * np.sqrt(np.mean(want * want))
    for factor, expected in ((4.0, "accepted"), (14.0, "wrong elements")):
        got = want.copy()
        got[5, 6] += factor * step
        result = compare(workload, "normal", got, want)
        assert result.rms < result.allowed_rms
        assert result.verdict == expected and result.where == (5, 6)
