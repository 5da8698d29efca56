"""``vibegemm compare``: compiled libraries of one model side by side on this machine's GPU."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..errors import DeviceError, InputError
from .compile import parse_shapes


@click.command("compare")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--shape", "shapes", multiple=True, help="NAME:1,3,48,320; once for each input.")
@click.option("--library", "libraries", multiple=True, required=True, help="NAME=PATH.so")
@click.option("--rounds", type=click.IntRange(3), default=30, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="JSON file; lines are added.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    libraries: tuple[str, ...],
    rounds: int,
    output: Path | None,
) -> None:
    """Compare libraries of MODEL: errors against ONNX Runtime, and latency in interleaved calls."""
    from ..toolchain import local_device

    if local_device() is None:
        raise DeviceError("compare: there is no GPU here")
    paths = {}
    for text in libraries:
        name, found, path = text.partition("=")
        if not found or not name:
            raise InputError(f"--library {text!r}: write NAME=PATH.so")
        paths[name] = Path(path)
    from ..bench.compare import compare

    line = json.dumps(compare(model, parse_shapes(shapes), paths, rounds))
    if output is not None:
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    click.echo(line)
