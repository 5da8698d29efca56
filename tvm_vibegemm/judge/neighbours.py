"""Other shapes that a plan says it can do: where a promise of ``requires`` is put to the test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..device import Device
from ..kernel.plan import Plan
from ..kernel.validity import why_not
from ..workload import BatchMap, Workload

# Large shapes have small neighbours: a wrong edge shows in few tiles as well as in many.
_LARGEST_MN = 640
_LARGEST_K = 1088
COUNT = 5


def neighbours(
    plan: Plan, workload: Workload, device: Device, tunables: Mapping[str, int], count: int = COUNT
) -> list[Workload]:
    """Return shapes near the one asked for that the plan calls valid.

    Parameters
    ----------
    plan, workload, device, tunables
        What is judged, and where; M is fixed.
    count
        The most that are returned.

    Returns
    -------
    list of Workload
        Same types, layout and epilogue; ragged ones first. Empty where the plan takes this shape
        alone.
    """
    found: list[Workload] = []
    for candidate in _candidates(workload):
        if candidate.key in {workload.key, *(other.key for other in found)}:
            continue
        if why_not(plan, candidate, device, tunables) is None:
            found.append(candidate)
            if len(found) == count:
                break
    return found


def _candidates(workload: Workload) -> Iterator[Workload]:
    m, n, k = workload.m or 1, workload.n, workload.k
    small = [min(m, _LARGEST_MN), min(n, _LARGEST_MN), min(k, _LARGEST_K)]
    m, n, k = (
        small[0] + (m - small[0]) % 8,
        small[1] + (n - small[1]) % 8,
        small[2] + (k - small[2]) % 8,
    )
    # Most ragged first; then steps of 2, 4, 8, 16 … for plans that ask for multiples.
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        down_n, down_k = n - n % step, k - k % step
        yield _at(workload, m + 1, down_n + 3 * step, down_k + 5 * step)
        yield _at(workload, max(m - 1, 1), max(down_n - step, step), max(down_k - step, step))
        yield _at(workload, m + 29, down_n + step, down_k)
        yield _at(workload, 1, down_n, max(down_k // 2 // step * step, step))
    for rows in (1, 7, m + 1, 2 * m + 1):
        yield _at(workload, rows, n, k)
    if workload.batch > 1:
        yield _at(workload, m, n, k, 1)


def _at(workload: Workload, m: int, n: int, k: int, batch: int | None = None) -> Workload:
    changed = replace(workload, m=m, n=n, k=k)
    if batch == 1:
        changed = replace(changed, batch=1, a_batch=BatchMap(1, 1), b_batch=BatchMap(1, 1))
    elif workload.batch > 8 and workload.a_batch == workload.b_batch == BatchMap(1, workload.batch):
        changed = replace(changed, batch=5, a_batch=BatchMap(1, 5), b_batch=BatchMap(1, 5))
    return changed
