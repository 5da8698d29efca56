"""The build cache: one production for all who ask; damage is rebuilt; a dead holder blocks none."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.kernel.cache import cached

KEY = "ab" * 32
SPAWN = multiprocessing.get_context("fork")


def produce_slowly(folder: Path) -> dict[str, Any]:
    with open(folder / "produced", "a") as file:
        file.write("x")
    time.sleep(0.3)
    return {"value": 1}


def ask(folder: Path) -> None:
    assert cached(folder, KEY, lambda: produce_slowly(folder)) == {"value": 1}


def hold(folder: Path) -> None:
    def produce() -> dict[str, Any]:
        (folder / "held").touch()
        time.sleep(60)
        return {"value": 2}

    cached(folder, KEY, produce)


def entry(folder: Path) -> Path:
    (path,) = folder.glob(f"*/*/{KEY}.json")
    return path


def test_eight_processes_produce_once(tmp_path: Path) -> None:
    workers = [SPAWN.Process(target=ask, args=(tmp_path,)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert (tmp_path / "produced").read_text() == "x"


def test_killed_holder_does_not_block(tmp_path: Path) -> None:
    holder = SPAWN.Process(target=hold, args=(tmp_path,))
    holder.start()
    deadline = time.monotonic() + 10
    while not (tmp_path / "held").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert cached(tmp_path, KEY, lambda: {"value": 3}) == {"value": 3}


@pytest.mark.parametrize("damage", [b"", b"x", None, b"\xff\xfe", b"0\n{}"])
def test_damaged_entry_is_rebuilt(damage: bytes | None, tmp_path: Path) -> None:
    cached(tmp_path, KEY, lambda: {"value": "a" * 100})
    path = entry(tmp_path)
    path.write_bytes(path.read_bytes()[:-5] if damage is None else damage)
    assert cached(tmp_path, KEY, lambda: {"value": 2}) == {"value": 2}
    assert cached(tmp_path, KEY, lambda: {"value": 3}) == {"value": 2}


def test_failure_is_not_cached(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached(tmp_path, KEY, fail)
    assert cached(tmp_path, KEY, lambda: {"value": 1}) == {"value": 1}
    assert not list(tmp_path.rglob("*.tmp"))


def test_unusable_folder_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cached(blocked, KEY, lambda: {"value": 1}) == {"value": 1}
