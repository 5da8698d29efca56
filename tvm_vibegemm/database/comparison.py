"""Kernels held against TVM's schedule, run by run: the figures under every listing.

The evidence of a measurement is a kilobyte of JSON; nothing here parses it. The one or two facts
that are needed of every row are taken out by SQL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, String, cast, func, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.elements import ColumnElement

from .measurement import ACCEPTED
from .models import KernelRecord, MeasurementRecord

CHUNK = 500  # parameters of one statement


def evidence_text(connection: Connection, name: str) -> ColumnElement[str]:
    """Return the SQL of one fact of the evidence, as text; NULL where it is not there."""
    column = MeasurementRecord.evidence
    if connection.dialect.name == "postgresql":
        return cast(column, JSONB)[name].astext
    return cast(func.json_extract(column, f"$.{name}"), String)


def chunks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield items in parts that fit the parameters of one statement."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


@dataclass(frozen=True)
class Best:
    """A kernel beside TVM's schedule in one run on one device.

    Parameters
    ----------
    measurement
        Id of the kernel's measurement.
    kernel
        The kernel's hash.
    device, run
        Where and when both were timed.
    median_us, reference_us
        Median times in microseconds; the reference's is None where it gave no valid result.
    wins
        True where the kernel is faster by more than the noise: the intervals do not overlap.
    name, judge, date
        The kernel's name, and what the measurement says, where :func:`describe` filled them in.
    """

    measurement: str
    kernel: str
    device: str
    run: str
    median_us: float
    reference_us: float | None
    wins: bool
    name: str = ""
    judge: str = ""
    date: str = ""

    @property
    def ratio(self) -> float | None:
        """TVM's time over the kernel's: how many times faster it is."""
        if self.reference_us is None or not self.median_us:
            return None
        return self.reference_us / self.median_us

    @property
    def rank(self) -> tuple[bool, float, float, str]:
        """What the best kernel is the largest by, see :func:`rank`."""
        return rank(self.wins, self.median_us, self.reference_us, self.measurement)


@dataclass
class _Group:
    """One run at one workload on one device, while its rows come in."""

    reference_us: float | None = None
    reference_low: float | None = None
    refused: bool = False
    kernels: list[tuple[Any, str, float, float]] = field(default_factory=list)


Place = tuple[str, str, str]
"""Workload, architecture, device."""


@dataclass
class Comparisons:
    """The best kernel of each place, and what was never compared.

    Parameters
    ----------
    best
        By workload, architecture and device.
    reference_us
        Least time of TVM's schedule at each place.
    compared
        Places at which each kernel was compared, where that was asked for.
    uncompared
        Kernels with an accepted measurement in a run that has no reference.
    """

    best: dict[Place, Best] = field(default_factory=dict)
    reference_us: dict[Place, float] = field(default_factory=dict)
    compared: dict[str, set[Place]] = field(default_factory=dict)
    uncompared: set[str] = field(default_factory=set)


def rank(
    wins: bool, median_us: float, reference_us: float | None, id: str
) -> tuple[bool, float, float, str]:
    """Return what the best kernel is the largest by; the id makes equal ones come out alike."""
    ratio = math.inf if reference_us is None or not median_us else reference_us / median_us
    return wins, ratio, -median_us, id


def compare(
    connection: Connection, where: Iterable[ColumnElement[bool]] = (), *, places: bool = False
) -> Comparisons:
    """Hold kernels against TVM's schedule, run by run, as a decision does.

    A run counts where TVM's schedule was timed in it, or was tried and found invalid. That a
    kernel's plan fits its workload is not asked again here: the judge did.
    """
    row = MeasurementRecord
    query = select(
        *(row.workload, row.arch, row.device, row.run, row.subject, row.kernel, row.verdict),
        *(row.median_us, row.low_us, row.high_us, row.id),
    ).where(
        or_(row.subject == "reference", (row.subject == "kernel") & (row.verdict == ACCEPTED)),
        *where,
    )
    groups: dict[tuple[str, str, str, str], _Group] = {}
    # All rows at once: a hundred thousand are fetched three times as fast as one by one.
    for w, arch, device, run, subject, hash, verdict, *times, id in connection.execute(query).all():
        group = groups.get((w, arch, device, run))
        if group is None:
            group = groups[w, arch, device, run] = _Group()
        median, low, high = times
        if subject == "kernel":
            if median is not None:
                group.kernels.append((hash, id, median, median if high is None else high))
        elif verdict != ACCEPTED:
            group.refused = True
        elif median is not None and (group.reference_us is None or median < group.reference_us):
            group.reference_us = median
            group.reference_low = median if low is None else low
    found = Comparisons()
    for (w, arch, device, run), group in groups.items():
        place = (w, arch, device)
        reference, low = group.reference_us, group.reference_low
        if reference is not None:
            found.reference_us[place] = min(reference, found.reference_us.get(place, math.inf))
        elif not group.refused:
            found.uncompared.update(hash for hash, *_ in group.kernels)
            continue
        top = found.best.get(place)
        for hash, id, median, high in group.kernels:
            if places:
                found.compared.setdefault(hash, set()).add(place)
            wins = low is None or high < low
            if top is None or rank(wins, median, reference, id) > top.rank:
                top = Best(id, hash, device, run, median, reference, wins)
        if top is not None:
            found.best[place] = top
    return found


def describe(connection: Connection, found: Iterable[Best]) -> dict[str, Best]:
    """Return comparisons by the id of their measurement, with name, judge and date filled in."""
    by_id = {one.measurement: one for one in found}
    row = MeasurementRecord
    judge, date = (func.coalesce(evidence_text(connection, name), "") for name in ("judge", "date"))
    query = select(row.id, KernelRecord.name, judge, date)
    query = query.join(KernelRecord, KernelRecord.hash == row.kernel)
    for part in chunks(list(by_id)):
        for id, name, one, other in connection.execute(query.where(row.id.in_(part))).all():
            by_id[id] = replace(by_id[id], name=name, judge=one, date=other)
    return by_id
