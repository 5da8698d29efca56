"""Recipes: exact where they say so, and what they need to show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tvm_vibegemm.judge.inputs import (
    DENSE,
    EXACT,
    NORMAL,
    PRECISE_A,
    RECIPES,
    Kind,
    dense_top,
    draws,
    erf,
    is_exact,
    magnitude,
    make_inputs,
    operands,
    truth,
)
from tvm_vibegemm.workload import BatchMap, EpilogueOp, Workload

TYPES = ["f32", "tf32", "f16", "bf16", "f8e4m3", "f8e5m2"]


def workload(dtype: str, k: int, m: int = 24, n: int = 40) -> Workload:
    return Workload(m, n, k, dtype, dtype, out="f32")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1, 64, 4096, 65536, 1 << 20])
def test_dense_sums_fit_the_accumulator(dtype: str, k: int) -> None:
    top = dense_top(workload(dtype, k))
    assert top >= 1 and k * top * top <= 2**24
    if 64 <= k <= 65536 and not dtype.startswith("f8"):
        # Typical sums pass what an fp16 accumulator holds exactly, and not fp16 itself.
        assert 2**11 < math.sqrt(k) * top * (top + 1) / 3 < 2**15


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("recipe", EXACT)
@pytest.mark.parametrize("k", [1, 63, 4096])
def test_exact_recipes_hold_what_the_types_hold(dtype: str, recipe: str, k: int) -> None:
    it = workload(dtype, k)
    inputs = make_inputs(it, recipe, 1)
    for x, how in zip(inputs, draws(it, recipe), strict=True):
        assert np.array_equal(x.astype(np.float64), np.rint(x.astype(np.float64)))
        assert np.abs(x.astype(np.float64)).max() <= max(how.top, 1)
    assert magnitude(it, inputs).max() < 2**24
    assert is_exact(it, recipe)


def test_every_k_shows_in_a_precise_recipe() -> None:
    """Each of the last 32 k, and each of the first N, is in some column."""
    it = workload("f32", 300, n=64)
    _, b = make_inputs(it, PRECISE_A, 0)
    used = np.abs(b).any(axis=1)
    assert used[-32:].all() and used[:64].all()


def test_activations_are_seen_where_they_bend() -> None:
    plain = workload("f16", 4096)
    bent = Workload(64, 64, 4096, epilogue=(EpilogueOp("gelu_erf"),))
    straight = Workload(64, 64, 4096)
    assert is_exact(plain, DENSE) and not is_exact(bent, DENSE)
    inputs = make_inputs(bent, NORMAL, 0)
    assert 0.5 < np.std(truth(straight, inputs)) < 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_int8_is_drawn_as_integers_and_exact(recipe: str) -> None:
    it = Workload(8, 8, 100, "s8", "s8", "s32", "s32")
    assert all(how.kind in (Kind.INTEGERS, Kind.SPARSE) for how in draws(it, recipe))
    assert is_exact(it, recipe)


def test_operands_stand_as_they_are_stored() -> None:
    it = Workload(
        *(3, 5, 7, "f16", "bf16"),
        trans_a=True,
        batch=6,
        a_batch=BatchMap(1, 3),
        epilogue=(EpilogueOp("bias", "f32"), EpilogueOp("residual", "f16")),
    )
    a, b, bias, residual, d = operands(it)
    assert (a.matrices, a.rows, a.cols, a.k_rows) == (3, 7, 3, True)
    assert (b.matrices, b.rows, b.cols, b.k_rows) == (6, 7, 5, True)
    assert (bias.dtype, bias.size) == ("f32", 5)
    assert (residual.dtype, residual.size) == ("f16", 90)
    assert d.bytes == 180


def test_erf() -> None:
    x = np.linspace(-6, 6, 4001)
    want = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), want, atol=3e-10)
