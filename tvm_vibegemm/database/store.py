"""The tuning database: what is added, and the queries that decisions are made of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.sqlite import insert

from ..config import settings
from ..device import normalize_arch
from ..errors import DatabaseError, DeviceError
from ..workload import Workload
from . import location, migrations, rows
from .engine import WRITER, make_engine, use_wal
from .identity import canonical_plan, kernel_text_hash
from .measurement import ACCEPTED, Measurement
from .models import (
    SCHEMA_VERSION,
    KernelArchRecord,
    KernelRecord,
    MeasurementRecord,
    MetaRecord,
    WorkloadRecord,
)
from .rows import KernelRow, sort_key


class Database:
    """A tuning database in one SQLite file, which many processes may use at once.

    Opening makes or migrates the file. All that is added is named by its content, so adding the
    same again changes nothing, and a process that was killed can simply start over.

    Parameters
    ----------
    url
        SQLAlchemy URL or bare path of a SQLite file; ``sqlite://`` or ``:memory:`` for one that
        ends with the object. None takes the one of the settings.

    Raises
    ------
    DatabaseError
        When the file is corrupt, not a database, another program's, of a newer version, or in a
        place that cannot be written; the file keeps its bytes.

    Examples
    --------
    >>> with Database(":memory:") as db:
    ...     db.kernels("sm_90")
    []
    """

    def __init__(self, url: str | Path | None = None) -> None:
        path = location.database_path(settings().database if url is None else url)
        if path is not None:
            location.check_place(path)
        self._open(path, None)

    @classmethod
    def in_memory(cls, copy_of: Path | None = None) -> Self:
        """Return a database in memory, with the content of a file that cannot be written."""
        self = cls.__new__(cls)
        self._open(None, location.open_read_only(copy_of) if copy_of is not None else None)
        return self

    def _open(self, path: Path | None, memory: sqlite3.Connection | None) -> None:
        self.path = path
        self.place = str(path) if path is not None else ":memory:"
        self._engine = make_engine(path, memory)
        # All of memory is one connection, which threads must take turns at.
        self._turn = RLock()
        try:
            with self._reading() as connection:
                version = self._version(connection)
            if version != SCHEMA_VERSION:
                with self._writing() as connection:
                    # Asked again under the lock: another process may have been faster.
                    version = self._version(connection)
                    if version is not None:
                        self._check_pages(connection)
                    if version != SCHEMA_VERSION:
                        migrations.upgrade(connection)
            if path is not None:
                with location.translated(self.place):
                    use_wal(self._engine)
        except BaseException:
            self.close()
            raise

    def _version(self, connection: Connection) -> str | None:
        raw = connection.connection.dbapi_connection
        assert isinstance(raw, sqlite3.Connection)
        return location.schema_version(raw, self.place)

    def check(self) -> None:
        """Read every page of the file.

        Raises
        ------
        DatabaseError
            When one is corrupt.
        """
        with self._reading() as connection:
            self._check_pages(connection)

    def _check_pages(self, connection: Connection) -> None:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise DatabaseError(
                f"database {self.place}: is corrupt ({found}); move it away or restore a copy"
            )

    # -- life --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections; a database in memory is gone then."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.place!r})"

    @contextmanager
    def _transaction(self, writer: bool) -> Iterator[Connection]:
        with self._memory_turn(), location.translated(self.place):
            engine = self._engine.execution_options(**{WRITER: writer})
            with engine.begin() as connection:
                yield connection

    def _reading(self) -> Any:
        return self._transaction(writer=False)

    def _writing(self) -> Any:
        return self._transaction(writer=True)

    @contextmanager
    def _memory_turn(self) -> Iterator[None]:
        if self.path is None:
            with self._turn:
                yield
        else:
            yield

    # -- kernels -----------------------------------------------------------------------------

    def add_kernel(
        self,
        source: str,
        plan_json: str,
        hash: str,
        name: str,
        arch: Sequence[str],
        origin: str,
    ) -> bool:
        """Add a kernel; one that is there already stays as it is, with the architectures joined.

        Parameters
        ----------
        source
            CUDA-C text.
        plan_json
            The plan as JSON with defaults left out (``Plan.canonical()``).
        hash
            Its name; checked.
        name
            The plan's name.
        arch
            Architectures it is written for.
        origin
            Where it came from.

        Returns
        -------
        bool
            True where it is new.

        Raises
        ------
        DatabaseError
            When ``hash`` is not the hash of these texts, or the database cannot be written.
        """
        try:
            archs = tuple(sorted({normalize_arch(item) for item in arch}))
        except DeviceError as error:
            raise DatabaseError(f"kernel {name}: {error}") from error
        row = KernelRow(hash, name, archs, origin, source, canonical_plan(plan_json))
        return self.merge([row], [])[0] == 1

    def kernel_text(self, hash: str) -> tuple[str, str]:
        """Return source and canonical plan of a kernel.

        Raises
        ------
        DatabaseError
            When there is no such kernel.
        """
        query = select(KernelRecord.source, KernelRecord.plan).where(KernelRecord.hash == hash)
        with self._reading() as connection:
            row = connection.execute(query).first()
        if row is None:
            raise DatabaseError(f"database {self.place}: has no kernel {hash!r:.80}")
        return row.source, row.plan

    def kernels(self, arch: str | None = None) -> list[KernelRow]:
        """Return the kernels for an architecture (None: all), by name and hash."""
        query = select(KernelRecord).order_by(KernelRecord.name, KernelRecord.hash)
        if arch is not None:
            query = query.join(KernelArchRecord, KernelArchRecord.kernel == KernelRecord.hash)
            query = query.where(KernelArchRecord.arch == normalize_arch(arch))
        with self._reading() as connection:
            found = connection.execute(query).all()
            archs: dict[str, list[str]] = {}
            pairs = select(KernelArchRecord.kernel, KernelArchRecord.arch)
            for kernel, name in connection.execute(pairs.order_by(KernelArchRecord.arch)):
                archs.setdefault(kernel, []).append(name)
        return [
            KernelRow(r.hash, r.name, tuple(archs.get(r.hash, ())), r.origin, r.source, r.plan)
            for r in found
        ]

    # -- measurements ------------------------------------------------------------------------

    def add_measurements(self, measurements: Iterable[Measurement]) -> int:
        """Add measurements, all or none; those that are there already are left out.

        When this returns, they are on the disk.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        DatabaseError
            When one names a kernel that the database has not, or it cannot be written.
        """
        return self.merge([], list(measurements))[1]

    def measurements(
        self,
        workload_key: str | None = None,
        arch: str | None = None,
        device: str | None = None,
        subject: str | None = None,
    ) -> list[Measurement]:
        """Return the measurements that fit all that is given, in the order of :func:`sort_key`."""
        query = select(*rows.MEASUREMENT)
        for column, value in (
            (MeasurementRecord.workload, workload_key),
            (MeasurementRecord.arch, None if arch is None else normalize_arch(arch)),
            (MeasurementRecord.device, device),
            (MeasurementRecord.subject, subject),
        ):
            if value is not None:
                query = query.where(column == value)
        return sorted(self._read(query), key=sort_key)

    def accepted(self, workload_key: str, arch: str) -> dict[tuple[str, str], list[Measurement]]:
        """Return what was accepted at a workload, as ``{(device, run): measurements}``.

        Times compare only within one group: a kernel's with the reference's of the same run on
        the same device.
        """
        query = select(*rows.MEASUREMENT).where(
            MeasurementRecord.workload == workload_key,
            MeasurementRecord.arch == normalize_arch(arch),
            MeasurementRecord.verdict == ACCEPTED,
        )
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for item in sorted(self._read(query), key=sort_key):
            groups.setdefault((item.device, item.run), []).append(item)
        return groups

    def measured_m(self, workload_key: str, arch: str) -> list[int]:
        """Return the values of M at which something was accepted for a workload, M aside.

        What a site with dynamic M can be decided from: ask :meth:`accepted` at each of them.
        """
        family = replace(Workload.parse(workload_key), m=None).key
        query = (
            select(WorkloadRecord.m)
            .join(MeasurementRecord, MeasurementRecord.workload == WorkloadRecord.key)
            .where(
                WorkloadRecord.family == family,
                WorkloadRecord.m.is_not(None),
                MeasurementRecord.arch == normalize_arch(arch),
                MeasurementRecord.verdict == ACCEPTED,
            )
            .distinct()
        )
        with self._reading() as connection:
            return sorted(m for m in connection.scalars(query) if m is not None)

    def counts(self) -> dict[str, int]:
        """Return how many kernels, workloads and measurements there are."""
        with self._reading() as connection:
            return {
                table.__tablename__: connection.scalar(select(func.count()).select_from(table))
                for table in (KernelRecord, WorkloadRecord, MeasurementRecord)
            }

    def _read(self, query: Any) -> list[Measurement]:
        with self._reading() as connection:
            found = connection.execute(query).all()
        try:
            return [rows.measurement(row) for row in found]
        except (ValueError, TypeError, DatabaseError) as error:
            raise DatabaseError(f"database {self.place}: is corrupt ({error})") from error

    # -- both --------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        """Return a fact that :meth:`merge` noted, or None."""
        with self._reading() as connection:
            query = select(MetaRecord.value).where(MetaRecord.key == key)
            value: str | None = connection.scalar(query)
        return value

    def merge(
        self,
        kernels: Sequence[KernelRow],
        measurements: Sequence[Measurement],
        note: tuple[str, str] | None = None,
    ) -> tuple[int, int]:
        """Add kernels and measurements in one transaction.

        Parameters
        ----------
        kernels, measurements
            What to add; those that are there already are left out.
        note
            A fact to keep with it, as key and value, for :meth:`meta`.

        Returns
        -------
        tuple of int
            How many kernels and how many measurements were new.

        Raises
        ------
        DatabaseError
            Then nothing was added.
        """
        for row in kernels:
            if kernel_text_hash(row.source, row.plan_json) != row.hash:
                raise DatabaseError(
                    f"kernel {row.name}: {row.hash!r:.80} is not the hash of its source and plan "
                    "(the plan stands there with defaults left out)"
                )
        wanted = {item.kernel for item in measurements if item.kernel is not None}
        with self._writing() as connection:
            before = rows.changes(connection)
            rows.insert_kernels(connection, kernels)
            new_kernels = rows.changes(connection) - before
            rows.insert_archs(connection, kernels)
            known = select(KernelRecord.hash)
            if len(wanted) < 1000:  # a statement may have only so many parameters
                known = known.where(KernelRecord.hash.in_(wanted))
            missing = wanted - set(connection.scalars(known))
            if missing:
                raise DatabaseError(
                    f"database {self.place}: a measurement names kernel {min(missing)}, which is "
                    "not in it; add the kernel first"
                )
            rows.insert_workloads(connection, measurements)
            before = rows.changes(connection)
            rows.insert_measurements(connection, measurements)
            new_measurements = rows.changes(connection) - before
            if note is not None:
                connection.execute(
                    insert(MetaRecord).on_conflict_do_nothing(),
                    [{"key": note[0], "value": note[1]}],
                )
        return new_kernels, new_measurements
