"""The plan schema: a malformed plan is one PlanError, a good one round trips."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import PlanError
from tvm_vibegemm.kernel.plan import Plan, kernel_hash
from tvm_vibegemm.workload import Workload

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here] if here else []
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for key, inner in items:
        found += paths(inner, (*here, key))
    return found


@given(data=st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_is_a_plan_error(data: st.DataObject, plan_data: dict[str, Any]) -> None:
    plan = json.loads(json.dumps(plan_data))
    path = data.draw(st.sampled_from(paths(plan)))
    parent = plan
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = data.draw(JSON)
    try:
        loaded = Plan.load(json.dumps(plan))
    except PlanError as error:
        assert "\n" not in str(error)
        return
    assert Plan.load(loaded.canonical()) == loaded
    kernel_hash("", loaded)


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_is_a_plan_error(text: str | bytes) -> None:
    with pytest.raises(PlanError):
        Plan.load(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra"),
        ({"version": 2}, "version"),
        ({"name": "Bad Name"}, "name"),
        ({"arch": []}, "arch"),
        ({"constants": {"X": "Y + 1"}}, "unknown name 'Y'"),
        ({"constants": {"X": "M + 1"}}, "depends on M"),
        ({"constants": {"N": 1}}, "taken"),
        ({"constants": {"VG_ARCH": 1}}, "reserved"),
        ({"tunables": {"BM": {"choices": [1], "default": 2}}}, "not among"),
        ({"tunables": {"BM": {"choices": [2**40], "default": 2**40}}}, "choices"),
        ({"requires": ["Q > 1"]}, "unknown name 'Q'"),
        ({"requires": ["open('x')"]}, "not allowed"),
        ({"launches": []}, "launches"),
        ({"epilogue": True}, "epilogue"),
        ({"workspace_bytes": "10 ** 9"}, "not allowed"),
    ],
)
def test_message_names_the_fault(
    change: dict[str, Any], message: str, make_plan: Callable[..., Plan]
) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(**change)


def test_deep_nesting() -> None:
    with pytest.raises(PlanError):
        Plan.load("[" * 100_000)


def test_env_has_constants_and_tunables(make_plan: Callable[..., Plan]) -> None:
    workload = Workload.parse("vg1:f16.f16.f32.f16:nn:x6(a1/2,b2/3):m*:n64:k32:-")
    env = make_plan().env(workload, device_for("sm_90"), {"BM": 64}, m=7)
    assert (env["M"], env["N"], env["K"], env["BM"], env["ROWS"]) == (7, 64, 32, 64, 32)
    assert (env["batch"], env["a_batch"], env["b_batch"], env["size_a"]) == (6, 2, 3, 2)


def test_tunables(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan()
    assert list(plan.variants()) == [{"BM": 64}, {"BM": 128}]
    assert plan.check_tunables({}) == {"BM": 128}
    with pytest.raises(PlanError, match="no tunable"):
        plan.check_tunables({"BN": 1})
    with pytest.raises(PlanError, match="not among"):
        plan.check_tunables({"BM": 1})


def test_hash_depends_on_source_and_plan(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan()
    names = {
        kernel_hash("a", plan),
        kernel_hash("b", plan),
        kernel_hash("a", make_plan(summary="another")),
    }
    assert len(names) == 3
    assert kernel_hash("a", plan) == kernel_hash("a", Plan.load(plan.canonical()))
