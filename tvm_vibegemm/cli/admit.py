"""``vibegemm admit``: what the judge accepted enters a folder of schedules, with its records."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import InputError


@click.command("admit")
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A judged kernel (X.cu with X.json beside it); once for each.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Default: the shipped schedules.")
@click.option("--arch", default="sm_90", show_default=True)
def command(
    results: tuple[Path, ...], kernels: tuple[Path, ...], folder: Path | None, arch: str
) -> None:
    """Take the accepted measurements of RESULTS and their kernels into a folder of schedules.

    Of each run the fastest accepted variant of each kernel and the references stay; what was
    refused is left out.
    """
    from ..database import Database, Measurement, load_schedules, write_schedules
    from ..kernel.kernel import Kernel
    from ..resources import schedules_dir

    folder = folder or schedules_dir()
    known = {kernel.hash: kernel for kernel in map(Kernel.load, kernels)}
    taken: list[Measurement] = []
    for path in results:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"results {path}: cannot be read ({error})") from error
        taken += [Measurement.from_json(line) for line in lines if line.strip()]
    with Database.in_memory() as database:
        load_schedules(database, folder)
        for kernel in known.values():
            plan = kernel.plan
            database.add_kernel(
                kernel.source, plan.canonical(), kernel.hash, kernel.name, plan.arch, "generated"
            )
        have = {row.hash for row in database.kernels()}
        kept = _worth_keeping([m for m in taken if m.arch == arch])
        for measurement in kept:
            if measurement.kernel is not None and measurement.kernel not in have:
                raise InputError(
                    f"results: kernel {measurement.kernel[:16]} is not among the --kernel files"
                )
        new = database.add_measurements(kept)
        files = write_schedules(database, folder, arch)
    click.echo(f"{new} new records, {len(files)} files in {folder}")


def _worth_keeping(measurements: list) -> list:  # type: ignore[type-arg]
    """Return accepted references and, of each run and kernel, the fastest accepted variant."""
    best: dict[tuple[str, str, str], object] = {}
    for m in measurements:
        if m.subject == "reference":
            best[(m.run, "reference", str(m.evidence.get("spelling")) + m.verdict[:40])] = m
        elif m.verdict == "accepted" and m.median_us is not None:
            place = (m.run, "kernel", m.kernel)
            if place not in best or m.median_us < best[place].median_us:  # type: ignore[attr-defined]
                best[place] = m
    return list(best.values())
