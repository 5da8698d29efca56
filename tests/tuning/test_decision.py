"""Decisions: a kernel only where it beat the reference in the same run, beyond the noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tvm_vibegemm.database import Database, Measurement, open_default
from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import InputError
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.resources import codegen_dir
from tvm_vibegemm.tuning.decision import decide
from tvm_vibegemm.workload import Workload

DEVICE = device_for("sm_90")
WORKLOAD = Workload(128, 64, 96)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel.load(codegen_dir() / "prompts" / "example.cu")


@pytest.fixture
def database(kernel: Kernel) -> Iterator[Database]:
    with Database.in_memory() as opened:
        plan = kernel.plan
        opened.add_kernel(
            kernel.source, plan.canonical(), kernel.hash, kernel.name, plan.arch, "test"
        )
        yield opened


def time(subject: str, median: float, kernel: Kernel | None = None, **fields: Any) -> Measurement:
    values: dict[str, Any] = {
        "workload": WORKLOAD.key,
        "arch": "sm_90",
        "device": "NVIDIA H200",
        "subject": subject,
        "kernel": kernel.hash if kernel else None,
        "tunables": kernel.plan.defaults() if kernel else {},
        "run": "run",
        "verdict": "accepted",
        "median_us": median,
        "low_us": median * 0.98,
        "high_us": median * 1.02,
        "evidence": {},
    }
    return Measurement(**{**values, **fields})


def test_nothing_measured(database: Database) -> None:
    decision = decide(WORKLOAD, DEVICE, database)
    assert (decision.decision, decision.choices) == ("reference", ())
    assert "no kernel was measured" in decision.reason


def test_faster_kernel_wins(database: Database, kernel: Kernel) -> None:
    database.add_measurements([time("reference", 50.0), time("kernel", 10.0, kernel)])
    decision = decide(WORKLOAD, DEVICE, database)
    assert decision.decision == "kernel" and decision.expected_us == 10.0
    assert decision.choices[0].kernel == kernel.hash
    assert "10.0" in decision.reason and "50.0" in decision.reason


def test_within_the_noise_the_reference_stays(database: Database, kernel: Kernel) -> None:
    database.add_measurements([time("reference", 10.0), time("kernel", 9.8, kernel)])
    assert decide(WORKLOAD, DEVICE, database).decision == "reference"


def test_the_fastest_reference_of_the_run_counts(database: Database, kernel: Kernel) -> None:
    slow = time("reference", 50.0, evidence={"spelling": "sm_90a"})
    fast = time("reference", 8.0, evidence={"spelling": "sm_90"})
    database.add_measurements([slow, fast, time("kernel", 10.0, kernel)])
    decision = decide(WORKLOAD, DEVICE, database)
    assert decision.decision == "reference" and "8.0" in decision.reason


def test_times_of_different_runs_do_not_compare(database: Database, kernel: Kernel) -> None:
    database.add_measurements(
        [time("reference", 50.0, run="other"), time("kernel", 10.0, kernel, run="this")]
    )
    assert decide(WORKLOAD, DEVICE, database).decision == "reference"


def test_refused_kernels_and_other_architectures_do_not_count(
    database: Database, kernel: Kernel
) -> None:
    wrong = time("kernel", 1.0, kernel, verdict="normal inputs: wrong elements")
    elsewhere = [
        time("reference", 50.0, arch="sm_80"),
        time("kernel", 1.0, kernel, arch="sm_80"),
    ]
    database.add_measurements([time("reference", 50.0), wrong, *elsewhere])
    assert decide(WORKLOAD, DEVICE, database).decision == "reference"


def test_own_device_model_comes_before_another(database: Database, kernel: Kernel) -> None:
    other = replace(DEVICE, name="NVIDIA H100 PCIe")
    database.add_measurements([time("reference", 50.0), time("kernel", 10.0, kernel)])
    assert "measured on NVIDIA H200" in decide(WORKLOAD, other, database).reason


def test_no_valid_reference_leaves_the_kernel(database: Database, kernel: Kernel) -> None:
    bad = time("reference", 0.0, verdict="no valid reference: x", median_us=None, low_us=None)
    bad = replace(bad, high_us=None)
    database.add_measurements([bad, time("kernel", 10.0, kernel)])
    decision = decide(WORKLOAD, DEVICE, database)
    assert decision.decision == "kernel" and "no valid result" in decision.reason


def test_dynamic_m_is_decided_per_measured_m(database: Database, kernel: Kernel) -> None:
    dynamic = replace(WORKLOAD, m=None)
    assert decide(dynamic, DEVICE, database).decision == "reference"
    for m, tile in ((16, 16), (128, 64)):
        key = WORKLOAD.at(m).key
        tunables = {**kernel.plan.defaults(), "BM": tile}
        database.add_measurements(
            [
                time("reference", 50.0, workload=key, run=f"r{m}"),
                time("kernel", 10.0, kernel, workload=key, run=f"r{m}", tunables=tunables),
            ]
        )
    decision = decide(dynamic, DEVICE, database)
    assert [(c.m_max, c.tunables["BM"]) for c in decision.choices] == [(16, 16), (None, 64)]
    # One size lost to TVM's schedule: the site stays with it.
    key = WORKLOAD.at(64).key
    database.add_measurements(
        [
            time("reference", 5.0, workload=key, run="r64"),
            time("kernel", 10.0, kernel, workload=key, run="r64"),
        ]
    )
    lost = decide(dynamic, DEVICE, database)
    assert lost.decision == "reference" and "M = 64" in lost.reason


def test_valid_takes_what_fits(database: Database) -> None:
    decision = decide(WORKLOAD, DEVICE, database, select="valid")
    assert decision.decision == "kernel" and "not measured" in decision.reason
    odd = replace(WORKLOAD, a="bf16", b="bf16", out="bf16")
    assert decide(odd, DEVICE, database, select="valid").decision == "reference"


def test_unknown_options(database: Database) -> None:
    with pytest.raises(InputError, match="select"):
        decide(WORKLOAD, DEVICE, database, select="best")
    with pytest.raises(InputError, match="fallback"):
        decide(WORKLOAD, DEVICE, database, fallback="cublas")


def test_shipped_records_offload_every_site_of_the_demo() -> None:
    with open_default() as shipped:
        for key in (
            "vg1:f32.f32.f32.f32:nt:x1:m160:n6625:k120:bias(f32)",
            "vg1:f16.f16.f32.f16:nt:x1:m4096:n3072:k768:bias(f16)+gelu_erf",
            "vg1:bf16.bf16.f32.bf16:nn:x384:m128:n128:k64:scale",
        ):
            decision = decide(Workload.parse(key), DEVICE, shipped)
            assert decision.decision == "kernel", (key, decision.reason)
