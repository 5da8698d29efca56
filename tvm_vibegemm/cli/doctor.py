"""``vibegemm doctor``: what is there for compiling and measuring, and what a lack means."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ..errors import VibeGEMMError
from .output import console


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Show driver, NVRTC, headers, C++ compiler, database and devices."""
    from .. import __version__
    from ..config import settings
    from ..toolchain import Check, probe

    checks = [Check("tvm-vibegemm", True, __version__), *probe()]
    try:
        from ..database import open_default

        with open_default() as database:
            counts = database.counts()
        detail = ", ".join(f"{count} {name}s" for name, count in counts.items())
        checks.append(Check("database", True, f"{settings().database}: {detail}"))
    except VibeGEMMError as error:
        checks.append(Check("database", False, str(error), "no kernel can be chosen"))
    if as_json:
        click.echo(json.dumps({"checks": [asdict(check) for check in checks]}))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False)
    for column in ("", "what", "found", "what its lack means"):
        table.add_column(column, overflow="fold")
    for check in checks:
        mark = Text("✓", style="green") if check.ok else Text("✗", style="yellow")
        table.add_row(mark, check.name, check.detail, check.consequence)
    console().print(table)
