"""SQLite under SQLAlchemy, set up so that many processes can share one file and none loses a row.

WAL journal
    Readers and one writer do not wait for each other. Where the file system cannot (some network
    mounts), SQLite stays with its rollback journal, which is as safe and only slower.
``synchronous = FULL``
    An acknowledged measurement survives a power cut. It costs one disk flush a transaction, some
    milliseconds, where the measurement itself cost seconds of a GPU. (``NORMAL`` would survive a
    killed process, but not a power cut.)
``BEGIN IMMEDIATE`` for writers
    A transaction that begins as a reader and then writes fails at once when another process wrote
    in between, whatever the busy timeout; one that takes the write lock first waits its turn.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from .location import BUSY_TIMEOUT_S

WRITER = "vibegemm_writer"
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Pool] = []


def make_engine(path: Path | None, memory: sqlite3.Connection | None = None) -> Engine:
    """Return an engine for a file, or for memory.

    Parameters
    ----------
    path
        The SQLite file; None for a database in memory.
    memory
        With ``path`` None: an open in-memory database to take over.
    """
    if path is None:
        raw = memory or sqlite3.connect(":memory:", check_same_thread=False)
        engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    else:
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=QueuePool,
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        )
        _engines.add(engine)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def use_wal(engine: Engine) -> str:
    """Switch a file to the WAL journal where that is possible; return the journal it has.

    The switch is kept in the file, so it happens once. It needs a moment without other users, for
    which SQLite does not wait by itself; where it does not come, the next process tries again.
    """
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        mode = str(cursor.execute("PRAGMA journal_mode").fetchone()[0])
        for _ in range(50):
            if mode in ("wal", "memory"):
                break
            try:
                mode = str(cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0])
                break
            except sqlite3.OperationalError:
                time.sleep(0.02)
        return mode
    finally:
        raw.close()


def _on_connect(raw: sqlite3.Connection, _record: Any) -> None:
    # The driver's own notion of when to begin is switched off: _on_begin says it.
    raw.isolation_level = None
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA synchronous = FULL")


def _on_begin(connection: Connection) -> None:
    writer = connection.get_execution_options().get(WRITER, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")


def _forget() -> None:
    # SQLite forbids even to close a connection that came through a fork (its locks belong to the
    # process), so a child keeps the parent's connections unused and makes its own.
    for engine in list(_engines):
        _inherited.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget)
