"""What the verbs print for people: the console, and the table of ``vibegemm compile``."""

from __future__ import annotations

from typing import Any

_PIPE_WIDTH = 160  # columns where the output is no terminal


def console() -> Any:
    """Return a rich console: as wide as the terminal, or wide enough for a table in a file."""
    from rich.console import Console

    # No markup: names and paths may hold brackets.
    found = Console(markup=False)
    return found if found.is_terminal else Console(markup=False, width=_PIPE_WIDTH)


def print_compiled(result: Any, checked: dict[str, Any] | None, explain: bool) -> None:
    """Print what became of each matrix product, and where the library is.

    Parameters
    ----------
    result
        A :class:`~tvm_vibegemm.graph.onnx.Compiled`.
    checked
        Errors against ONNX Runtime, where it was run.
    explain
        True for a row for each product, and why its chain of fused operators ends; else equal
        products share one row.
    """
    out = console()
    device, sites = result.device, result.sites
    if sites:
        out.print(_by_site(result) if explain else _by_workload(result))
    kernels = sum(site.decision == "kernel" for site in sites)
    out.print(f"{kernels} of {len(sites)} products run LLM-written kernels.")
    if sites and not kernels:
        out.print(f"No kernel won for {device.arch}: TVM's schedules serve all of them.")
    for skip in result.skipped:
        out.print(f"TVM's {skip.rule} rule threw on {skip.function}; the next rule served.")
        if explain:
            out.print(f"  {skip.error}")
    if explain:
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in result.seconds.items())
        out.print(f"Seconds: {phases}")
    if result.library:
        out.print(f"Library: {result.library}", soft_wrap=True)
    if checked:
        out.print(
            f"Checked against ONNX Runtime: largest error {checked['max_abs']:.3g} absolute,"
            f" {checked['max_rel']:.3g} of the output's root-mean-square."
        )


def _table(result: Any) -> Any:
    from rich.table import Table

    table = Table(title=f"Matrix products for {result.device.name} ({result.device.arch})")
    table.add_column("product", justify="right")
    table.add_column("workload", overflow="fold")
    table.add_column("decision")
    table.add_column("reason", overflow="fold")
    table.add_column("expected", justify="right")
    return table


def _time(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds:.1f} µs"


def _by_workload(result: Any) -> Any:
    rows: dict[tuple[Any, ...], int] = {}
    for site in result.sites:
        row = (site.op, site.workload or "-", site.decision, site.reason, site.expected_us)
        rows[row] = rows.get(row, 0) + 1
    table = _table(result)
    for (op, *cells, expected), count in rows.items():
        table.add_row(f"{count} × {op}", *cells, _time(expected))
    return table


def _by_site(result: Any) -> Any:
    table = _table(result)
    for site in result.sites:
        reason = site.reason
        if site.chain_end:
            reason += f" (nothing more fused: {site.chain_end})"
        table.add_row(
            site.name,
            site.workload or "-",
            site.decision,
            reason,
            _time(site.expected_us),
        )
    return table
