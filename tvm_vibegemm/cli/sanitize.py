"""``vibegemm sanitize``: run kernels under NVIDIA's compute-sanitizer, as admission does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import DeviceError
from .build import read_kernel, read_tunables


@click.command("sanitize")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--workload", "keys", multiple=True, help="Key of a small workload; may be repeated.")
@click.option("--tunable", "tunables", multiple=True, metavar="NAME=INT", help="May be repeated.")
@click.option("--tool", "tools", multiple=True, help="memcheck, racecheck, …; may be repeated.")
@click.option("--index", type=click.IntRange(0), default=0, help="Number of the GPU.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds that one tool may take for one kernel.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a kernel on stdout.")
def command(
    files: tuple[Path, ...],
    keys: tuple[str, ...],
    tunables: tuple[str, ...],
    tools: tuple[str, ...],
    index: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Run the kernels of FILES (.cu, or replies in .md files) under compute-sanitizer.

    Without --workload, small workloads of every type and layout of the plan are taken. The exit
    status is 1 where a tool found something that is not known to be its own fault.
    """
    from ..device import device_for
    from ..judge.sanitize import (
        TOOLS,
        find_sanitizer,
        sanitize_tools,
        sanitizer_version,
        small_workloads,
    )
    from ..toolchain import local_device
    from ..workload import Workload

    kernels = [read_kernel(file) for file in files]
    given = [Workload.parse(key) for key in keys]
    values = read_tunables(tunables)
    found = local_device(index)
    if found is None:
        raise DeviceError("sanitize: there is no GPU here, and the tools launch the kernels")
    device = device_for(*found)
    sanitizer = find_sanitizer()
    refused = False
    for kernel in kernels:
        workloads = given or small_workloads(kernel.plan, device, values)
        runs = []
        for run in sanitize_tools(
            kernel,
            workloads,
            values,
            device,
            tools=tools or TOOLS,
            timeout_s=timeout,
            index=index,
        ):
            runs.append(run)
            click.echo(
                f"{kernel.name} {run.tool}: {len(run.findings)} findings, {run.launches} launches,"
                f" {run.seconds:.1f} s",
                err=as_json,
            )
            if not as_json:
                _print(run)
        rows = [_row(run) for run in runs]
        bad = any(entry["reproducer"] is None for row in rows for entry in row["findings"])
        refused = refused or bad
        if as_json:
            summary = {
                "kernel": kernel.hash,
                "name": kernel.name,
                "tunables": kernel.plan.check_tunables(values),
                "device": device.name,
                "workloads": [workload.key for workload in workloads],
                "sanitizer": sanitizer_version(sanitizer) if sanitizer else None,
                "clean": not bad,
                "tools": rows,
            }
            click.echo(json.dumps(summary, sort_keys=True))
    if refused:
        sys.exit(1)


def _row(run: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from ..judge.sanitize import allowed

    findings = []
    for finding in run.findings:
        reproducer = allowed(finding)
        findings.append({**asdict(finding), "reproducer": str(reproducer) if reproducer else None})
    return {
        "tool": run.tool,
        "seconds": round(run.seconds, 2),
        "launches": run.launches,
        "findings": findings,
    }


def _print(run: Any) -> None:
    from ..judge.sanitize import allowed

    for finding in run.findings:
        known = allowed(finding)
        note = f" (allowed: {known})" if known else ""
        click.echo(f"  {finding.count} × {finding.kind} {finding.where}{note}")
        click.echo(f"    {finding.message}")
        if finding.workload:
            click.echo(f"    at {finding.workload}")
