"""The default database: the shipped schedules merged once, whatever the place is like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tvm_vibegemm.config import settings
from tvm_vibegemm.database import Database, default, open_default, write_schedules
from tvm_vibegemm.errors import DatabaseError

from .conftest import add, measured
from .test_location import as_nobody


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ship a folder with one kernel and 2000 records."""
    folder = tmp_path / "schedules"
    with Database(":memory:") as db:
        kernel = add(db)
        db.add_measurements([measured(kernel, run=f"run-{i}") for i in range(2000)])
        write_schedules(db, folder, "sm_90")
    monkeypatch.setattr(default, "schedules_dir", lambda: folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the settings say that the database is."""
    path = tmp_path / "home" / "db.sqlite"
    monkeypatch.setenv("VIBEGEMM_DATABASE", str(path))
    settings.cache_clear()
    yield path
    settings.cache_clear()


def test_merged_once_and_again_when_it_changes(shipped: Path, place: Path) -> None:
    with open_default() as db:
        assert db.path == place
        assert db.counts()["measurement"] == 2000
        db.add_measurements([measured(run="mine")])
    with open_default() as db:
        assert db.counts()["measurement"] == 2001
    line = measured(run="newer release").to_json() + "\n"
    records = shipped / "sm_90" / "records.jsonl"
    records.write_text(records.read_text() + line)
    with open_default() as db:
        assert db.counts()["measurement"] == 2002


def test_cheap_when_nothing_changed(shipped: Path, place: Path) -> None:
    open_default().close()
    before = place.read_bytes()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        open_default().close()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05
    assert place.read_bytes() == before


def test_shipped_folder_itself_loads(place: Path) -> None:
    with open_default() as db:
        assert db.path == place


def test_absent_shipped_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "schedules_dir", lambda: tmp_path / "absent")
    with open_default() as db:
        assert db.measurements() == []


def test_folder_made_of_links_out_of_it(shipped: Path, place: Path, tmp_path: Path) -> None:
    # Some installers make an installed package of links into their cache.
    records = shipped / "sm_90" / "records.jsonl"
    records.rename(tmp_path / "elsewhere")
    records.symlink_to(tmp_path / "elsewhere")
    with open_default() as db:
        assert db.counts()["measurement"] == 2000


def test_damaged_shipped_folder_adds_nothing(shipped: Path, place: Path) -> None:
    records = shipped / "sm_90" / "records.jsonl"
    records.write_text(records.read_text() + "{\n")
    with pytest.raises(DatabaseError, match=r"records\.jsonl:2001"):
        open_default()
    with Database(place) as db:
        assert sum(db.counts().values()) == 0


def test_corrupt_file_keeps_its_bytes(shipped: Path, place: Path) -> None:
    with Database(place) as db:
        db.add_measurements([measured(run=f"r{i}") for i in range(500)])
    data = bytearray(place.read_bytes())
    data[len(data) // 2 :] = b"\x5a" * (len(data) - len(data) // 2)
    place.write_bytes(data)
    with pytest.raises(DatabaseError, match="corrupt"):
        open_default()
    assert place.read_bytes() == data


def test_read_only_place_gives_a_copy_in_memory(
    shipped: Path, place: Path, tmp_path: Path, unwritable: Callable[[Path], None]
) -> None:
    with Database(place) as db:
        db.add_measurements([measured(run="mine")])
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    unwritable(place)
    unwritable(place.parent)
    before = place.read_bytes()

    def work() -> None:
        with pytest.warns(UserWarning, match="not kept"):
            db = open_default()
        assert db.path is None and db.counts()["measurement"] == 2001
        db.add_measurements([measured(run="lost")])

    as_nobody(work)
    assert place.read_bytes() == before and os.listdir(place.parent) == [place.name]


def test_many_processes_open_a_new_one_at_once(shipped: Path, place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tvm_vibegemm.database import default;"
        "default.schedules_dir = lambda: Path(sys.argv[1]);"
        "db = default.open_default(); print(__import__('json').dumps(db.counts()))"
    )
    command = [sys.executable, "-c", code, str(shipped)]
    users = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for user in users:
        output, _ = user.communicate(timeout=120)
        assert user.returncode == 0
        assert json.loads(output) == {"kernel": 1, "workload": 1, "measurement": 2000}
