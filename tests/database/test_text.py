"""The text form: the same bytes each time, read back whole, hostile text refused by place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_vibegemm.database import Database, load_schedules, write_schedules
from tvm_vibegemm.errors import DatabaseError

from .conftest import KEY, SOURCE, add, measured, plan_text


@pytest.fixture
def folder(tmp_path: Path, db: Database) -> Path:
    """Write a folder of schedules: two kernels, five records."""
    first, second = add(db), add(db, "two", 'extern "C" __global__ void größe() {}\r\n')
    db.add_measurements(
        [
            measured(first),
            measured(second, median_us=11, evidence={"größe": "\n"}),
            measured(),
            measured(second, run="run-2", verdict="wrong at (0, 7)", median_us=None),
            measured(workload=KEY.replace("m16", "m*")),
        ]
    )
    folder = tmp_path / "schedules"
    write_schedules(db, folder, "sm_90a")
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_folder_has_the_files_that_are_promised(folder: Path) -> None:
    assert sorted(bytes_of(folder)) == [
        "sm_90/kernels/one.cu",
        "sm_90/kernels/one.json",
        "sm_90/kernels/two.cu",
        "sm_90/kernels/two.json",
        "sm_90/records.jsonl",
    ]


def test_text_reads_back_and_gives_the_same_bytes(
    folder: Path, tmp_path: Path, db: Database
) -> None:
    with Database(tmp_path / "other.sqlite") as other:
        assert load_schedules(other, folder) == (2, 5)
        assert load_schedules(other, folder) == (0, 0)
        assert other.measurements() == db.measurements()
        assert [row.hash for row in other.kernels()] == [row.hash for row in db.kernels()]
        assert [other.kernel_text(r.hash) for r in db.kernels()] == [
            db.kernel_text(r.hash) for r in db.kernels()
        ]
        write_schedules(other, tmp_path / "again", "sm_90")
    assert bytes_of(tmp_path / "again") == bytes_of(folder)


def test_order_of_what_is_given_does_not_matter(folder: Path, db: Database, tmp_path: Path) -> None:
    items = db.measurements()
    write_schedules(db, tmp_path / "again", "sm_90", measurements=[*reversed(items), items[0]])
    assert bytes_of(tmp_path / "again") == bytes_of(folder)


def test_selection_and_kernels_without_records(db: Database, tmp_path: Path) -> None:
    one, _two = add(db), add(db, "two")
    files = write_schedules(db, tmp_path / "s", "sm_90", measurements=[], kernels=[one])
    assert [path.name for path in files] == ["one.cu", "one.json", "records.jsonl"]
    with Database(":memory:") as other:
        assert load_schedules(other, tmp_path / "s") == (1, 0)
    with pytest.raises(DatabaseError, match="no kernel"):
        write_schedules(db, tmp_path / "t", "sm_90", kernels=["0" * 64])
    assert not (tmp_path / "t").exists()


def test_versions_of_one_name_are_told_apart(db: Database, tmp_path: Path) -> None:
    hashes = [add(db), add(db, source=SOURCE + "//\n")]
    write_schedules(db, tmp_path / "s", "sm_90", kernels=hashes)
    names = {path.stem for path in (tmp_path / "s/sm_90/kernels").iterdir()}
    assert names == {f"one-{hash[:8]}" for hash in hashes}
    with Database(":memory:") as other:
        load_schedules(other, tmp_path / "s")
        assert {row.hash for row in other.kernels("sm_90")} == set(hashes)


def test_empty_or_absent_parts_are_all_right(tmp_path: Path) -> None:
    (tmp_path / "s" / "sm_90" / "kernels").mkdir(parents=True)
    (tmp_path / "s" / "sm_100").mkdir()
    (tmp_path / "s" / "sm_100" / "records.jsonl").touch()
    (tmp_path / "s" / "README.md").write_text("of no concern")
    with Database(":memory:") as db:
        assert load_schedules(db, tmp_path / "s") == (0, 0)


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes().decode()).encode())

    return apply


def line(number: int, change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(text: str) -> str:
        lines = text.split("\n")
        lines[number - 1] = change(lines[number - 1])
        return "\n".join(lines)

    return edit("sm_90/records.jsonl", apply)


def link(name: str, target: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return apply


CU, PLAN, RECORDS = "sm_90/kernels/one.cu", "sm_90/kernels/one.json", "sm_90/records.jsonl"
FOREIGN = json.dumps({**json.loads(measured().to_json()), "arch": "sm_80"})


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (line(2, lambda t: t[:-5]), r"records\.jsonl:2: not JSON"),
        (line(3, lambda t: "[" * 100_000), r"records\.jsonl:3: not JSON"),
        (line(3, lambda t: "\0"), r"records\.jsonl:3"),
        (line(4, lambda t: t.replace('"run"', '"ruin"')), r"records\.jsonl:4: .*field"),
        (line(5, lambda t: t.replace("vg1:", "vg9:")), r"records\.jsonl:5: .*workload key"),
        (line(1, lambda t: FOREIGN), r"records\.jsonl:1: .*sm_80"),
        (line(1, lambda t: measured("0" * 64).to_json()), r"records\.jsonl:1: no kernel here"),
        (edit(CU, lambda t: t + "//"), r"records\.jsonl:\d: no kernel here has the hash"),
        (edit(PLAN, lambda t: t.replace("1", "2", 1)), r"records\.jsonl:\d: no kernel here|arch"),
        (edit(PLAN, lambda t: t[:-4]), r"one\.json: plan: not JSON"),
        (edit(PLAN, lambda t: "[]"), r"one\.json: plan: not a JSON object"),
        (
            edit(PLAN, lambda t: t.replace("one", "../one")),
            r"one\.json: '\.\./one' is not a kernel",
        ),
        (edit(PLAN, lambda t: t.replace("one", "three")), r"one\.json: the plan's name is 'three'"),
        (
            edit(PLAN, lambda t: t.replace("sm_90", "sm_80")),
            r"one\.json: its plan is not for sm_90",
        ),
        (edit(PLAN, lambda t: t.replace("sm_90", "gfx90")), r"one\.json: arch"),
        (edit(PLAN, lambda t: plan_text(arch="sm_90")), r"one\.json: arch is not a list"),
        (lambda f: (f / CU).write_bytes(b"\xff\xfe"), r"one\.cu: not UTF-8"),
        (lambda f: (f / CU).unlink(), r"one\.json: one\.cu is missing"),
        (lambda f: (f / PLAN).unlink(), r"one\.cu: one\.json is missing"),
        (lambda f: (f / CU).write_bytes(b" " * ((4 << 20) + 1)), r"one\.cu: is over 4 MiB"),
        (link(CU, "/etc/passwd"), r"one\.cu: leads out of the folder"),
        (link(RECORDS, "../../outside"), r"records\.jsonl: leads out of the folder"),
        (link(CU, "one.cu"), r"one\.cu"),
        (lambda f: (f / "sm_90/kernels/x.cu").mkdir(), r"x\.cu: is not a regular file"),
    ],
)
def test_hostile_text(folder: Path, spoil: Callable[[Path], None], match: str) -> None:
    spoil(folder)
    with Database(":memory:") as other:
        with pytest.raises(DatabaseError, match=match) as caught:
            load_schedules(other, folder)
        assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
        assert other.counts() == {"kernel": 0, "workload": 0, "measurement": 0}


def test_absent_folder(db: Database, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no such folder"):
        load_schedules(db, tmp_path / "absent")


def test_kernel_name_that_leads_elsewhere_is_not_written(db: Database, tmp_path: Path) -> None:
    hash = add(db, "../../escaped")
    with pytest.raises(DatabaseError, match="is not its plan's name"):
        write_schedules(db, tmp_path / "a" / "b" / "c", "sm_90", kernels=[hash])
    assert not list(tmp_path.rglob("escaped*"))


def test_unwritable_folder_is_one_line(db: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatabaseError, match="cannot be written"):
        write_schedules(db, tmp_path / "file", "sm_90", kernels=[add(db)])
