"""Several processes at one file: no acknowledged row is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from tvm_vibegemm.database import Database
from tvm_vibegemm.database.models import MeasurementRecord
from tvm_vibegemm.errors import DatabaseError

from .conftest import KEY, measured

ROWS = 200
WRITER = """
import sys
from tvm_vibegemm.database import Database, Measurement
path, worker, rows, key = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with Database(path) as db:
    for i in range(rows):
        item = Measurement(key, "sm_90", "NVIDIA H200", "reference", None, {}, f"{worker}-{i}",
                           "accepted", 1.0 + i, None, None, {"worker": worker})
        db.add_measurements([item])
        print(item.id, flush=True)  # only now is it acknowledged
"""


def start(path: Path, worker: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(worker), str(ROWS), KEY]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_four_writers_one_killed(path: Path) -> None:
    # The file does not exist yet: the four also race to make it.
    writers = [start(path, worker) for worker in range(4)]
    victim = writers[0]
    assert victim.stdout is not None
    acknowledged = [victim.stdout.readline().strip() for _ in range(ROWS // 3)]
    os.kill(victim.pid, signal.SIGKILL)
    acknowledged += victim.stdout.read().split()
    for writer in writers[1:]:
        output, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0
        assert len(output.split()) == ROWS
        acknowledged += output.split()
    assert victim.wait() == -signal.SIGKILL
    with Database(path) as db:
        db.check()
        with db._reading() as connection:
            there = Counter(connection.scalars(select(MeasurementRecord.id)))
        assert set(acknowledged) <= set(there)
        assert set(there.values()) == {1}
        # What was killed can simply start over: what is there is not added again.
        again = start(path, 0)
        again.communicate(timeout=120)
        assert again.returncode == 0
        assert db.counts()["measurement"] == 4 * ROWS


def test_connection_does_not_cross_a_fork(db: Database, path: Path) -> None:
    db.add_measurements([measured()])
    child = os.fork()
    if child == 0:
        try:
            db.add_measurements([measured(run="child")])
        finally:
            os._exit(0 if db.counts()["measurement"] == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    db.add_measurements([measured(run="parent")])
    assert db.counts()["measurement"] == 3
    db.check()


def test_lock_that_is_held_too_long_is_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_vibegemm.database.engine.BUSY_TIMEOUT_S", 0.1)
    with Database(path) as one, Database(path) as two, one._writing():
        with pytest.raises(DatabaseError, match="another process has held it"):
            two.add_measurements([measured()])
        assert two.measurements() == []  # readers do not wait for a writer
