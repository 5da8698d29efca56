"""The list of sites that the pass leaves on the module, one entry for every matrix product."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

REPORT = "vibegemm.report"


@dataclass(frozen=True)
class SiteReport:
    """What became of one matrix product.

    Parameters
    ----------
    op
        The operator, ``matmul``.
    name
        ``matmul_3``: its place in the module. Names of the model's own are not repeated.
    workload
        Key of the workload; None where it was declined.
    decision
        ``kernel``, ``metaschedule``, ``reference`` or ``declined``.
    reason
        One sentence.
    expected_us
        Expected time in microseconds, where there is one.
    symbol
        The function that computes it, for ``kernel``.
    chain_end
        Why nothing more of what follows was taken along.
    """

    op: str
    name: str
    workload: str | None
    decision: str
    reason: str
    expected_us: float | None = None
    symbol: str | None = None
    chain_end: str | None = None


def read_report(mod: Any) -> list[SiteReport]:
    """Return the report of a module that went through the pass; empty for any other.

    Parameters
    ----------
    mod : tvm.IRModule
        The module.
    """
    if mod.attrs is None or REPORT not in mod.attrs:
        return []
    return [SiteReport(**entry) for entry in json.loads(str(mod.attrs[REPORT]))]


def write_report(mod: Any, sites: list[SiteReport]) -> Any:
    """Return ``mod`` with ``sites`` as its report."""
    return mod.with_attr(REPORT, json.dumps([asdict(site) for site in sites]))
