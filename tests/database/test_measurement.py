"""Ids are content hashes: equal content, equal id; content that does not fit is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tvm_vibegemm.database import Measurement, kernel_text_hash
from tvm_vibegemm.errors import DatabaseError
from tvm_vibegemm.kernel.plan import Plan, kernel_hash

from .conftest import SOURCE, measured

HASH = kernel_text_hash(SOURCE, "{}")


def test_id_does_not_depend_on_how_the_content_was_said() -> None:
    one = measured(HASH, median_us=12, tunables={"A": 1, "B": 2}, evidence={"x": (1, 2), "y": 1})
    two = measured(
        HASH,
        arch="sm_90a",
        median_us=12.0,
        tunables={"B": 2, "A": 1},
        evidence={"y": 1, "x": [1, 2]},
    )
    assert one == two and one.id == two.id and len({one, two}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"verdict": "wrong"},
        {"median_us": 12.500000000000002},
        {"median_us": None},
        {"device": "NVIDIA H100"},
        {"evidence": {"driver": "580.95", "max_error": 2e-3}},
    ],
)
def test_id_depends_on_every_field(change: dict[str, Any]) -> None:
    assert measured(**change).id != measured().id


def test_json_line_reads_back() -> None:
    item = measured(HASH, evidence={"müll": "\n\u2028", "nested": [{"a": None}]})
    line = item.to_json()
    assert "\n" not in line
    assert Measurement.from_json(line) == item
    assert Measurement.from_json(line).id == item.id


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"workload": "vg1:nonsense"}, "workload key"),
        ({"workload": ""}, "workload"),
        ({"arch": "gfx90a"}, "arch"),
        ({"subject": "rival"}, "subject"),
        ({"kernel": HASH, "subject": "reference"}, "kernel hash"),
        ({"subject": "kernel", "kernel": None}, "kernel hash"),
        ({"subject": "kernel", "kernel": "../../etc/passwd"}, "not a kernel hash"),
        ({"median_us": float("nan")}, "median_us"),
        ({"low_us": -1}, "low_us"),
        ({"high_us": 10**400}, "high_us"),
        ({"median_us": "12"}, "median_us"),
        ({"median_us": True}, "median_us"),
        ({"tunables": {"BM": 1.5}}, "tunables"),
        ({"tunables": []}, "tunables"),
        ({"evidence": {"x": float("inf")}}, "JSON"),
        ({"evidence": {"x": object()}}, "JSON"),
        ({"evidence": {"x": "\ud800"}}, "JSON"),
        ({"device": "\ud800"}, "JSON"),
        ({"evidence": None}, "evidence"),
        ({"evidence": {"x": "y" * (1 << 20)}}, "evidence"),
        ({"verdict": "x" * 5000}, "verdict"),
        ({"run": 7}, "run"),
    ],
)
def test_misfit_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(DatabaseError, match=word) as caught:
        measured(**change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":1}', "[" * 100_000, "null", '{"x":NaN}'])
def test_line_that_is_no_measurement_is_refused(text: str) -> None:
    with pytest.raises(DatabaseError):
        Measurement.from_json(text)


def test_line_with_a_missing_or_unknown_field_is_refused() -> None:
    data = json.loads(measured().to_json())
    with pytest.raises(DatabaseError, match="'extra' is unknown"):
        Measurement.from_json(json.dumps({**data, "extra": 1}))
    del data["run"]
    with pytest.raises(DatabaseError, match="'run' is missing"):
        Measurement.from_json(json.dumps(data))


def test_kernel_hash_is_the_one_of_the_kernel_package() -> None:
    # The two packages may not import each other; this holds their formulas together.
    plan = Plan.load(
        json.dumps(
            {
                "name": "two",
                "summary": "größer",
                "arch": ["sm_90"],
                "types": [{"a": "f16", "b": "f16", "acc": "f32", "out": ["f16"]}],
                "layouts": ["nt"],
                "requires": ["K % 8 == 0"],
                "tunables": {"BM": {"choices": [64, 128], "default": 64}},
                "launches": [
                    {
                        "entry": "f",
                        "grid": ["ceildiv(M, BM)", 1, 1],
                        "block": [128, 1, 1],
                        "params": [{"pointer": "A"}, {"int32": "M"}, {"epilogue": True}],
                    }
                ],
            }
        )
    )
    pretty = json.dumps(json.loads(plan.canonical()), indent=2)
    assert kernel_text_hash(SOURCE, pretty) == kernel_hash(SOURCE, plan)
    # Canonical text is a fixed point: what the database returns names the same kernel again.
    assert Plan.load(plan.canonical()).canonical() == plan.canonical()
