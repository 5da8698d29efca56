"""The database that a compile reads: the user's own, with the shipped schedules in it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from ..config import settings
from ..resources import schedules_dir
from .location import UnwritableError, database_path
from .store import Database
from .text import Schedules


def open_default(url: str | Path | None = None) -> Database:
    """Open a database with the shipped schedules merged in.

    The merge happens once for each state of ``schedules/``, whose digest the database remembers;
    an unchanged one costs reading the folder. Any number of processes may do this at once.

    Parameters
    ----------
    url
        Path or SQLite URL; by default the one of the settings.

    Returns
    -------
    Database
        The caller closes it. Where the place is read-only: a copy in memory, with a warning.

    Raises
    ------
    DatabaseError
        When the file is corrupt, not a database or of a newer version, or the shipped schedules
        are damaged.
    """
    try:
        database = Database(url)
        _merge(database)
        return database
    except UnwritableError as error:
        warnings.warn(
            f"{error}. Going on with a copy in memory: what is measured now is not kept.",
            stacklevel=2,
        )
    path = database_path(settings().database if url is None else url)
    # Not Path.is_file, which throws where a folder above may not be entered.
    there = path is not None and os.path.isfile(path) and os.path.getsize(path) > 0
    database = Database.in_memory(path if there else None)
    _merge(database)
    return database


def _merge(database: Database) -> None:
    try:
        folder = schedules_dir()
        if not folder.is_dir():
            return
        shipped = Schedules.read(folder, links=True)
        key = f"schedules:{shipped.digest}"
        if database.meta(key) is None:
            database.check()  # before the first write: a corrupt file keeps its bytes
            database.merge(*shipped.parse(), note=(key, str(len(shipped.files))))
    except BaseException:
        database.close()
        raise
