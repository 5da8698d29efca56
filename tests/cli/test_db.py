"""``vibegemm db`` shows what is there, for people and as JSON, and prunes only when told to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from tvm_vibegemm.cli import VERBS, main
from tvm_vibegemm.cli.db import command
from tvm_vibegemm.cli.db_tables import microseconds, size
from tvm_vibegemm.config import settings
from tvm_vibegemm.database import Database, Measurement, kernel_text_hash, load_schedules
from tvm_vibegemm.resources import schedules_dir

SHIPPED = str(schedules_dir())
KEY = "vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)"


def add(db: Database, name: str, source: str = "// one\n", **more: Any) -> str:
    """Add a kernel and return its hash."""
    plan = json.dumps({"name": name, "arch": ["sm_90"], "version": 1, **more})
    hash = kernel_text_hash(source, plan)
    db.add_kernel(source, plan, hash, name, ["sm_90"], "test")
    return hash


def measured(kernel: str | None = None, **changes: Any) -> Measurement:
    fields: dict[str, Any] = {
        **{"workload": KEY, "arch": "sm_90", "device": "NVIDIA H200", "kernel": kernel},
        "subject": "reference" if kernel is None else "kernel",
        "tunables": {} if kernel is None else {"BM": 128},
        **{"run": "run-1", "verdict": "accepted", "evidence": {}},
        **{"median_us": 12.5, "low_us": 12.25, "high_us": 13.0},
    }
    return Measurement(**{**fields, **changes})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the process a database of its own."""
    path = tmp_path / "home" / "database.sqlite"
    monkeypatch.setenv("VIBEGEMM_DATABASE", str(path))
    settings.cache_clear()
    yield path
    settings.cache_clear()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.sqlite"
    with Database(path) as db:
        kernel = add(db, "one")
        loser = add(db, "two", "// two\n")
        evidence = {"judge": "plain-1", "date": "2026-01-01"}
        db.add_measurements(
            [
                measured(kernel, evidence=evidence, median_us=5.0, low_us=4.9, high_us=5.1),
                measured(loser, evidence=evidence),
                measured(evidence={**evidence, "spelling": "sm_90"}),
            ]
        )
    return path


@pytest.fixture
def vibegemm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``vibegemm db`` here: return exit status, output and error output."""
    monkeypatch.setitem(VERBS, "db", ("db", "The tuning database."))

    def run(*arguments: object) -> tuple[Any, str, str]:
        try:
            main(["db", *map(str, arguments)])
            status: Any = 0
        except SystemExit as stop:
            status = stop.code
        return (status, *capsys.readouterr())

    return run


def parsed(done: tuple[Any, str, str], status: int = 0) -> dict[str, Any]:
    assert done[0] == status, done
    found = json.loads(done[1])
    assert isinstance(found, dict)
    return found


# -- JSON ---------------------------------------------------------------------------------------


def test_list(vibegemm: Any) -> None:
    found = parsed(vibegemm("list", "--json"))
    assert found.keys() == {"database", "total", "lines"}
    assert len(found["lines"]) == found["total"] > 50
    for line in found["lines"]:
        assert line.keys() == {
            *("workload", "arch", "best", "reference_us", "measurements", "date", "judge")
        }
    best = next(line["best"] for line in found["lines"] if line["best"])
    assert best.keys() == {
        *("measurement", "kernel", "name", "device", "run", "median_us", "reference_us"),
        *("wins", "judge", "date", "ratio"),
    }
    assert len(parsed(vibegemm("list", "--json", "--limit", 3))["lines"]) == 3


def test_show_workload(vibegemm: Any, small: Path) -> None:
    found = parsed(vibegemm("show", "16x4096x4096", "--database", small, "--json"))["workload"]
    (run,) = found["runs"]
    assert run.keys() == {"arch", "device", "run", "reference_us", "measurements"}
    assert {m["name"] for m in run["measurements"]} == {"one", "two", None}
    assert all(
        m.keys()
        == {
            *("id", "subject", "kernel", "name", "tunables", "verdict"),
            *("median_us", "low_us", "high_us", "evidence"),
        }
        for m in run["measurements"]
    )


def test_show_kernel(vibegemm: Any) -> None:
    found = parsed(vibegemm("show", "sm90_wgmma_16bit", "--json"))["kernel"]
    assert found.keys() == {
        *("hash", "name", "arch", "origin", "added", "source_lines", "source_bytes", "plan"),
        *("verdicts", "compared", "wins"),
    }
    assert found["origin"] == "schedules" and found["wins"] and found["plan"]["launches"]
    again = parsed(vibegemm("show", found["hash"][:12], "--json", "--source"))["kernel"]
    assert again["hash"] == found["hash"] and "__global__" in again["source"]


def test_stats(vibegemm: Any, small: Path) -> None:
    found = parsed(vibegemm("stats", "--database", small, "--json"))
    assert found.keys() == {
        *("database", "kernels", "workloads", "measurements", "by", "origins"),
        *("bytes", "free_bytes"),
    }
    assert found["by"].keys() == {"arch", "device", "judge", "subject", "verdict"}
    assert found["by"]["subject"] == {"kernel": 2, "reference": 1} and found["bytes"] > 0


def test_check(vibegemm: Any, small: Path) -> None:
    found = parsed(vibegemm("check", "--database", small, "--json"))
    assert found["ok"] and found["findings"] == []
    with closing(sqlite3.connect(small)) as raw, raw:
        raw.execute("UPDATE kernel SET source = '' WHERE name = 'two'")
    found = parsed(vibegemm("check", "--database", small, "--json"), status=1)
    assert not found["ok"]
    assert found["findings"][0].keys() == {"kind", "subject", "detail"}
    status, out, _ = vibegemm("check", "--database", small)
    assert status == 1 and "1 finding in" in out and "two: its source and plan" in out
    assert parsed(vibegemm("check", "--json"))["ok"]  # the shipped schedules


def test_diff(vibegemm: Any, small: Path) -> None:
    there = parsed(vibegemm("diff", small, SHIPPED, "--json"))
    back = parsed(vibegemm("diff", SHIPPED, small, "--json"))
    assert there.keys() == {"equal", "same", "only_a", "only_b"}
    assert there["only_a"] == back["only_b"] and there["only_b"] == back["only_a"]
    assert set(there["only_a"]["kernels"].values()) == {"one", "two"}
    with Database(":memory:") as db:
        load_schedules(db, SHIPPED)
        assert len(there["only_b"]["measurements"]) == db.counts()["measurement"]
    same = parsed(vibegemm("diff", small, small, "--json"))
    assert same["equal"] and same["same"] == {"kernels": 2, "measurements": 3}


def test_prune(vibegemm: Any, small: Path) -> None:
    before = small.read_bytes()
    for criterion in (["--losers"], ["--judge-older-than", "strict-1"], ["--kernel", "two"]):
        dry = parsed(vibegemm("prune", *criterion, "--database", small, "--json"))
        assert dry.keys() == {"database", "done", "kernels", "measurements", "workloads"}
        assert not dry["done"] and dry["measurements"]
        status, out, _ = vibegemm("prune", *criterion, "--database", small)
        assert status == 0 and "would take out" in out and "--yes" in out
    assert small.read_bytes() == before
    done = parsed(vibegemm("prune", "--losers", "--yes", "--database", small, "--json"))
    assert done["done"] and set(done["kernels"].values()) == {"two"}
    with Database(small) as db:
        assert db.counts() == {"kernel": 1, "workload": 1, "measurement": 2}


# -- for people ---------------------------------------------------------------------------------


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as on a terminal of a hundred columns."""
    from rich.console import Console

    def console() -> Console:
        return Console(markup=False, width=100)

    monkeypatch.setattr("tvm_vibegemm.cli.db_tables.console", console)


@pytest.mark.usefixtures("narrow")
def test_a_listing_fits_a_hundred_columns(vibegemm: Any) -> None:
    status, out, _ = vibegemm("list", "--limit", 0)
    total = parsed(vibegemm("list", "--json"))["total"]
    rows = [line for line in out.splitlines() if "µs" in line or " ms" in line]
    assert status == 0 and len(rows) == total  # none is folded
    assert max(map(len, out.splitlines()[:-1])) <= 100
    assert "bf16 nn" in out and "×" in rows[0]


def test_a_listing_has_whole_keys_where_there_is_room(vibegemm: Any) -> None:
    _, out, _ = vibegemm("list", "--kernel", "small_m_16bit")
    keys = {line["workload"] for line in parsed(vibegemm("list", "--json"))["lines"]}
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("vg1:")]
    assert shown and set(shown) <= keys


@pytest.mark.usefixtures("narrow")
def test_what_people_read(vibegemm: Any, small: Path) -> None:
    _, out, _ = vibegemm("show", "16x4096x4096", "--database", small)
    assert "2.50×" in out and "5.0 µs" in out and "TVM's schedule (sm_90)" in out
    _, out, _ = vibegemm("show", "sm90_pingpong_16bit")
    assert "ping-pong" in out and "variants" in out and "Wins at" in out
    assert max(map(len, out.splitlines())) <= 100
    _, out, _ = vibegemm("stats", "--database", small)
    assert "2 kernels, 1 workload, 3 measurements" in out
    _, out, _ = vibegemm("check", "--database", small)
    assert "sound" in out
    _, out, _ = vibegemm("diff", small, small)
    assert "they are equal" in out
    _, out, _ = vibegemm("diff", small, SHIPPED)
    assert out.count("Only ") == 2 and "more; --json" in out


def test_units() -> None:
    assert [microseconds(x) for x in (None, 0.5, 999.9, 1000, 99_000, 2e6)] == [
        *("-", "0.5 µs", "999.9 µs", "1.00 ms", "99.00 ms", "2,000 ms")
    ]
    assert [size(x) for x in (None, 1023, 1 << 20, 3 << 30)] == [
        *("in memory", "1,023 bytes", "1.0 MiB", "3.0 GiB")
    ]


def test_what_a_database_holds_does_not_steer_the_terminal(vibegemm: Any, small: Path) -> None:
    with Database(small) as db:
        evil = "\x1b[2J\x9b31m"
        kernel = add(db, "evil", f"// {evil}\n", summary=evil)
        db.add_measurements([measured(kernel, device=f"GPU {evil}", run="r", verdict=evil)])
    for verb in (["list"], ["stats"], ["show", "16x4096x4096"], ["show", "evil", "--source"]):
        for form in ([], ["--json"]):
            status, out, _ = vibegemm(*verb, *form, "--database", small)
            assert status == 0 and "\x1b" not in out and "\x9b" not in out


# -- what does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["list", "--type", "f17"], "f17"),
        (["list", "--arch", "gfx90a"], "gfx90a"),
        (["list", "--kernel", "nobody"], "nobody"),
        (["list", "--limit", "-1"], "limit"),
        (["show", "nobody"], "neither a workload nor a kernel"),
        (["show", "vg1"], "give the key of one"),
        (["prune"], "just one"),
        (["prune", "--losers", "--kernel", "small_m_16bit"], "just one"),
        (["prune", "--judge-older-than", "lenient"], "not one of plain-N"),
        (["prune", "--kernel", "nobody", "--yes"], "nobody"),
        (["prune", "--losers", "--yes", "--database", SHIPPED], "cannot be written"),
        (["diff", SHIPPED, "nowhere.sqlite"], "no such file"),
        (["list", "--database", ":memory:"], "memory"),
        (["list", "--database", "{tmp}/empty"], "is empty"),
        (["check", "--database", "{tmp}/text"], "not a SQLite database"),
        (["stats", "--database", "{tmp}"], "a folder without schedules"),
        (["stats", "--database", "oracle://u:secret@h/d"], "oracle"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], why: str, vibegemm: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("not a database at all")
    status, out, error = vibegemm(*(text.format(tmp=tmp_path) for text in arguments))
    assert status == 2 and out == ""
    assert why in error and error.count("\n") == 1 and "secret" not in error
    assert (tmp_path / "empty").stat().st_size == 0


def test_a_mistyped_path_makes_no_database(vibegemm: Any, tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    assert vibegemm("list", "--database", path)[0] == 2
    assert not path.exists()


def test_exchange_verbs_are_there_when_their_file_is() -> None:
    context = click.Context(command)
    there = Path(command.callback.__code__.co_filename).with_name("db_exchange.py").is_file()
    verbs = set(command.list_commands(context))
    assert {"list", "show", "stats", "check", "prune", "diff"} <= verbs
    assert ({"export", "import"} <= verbs) == there
    if there:
        assert isinstance(command.get_command(context, "export"), click.Command)
