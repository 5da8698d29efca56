"""Which implementation a site gets: a query over measurements, never stored.

``measured`` takes a kernel only where it beat TVM's reference schedule at that very workload, in
one run on one device, by more than the noise. ``valid`` takes the kernel that is predicted to be
fastest among those whose plan fits, for build servers and tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..database import Database, Measurement
from ..device import Device, device_for
from ..errors import InputError
from ..kernel.kernel import Kernel, lookup, register
from ..kernel.plan import Plan
from ..kernel.validity import why_not
from ..workload import Workload

SELECT = ("measured", "valid")
FALLBACK = ("metaschedule", "reference")
# Bounds of M at which a dynamic site changes its kernel where nothing was measured at it.
_VALID_BOUNDS = (64, None)
_PROBE_M = 1024


@dataclass(frozen=True)
class Choice:
    """A kernel for M up to a bound.

    Parameters
    ----------
    m_max
        Largest M it serves; None where there is no bound.
    kernel
        Its hash.
    tunables
        Its compile-time choices.
    """

    m_max: int | None
    kernel: str
    tunables: Mapping[str, int]


@dataclass(frozen=True)
class Decision:
    """What a site gets, and why.

    Parameters
    ----------
    decision
        ``kernel``, ``metaschedule`` or ``reference``.
    reason
        One sentence with the figures.
    expected_us
        Time it should take, in microseconds, where it was measured.
    choices
        The kernels, in ascending order of ``m_max``; empty unless the decision is ``kernel``.
    """

    decision: str
    reason: str
    expected_us: float | None = None
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class _Winner:
    """The best accepted kernel of one workload beside the reference of the same run."""

    kernel: Measurement
    reference_us: float | None
    device: str

    @property
    def speedup(self) -> float:
        median = self.kernel.median_us or math.inf
        return math.inf if self.reference_us is None else self.reference_us / median


def load_kernel(database: Database, kernel_hash: str) -> Kernel:
    """Return a kernel of the database, known to this process's code generator from now on.

    Raises
    ------
    DatabaseError, PlanError
        When it is not there or its plan is malformed.
    """
    kernel = lookup(kernel_hash)
    if kernel is None:
        source, plan = database.kernel_text(kernel_hash)
        kernel = Kernel(source, Plan.load(plan))
        register(kernel)
    return kernel


def decide(
    workload: Workload,
    device: Device,
    database: Database,
    *,
    select: str = "measured",
    fallback: str = "metaschedule",
) -> Decision:
    """Decide what one site gets.

    Parameters
    ----------
    workload
        The site; with dynamic M it gets buckets, each decided at the M it was measured at.
    device
        What it will run on; measurements of its own model come first, then of its architecture.
    database
        Kernels and measurements.
    select
        ``measured`` or ``valid``, see the module.
    fallback
        What a site without a winning kernel is to get. There are no MetaSchedule records yet, so
        both ``metaschedule`` and ``reference`` give TVM's reference schedule.

    Returns
    -------
    Decision
        What to use, with the reason.

    Raises
    ------
    InputError
        For an unknown ``select`` or ``fallback``.
    """
    for name, value, known in (("select", select, SELECT), ("fallback", fallback, FALLBACK)):
        if value not in known:
            raise InputError(f"{name} = {value!r}: choose one of {', '.join(known)}")
    if select == "valid":
        return _valid(workload, device, database)
    if workload.m is not None:
        return _measured(workload, device, database)
    return _measured_buckets(workload, device, database)


# -- measured -----------------------------------------------------------------------------------


def _measured(workload: Workload, device: Device, database: Database) -> Decision:
    winner, why = _winner(workload, device, database)
    if winner is None:
        return Decision("reference", why)
    return Decision(
        "kernel",
        _sentence(winner, device, database),
        winner.kernel.median_us,
        (Choice(None, winner.kernel.kernel or "", winner.kernel.tunables),),
    )


def _sentence(winner: _Winner, device: Device, database: Database) -> str:
    name = load_kernel(database, winner.kernel.kernel or "").name
    median = winner.kernel.median_us or 0.0
    if winner.reference_us is None:
        text = f"{name}: {median:.1f} µs; TVM's schedule gave no valid result"
    else:
        text = f"{name}: {median:.1f} µs against {winner.reference_us:.1f} µs of TVM's schedule"
    if winner.device != device.name:
        text += f" (measured on {winner.device})"
    return text


def _winner(workload: Workload, device: Device, database: Database) -> tuple[_Winner | None, str]:
    """Return the kernel with the best ratio to the reference of its run, or why there is none."""
    groups = database.accepted(workload.key, device.arch)
    no_reference = {
        (m.device, m.run)
        for m in database.measurements(workload.key, device.arch, subject="reference")
        if m.verdict != "accepted"
    }
    best: _Winner | None = None
    slower: _Winner | None = None
    for (name, run), group in groups.items():
        times = [m for m in group if m.subject == "reference" and m.median_us is not None]
        reference = min(times, key=lambda m: m.median_us or math.inf, default=None)
        if reference is None and (name, run) not in no_reference:
            continue
        for measurement in group:
            if measurement.subject != "kernel" or measurement.median_us is None:
                continue
            found = _Winner(measurement, reference.median_us if reference else None, name)
            kernel = load_kernel(database, measurement.kernel or "")
            if why_not(kernel.plan, workload, device, measurement.tunables):
                continue
            if reference and not _beats(measurement, reference):
                slower = found if slower is None or found.speedup > slower.speedup else slower
            elif best is None or _rank(found, device) > _rank(best, device):
                best = found
    if best is not None:
        return best, ""
    if slower is not None:
        return None, (
            f"TVM's schedule is not slower: {slower.reference_us:.1f} µs against"
            f" {slower.kernel.median_us:.1f} µs of the best kernel"
        )
    return None, f"no kernel was measured at this workload on {device.arch}"


def _rank(winner: _Winner, device: Device) -> tuple[bool, float]:
    return winner.device == device.name, winner.speedup


def _beats(kernel: Measurement, reference: Measurement) -> bool:
    """Return True where the intervals of the two medians do not overlap."""
    slow = kernel.high_us if kernel.high_us is not None else kernel.median_us
    fast = reference.low_us if reference.low_us is not None else reference.median_us
    return slow is not None and fast is not None and slow < fast


def _measured_buckets(workload: Workload, device: Device, database: Database) -> Decision:
    sizes = [m for m in database.measured_m(workload.key, device.arch) if m > 0]
    if not sizes:
        return Decision("reference", f"no kernel was measured at any M on {device.arch}")
    choices: list[Choice] = []
    low = 1
    for position, m in enumerate(sizes):
        winner, why = _winner(workload.at(m), device, database)
        if winner is None:
            return Decision("reference", f"at M = {m}: {why}")
        high = m if position + 1 < len(sizes) else None
        kernel = load_kernel(database, winner.kernel.kernel or "")
        reason = why_not(kernel.plan, workload, device, winner.kernel.tunables, (low, high))
        if reason is not None:
            return Decision("reference", f"at M = {low}…{high or ''}: {kernel.name}: {reason}")
        choice = Choice(high, kernel.hash, winner.kernel.tunables)
        if choices and (choices[-1].kernel, choices[-1].tunables) == (
            choice.kernel,
            choice.tunables,
        ):
            choices.pop()
        choices.append(choice)
        low = m + 1
    return Decision("kernel", f"faster at each measured M ({_list(sizes)})", None, tuple(choices))


def _list(sizes: list[int]) -> str:
    text = ", ".join(map(str, sizes[:6]))
    return f"{text}, …" if len(sizes) > 6 else text


# -- valid --------------------------------------------------------------------------------------


def _valid(workload: Workload, device: Device, database: Database) -> Decision:
    if workload.m is not None:
        found = _predicted(workload, device, database, None)
        if found is None:
            return Decision("reference", f"no kernel's plan fits on {device.arch}")
        kernel, tunables, _ = found
        choice = Choice(None, kernel.hash, tunables)
        return Decision(
            "kernel", f"{kernel.name}: its plan fits (not measured here)", None, (choice,)
        )
    choices: list[Choice] = []
    low = 1
    for high in _VALID_BOUNDS:
        found = _predicted(workload, device, database, (low, high))
        if found is None:
            return Decision("reference", f"no kernel's plan fits every M on {device.arch}")
        choices.append(Choice(high, found[0].hash, found[1]))
        low = (high or 0) + 1
    return Decision("kernel", "plans fit (not measured here)", None, tuple(choices))


def _predicted(
    workload: Workload,
    device: Device,
    database: Database,
    m_range: tuple[int, int | None] | None,
) -> tuple[Kernel, dict[str, int], float] | None:
    """Return the valid kernel with the least predicted time: (kernel, tunables, microseconds).

    The prediction is the roofline time over the efficiency that the kernel reached at the nearest
    workload it was measured at; a kernel never measured comes last.
    """
    fixed = workload
    if workload.m is None:
        fixed = workload.at((m_range[1] if m_range else None) or _PROBE_M)
    known: dict[str, list[Measurement]] = {}
    for measurement in database.measurements(arch=device.arch, subject="kernel"):
        if measurement.verdict == "accepted" and measurement.median_us:
            known.setdefault(measurement.kernel or "", []).append(measurement)
    best: tuple[Kernel, dict[str, int], float] | None = None
    for row in database.kernels(device.arch):
        kernel = load_kernel(database, row.hash)
        for tunables, time in _candidates(kernel, fixed, device, known.get(row.hash, [])):
            if why_not(kernel.plan, workload, device, tunables, m_range):
                continue
            if best is None or time < best[2]:
                best = (kernel, tunables, time)
            break  # candidates come nearest first
    return best


def _candidates(
    kernel: Kernel, workload: Workload, device: Device, measured: list[Measurement]
) -> Iterator[tuple[dict[str, int], float]]:
    near = sorted(measured, key=lambda m: _distance(workload, Workload.parse(m.workload)))
    floor = max(workload.roofline_us(device), 1e-3)
    for measurement in near:
        there = device_for(measurement.arch, measurement.device)
        at = Workload.parse(measurement.workload).roofline_us(there)
        yield (
            dict(measurement.tunables),
            floor * (measurement.median_us or math.inf) / max(at, 1e-3),
        )
    yield kernel.plan.defaults(), math.inf


def _distance(one: Workload, other: Workload) -> float:
    """Return a distance between workloads: octaves of M, N, K and batch, and unlike types."""
    sides = zip(
        (one.m or 1, one.n, one.k, one.batch),
        (other.m or 1, other.n, other.k, other.batch),
        strict=True,
    )
    octaves = sum(abs(math.log2((x + 1) / (y + 1))) for x, y in sides)
    return (
        octaves
        + 4.0 * ((one.a, one.out) != (other.a, other.out))
        + 2.0 * (one.layout != other.layout)
    )
