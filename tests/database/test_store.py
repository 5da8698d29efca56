"""What goes in comes out; adding again changes nothing; the decision's queries."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import select, text

from tvm_vibegemm.database import Database, kernel_text_hash
from tvm_vibegemm.database.models import MeasurementRecord
from tvm_vibegemm.errors import DatabaseError

from .conftest import KEY, SOURCE, add, measured, plan_text


def test_kernel_reads_back_and_is_there_once(db: Database) -> None:
    hash = kernel_text_hash(SOURCE, plan_text())
    assert db.add_kernel(SOURCE, plan_text(), hash, "one", ["sm_90a"], "test") is True
    assert db.add_kernel(SOURCE, plan_text(), hash, "one", ["sm_100"], "again") is False
    source, plan = db.kernel_text(hash)
    assert source == SOURCE and kernel_text_hash(source, plan) == hash
    (row,) = db.kernels("sm_90")
    assert (row.name, row.arch, row.origin) == ("one", ("sm_100", "sm_90"), "test")
    assert db.kernels("sm_100a") == [row] and db.kernels("sm_80") == []


def test_kernel_under_another_hash_is_refused(db: Database) -> None:
    hash = kernel_text_hash(SOURCE, plan_text())
    with pytest.raises(DatabaseError, match="is not the hash"):
        db.add_kernel(SOURCE + " ", plan_text(), hash, "one", ["sm_90"], "test")
    with pytest.raises(DatabaseError, match="arch"):
        db.add_kernel(SOURCE, plan_text(), hash, "one", ["gfx90a"], "test")
    assert db.kernels() == []


def test_unknown_kernel_is_one_line(db: Database) -> None:
    with pytest.raises(DatabaseError, match="no kernel 'abc'"):
        db.kernel_text("abc")


def test_measurements_survive_reopening_and_are_there_once(path: Path) -> None:
    with Database(path) as db:
        items = [measured(add(db)), measured(), measured(run="run-2", median_us=None)]
        assert db.add_measurements(items) == 3
        assert db.add_measurements([*items, measured(run="run-3")]) == 1
    with Database(path) as db:
        found = db.measurements()
        assert {item.id for item in found} == {item.id for item in items} | {
            measured(run="run-3").id
        }
        assert db.counts() == {"kernel": 1, "workload": 1, "measurement": 4}


def test_measurement_of_an_unknown_kernel_adds_nothing(db: Database) -> None:
    with pytest.raises(DatabaseError, match="add the kernel first"):
        db.add_measurements([measured(), measured("0" * 64)])
    assert db.counts()["measurement"] == 0


def test_filters(db: Database) -> None:
    kernel = add(db)
    other = KEY.replace("m16", "m32")
    items = [
        measured(kernel),
        measured(),
        measured(workload=other),
        measured(device="NVIDIA H100"),
        measured(arch="sm_80"),
    ]
    db.add_measurements(items)
    assert len(db.measurements()) == 5
    assert db.measurements(subject="kernel") == [items[0]]
    assert db.measurements(workload_key=other) == [items[2]]
    assert db.measurements(KEY, "sm_90a", "NVIDIA H200", "reference") == [items[1]]
    assert db.measurements(device="NVIDIA H100") == [items[3]]


def test_accepted_groups_by_device_and_run(db: Database) -> None:
    kernel = add(db)
    db.add_measurements(
        [
            measured(kernel),
            measured(),
            measured(kernel, run="run-2", median_us=9),
            measured(kernel, run="run-2", verdict="wrong at (3, 4)"),
            measured(device="NVIDIA H100"),
            measured(arch="sm_80"),
        ]
    )
    groups = db.accepted(KEY, "sm_90a")
    assert {key: [item.subject for item in items] for key, items in groups.items()} == {
        ("NVIDIA H200", "run-1"): ["kernel", "reference"],
        ("NVIDIA H200", "run-2"): ["kernel"],
        ("NVIDIA H100", "run-1"): ["reference"],
    }


def test_accepted_is_one_range_of_an_index(db: Database) -> None:
    query = select(MeasurementRecord.id).where(
        MeasurementRecord.workload == KEY,
        MeasurementRecord.arch == "sm_90",
        MeasurementRecord.verdict == "accepted",
    )
    with db._reading() as connection:
        statement = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
        steps = connection.execute(text(f"EXPLAIN QUERY PLAN {statement}")).all()
    assert "ix_measurement_decision (workload=? AND arch=? AND verdict=?)" in str(steps)


def test_measured_m_lists_the_sizes_of_one_family(db: Database) -> None:
    at = [KEY.replace("m16", f"m{m}") for m in (128, 1, 16)]
    db.add_measurements([measured(workload=key) for key in at])
    db.add_measurements(
        [
            measured(workload=KEY.replace("m16", "m*")),
            measured(workload=KEY.replace("m16", "m7"), verdict="too slow"),
            measured(workload=KEY.replace("m16", "m8").replace("n4096", "n64")),
        ]
    )
    assert db.measured_m(KEY.replace("m16", "m*"), "sm_90") == [1, 16, 128]
    assert db.measured_m(KEY, "sm_80") == []


def test_in_memory_serves_threads(tmp_path: Path) -> None:
    with Database(":memory:") as db:
        threads = [
            threading.Thread(
                target=lambda t=t: [
                    db.add_measurements([measured(run=f"{t}-{i}")]) for i in range(20)
                ]
            )
            for t in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert db.counts()["measurement"] == 80


def test_row_that_was_damaged_is_reported(path: Path) -> None:
    with Database(path) as db:
        db.add_measurements([measured()])
        with db._writing() as connection:
            connection.execute(text("UPDATE measurement SET evidence = '{'"))
        with pytest.raises(DatabaseError, match="corrupt") as caught:
            db.measurements()
        assert str(path) in str(caught.value)


def test_foreign_keys_and_durability_are_on(db: Database) -> None:
    with db._reading() as connection:
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 30_000
