"""A small plan and source that the tests of this folder vary."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tvm_vibegemm.kernel.plan import Plan

_PLAN: dict[str, Any] = {
    "name": "plain",
    "arch": ["sm_80", "sm_90"],
    "types": [{"a": "f16", "b": "f16", "acc": "f32", "out": ["f16", "f32"]}],
    "layouts": ["nn", "nt"],
    "epilogue": False,
    "tunables": {"BM": {"choices": [64, 128], "default": 128}},
    "constants": {"ROWS": "BM // 2"},
    "launches": [
        {
            "entry": "gemm",
            "grid": ["ceildiv(M, BM)", "ceildiv(N, 64)", 1],
            "block": [128, 1, 1],
            "shared_bytes": "BM * 64",
            "params": [{"pointer": "A"}, {"pointer": "B"}, {"pointer": "D"}, {"int32": "M"}],
        }
    ],
}
SOURCE = """\
extern "C" __global__ void gemm(const vg::a_t* a, const vg::b_t* b, vg::out_t* d, int m) {
    // gemm is the entry
    if (threadIdx.x < m) d[threadIdx.x] = vg::from_float<vg::out_t>(ROWS);
}
"""


@pytest.fixture
def plan_data() -> dict[str, Any]:
    return copy.deepcopy(_PLAN)


@pytest.fixture
def make_plan() -> Callable[..., Plan]:
    """Return a function that makes the plan, with fields of its (first) launch or own replaced."""

    def make(launch: dict[str, Any] | None = None, **fields: Any) -> Plan:
        data = copy.deepcopy(_PLAN)
        data["launches"][0].update(launch or {})
        data.update(fields)
        return Plan.load(json.dumps(data))

    return make


@pytest.fixture
def source() -> str:
    return SOURCE
