"""``vibegemm verify``: the judge's verdict on one kernel, with where it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import DeviceError


@click.command("verify")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--workload", "keys", multiple=True, required=True, help="Key; may be repeated.")
@click.option("--tunable", "tunables", multiple=True, help="NAME=INTEGER; defaults otherwise.")
@click.option("--rounds", type=click.IntRange(0), default=25, help="Timed passes; 0: check only.")
@click.option("--seed", type=int, default=0, help="Of the inputs.")
@click.option("--index", type=click.IntRange(0), default=0, help="Number of the GPU.")
@click.option("--timeout", type=float, default=60.0, help="Seconds for the check.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("judge-work"),
    show_default=True,
    help="Folder of prepared references.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a workload.")
def command(
    kernel: Path,
    keys: tuple[str, ...],
    tunables: tuple[str, ...],
    rounds: int,
    seed: int,
    index: int,
    timeout: float,
    work: Path,
    as_json: bool,
) -> None:
    """Check and time KERNEL (X.cu with X.json beside it, or a reply X.md).

    Exit status 1 where it is refused at any workload.
    """
    from ..judge.candidate import Candidate
    from ..judge.session import Session
    from ..judge.worker import Worker
    from ..toolchain import local_device
    from ..workload import Workload
    from .build import read_kernel, read_tunables

    if local_device(index) is None:
        raise DeviceError(f"verify: there is no GPU {index} here; vibegemm build needs none")
    given = read_kernel(kernel)
    candidate = Candidate(given, given.plan.check_tunables(read_tunables(tunables)))
    entry = {**candidate.as_job(), "kernel": given.hash}
    workloads = [Workload.parse(key) for key in keys]
    refused = False
    with Worker(index) as worker:
        session = Session(worker, work, check_s=timeout)
        for workload in workloads:
            *references, mine = session.judge(workload, [entry], rounds=rounds, seed=seed)
            refused |= mine.verdict != "accepted"
            if as_json:
                click.echo(mine.to_json())
            else:
                _show(workload.key, mine, references)
    if refused:
        raise click.exceptions.Exit(1)


def _show(key: str, mine: Any, references: list[Any]) -> None:
    evidence = mine.evidence
    click.echo(f"{key}\n  {mine.verdict}  {evidence.get('detail', '')}".rstrip())
    for recipe, found in evidence.get("numerics", {}).items():
        wrong = ", ".join(
            f"{n} {found[n]}" for n in ("wrong", "not_finite", "poisoned") if n in found
        )
        rms = f"rms {found['rms']:.3g}" if found.get("rms") is not None else ""
        against = f" (honest {found['honest_rms']:.3g})" if found.get("honest_rms") else ""
        click.echo(f"  {recipe:<10} {rms}{against} {wrong}".rstrip())
    if mine.median_us is not None:
        others = [r for r in references if r.median_us is not None]
        best = min((r.median_us for r in others), default=None)
        ratio = f", {best / mine.median_us:.2f} times as fast as TVM's schedule" if best else ""
        click.echo(f"  {mine.median_us:.2f} µs [{mine.low_us:.2f}, {mine.high_us:.2f}]{ratio}")
    error_map = evidence.get("error_map")
    if error_map:
        click.echo(f"  wrong in rows {error_map['rows']}, columns {error_map['columns']}, e.g.")
        for place, values in zip(error_map["elements"], error_map.get("values", []), strict=False):
            click.echo(f"    D{place} = {values[0]}, should be {values[1]}")
        for line in error_map["map"]:
            click.echo(f"    {line}")
