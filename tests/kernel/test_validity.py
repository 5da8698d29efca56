"""When a plan serves a workload: every rule says no in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tvm_vibegemm.device import device_for
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.kernel.validity import ResourceReason, why_not
from tvm_vibegemm.workload import Workload

BASE = "vg1:f16.f16.f32.f16:nn:x1:m256:n512:k1024:-"
DYNAMIC = BASE.replace("m256", "m*")
H200 = device_for("sm_90")
MAP = {"tensor_map": "A", "box": [64, 64], "swizzle": "128B"}


def reason(plan: Plan, key: str = BASE, **options: Any) -> str | None:
    return why_not(plan, Workload.parse(key), options.pop("device", H200), **options)


def test_valid(make_plan: Callable[..., Plan]) -> None:
    for key in (BASE, DYNAMIC, BASE.replace("m256", "m0"), BASE.replace("n512", "n0")):
        assert reason(make_plan(), key) is None
    assert reason(make_plan(launch={"params": [MAP, {"pointer": "D"}]})) is None


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (BASE.replace("f16.f16.f32", "bf16.bf16.f32"), "types"),
        (BASE.replace("f32.f16", "f32.bf16"), "types"),
        (BASE.replace(":nn:", ":tn:"), "layout tn"),
        (BASE.replace("x1", "x4"), "batch"),
        (BASE.replace(":-", ":relu"), "epilogue"),
        (BASE.replace("n512", "n67108864"), "grid y"),
    ],
)
def test_workload_does_not_fit(key: str, says: str, make_plan: Callable[..., Plan]) -> None:
    assert says in (reason(make_plan(), key) or "")


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ({"grid": [0, 1, 1]}, "grid x = 0"),
        ({"grid": [1, 1, 65536]}, "grid z"),
        ({"block": [64, 64, 1]}, "4096 threads"),
        ({"block": [1, 1, 128]}, "block z"),
        ({"shared_bytes": 232449}, "shared memory"),
        ({"shared_bytes": -1}, "shared memory"),
        ({"cluster": [16, 1, 1], "grid": [16, 1, 1]}, "cluster"),
        ({"cluster": [2, 1, 1], "grid": [3, 1, 1]}, "multiple of cluster"),
        ({"cooperative": True, "grid": [133, 1, 1]}, "cooperative"),
        ({"params": [{"int32": "M * N * K * 64"}]}, "overflows"),
        ({"params": [{"pointer": "workspace"}]}, "workspace pointer"),
        ({"params": [{**MAP, "box": [128, 64]}]}, "swizzle"),
        ({"params": [{**MAP, "box": [64, 257]}]}, "box"),
        ({"params": [{**MAP, "box": [4, 64]}]}, "swizzle"),
        ({"params": [{**MAP, "as_tf32": True}]}, "as_tf32"),
        ({"grid": ["1 // (M - 256)", 1, 1]}, "division by zero"),
    ],
)
def test_launch_does_not_fit(
    launch: dict[str, Any], says: str, make_plan: Callable[..., Plan]
) -> None:
    assert says in (reason(make_plan(launch=launch)) or "")


def test_resources_are_told_from_other_reasons(make_plan: Callable[..., Plan]) -> None:
    def kind(key: str = BASE, **launch: Any) -> type:
        return type(reason(make_plan(launch=launch), key))

    assert kind(block=[64, 64, 1]) is kind(block=[1, 1, 128]) is ResourceReason
    assert kind(shared_bytes=232449) is kind(DYNAMIC, shared_bytes=232449) is ResourceReason
    assert kind(DYNAMIC, block=["M", 1, 1]) is ResourceReason
    assert kind(shared_bytes=-1) is kind(block=[0, 1, 1]) is kind(grid=[1, 1, 65536]) is str
    assert kind() is type(None)


def test_fp8_epilogue_operand_needs_an_fp8_product() -> None:
    types = [{"a": a, "b": a, "acc": "f32", "out": ["f16"]} for a in ("f16", "f8e4m3")]
    launch = {"entry": "g", "grid": [1, 1, 1], "block": [32, 1, 1], "params": [{"epilogue": True}]}
    fields = {"name": "x", "arch": ["sm_90"], "types": types, "layouts": ["nn"]}
    plan = Plan.model_validate({**fields, "launches": [launch]})
    key = "vg1:{}.f32.f16:nn:x1:m256:n512:k1024:bias({})"
    assert "FP8" in (reason(plan, key.format("f16.f16", "f8e4m3")) or "")
    assert reason(plan, key.format("f16.f16", "f16")) is None
    assert reason(plan, key.format("f8e4m3.f8e4m3", "f8e5m2")) is None


def test_tensor_maps_follow_the_shape(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan(launch={"params": [MAP]})
    assert "multiple of 16" in (reason(plan, BASE.replace("k1024", "k1025")) or "")
    assert "extent" in (reason(plan, BASE.replace("k1024", "k0")) or "")
    ampere = device_for("sm_80")
    assert "bulk tensor" in (reason(plan, device=ampere) or "")
    cluster = make_plan(launch={"cluster": [2, 1, 1]})
    assert "no clusters" in (reason(cluster, device=ampere) or "")


def test_architecture_and_tunables(make_plan: Callable[..., Plan]) -> None:
    assert "sm_86" in (reason(make_plan(), device=device_for("sm_86")) or "")
    assert "no tunable" in (reason(make_plan(), tunables={"X": 1}) or "")
    assert "not among" in (reason(make_plan(), tunables={"BM": 3}) or "")


def test_requires(make_plan: Callable[..., Plan]) -> None:
    assert reason(make_plan(requires=["K % 8 == 0", "M <= 256"])) is None
    assert "requires K % 3 == 0" in (reason(make_plan(requires=["K % 3 == 0"])) or "")


@pytest.mark.parametrize(
    ("requires", "m_range", "valid"),
    [
        ("M <= 64", None, False),
        ("M <= 64", (1, 64), True),
        ("64 >= M", (1, 64), True),
        ("M <= 64", (1, 65), False),
        ("M > 16", (17, None), True),
        ("M > 16", (16, None), False),
        ("M <= BM", (1, 128), True),
        ("M % 16 == 0", (16, 16), False),
        ("M != 5", (1, 9), False),
        ("M <= 64 or N > 3", (1, 64), False),
    ],
)
def test_dynamic_requires(
    requires: str,
    m_range: tuple[int, int | None] | None,
    valid: bool,
    make_plan: Callable[..., Plan],
) -> None:
    said = reason(make_plan(requires=[requires]), DYNAMIC, m_range=m_range)
    assert (said is None) == valid
    assert said is None or "requires" in said


def test_dynamic_launches(make_plan: Callable[..., Plan]) -> None:
    assert "fixed M" in (reason(make_plan(dynamic_m=False), DYNAMIC) or "")
    shared = make_plan(launch={"shared_bytes": "min(M, 64) * 64"})
    assert "dynamic M" in (reason(shared, DYNAMIC) or "")
    # Fits at both ends of the range, not inside it.
    hollow = make_plan(launch={"grid": ["0 if M == 32 else 1", 1, 1]})
    assert "at M = 32" in (reason(hollow, DYNAMIC, m_range=(1, 64)) or "")
    tall = make_plan(launch={"grid": [1, "ceildiv(M, 16)", 1]})
    assert "grid y" in (reason(tall, DYNAMIC) or "")
    assert reason(tall, DYNAMIC, m_range=(1, 1 << 19)) is None


def test_one_entry_has_one_size_of_shared_memory(plan_data: dict[str, Any]) -> None:
    first = plan_data["launches"][0]
    plan_data["launches"] = [first, {**first, "shared_bytes": 64}]
    assert "two sizes" in (reason(Plan.model_validate(plan_data)) or "")
