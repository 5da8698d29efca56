"""``vibegemm db``: look at a tuning database, check it, prune it, hold it against another."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DatabaseError, InputError

if TYPE_CHECKING:
    from ..database import Database

_SHOWN = 50  # lines of a listing for people
# Verbs of another file, which need not be there.
_EXCHANGE = {"export": "export_command", "import": "import_command"}


class _Verbs(click.Group):
    """A group that knows the exchange verbs by name and imports them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in order."""
        found = set(super().list_commands(ctx))
        if importlib.util.find_spec(".db_exchange", __package__) is not None:
            found |= _EXCHANGE.keys()
        return sorted(found)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb's command."""
        if cmd_name not in _EXCHANGE:
            return super().get_command(ctx, cmd_name)
        if importlib.util.find_spec(".db_exchange", __package__) is None:
            return None
        module = importlib.import_module(".db_exchange", __package__)
        command: click.Command = getattr(module, _EXCHANGE[cmd_name])
        return command


@click.group("db", cls=_Verbs)
def command() -> None:
    """Look at a tuning database, check it, prune it, hold it against another."""


_database = click.option(
    "--database",
    metavar="PATH",
    help="A database file, or a folder of schedules. Default: yours, with the shipped schedules.",
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@command.command("list")
@click.option("--arch", help="Only this architecture, e.g. sm_90.")
@click.option("--type", "dtype", help="Only products with an operand of this type, e.g. f16.")
@click.option("--kernel", metavar="NAME|HASH", help="Only where this kernel was measured.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Most lines; 0 for all. Default: {_SHOWN}, and all with --json.",
)
@_database
@_json
def list_command(
    arch: str | None,
    dtype: str | None,
    kernel: str | None,
    limit: int | None,
    database: str | None,
    as_json: bool,
) -> None:
    """List workloads: the best kernel of each beside TVM's schedule.

    Times are those of one run, in which both were interleaved, and the judge is the one that took
    them; n counts all measurements. A ratio is green where it is more than the noise.
    """
    from ..database import queries

    most = limit if limit is not None else (0 if as_json else _SHOWN)
    with open_database(database) as db:
        lines, total = queries.lines(db, arch=arch, type=dtype, kernel=kernel, limit=most or None)
        if as_json:
            _print_json({"database": db.place, "total": total, "lines": [_line(i) for i in lines]})
        else:
            from .db_tables import print_lines

            print_lines(db.place, lines, total)


@command.command("show")
@click.argument("what", metavar="KEY|HASH")
@click.option("--source", is_flag=True, help="Of a kernel: print its CUDA-C too.")
@_database
@_json
def show_command(what: str, source: bool, database: str | None, as_json: bool) -> None:
    """Show one workload (all runs, with what was compared) or one kernel (where it wins).

    A workload is named by its key or enough parts of it, such as "f16.f16.f32.f16:nt
    16x4096x4096"; a kernel by its name, its hash or the hash's beginning.
    """
    from ..database import queries

    with open_database(database) as db:
        if queries.kernel_hashes(db, what):
            facts = queries.kernel_facts(db, queries.find_kernel(db, what))
            if as_json:
                _print_json({"kernel": _kernel(facts, source)})
            else:
                from .db_tables import print_kernel

                print_kernel(facts, source)
            return
        key = queries.find_workload(db, what)
        runs = queries.runs(db, key)
        names = queries.names(db, (m.kernel for run in runs for m in run.measurements))
    if as_json:
        _print_json({"workload": _workload(key, runs, names)})
    else:
        from .db_tables import print_workload

        print_workload(key, runs, names)


@command.command("stats")
@_database
@_json
def stats_command(database: str | None, as_json: bool) -> None:
    """Count what there is, by architecture, device, judge version, subject and verdict."""
    from ..database import queries

    with open_database(database) as db:
        found = queries.statistics(db)
        if as_json:
            _print_json({"database": db.place, **vars(found)})
        else:
            from .db_tables import print_statistics

            print_statistics(db.place, found)


@command.command("check")
@_database
@_json
def check_command(database: str | None, as_json: bool) -> None:
    """Recompute all that can be: pages, hashes, keys, references. Exit 1 where one is wrong."""
    from ..database import upkeep

    with open_database(database) as db:
        findings, counts = upkeep.check(db), db.counts()
        if as_json:
            found = [vars(finding) for finding in findings]
            _print_json({"database": db.place, "ok": not found, **counts, "findings": found})
        else:
            from .db_tables import print_findings

            print_findings(db.place, findings, counts)
    if findings:
        sys.exit(1)


@command.command("prune")
@click.option(
    "--judge-older-than", metavar="VERSION", help="Measurements by an older judge, e.g. strict-1."
)
@click.option("--losers", is_flag=True, help="Kernels that won nowhere, with their measurements.")
@click.option("--kernel", metavar="NAME|HASH", help="This kernel, with its measurements.")
@click.option("--yes", is_flag=True, help="Do it; without, it is only said what would be done.")
@_database
@_json
def prune_command(
    judge_older_than: str | None,
    losers: bool,
    kernel: str | None,
    yes: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Take kernels or measurements out, by just one criterion; all of it or nothing.

    What came from the shipped schedules comes back with their next version.
    """
    from ..database import upkeep

    with open_database(database) as db:
        if yes and db.path is None:
            raise DatabaseError(f"prune: {database or db.place} cannot be written to")
        done = upkeep.prune(
            db,
            judge_older_than=judge_older_than,
            losers=losers,
            kernel=kernel,
            dry_run=not yes,
        )
        if as_json:
            _print_json({"database": db.place, "done": yes, **vars(done)})
        else:
            from .db_tables import print_pruned

            print_pruned(db.place, done, yes)


@command.command("diff")
@click.argument("a")
@click.argument("b")
@_json
def diff_command(a: str, b: str, as_json: bool) -> None:
    """Say which kernels and measurements only A or only B has: files or folders of schedules."""
    from ..database import upkeep

    with open_database(a) as one, open_database(b) as other:
        found = upkeep.diff(one, other)
    if as_json:
        _print_json(
            {
                "equal": found.equal,
                "same": {
                    "kernels": found.same_kernels,
                    "measurements": found.same_measurements,
                },
                "only_a": {"database": a, **_side(found.only_a)},
                "only_b": {"database": b, **_side(found.only_b)},
            }
        )
    else:
        from .db_tables import print_difference

        print_difference(a, b, found)


def open_database(place: str | None) -> Database:
    """Open what ``--database`` names, as it is; by default the user's with the shipped schedules.

    Raises
    ------
    InputError, DatabaseError
        When there is nothing, or no database: a mistyped path makes no new one.
    """
    from ..database import Database, UnwritableError, load_schedules, open_default
    from ..database.location import database_path

    if place is None:
        return open_default()
    if "://" in place and not place.startswith("sqlite"):
        return Database(place)
    path = database_path(place)
    if path is None:
        raise InputError(f"database {place}: a new one in memory holds nothing; give a file")
    if path.is_dir():
        loaded = Database.in_memory()
        try:
            if load_schedules(loaded, path) == (0, 0):
                raise InputError(f"database {place}: a folder without schedules (sm_XX/kernels)")
        except BaseException:
            loaded.close()
            raise
        loaded.place = place
        return loaded
    if not path.exists():
        raise InputError(f"database {place}: no such file")
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"database {place}: is empty")
    try:
        return Database(path)
    except UnwritableError:
        copy = Database.in_memory(Path(path))
        copy.place = place
        return copy


# -- JSON ---------------------------------------------------------------------------------------


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _best(best: Any) -> dict[str, Any]:
    return {**vars(best), "ratio": best.ratio}


def _line(line: Any) -> dict[str, Any]:
    return {**vars(line), "best": None if line.best is None else _best(line.best)}


def _workload(key: str, runs: Any, names: dict[str, str]) -> dict[str, Any]:
    return {
        "key": key,
        "runs": [
            {
                "arch": run.arch,
                "device": run.device,
                "run": run.run,
                "reference_us": run.reference_us,
                "measurements": [
                    {
                        "id": item.id,
                        "subject": item.subject,
                        "kernel": item.kernel,
                        "name": names.get(item.kernel) if item.kernel else None,
                        "tunables": item.tunables,
                        "verdict": item.verdict,
                        "median_us": item.median_us,
                        "low_us": item.low_us,
                        "high_us": item.high_us,
                        "evidence": item.evidence,
                    }
                    for item in run.measurements
                ],
            }
            for run in runs
        ],
    }


def _kernel(facts: Any, source: bool) -> dict[str, Any]:
    row = facts.row
    return {
        "hash": row.hash,
        "name": row.name,
        "arch": list(row.arch),
        "origin": row.origin,
        "added": facts.added,
        "source_lines": row.source.count("\n"),
        "source_bytes": len(row.source.encode()),
        "plan": json.loads(row.plan_json),
        "verdicts": facts.verdicts,
        "compared": facts.compared,
        "wins": [
            {"workload": place[0], "arch": place[1], **_best(best)} for place, best in facts.wins
        ],
        **({"source": row.source} if source else {}),
    }


def _side(side: Any) -> dict[str, Any]:
    fields = ("workload", "arch", "subject", "verdict")
    return {
        "kernels": side.kernels,
        "measurements": {
            id: dict(zip(fields, what, strict=True)) for id, what in side.measurements.items()
        },
    }
