"""What a database holds, for people: a line for each workload, one workload, one kernel, counts.

Nothing here writes. The evidence of a measurement is a kilobyte of JSON, so it is parsed only for
what is shown; the one or two facts that a listing needs of every row are taken out by SQL.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from ..device import normalize_arch
from ..errors import InputError
from ..workload import OPERAND_DTYPES
from .comparison import CHUNK, Best, Place, chunks, compare, describe, evidence_text
from .measurement import ACCEPTED, Measurement
from .models import KernelArchRecord, KernelRecord, MeasurementRecord, WorkloadRecord
from .rows import KernelRow
from .store import Database

_MIN_PREFIX = 4  # letters of a hash
_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class Line:
    """What a listing says of one workload on one architecture.

    Parameters
    ----------
    workload, arch
        Its key and the architecture.
    best
        The best kernel that was compared with TVM's schedule; None where none was.
    reference_us
        Time of TVM's schedule in microseconds: beside the best kernel, else the least one.
    measurements
        How many there are, of everything.
    date, judge
        Of the newest measurement.
    """

    workload: str
    arch: str
    best: Best | None
    reference_us: float | None
    measurements: int
    date: str
    judge: str


@dataclass(frozen=True)
class Run:
    """What was timed together: only times of one run are compared."""

    arch: str
    device: str
    run: str
    measurements: tuple[Measurement, ...]

    @property
    def reference_us(self) -> float | None:
        """Least accepted time of TVM's schedule in this run, in microseconds."""
        return min(
            (
                m.median_us
                for m in self.measurements
                if m.subject == "reference" and m.verdict == ACCEPTED and m.median_us is not None
            ),
            default=None,
        )


@dataclass(frozen=True)
class KernelFacts:
    """One kernel and how it fared.

    Parameters
    ----------
    row
        Source, plan and name.
    added
        When it came into this database, as UTC text.
    wins
        Where it is the best of all kernels and beats TVM's schedule.
    compared
        At how many places (workload, architecture and device) it was compared.
    verdicts
        How often each verdict was given; see :func:`verdict_class`.
    """

    row: KernelRow
    added: str
    wins: tuple[tuple[Place, Best], ...]
    compared: int
    verdicts: dict[str, int]


@dataclass(frozen=True)
class Statistics:
    """Counts, and bytes on disk.

    Parameters
    ----------
    kernels, workloads, measurements
        How many there are.
    by
        How many measurements there are of each ``arch``, ``device``, ``judge``, ``subject`` and
        ``verdict``, the most frequent first.
    origins
        How many kernels came from where.
    bytes
        Size on disk with the journal; None for a database in memory.
    free_bytes
        How much of it is free for what is added next; None where the database does not say.
    """

    kernels: int
    workloads: int
    measurements: int
    by: dict[str, dict[str, int]]
    origins: dict[str, int]
    bytes: int | None
    free_bytes: int | None


def verdict_class(verdict: str) -> str:
    """Return a verdict without its details: the words before the first colon."""
    return verdict.partition(":")[0].strip()


# -- list ---------------------------------------------------------------------------------------


def lines(
    database: Database,
    *,
    arch: str | None = None,
    type: str | None = None,
    kernel: str | None = None,
    limit: int | None = None,
) -> tuple[list[Line], int]:
    """Return a line for each workload and architecture.

    Parameters
    ----------
    database
        Where to look.
    arch
        Only this architecture.
    type
        Only products with an operand of this type, e.g. ``f16``.
    kernel
        Only workloads at which this kernel was measured: its name, hash or the hash's beginning.
    limit
        Most lines.

    Returns
    -------
    tuple
        The lines, by types, layout, epilogue and size, and how many there are without the limit.

    Raises
    ------
    InputError, DeviceError
        For an unknown type, kernel or architecture.
    """
    row = MeasurementRecord
    where: list[ColumnElement[bool]] = []
    if arch is not None:
        where.append(row.arch == normalize_arch(arch))
    if type is not None:
        if type not in OPERAND_DTYPES:
            raise InputError(f"type {type!r:.40}: choose one of {', '.join(OPERAND_DTYPES)}")
        typed = or_(
            WorkloadRecord.types.like(f"{type}.%"), WorkloadRecord.types.like(f"%.{type}.%.%")
        )
        where.append(row.workload.in_(select(WorkloadRecord.key).where(typed)))
    if kernel is not None:
        hash = find_kernel(database, kernel)
        where.append(row.workload.in_(select(row.workload).where(row.kernel == hash)))
    with database._reading() as connection:
        return _lines(connection, where, limit)


def _lines(
    connection: Connection, where: Sequence[ColumnElement[bool]], limit: int | None
) -> tuple[list[Line], int]:
    row = MeasurementRecord
    counted = select(row.workload, row.arch, func.count()).where(*where)
    counts = connection.execute(counted.group_by(row.workload, row.arch)).all()
    places = sorted(counts, key=lambda place: (workload_order(place[0]), place[1]))
    shown = places if limit is None else places[:limit]
    if len(shown) < len(places) and len(shown) <= CHUNK:
        where = [*where, row.workload.in_({workload for workload, _, _ in shown})]
    found = compare(connection, where)
    best: dict[tuple[str, str], Best] = {}
    reference: dict[tuple[str, str], float] = {}
    for (*place, _), one in found.best.items():
        key = (place[0], place[1])
        if key not in best or one.rank > best[key].rank:
            best[key] = one
    for (*place, _), time in found.reference_us.items():
        key = (place[0], place[1])
        reference[key] = min(time, reference.get(key, math.inf))
    newest = _newest(connection, where)
    told = describe(connection, [best[w, a] for w, a, _ in shown if (w, a) in best])
    result = []
    for workload, arch, count in shown:
        date, judge = newest[workload, arch]
        top = best.get((workload, arch))
        if top is None:
            least = reference.get((workload, arch))
            result.append(Line(workload, arch, None, least, count, date, judge))
        else:
            top = told[top.measurement]
            result.append(Line(workload, arch, top, top.reference_us, count, date, judge))
    return result, len(places)


def workload_order(key: str) -> tuple[Any, ...]:
    """Sort keys by types, layout and epilogue, then by size: what is alike stands together."""
    try:
        _, types, layout, batch, m, n, k, epilogue = key.split(":")
        sizes = [int(text[1:].partition("(")[0]) for text in (batch, n, k, m.replace("*", "0"))]
    except ValueError:
        return ("", "", 0, key)
    length = 0 if epilogue == "-" else epilogue.count("+") + 1
    return (types, layout, length, epilogue, *sizes, key)


def _newest(
    connection: Connection, where: Sequence[ColumnElement[bool]]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return date and judge of the newest measurement of each workload and architecture."""
    row = MeasurementRecord
    date, judge = (func.coalesce(evidence_text(connection, f), "") for f in ("date", "judge"))
    query = select(row.workload, row.arch, func.max(date + _SEPARATOR + judge)).where(*where)
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for workload, arch, text in connection.execute(query.group_by(row.workload, row.arch)).all():
        first, _, second = text.partition(_SEPARATOR)
        found[workload, arch] = (first, second)
    return found


# -- show ---------------------------------------------------------------------------------------


def kernel_hashes(database: Database, text: str) -> list[tuple[str, str]]:
    """Return hash and name of the kernels that a name, a hash or a hash's beginning means."""
    row = KernelRecord
    match: ColumnElement[bool] = row.name == text
    low = text.lower()
    if len(low) >= _MIN_PREFIX and all(letter in "0123456789abcdef" for letter in low):
        match = or_(match, row.hash.startswith(low))
    query = select(row.hash, row.name).where(match).order_by(row.name, row.hash)
    with database._reading() as connection:
        return list(connection.execute(query))


def find_kernel(database: Database, text: str) -> str:
    """Return the hash of the one kernel that a text means.

    Raises
    ------
    InputError
        When there is none, or more than one.
    """
    found = kernel_hashes(database, text)
    if len(found) == 1:
        return found[0][0]
    if not found:
        raise InputError(f"kernel {text!r:.80}: not in {database.place}; see vibegemm db list")
    some = ", ".join(f"{hash[:12]} ({name!r:.40})" for hash, name in found[:4])
    raise InputError(
        f"kernel {text!r:.80}: means {len(found):,} kernels; give the hash of one: {some}"
        + (", …" if len(found) > 4 else "")
    )


def find_workload(database: Database, text: str) -> str:
    """Return the key of the one measured workload that a text means.

    Parameters
    ----------
    database
        Where to look.
    text
        A canonical key, or parts of one with colons or blanks between them, in any order:
        ``f16.f16.f32.f16 nt 16x4096x4096``.

    Raises
    ------
    InputError
        When there is none, or more than one.
    """
    parts = _parts(text)
    query = select(WorkloadRecord.key)
    with database._reading() as connection:
        keys = list(connection.scalars(query.where(WorkloadRecord.key == text.strip())))
        if not keys:
            every = connection.scalars(query.order_by(WorkloadRecord.key))
            keys = [key for key in every if parts and parts <= set(key.split(":"))]
    if len(keys) == 1:
        return keys[0]
    if not keys:
        raise InputError(
            f"{text!r:.120}: neither a workload nor a kernel of {database.place}; "
            "see vibegemm db list"
        )
    some = ", ".join(keys[:3])
    raise InputError(
        f"{text!r:.120}: means {len(keys):,} workloads; give the key of one: {some}"
        + (", …" if len(keys) > 3 else "")
    )


def _parts(text: str) -> set[str]:
    parts: set[str] = set()
    for part in text.replace(":", " ").split():
        sizes = part.replace("×", "x").split("x")
        if len(sizes) == 3 and all(size.isdecimal() or size == "*" for size in sizes):
            parts |= {f"{letter}{size}" for letter, size in zip("mnk", sizes, strict=True)}
        else:
            parts.add(part)
    return parts


def runs(database: Database, key: str) -> list[Run]:
    """Return all that was measured at a workload, by run, the newest first."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for item in database.measurements(key):
        groups.setdefault((item.arch, item.device, item.run), []).append(item)
    found = [Run(*place, tuple(items)) for place, items in groups.items()]

    def date(run: Run) -> str:
        return max(str(m.evidence.get("date", "")) for m in run.measurements)

    return sorted(sorted(found, key=lambda r: (r.arch, r.device, r.run)), key=date, reverse=True)


def names(database: Database, hashes: Iterable[str | None]) -> dict[str, str]:
    """Return the names of kernels by their hash."""
    wanted = sorted({hash for hash in hashes if hash is not None})
    row, found = KernelRecord, {}
    with database._reading() as connection:
        for part in chunks(wanted):
            query = select(row.hash, row.name).where(row.hash.in_(part))
            found.update(connection.execute(query).all())
    return found


def kernel_facts(database: Database, hash: str) -> KernelFacts:
    """Return one kernel and how it fared.

    Raises
    ------
    InputError
        When there is no such kernel.
    """
    row = MeasurementRecord
    with database._reading() as connection:
        kernel = connection.execute(select(KernelRecord).where(KernelRecord.hash == hash)).first()
        if kernel is None:
            raise InputError(f"kernel {hash!r:.80}: not in {database.place}; see vibegemm db list")
        archs = select(KernelArchRecord.arch).where(KernelArchRecord.kernel == hash)
        arch = tuple(sorted(connection.scalars(archs)))
        query = select(row.verdict, func.count()).where(row.kernel == hash).group_by(row.verdict)
        verdicts: Counter[str] = Counter()
        for verdict, count in connection.execute(query):
            verdicts[verdict_class(verdict)] += count
        at = row.workload.in_(select(row.workload).where(row.kernel == hash))
        found = compare(connection, [at], places=True)
        best = {p: one for p, one in found.best.items() if one.kernel == hash and one.wins}
        told = describe(connection, best.values())
    wins = [(place, told[one.measurement]) for place, one in best.items()]
    return KernelFacts(
        row=KernelRow(kernel.hash, kernel.name, arch, kernel.origin, kernel.source, kernel.plan),
        added=str(kernel.added),
        wins=tuple(sorted(wins, key=lambda pair: (workload_order(pair[0][0]), pair[0]))),
        compared=len(found.compared.get(hash, ())),
        verdicts=dict(sorted(verdicts.items())),
    )


# -- stats --------------------------------------------------------------------------------------


def statistics(database: Database) -> Statistics:
    """Return counts of everything, and the size on disk."""
    row = MeasurementRecord
    by: dict[str, Counter[str]] = {
        name: Counter() for name in ("arch", "device", "judge", "subject", "verdict")
    }
    with database._reading() as connection:
        judge = evidence_text(connection, "judge")
        columns = (row.arch, row.device, judge, row.subject, row.verdict)
        for *values, count in connection.execute(select(*columns, func.count()).group_by(*columns)):
            values[2] = values[2] or "(none)"
            values[4] = verdict_class(values[4])
            for counter, value in zip(by.values(), values, strict=True):
                counter[value] += count
        origins = select(KernelRecord.origin, func.count()).group_by(KernelRecord.origin)
        origin = Counter(dict(connection.execute(origins).all()))
        free = None
        if connection.dialect.name == "sqlite":
            pages, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_size")
            )
            free = pages * size
        else:
            size = connection.scalar(select(func.pg_database_size(func.current_database())))
    counts = database.counts()
    return Statistics(
        counts["kernel"],
        counts["workload"],
        counts["measurement"],
        {name: dict(counter.most_common()) for name, counter in by.items()},
        dict(origin.most_common()),
        size if database.path is None and free is None else _file_bytes(database),
        free,
    )


def _file_bytes(database: Database) -> int | None:
    """Return the size of a file with its journal; None for a database in memory."""
    if database.path is None:
        return None
    total = 0
    for suffix in ("", "-wal"):
        path = database.path.with_name(database.path.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
