"""A place that cannot be a database is one line, and what is there keeps its bytes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_vibegemm.database import Database, UnwritableError
from tvm_vibegemm.errors import DatabaseError

from .conftest import measured


def refused(path: Path | str, match: str) -> None:
    folder = Path(path).parent
    bytes_of = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises(DatabaseError, match=match) as caught, Database(path) as db:
        db.measurements()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} == bytes_of


def test_folders_are_made_and_paths_and_urls_are_one(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "ü%20?#.sqlite"
    with Database(path) as db:
        db.add_measurements([measured()])
    with Database(f"{path}") as db:
        assert db.counts()["measurement"] == 1
    with Database(f"sqlite:///{tmp_path}/plain.sqlite") as db:
        assert db.path == tmp_path / "plain.sqlite"
    assert sorted(os.listdir(path.parent)) == [path.name]  # journals are gone after closing


def test_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    with Database(path) as db:
        assert db.measurements() == []


def test_text_file(path: Path) -> None:
    path.write_text("not a database\n" * 1000)
    refused(path, "is not a SQLite database")


def test_short_file(path: Path) -> None:
    path.write_bytes(b"SQLite for")
    refused(path, "is not a SQLite database")


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "is a folder")


def test_pipe(path: Path) -> None:
    os.mkfifo(path)
    refused(path, "not a regular file")


def test_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatabaseError, match="not a folder"):
        Database(tmp_path / "file" / "db.sqlite")
    with pytest.raises(DatabaseError, match="not a folder"):
        Database(tmp_path / "file" / "deeper" / "db.sqlite")


@pytest.fixture
def filled(path: Path) -> Path:
    with Database(path) as db:
        db.add_measurements([measured(run=f"run-{i}") for i in range(200)])
    return path


@pytest.mark.parametrize("keep", [17, 100, 4096, 5000, 40_000])
def test_truncated_file(filled: Path, keep: int) -> None:
    filled.write_bytes(filled.read_bytes()[:keep])
    refused(filled, "corrupt")


def test_first_page_overwritten(filled: Path) -> None:
    data = bytearray(filled.read_bytes())
    data[16:4096] = os.urandom(4080)
    filled.write_bytes(data)
    refused(filled, "corrupt|database")


def test_inner_pages_overwritten(filled: Path) -> None:
    data = bytearray(filled.read_bytes())
    data[4096 * 2 :] = b"\xa5" * (len(data) - 4096 * 2)
    filled.write_bytes(data)
    refused(filled, "corrupt")


def test_another_programs_database(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE alembic_version (version_num TEXT)")
    raw.close()
    refused(path, "another program's")


@pytest.mark.parametrize(
    ("version", "match"), [("0002", "newer"), ("9999", "newer"), ("x", "corr")]
)
def test_other_schema_version(filled: Path, version: str, match: str) -> None:
    with sqlite3.connect(filled) as raw:
        raw.execute("UPDATE vibegemm_schema SET version_num = ?", (version,))
    raw.close()
    refused(filled, match)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:secret@host/db", "sqlite+what:///x", "sqlite:///x?mode=ro", "://", "a\0b"],
)
def test_other_urls(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatabaseError) as caught:
        Database(url)
    assert "secret" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def as_nobody(work: Callable[[], None]) -> None:
    """Run ``work`` in a child process without root's rights; its assertions count."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            work()
            status = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_read_only_places(filled: Path, tmp_path: Path, unwritable: Callable[[Path], None]) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    before = filled.read_bytes()

    def work() -> None:
        for place in (filled, tmp_path / "new.sqlite", tmp_path / "deeper" / "new.sqlite"):
            with pytest.raises(UnwritableError, match="VIBEGEMM_DATABASE"):
                Database(place)
        with Database.in_memory(filled) as db:
            assert db.counts()["measurement"] == 200

    unwritable(filled)
    unwritable(tmp_path)
    as_nobody(work)
    assert os.listdir(tmp_path) == [filled.name] and filled.read_bytes() == before


def test_file_that_cannot_be_read(filled: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    filled.chmod(0)

    def work() -> None:
        with pytest.raises(DatabaseError, match="cannot be read"):
            Database(filled)

    if os.getuid() == 0:
        as_nobody(work)
