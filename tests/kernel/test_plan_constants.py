"""Constants of a plan may use each other in any order, but not in a circle."""

from __future__ import annotations

import json

import pytest

from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import PlanError
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.resources import codegen_dir
from tvm_vibegemm.workload import Workload


def plan(constants: dict[str, object]) -> Plan:
    text = (codegen_dir() / "prompts" / "example.json").read_text()
    return Plan.load(json.dumps({**json.loads(text), "constants": {"BK": 16, **constants}}))


def test_order_does_not_matter_and_survives_the_canonical_form() -> None:
    constants = {"STAGE_BYTES": "BM * BK * 2", "STAGES": "min(4, 200000 // STAGE_BYTES)"}
    first, second = plan(constants), plan(dict(reversed(constants.items())))
    assert first.canonical() == second.canonical()
    for each in (first, second, Plan.load(first.canonical())):
        env = each.env(Workload(8, 8, 8), device_for("sm_90"), {})
        assert (env["STAGE_BYTES"], env["STAGES"]) == (2048, 4)


def test_a_circle_is_refused() -> None:
    with pytest.raises(PlanError, match="use each other"):
        plan({"X": "Y + 1", "Y": "X + 1"})
