"""The judge's mathematics: honest rounding passes, each numerical fault is caught.

``python -m tests.judge.faults`` prints by how much.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tvm_vibegemm.judge.inputs import DENSE, NORMAL, RECIPES, magnitude, make_inputs, truth
from tvm_vibegemm.judge.numerics import (
    MAP,
    Stats,
    error_map,
    figures,
    limits,
    stats_of,
    verdict,
)
from tvm_vibegemm.judge.verdict import Reason
from tvm_vibegemm.workload import Workload

from .faults import CLASSES, K_SIZES, report

# Sums of 65536 products take NumPy seconds; what follows them does not depend on their length.
LONGEST = max(K_SIZES)
CASES = [
    (name, k)
    for name, it in CLASSES.items()
    for k in K_SIZES
    if k < LONGEST or not it.epilogue or name == "f32 gelu"
]


@pytest.mark.parametrize(("name", "k"), CASES)
def test_honest_rounding_is_accepted(name: str, k: int) -> None:
    refused = [str(x) for x in report(name, k).honest if x.reason is not Reason.ACCEPTED]
    assert not refused, refused


@pytest.mark.parametrize(("name", "k"), CASES)
def test_every_fault_is_caught(name: str, k: int) -> None:
    found = {label: seen for label, seen in report(name, k).faults.items() if seen}
    assert len(found) >= 8
    passed = [label for label, seen in found.items() if seen[-1].reason is Reason.ACCEPTED]
    assert not passed


@pytest.mark.parametrize(("name", "k"), CASES)
def test_low_precision_and_wrong_numbers_are_told_apart(name: str, k: int) -> None:
    """Where a lower class overflows, or a fault is as small as rounding, both are true."""
    mixed = []
    for label, seen in report(name, k).faults.items():
        if not seen:
            continue
        said, meant = seen[-1].reason, CLASSES[name].faults[label].reason
        if said is Reason.NOT_FINITE and meant is Reason.BELOW_PRECISION:
            continue
        small = seen[-1].stats.max_share <= 2.0**-6
        if small and {said, meant} == {Reason.BELOW_PRECISION, Reason.WRONG_ELEMENTS}:
            continue
        if said is not meant:
            mixed.append(f"{label}: {said}, not {meant}")
    assert not mixed


def test_every_recipe_is_needed() -> None:
    """Some fault is caught by each recipe first, or the recipe is there for nothing."""
    first = {
        seen[-1].recipe
        for name in ("f32", "f16", "f32 gelu", "bf16 gelu")
        for k in K_SIZES[:2]
        for seen in report(name, k).faults.values()
        if seen and seen[-1].reason is not Reason.ACCEPTED
    }
    assert {"precise-a", "precise-b", "dense", "special"} <= first
    assert first & {"uniform", "normal", "wide"}


def judged(workload: Workload, got: np.ndarray, recipe: str = DENSE) -> Stats:
    inputs = make_inputs(workload, recipe, 0)
    return stats_of(workload, recipe, got, truth(workload, inputs), magnitude(workload, inputs))


def right(workload: Workload, recipe: str = DENSE) -> np.ndarray:
    return truth(workload, make_inputs(workload, recipe, 0)).astype(np.float16)


def test_the_error_map_says_where() -> None:
    workload = Workload(96, 160, 64)
    got = right(workload)
    got[33:40, 70] = 9
    stats = judged(workload, got)
    assert verdict(workload, DENSE, stats) is Reason.WRONG_ELEMENTS
    where = error_map(workload, stats)
    assert where["shape"] == [1, 96, 160]
    assert where["elements"][0] == [0, 33, 70]
    assert where["rows"][0] <= 33 and where["rows"][1] >= 39
    assert where["columns"][0] <= 70 <= where["columns"][1]
    assert len(where["map"]) == MAP and all(len(line) == MAP for line in where["map"])
    assert sum(line.count(".") for line in where["map"]) >= MAP * MAP - 4
    json.dumps(where, allow_nan=False)


def test_figures_are_plain_json() -> None:
    workload = Workload(8, 8, 8)
    got = right(workload)
    got[:] = np.nan
    for recipe in (DENSE, NORMAL):
        json.dumps(figures(workload, recipe, judged(workload, got, recipe)), allow_nan=False)


@pytest.mark.parametrize("recipe", RECIPES)
def test_k_of_zero_is_judged(recipe: str) -> None:
    workload = Workload(4, 4, 0)
    zeros = np.zeros((4, 4), np.float16)
    assert verdict(workload, recipe, judged(workload, zeros, recipe)) is Reason.ACCEPTED
    zeros[1, 2] = 1
    assert verdict(workload, recipe, judged(workload, zeros, recipe)) is not Reason.ACCEPTED


def test_limits_grow_with_k_and_are_tighter_for_exact_inputs() -> None:
    long, short = (Workload(8, 8, k, "f32", "f32", out="f32") for k in (65536, 64))
    assert limits(long, NORMAL).per_size > limits(short, NORMAL).per_size > 0
    assert limits(long, DENSE).per_size == 0
    # Even the longest sum's bound is below what TF32 operands would give.
    assert limits(long, NORMAL).per_size < 2 * 2.0**-10
    assert math.isfinite(limits(short, NORMAL).largest)


def test_bfloat16_is_rounded_once() -> None:
    workload = Workload(1, 1, 1, "bf16", "bf16", out="bf16")
    import ml_dtypes

    # Just above the middle of two neighbours: rounded by way of float32 it would go down.
    want = np.array([[1 + 2.0**-8 + 2.0**-40]])
    up = np.array([[1 + 2.0**-7]]).astype(ml_dtypes.bfloat16)
    down = np.array([[1.0]]).astype(ml_dtypes.bfloat16)
    assert stats_of(workload, DENSE, up, want, want).inexact == 0
    assert stats_of(workload, DENSE, down, want, want).inexact == 1
