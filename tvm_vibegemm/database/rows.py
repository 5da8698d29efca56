"""Rows in and out: what the tables hold, as the dataclasses that the rest of the package sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert

from ..workload import Workload
from .identity import canonical_json, canonical_plan, parse_json
from .measurement import Measurement
from .models import KernelArchRecord, KernelRecord, MeasurementRecord, WorkloadRecord

MEASUREMENT = [
    getattr(MeasurementRecord, name)
    for name in Measurement.__dataclass_fields__  # the columns in the order of the fields
]


@dataclass(frozen=True)
class KernelRow:
    """A kernel as the database has it.

    Parameters
    ----------
    hash
        SHA-256 of source and canonical plan.
    name
        The plan's name; not unique.
    arch
        Architectures it is written for, sorted.
    origin
        Where it came from, e.g. ``schedules`` or the id of a tuning run.
    source, plan_json
        CUDA-C text, and the canonical plan.
    """

    hash: str
    name: str
    arch: tuple[str, ...]
    origin: str
    source: str
    plan_json: str


def measurement(row: Any) -> Measurement:
    """Return the measurement of a row of the columns :data:`MEASUREMENT`.

    Raises
    ------
    ValueError, TypeError, DatabaseError
        When the row was damaged.
    """
    fields = dict(row._mapping)
    fields["tunables"] = parse_json(fields["tunables"])
    fields["evidence"] = parse_json(fields["evidence"])
    return Measurement(**fields)


def sort_key(item: Measurement) -> tuple[str, ...]:
    """Return what measurements are ordered by, wherever they are listed."""
    return (
        *(item.workload, item.arch, item.device, item.run, item.subject),
        *(item.kernel or "", canonical_json(item.tunables), item.id),
    )


def changes(connection: Connection) -> int:
    """Return how many rows this connection has written (an insert of a known row writes none)."""
    return int(connection.exec_driver_sql("SELECT total_changes()").scalar_one())


def insert_kernels(connection: Connection, kernels: Sequence[KernelRow]) -> None:
    """Write kernels, those that are there already left out."""
    if not kernels:
        return
    connection.execute(
        insert(KernelRecord).on_conflict_do_nothing(),
        [
            {
                "hash": row.hash,
                "name": row.name,
                "source": row.source,
                "plan": canonical_plan(row.plan_json),
                "origin": row.origin,
            }
            for row in kernels
        ],
    )


def insert_archs(connection: Connection, kernels: Sequence[KernelRow]) -> None:
    """Write which architectures kernels are for; what is known of them stays."""
    archs = [{"kernel": row.hash, "arch": arch} for row in kernels for arch in row.arch]
    if archs:
        connection.execute(insert(KernelArchRecord).on_conflict_do_nothing(), archs)


def insert_workloads(connection: Connection, measurements: Sequence[Measurement]) -> None:
    """Write the workloads that measurements name."""
    if not measurements:
        return
    workloads = [Workload.parse(key) for key in sorted({item.workload for item in measurements})]
    connection.execute(
        insert(WorkloadRecord).on_conflict_do_nothing(),
        [
            {
                "key": item.key,
                "family": replace(item, m=None).key,
                "m": item.m,
                "n": item.n,
                "k": item.k,
                "batch": item.batch,
                "types": f"{item.a}.{item.b}.{item.acc}.{item.out}",
                "layout": item.layout,
            }
            for item in workloads
        ],
    )


def insert_measurements(connection: Connection, measurements: Sequence[Measurement]) -> None:
    """Write measurements, those that are there already left out."""
    if not measurements:
        return
    connection.execute(
        insert(MeasurementRecord).on_conflict_do_nothing(index_elements=["id"]),
        [
            {
                **{name: getattr(item, name) for name in Measurement.__dataclass_fields__},
                "id": item.id,
                "tunables": canonical_json(item.tunables),
                "evidence": canonical_json(item.evidence),
            }
            for item in measurements
        ],
    )
