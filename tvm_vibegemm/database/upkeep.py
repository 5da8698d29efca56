"""Keeping a database sound and small: check it, prune it, hold it against another."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select

from ..device import normalize_arch
from ..errors import DatabaseError, DeviceError, InputError
from ..workload import Workload
from . import rows
from .comparison import compare, evidence_text
from .identity import canonical_json, canonical_plan, kernel_text_hash, parse_json
from .measurement import Measurement
from .models import KernelArchRecord, KernelRecord, MeasurementRecord, WorkloadRecord
from .queries import find_kernel
from .store import Database

# Families of judge versions ("strict-1"), the older first; within one the number says.
JUDGES = ("plain", "strict")
_OBJECTS = ("tunables", "evidence")  # in this order: the earlier holds none of the later's name


# -- check --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """Something that is wrong in a database.

    Parameters
    ----------
    kind
        ``integrity``, ``kernel``, ``workload``, ``measurement`` or ``orphan``.
    subject
        What it is about: a hash, a key, an id or a table.
    detail
        What is wrong, in words.
    """

    kind: str
    subject: str
    detail: str


def check(database: Database) -> list[Finding]:
    """Recompute all that can be: pages, hashes of kernels, keys of workloads, ids, references.

    Returns
    -------
    list of Finding
        Empty where the database is sound.

    Raises
    ------
    DatabaseError
        When it is too damaged to be read at all.
    """
    found: list[Finding] = []
    with database._reading() as connection:
        if connection.dialect.name == "sqlite":
            for (text,) in connection.exec_driver_sql("PRAGMA integrity_check(100)"):
                if text != "ok":
                    found.append(Finding("integrity", "file", str(text)))
        found += _check_kernels(connection)
        found += _check_workloads(connection)
        found += _check_measurements(connection)
        found += _check_references(connection)
    return found


def _check_kernels(connection: Connection) -> Iterator[Finding]:
    archs: dict[str, set[str]] = {}
    for kernel, arch in connection.execute(select(KernelArchRecord.kernel, KernelArchRecord.arch)):
        archs.setdefault(kernel, set()).add(arch)
    row = KernelRecord
    query = select(row.hash, row.name, row.source, row.plan).order_by(row.hash)
    for hash, name, source, plan in connection.execute(query):
        try:
            if (real := kernel_text_hash(source, plan)) != hash:
                detail = f"its source and plan have the hash {real}"
                yield Finding("kernel", hash, f"{name}: {detail}")
                continue
            if canonical_plan(plan) != plan:
                yield Finding("kernel", hash, f"{name}: its plan is not in canonical form")
            told = parse_json(plan)
            if told.get("name") != name:
                named = str(told.get("name"))
                yield Finding("kernel", hash, f"{name}: its plan's name is {named!r:.80}")
            known = {normalize_arch(arch) for arch in told.get("arch", ())}
        except (DatabaseError, DeviceError, TypeError, ValueError, AttributeError) as error:
            yield Finding("kernel", hash, f"{name}: {error}")
            continue
        if missing := known - archs.get(hash, set()):
            yield Finding("kernel", hash, f"{name}: not listed for {', '.join(sorted(missing))}")


def _check_workloads(connection: Connection) -> Iterator[Finding]:
    row = WorkloadRecord
    fields = ("key", "family", "m", "n", "k", "batch", "types", "layout")
    query = select(*(getattr(row, name) for name in fields)).order_by(row.key)
    for found in connection.execute(query):
        try:
            right = _columns(Workload.parse(found.key))
        except InputError as error:
            yield Finding("workload", found.key, str(error))
            continue
        for name in fields:
            if (value := getattr(found, name)) != right[name]:
                detail = f"{name} is {value!r:.80}, the key says {right[name]!r:.80}"
                yield Finding("workload", found.key, detail)


def _columns(w: Workload) -> dict[str, object]:
    """Return what the table says of a workload, as its key has it."""
    types = f"{w.a}.{w.b}.{w.acc}.{w.out}"
    sizes = {"m": w.m, "n": w.n, "k": w.k, "batch": w.batch}
    family = replace(w, m=None).key
    return {"key": w.key, "family": family, "types": types, "layout": w.layout, **sizes}


def _check_measurements(connection: Connection) -> Iterator[Finding]:
    query = select(MeasurementRecord.id.label("own"), *rows.MEASUREMENT)
    query = query.order_by(MeasurementRecord.id).execution_options(yield_per=1000)
    for row in connection.execute(query):
        fields = dict(row._mapping)
        own = fields.pop("own")
        try:
            # The id is of canonical JSON, and so is what the objects are kept as: where the texts
            # fit the id as they stand, they are what was once added.
            if _text_id(fields) == own:
                continue
            texts = {name: parse_json(fields[name]) for name in _OBJECTS}
            item = Measurement(**{**fields, **texts})
        except (ValueError, TypeError, DatabaseError) as error:
            yield Finding("measurement", own, str(error))
            continue
        if item.id == own:
            yield Finding("measurement", own, "its fields are not in canonical form")
        else:
            yield Finding("measurement", own, f"its content has the id {item.id}")


def _text_id(fields: dict[str, Any]) -> str:
    text = canonical_json({**fields, **dict.fromkeys(_OBJECTS)})
    for name in _OBJECTS:  # a quote within a JSON text has a backslash, so this is the field
        text = text.replace(f'"{name}":null', f'"{name}":{fields[name]}', 1)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_references(connection: Connection) -> Iterator[Finding]:
    row, arch = MeasurementRecord, KernelArchRecord
    kernels = select(KernelRecord.hash)
    query = select(arch.kernel, func.count()).where(arch.kernel.not_in(kernels))
    for kernel, count in connection.execute(query.group_by(arch.kernel)):
        yield Finding("orphan", str(kernel), f"{count:,} architectures of a kernel that is gone")
    lost = select(row.kernel, func.count()).where(row.kernel.not_in(kernels))
    for hash, count in connection.execute(lost.group_by(row.kernel)):
        yield Finding("orphan", str(hash), f"{count:,} measurements of a kernel that is gone")
    keys = select(WorkloadRecord.key)
    query = select(row.workload, func.count()).where(row.workload.not_in(keys))
    for key, count in connection.execute(query.group_by(row.workload)):
        yield Finding("orphan", key, f"{count:,} measurements of a workload that is not listed")
    pairs = select(row.kernel, row.arch, func.count()).where(row.kernel.in_(kernels))
    known = set(connection.execute(select(arch.kernel, arch.arch)))
    for hash, name, count in connection.execute(pairs.group_by(row.kernel, row.arch)):
        if (hash, name) not in known:
            detail = f"{count:,} measurements on {name}, which the kernel is not for"
            yield Finding("orphan", str(hash), detail)


# -- prune --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pruned:
    """What pruning takes out, or would.

    Parameters
    ----------
    kernels
        Names by hash.
    measurements
        Ids, sorted.
    workloads
        Keys of workloads that lose their last measurement.
    """

    kernels: dict[str, str]
    measurements: tuple[str, ...]
    workloads: tuple[str, ...]


def judge_order(version: str) -> tuple[int, int]:
    """Return what judge versions are ordered by.

    Raises
    ------
    InputError
        When the text is not a version.
    """
    name, dash, number = version.rpartition("-")
    if not dash or name not in JUDGES or not (number.isascii() and number.isdecimal()):
        known = ", ".join(f"{name}-N" for name in JUDGES)
        raise InputError(f"judge version {version!r:.40}: not one of {known}")
    return JUDGES.index(name), int(number)


def prune(
    database: Database,
    *,
    judge_older_than: str | None = None,
    losers: bool = False,
    kernel: str | None = None,
    dry_run: bool = True,
) -> Pruned:
    """Take out what one of three criteria says, in one transaction.

    Parameters
    ----------
    database
        Where.
    judge_older_than
        Measurements by an older judge, or by one that did not say its version. Kernels stay. One
        by a judge of unknown name stays too: it may be newer.
    losers
        Kernels that won nowhere, with their measurements: those that were compared with TVM's
        schedule, or refused, and are at no workload the best on any device. One that was never
        measured, or has times that were never compared, has not lost.
    kernel
        This kernel (name, hash or its beginning) with its measurements.
    dry_run
        True to change nothing.

    Returns
    -------
    Pruned
        What was, or would be, taken out.

    Raises
    ------
    InputError
        When not just one criterion is given, or it fits nothing known.
    DatabaseError
        When the database cannot be written; nothing was taken out then.
    """
    if sum((judge_older_than is not None, losers, kernel is not None)) != 1:
        raise InputError("prune: say just one of an older judge, losers, a kernel")
    limit = judge_order(judge_older_than) if judge_older_than is not None else None
    one = find_kernel(database, kernel) if kernel is not None else None
    with database._reading() if dry_run else database._writing() as connection:
        hashes: set[str] = set()
        if limit is not None:
            chosen = _older(connection, limit)
        else:
            hashes = {one} if one is not None else _losers(connection)
            row = MeasurementRecord
            every = connection.execute(select(row.id, row.workload, row.kernel))
            chosen = [(id, workload) for id, workload, hash in every if hash in hashes]
        names = connection.execute(select(KernelRecord.hash, KernelRecord.name))
        result = Pruned(
            {hash: name for hash, name in sorted(names) if hash in hashes},
            tuple(sorted(id for id, _ in chosen)),
            tuple(_emptied(connection, [workload for _, workload in chosen])),
        )
        if not dry_run:
            _delete(connection, result)
    return result


def _older(connection: Connection, limit: tuple[int, int]) -> list[tuple[str, str]]:
    row = MeasurementRecord
    query = select(row.id, row.workload, evidence_text(connection, "judge"))
    chosen = []
    for id, workload, judge in connection.execute(query):
        try:
            older = not judge or judge_order(judge) < limit
        except InputError:
            older = False
        if older:
            chosen.append((id, workload))
    return chosen


def _losers(connection: Connection) -> set[str]:
    found = compare(connection)
    winners = {best.kernel for best in found.best.values() if best.wins}
    measured = select(MeasurementRecord.kernel).where(MeasurementRecord.kernel.is_not(None))
    every = {hash for hash in connection.scalars(measured.distinct()) if hash is not None}
    return every - winners - found.uncompared


def _emptied(connection: Connection, taken: Sequence[str]) -> Iterator[str]:
    """Yield the workloads that have no measurement beside those taken, sorted."""
    row = MeasurementRecord
    counts = select(row.workload, func.count()).group_by(row.workload)
    total = dict(connection.execute(counts).all())
    for workload, count in sorted(Counter(taken).items()):
        if total[workload] == count:
            yield workload


def _delete(connection: Connection, what: Pruned) -> None:
    # The measurements first: they refer to the others. A kernel's architectures go with it.
    for column, values in (
        (MeasurementRecord.id, what.measurements),
        (KernelRecord.hash, what.kernels),
        (WorkloadRecord.key, what.workloads),
    ):
        if values:
            statement = delete(column.class_).where(column == bindparam("it"))
            connection.execute(statement, [{"it": value} for value in values])


# -- diff ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """What only one of two databases has.

    Parameters
    ----------
    kernels
        Names by hash.
    measurements
        By id: workload, architecture, subject and verdict.
    """

    kernels: dict[str, str]
    measurements: dict[str, tuple[str, str, str, str]]


@dataclass(frozen=True)
class Difference:
    """Two databases held against each other; what is the same is counted."""

    only_a: Side
    only_b: Side
    same_kernels: int
    same_measurements: int

    @property
    def equal(self) -> bool:
        """True where both hold the same kernels and measurements."""
        sides = (self.only_a, self.only_b)
        return not any(side.kernels or side.measurements for side in sides)


def diff(a: Database, b: Database) -> Difference:
    """Return which kernels and measurements only one of two databases has.

    Both are named by their content, so those with equal names are the same.
    """
    one, other = _content(a), _content(b)
    return Difference(
        _without(one, other),
        _without(other, one),
        len(one.kernels.keys() & other.kernels.keys()),
        len(one.measurements.keys() & other.measurements.keys()),
    )


def _content(database: Database) -> Side:
    row = MeasurementRecord
    kernels = select(KernelRecord.hash, KernelRecord.name)
    measurements = select(row.id, row.workload, row.arch, row.subject, row.verdict)
    with database._reading() as connection:
        found = connection.execute(measurements.order_by(row.workload, row.arch, row.id))
        return Side(
            dict(connection.execute(kernels.order_by(KernelRecord.name)).all()),
            {id: (workload, arch, *rest) for id, workload, arch, *rest in found},
        )


def _without(one: Side, other: Side) -> Side:
    return Side(
        {hash: name for hash, name in one.kernels.items() if hash not in other.kernels},
        {id: what for id, what in one.measurements.items() if id not in other.measurements},
    )
