"""The physical floor, and the statistics of a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tvm_vibegemm.device import device_for
from tvm_vibegemm.judge.race import floor_us
from tvm_vibegemm.judge.timing import summary
from tvm_vibegemm.resources import schedules_dir
from tvm_vibegemm.workload import Workload

H200 = device_for("sm_90")


@pytest.mark.parametrize(
    ("key", "cold", "expected"),
    [
        # 2 * 4096^3 operations at 989e12 a second, with clocks up to 12 % above nominal.
        ("vg1:f16.f16.f32.f16:nn:x1:m4096:n4096:k4096:-", True, 124.1),
        # 2 bytes * 4096 * 4096 of weights, and A, at 1.15 times 4300 GB/s.
        ("vg1:f16.f16.f32.f16:nt:x1:m8:n4096:k4096:-", True, 6.80),
        # From the L2 only the operations count.
        ("vg1:f16.f16.f32.f16:nt:x1:m8:n4096:k4096:-", False, 0.242),
    ],
)
def test_floor(key: str, cold: bool, expected: float) -> None:
    assert floor_us(Workload.parse(key), H200, cold) == pytest.approx(expected, rel=0.01)


def test_no_shipped_time_is_below_its_floor() -> None:
    lines = (Path(schedules_dir()) / "sm_90" / "records.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["median_us"] is not None]
    assert rows
    for row in rows:
        workload = Workload.parse(row["workload"])
        assert row["median_us"] > floor_us(workload, H200, bool(row["evidence"].get("cold")))


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    draws = random.lognormal(3.0, 0.2, (2000, 25))
    inside = [s.low_us <= np.exp(3.0) <= s.high_us for s in map(summary, draws)]
    assert np.mean(inside) > 0.94
    one = summary([5.0])
    assert (one.median_us, one.low_us, one.high_us, one.rounds) == (5.0, 5.0, 5.0, 1)
