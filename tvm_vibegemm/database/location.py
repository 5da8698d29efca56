"""Where a database lies, and whether it may be opened: found out before anything is written.

Every fault becomes one :class:`~tvm_vibegemm.errors.DatabaseError`, and the file keeps its bytes.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy.exc
from sqlalchemy.engine import make_url

from ..errors import DatabaseError
from .models import SCHEMA_VERSION, VERSION_TABLE

BUSY_TIMEOUT_S = 30.0
_MAGIC = b"SQLite format 3\0"


class UnwritableError(DatabaseError):
    """The database is in a place that this process may not write to."""


def database_path(url: str | Path) -> Path | None:
    """Return the file that a URL or bare path names; None for a database in memory.

    Raises
    ------
    DatabaseError
        When the URL is malformed or names another kind of database than SQLite.
    """
    text = str(url)
    if "://" not in text:
        return None if text == ":memory:" else _absolute(text)
    try:
        parsed = make_url(text)
    except sqlalchemy.exc.ArgumentError as error:
        raise DatabaseError(f"database {text!r}: not a database URL; give a path") from error
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite") or parsed.query or parsed.host:
        # Without the password that such a URL may hold.
        shown = parsed.render_as_string(hide_password=True)
        raise DatabaseError(
            f"database {shown!r}: only SQLite files are supported; give sqlite:///PATH or a path"
        )
    name = parsed.database
    return None if name in (None, "", ":memory:") else _absolute(str(name))


def _absolute(name: str) -> Path:
    if not name or "\0" in name:
        raise DatabaseError(f"database {name!r}: not a path")
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:  # no home folder for ~
        raise DatabaseError(f"database {name!r}: {error}") from error


def check_place(path: Path) -> None:
    """Make the folder of a database, and see that the place can hold one.

    Raises
    ------
    UnwritableError
        When the file or its folder is read-only. The folder counts too: SQLite keeps its journal
        beside the file.
    DatabaseError
        When there is something other than a SQLite database.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DatabaseError(f"database {path}: {error.filename} is not a folder") from error
    except OSError as error:
        raise UnwritableError(
            f"database {path}: cannot create its folder ({error.strerror}); "
            "set VIBEGEMM_DATABASE to a writable path"
        ) from error
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise DatabaseError(f"database {path}: {error.strerror}") from error
    if mode is not None:
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise DatabaseError(f"database {path}: is {kind}; give the path of a SQLite file")
        _check_magic(path)
    for place in (path.parent, *([path] if mode is not None else [])):
        if not os.access(place, os.W_OK):
            raise UnwritableError(
                f"database {path}: {place} is read-only; set VIBEGEMM_DATABASE to a writable path"
            )


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise DatabaseError(f"database {path}: cannot be read ({error.strerror})") from error
    if head and head != _MAGIC:
        raise DatabaseError(f"database {path}: is not a SQLite database; give another path")


def schema_version(connection: sqlite3.Connection, place: object) -> str | None:
    """Return the schema version of a database; None where it is empty.

    Raises
    ------
    DatabaseError
        When the database is another program's, or was made by a newer version of this one.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        return None
    if VERSION_TABLE not in tables:
        raise DatabaseError(f"database {place}: holds another program's tables; give another path")
    rows = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()
    version = rows[0][0] if len(rows) == 1 else None
    if not (isinstance(version, str) and version.isascii() and version.isdigit()):
        raise DatabaseError(f"database {place}: is corrupt (no schema version)")
    if int(version) > int(SCHEMA_VERSION):
        raise DatabaseError(
            f"database {place}: has schema version {version}, newer than this program's "
            f"{SCHEMA_VERSION}; upgrade tvm-vibegemm or give another path"
        )
    return version


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a database file in a read-only place, copied into memory.

    Raises
    ------
    DatabaseError
        When the file is not a database or is corrupt.
    """
    _check_magic(path)
    memory = sqlite3.connect(":memory:", check_same_thread=False)
    # A journal that cannot be replayed here is ignored under "immutable", which is why the plain
    # way is tried first.
    for query in ("mode=ro", "mode=ro&immutable=1"):
        try:
            with closing(sqlite3.connect(f"file:{quote(str(path))}?{query}", uri=True)) as source:
                source.backup(memory)
            return memory
        except sqlite3.OperationalError as error:
            last: sqlite3.Error = error
        except sqlite3.Error as error:
            last = error
            break
    memory.close()
    raise describe(last, path) from last


def describe(error: BaseException, place: object) -> DatabaseError:
    """Return the one-line error for a fault that SQLite reported."""
    text = str(error)
    low = text.lower()
    if "malformed" in low or "not a database" in low or "disk i/o" in low:
        return DatabaseError(
            f"database {place}: is corrupt ({text}); move it away or restore a copy"
        )
    if "readonly" in low or "unable to open" in low:
        return UnwritableError(
            f"database {place}: cannot be written ({text}); "
            "set VIBEGEMM_DATABASE to a writable path"
        )
    if "locked" in low or "busy" in low:
        return DatabaseError(
            f"database {place}: another process has held it for {BUSY_TIMEOUT_S:.0f} s; "
            "try again when that has ended"
        )
    if "disk is full" in low:
        return DatabaseError(f"database {place}: the disk is full; nothing was added")
    return DatabaseError(f"database {place}: {text}")


@contextmanager
def translated(place: object) -> Iterator[None]:
    """Turn faults of SQLite and SQLAlchemy into :class:`DatabaseError`."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as error:
        raise describe(error.orig or error, place) from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise DatabaseError(f"database {place}: {error}") from error
    except sqlite3.Error as error:
        raise describe(error, place) from error
