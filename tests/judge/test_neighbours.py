"""Shapes that a plan is held to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tvm_vibegemm.device import device_for
from tvm_vibegemm.judge.neighbours import neighbours
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.validity import why_not
from tvm_vibegemm.resources import schedules_dir
from tvm_vibegemm.workload import Workload

H200 = device_for("sm_90")


def shipped(name: str) -> Kernel:
    return Kernel.load(Path(schedules_dir()) / "sm_90" / "kernels" / f"{name}.cu")


@pytest.mark.parametrize("m,n,k", [(4096, 4096, 4096), (1, 4096, 4096), (8, 8, 8), (127, 136, 72)])
def test_they_fit_the_plan_are_ragged_and_small(m: int, n: int, k: int) -> None:
    kernel = shipped("sm90_wgmma_16bit")
    workload = Workload(m, n, k)
    found = neighbours(kernel.plan, workload, H200, kernel.plan.defaults())
    assert len(found) == 5
    assert len({other.key for other in found} | {workload.key}) == 6
    for other in found:
        assert why_not(kernel.plan, other, H200, kernel.plan.defaults()) is None
        assert replace(other, m=m, n=n, k=k) == workload
        assert (other.m or 0) * other.n <= 3 * 640 * 900
    assert any((other.m or 0) % 8 for other in found)


def test_a_general_plan_is_tried_at_odd_shapes() -> None:
    kernel = shipped("general_mma_16bit")
    found = neighbours(kernel.plan, Workload(128, 128, 128), H200, kernel.plan.defaults())
    assert any(other.n % 2 and other.k % 2 for other in found)


def test_a_plan_for_one_shape_has_none() -> None:
    kernel = shipped("general_mma_16bit")
    only = kernel.plan.model_copy(update={"requires": ("M == 128", "N == 128", "K == 128")})
    assert neighbours(only, Workload(128, 128, 128), H200, only.defaults()) == []


def test_large_batches_have_small_neighbours() -> None:
    kernel = shipped("general_mma_16bit")
    workload = Workload(128, 128, 64, batch=384)
    found = neighbours(kernel.plan, workload, H200, kernel.plan.defaults())
    assert found and all(other.batch <= 8 for other in found)
