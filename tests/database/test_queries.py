"""Listings, counts, checks, pruning and differences say what is in a database, and nothing else."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.database import Database, Measurement, load_schedules
from tvm_vibegemm.database.comparison import compare
from tvm_vibegemm.database.queries import (
    find_kernel,
    find_workload,
    kernel_facts,
    lines,
    runs,
    statistics,
)
from tvm_vibegemm.database.upkeep import check, diff, judge_order, prune
from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import DatabaseError, DeviceError, InputError
from tvm_vibegemm.resources import schedules_dir
from tvm_vibegemm.tuning.decision import decide
from tvm_vibegemm.workload import Workload

from .conftest import add, measured

SMALL = "vg1:f16.f16.f32.f16:nn:x1:m64:n64:k64:-"
LARGE = "vg1:bf16.bf16.f32.f32:nt:x2:m512:n4096:k4096:bias(bf16)+relu"


def said(judge: str | None, date: str = "2026-01-01") -> dict[str, Any]:
    return {"date": date} if judge is None else {"judge": judge, "date": date}


@pytest.fixture
def filled(path: Path) -> Iterator[Database]:
    """Give a database with four kernels: one wins, one loses, one is refused, one never measured.

    ``winner`` takes 10 µs against TVM's 40 at SMALL; ``loser`` 50. At LARGE TVM's schedule gave no
    valid result, and ``winner`` is there alone.
    """
    with Database(path) as db:
        winner = add(db, "winner", "// winner\n")
        loser = add(db, "loser", "// loser\n")
        refused = add(db, "refused", "// refused\n")
        add(db, "idle", "// idle\n")
        new, old = said("strict-1", "2026-02-02"), said("plain-1")
        none: dict[str, Any] = {"median_us": None, "low_us": None, "high_us": None}

        def took(us: float) -> dict[str, float]:
            return {"median_us": us, "low_us": us * 0.99, "high_us": us * 1.01}

        db.add_measurements(
            [
                measured(winner, workload=SMALL, evidence=new, **took(10.0)),
                measured(loser, workload=SMALL, evidence=new, **took(50.0)),
                measured(refused, workload=SMALL, evidence=new, verdict="crashed: at once", **none),
                measured(workload=SMALL, evidence=new, **took(40.0)),
                measured(winner, workload=SMALL, evidence=old, run="old", **took(20.0)),
                measured(workload=SMALL, evidence=old, run="old", **took(40.0)),
                measured(winner, workload=LARGE, evidence=old, **took(100.0)),
                measured(workload=LARGE, evidence=said(None), verdict="no-valid-reference", **none),
            ]
        )
        yield db


# -- list and show ------------------------------------------------------------------------------


def test_a_line_has_the_best_kernel_beside_the_reference_of_its_run(filled: Database) -> None:
    found, total = lines(filled)
    assert total == 2
    large, small = found  # bf16 comes before f16
    assert (large.workload, small.workload) == (LARGE, SMALL)
    assert small.best is not None and small.best.name == "winner"
    assert (small.best.median_us, small.reference_us, small.best.ratio) == (10.0, 40.0, 4.0)
    assert (small.best.judge, small.best.date) == ("strict-1", "2026-02-02")
    assert (small.measurements, small.date, small.judge) == (6, "2026-02-02", "strict-1")
    assert small.best.wins
    assert large.best is not None and large.best.wins and large.best.ratio is None
    assert large.measurements == 2


def test_times_of_different_runs_are_never_compared(db: Database) -> None:
    kernel = add(db)
    db.add_measurements([measured(kernel, median_us=1.0), measured(run="run-2", median_us=9.0)])
    ((line,), _) = lines(db)
    assert line.best is None and line.reference_us == 9.0


def test_within_the_noise_is_no_win(db: Database) -> None:
    kernel = add(db)
    db.add_measurements(
        [
            measured(kernel, median_us=12.0, low_us=11.0, high_us=13.0),
            measured(median_us=12.5, low_us=12.9, high_us=14.0),
        ]
    )
    ((line,), _) = lines(db)
    assert line.best is not None and not line.best.wins


def test_filters_and_limit(filled: Database) -> None:
    assert [line.workload for line in lines(filled, type="f16")[0]] == [SMALL]
    assert [line.workload for line in lines(filled, kernel="loser")[0]] == [SMALL]
    assert lines(filled, arch="sm_80") == ([], 0)
    assert len(lines(filled, arch="sm_90a")[0]) == 2
    one, total = lines(filled, limit=1)
    assert one == lines(filled)[0][:1] and total == 2
    for wrong in ({"type": "f17"}, {"kernel": "nobody"}):
        with pytest.raises(InputError):
            lines(filled, **wrong)
    with pytest.raises(DeviceError):
        lines(filled, arch="gfx90a")


def test_a_kernel_is_found_by_name_hash_and_prefix(filled: Database) -> None:
    hash = find_kernel(filled, "winner")
    assert find_kernel(filled, hash) == find_kernel(filled, hash[:8].upper()) == hash
    add(filled, "winner", "// another\n")
    with pytest.raises(InputError, match="means 2 kernels"):
        find_kernel(filled, "winner")
    with pytest.raises(InputError, match="not in"):
        find_kernel(filled, hash[:3])  # too short to be a hash


def test_a_workload_is_found_by_parts(filled: Database) -> None:
    for text in (SMALL, "64x64x64", "64×64×64", "nn:m64", "f16.f16.f32.f16 k64"):
        assert find_workload(filled, text) == SMALL
    with pytest.raises(InputError, match="means 2 workloads"):
        find_workload(filled, "vg1")
    for text in ("65x64x64", "", "%", "m6"):
        with pytest.raises(InputError, match="neither"):
            find_workload(filled, text)


def test_runs_come_newest_first(filled: Database) -> None:
    new, old = runs(filled, SMALL)
    assert (new.run, old.run) == ("run-1", "old")
    assert len(new.measurements) == 4 and new.reference_us == 40.0
    assert runs(filled, LARGE)[0].reference_us is None


def test_facts_of_a_kernel(filled: Database) -> None:
    facts = kernel_facts(filled, find_kernel(filled, "winner"))
    assert [place[0] for place, _ in facts.wins] == [LARGE, SMALL]
    assert (facts.compared, facts.verdicts, facts.row.arch) == (2, {"accepted": 3}, ("sm_90",))
    facts = kernel_facts(filled, find_kernel(filled, "refused"))
    assert (facts.wins, facts.compared, facts.verdicts) == ((), 0, {"crashed": 1})
    with pytest.raises(InputError):
        kernel_facts(filled, "0" * 64)


def test_the_listing_agrees_with_the_decision() -> None:
    device = device_for("sm_90")
    with Database(":memory:") as db:
        load_schedules(db, schedules_dir())
        found, total = lines(db)
        assert len(found) == total > 10
        for line in found:
            decision = decide(Workload.parse(line.workload), device, db)
            if line.best is None or not line.best.wins:
                assert decision.decision == "reference", line
            else:
                assert decision.choices[0].kernel == line.best.kernel, line


# -- stats --------------------------------------------------------------------------------------


def test_statistics_count_everything_once(filled: Database, path: Path) -> None:
    found = statistics(filled)
    assert (found.kernels, found.workloads, found.measurements) == (4, 2, 8)
    for counts in found.by.values():
        assert sum(counts.values()) == 8
    assert found.by["judge"] == {"strict-1": 4, "plain-1": 3, "(none)": 1}
    assert found.by["verdict"] == {"accepted": 6, "crashed": 1, "no-valid-reference": 1}
    assert found.origins == {"test": 4}
    assert found.bytes is not None and found.bytes >= path.stat().st_size
    with Database(":memory:") as empty:
        assert statistics(empty).measurements == 0 and statistics(empty).bytes is None


# -- check --------------------------------------------------------------------------------------


def test_sound_databases_have_no_findings(filled: Database) -> None:
    assert check(filled) == []
    with Database(":memory:") as db:
        load_schedules(db, schedules_dir())
        assert check(db) == []


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("UPDATE kernel SET source = source || '//' WHERE name = 'loser'", "kernel", "the hash"),
        ("UPDATE kernel SET plan = '{' WHERE name = 'loser'", "kernel", "not JSON"),
        ("UPDATE kernel SET plan = ' ' || plan WHERE name = 'loser'", "kernel", "canonical"),
        ("UPDATE kernel SET name = 'other' WHERE name = 'loser'", "kernel", "plan's name"),
        ("DELETE FROM kernel_arch", "kernel", "not listed for sm_90"),
        ("DELETE FROM kernel_arch", "orphan", "which the kernel is not for"),
        ("UPDATE workload SET key = 'vg1:nonsense' WHERE n = 64", "workload", "not of the form"),
        ("UPDATE workload SET key = 'vg1:nonsense' WHERE n = 64", "orphan", "is not listed"),
        ("UPDATE workload SET k = 65 WHERE n = 64", "workload", "k is 65"),
        ("UPDATE measurement SET workload = 'vg1:no' WHERE run = 'old'", "measurement", "the form"),
        ("UPDATE measurement SET median_us = 1 WHERE run = 'old'", "measurement", "has the id"),
        ("UPDATE measurement SET evidence = '{' WHERE run = 'old'", "measurement", "Expecting"),
        ("UPDATE measurement SET evidence = replace(evidence, ':', ': ')", "measurement", "form"),
        ("DELETE FROM kernel WHERE name = 'winner'", "orphan", "a kernel that is gone"),
    ],
)
def test_planted_faults_are_found(
    fault: str, kind: str, says: str, filled: Database, path: Path, tmp_path: Path
) -> None:
    filled.close()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(copy)) as raw, raw:  # without foreign keys: that is its default
        assert raw.execute(fault).rowcount > 0
    with Database(copy) as db:
        found = check(db)
    assert any(item.kind == kind and says in item.detail for item in found), found


def test_damaged_pages_are_found(filled: Database, path: Path) -> None:
    filled.close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA writable_schema = ON")
        # An index that no longer says what its table does.
        raw.execute(
            "UPDATE sqlite_master SET sql = replace(sql, '(run)', '(device)')"
            " WHERE name = 'ix_measurement_run'"
        )
    with Database(path) as db:
        assert any(item.kind == "integrity" for item in check(db))


# -- prune --------------------------------------------------------------------------------------


def everything(db: Database) -> tuple[set[str], set[Measurement]]:
    return {row.name for row in db.kernels()}, set(db.measurements())


def test_judges_have_an_order() -> None:
    assert judge_order("plain-9") < judge_order("strict-1") < judge_order("strict-10")
    for text in ("strict", "strict-", "strict-x", "lenient-1", ""):
        with pytest.raises(InputError):
            judge_order(text)


@pytest.mark.parametrize(
    "criterion", [{"losers": True}, {"judge_older_than": "strict-1"}, {"kernel": "winner"}]
)
def test_a_dry_run_changes_no_byte(criterion: dict[str, Any], filled: Database, path: Path) -> None:
    filled.close()
    before = path.read_bytes()
    with Database(path) as db:
        told = prune(db, **criterion)
    assert path.read_bytes() == before
    with Database(path) as db:
        kernels, measurements = everything(db)
        assert prune(db, **criterion, dry_run=False) == told
        assert told.measurements
        left = everything(db)
        assert kernels - left[0] == set(told.kernels.values())
        assert {m.id for m in measurements - left[1]} == set(told.measurements)
        assert check(db) == []
        again = prune(db, **criterion) if "kernel" not in criterion else None
        assert again is None or not (again.kernels or again.measurements)


def test_an_older_judges_measurements_go(filled: Database) -> None:
    told = prune(filled, judge_older_than="strict-1", dry_run=False)
    assert len(told.measurements) == 4 and told.kernels == {} and told.workloads == (LARGE,)
    assert {m.evidence["judge"] for m in filled.measurements()} == {"strict-1"}
    assert filled.counts() == {"kernel": 4, "workload": 1, "measurement": 4}


def test_a_judge_of_unknown_name_stays(db: Database) -> None:
    db.add_measurements([measured(evidence=said("proven-1")), measured(evidence=said(None))])
    prune(db, judge_older_than="strict-1", dry_run=False)
    assert [m.evidence.get("judge") for m in db.measurements()] == ["proven-1"]


def test_losers_are_those_that_won_nowhere(filled: Database) -> None:
    apart = add(filled, "uncompared", "// uncompared\n")
    filled.add_measurements([measured(apart, run="alone")])
    told = prune(filled, losers=True, dry_run=False)
    assert set(told.kernels.values()) == {"loser", "refused"} and len(told.measurements) == 2
    assert everything(filled)[0] == {"winner", "idle", "uncompared"}


def test_one_kernel_goes_with_its_measurements(filled: Database) -> None:
    hash = find_kernel(filled, "winner")
    prune(filled, kernel=hash[:10], dry_run=False)
    assert "winner" not in everything(filled)[0]
    assert all(m.kernel != hash for m in filled.measurements())
    assert len(filled.measurements()) == 5


def test_what_fails_takes_nothing_out(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(filled)
    with filled._writing() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER no BEFORE DELETE ON kernel BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    with pytest.raises(DatabaseError):
        prune(filled, losers=True, dry_run=False)
    assert everything(filled) == before


def test_just_one_criterion(filled: Database) -> None:
    for wrong in ({}, {"losers": True, "kernel": "loser"}):
        with pytest.raises(InputError, match="just one"):
            prune(filled, **wrong)


# -- diff ---------------------------------------------------------------------------------------


def test_difference_is_symmetrical(filled: Database, tmp_path: Path) -> None:
    with Database(tmp_path / "b.sqlite") as other:
        one = add(other, "winner", "// winner\n")
        two = add(other, "theirs", "// theirs\n")
        known = next(m for m in filled.measurements() if m.kernel == one)
        other.add_measurements([known, measured(two)])
        there, back = diff(filled, other), diff(other, filled)
        assert (there.only_a, there.only_b) == (back.only_b, back.only_a)
        assert (there.same_kernels, there.same_measurements) == (1, 1)
        assert set(there.only_a.kernels.values()) == {"loser", "refused", "idle"}
        assert there.only_b.kernels == {two: "theirs"}
        assert len(there.only_a.measurements) == 7 and len(there.only_b.measurements) == 1
        assert not there.equal
        assert diff(filled, filled).equal


# -- size ---------------------------------------------------------------------------------------


def test_a_listing_reads_no_evidence_but_of_what_it_shows(filled: Database) -> None:
    # A row whose evidence is damaged is in nobody's way as long as it is not shown.
    with filled._writing() as connection:
        connection.exec_driver_sql(
            f"UPDATE measurement SET evidence = '{{' WHERE workload = '{SMALL}'"
        )
    found, total = lines(filled, limit=1)
    assert total == 2 and found[0].workload == LARGE
    with pytest.raises(DatabaseError, match="corrupt"):
        lines(filled)


def test_many_measurements_are_listed_fast(db: Database) -> None:
    kernel = add(db)
    with db._writing() as connection:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        connection.exec_driver_sql(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 19999)"
            " INSERT INTO measurement (id, workload, arch, device, subject, kernel, tunables, run,"
            " verdict, median_us, evidence) SELECT i, 'vg1:f16.f16.f32.f16:nn:x1:m' || (i / 10) ||"
            " ':n64:k64:-', 'sm_90', 'x', CASE i % 5 WHEN 0 THEN 'reference' ELSE 'kernel' END,"
            f" CASE i % 5 WHEN 0 THEN NULL ELSE '{kernel}' END, '{{}}', i / 5, 'accepted',"
            ' i % 7 + 1, \'{"date":"2026-01-01","judge":"strict-1"}\' FROM n'
        )
        connection.exec_driver_sql(
            "INSERT INTO workload (key, family, n, k, batch, types, layout) SELECT DISTINCT"
            " workload, '', 64, 64, 1, 'f16.f16.f32.f16', 'nn' FROM measurement"
        )
    start = time.perf_counter()
    found, total = lines(db, limit=50)
    assert (len(found), total) == (50, 2000)
    assert time.perf_counter() - start < 1.0
    with db._reading() as connection:
        assert len(compare(connection).best) == 2000
