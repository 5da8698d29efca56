"""``vibegemm admit``: what the judge accepted enters a folder of schedules, with its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DatabaseError, InputError

if TYPE_CHECKING:
    from .judge import Job


@click.command("admit")
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A judged kernel (X.cu with X.json beside it); once for each.",
)
@click.option(
    "--jobs",
    "job_files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="The jobs that were asked for: a result that answers none of them is refused.",
)
@click.option(
    "--sanitized",
    "sanitized",
    multiple=True,
    type=click.Path(path_type=Path),
    help="What vibegemm sanitize --json said of each --kernel; needed for a kernel that is new.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Default: the shipped schedules.")
@click.option("--arch", default="sm_90", show_default=True)
def command(
    results: tuple[Path, ...],
    kernels: tuple[Path, ...],
    job_files: tuple[Path, ...],
    sanitized: tuple[Path, ...],
    folder: Path | None,
    arch: str,
) -> None:
    """Take the accepted measurements of RESULTS and their kernels into a folder of schedules.

    Of each run the fastest accepted variant of each kernel and the references stay; what was
    refused is left out. A kernel enters only where every tool of compute-sanitizer was clean.
    """
    from ..database import Database, Measurement, load_schedules, write_schedules
    from ..judge.admission import Sanitized
    from ..kernel.kernel import Kernel
    from ..resources import schedules_dir
    from .judge import read_jobs

    folder = folder or schedules_dir()
    known = {kernel.hash: kernel for kernel in map(Kernel.load, kernels)}
    clean = Sanitized(folder / arch)
    for path in sanitized:
        clean.take(path)
    for kernel in known.values():
        clean.must_hold(kernel.hash, kernel.name)
    asked = {job.id: job for path in job_files for job in read_jobs(path)}
    taken: list[Measurement] = []
    for path in results:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"results {path}: cannot be read ({error})") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"results {path}, line {number}"
                try:
                    measurement = Measurement.from_json(line)
                except DatabaseError as error:
                    raise InputError(f"{place}: {error}") from error
                _must_answer(measurement, asked, place)
                taken.append(measurement)
    with Database.in_memory() as database:
        if folder.is_dir():
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
        clean.write({row.hash for row in database.kernels()})
    click.echo(f"{new} new records, {len(files)} files in {folder}")


def _must_answer(measurement: Any, asked: dict[str, Job], place: str) -> None:
    """Refuse a result that names no job of ours, or another workload or kernel than it asked for.

    Raises
    ------
    InputError
        Naming file and line.
    """
    name = measurement.evidence.get("job")
    job = asked.get(name) if isinstance(name, str) else None
    if job is None:
        raise InputError(f"{place}: answers no job of --jobs (its job is {name!r:.50})")
    if measurement.workload != job.workload.key:
        raise InputError(f"{place}: job {name[:16]} asked for {job.workload.key}")
    if measurement.kernel is not None:
        tunables = {(c.kernel.hash, tuple(sorted(c.tunables.items()))) for c in job.candidates}
        if (measurement.kernel, tuple(sorted(measurement.tunables.items()))) not in tunables:
            raise InputError(
                f"{place}: job {name[:16]} did not ask for kernel {measurement.kernel[:16]}"
                f" with {measurement.tunables}"
            )


def _worth_keeping(measurements: Sequence[Any]) -> list[Any]:
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
