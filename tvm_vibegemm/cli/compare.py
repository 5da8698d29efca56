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
@click.option("--library", "libraries", multiple=True, help="NAME=PATH.so")
@click.option("--rounds", type=click.IntRange(3), default=30, show_default=True)
@click.option(
    "--truth",
    type=click.Path(path_type=Path),
    help="Keeps the float64 result in this .npz file; without --library it is all that is made.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="JSON file; lines are added.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    libraries: tuple[str, ...],
    rounds: int,
    truth: Path | None,
    output: Path | None,
) -> None:
    """Compare libraries of MODEL: errors (ONNX Runtime, float64), latency in interleaved calls."""
    from ..toolchain import local_device

    if not libraries:
        if truth is None:
            raise InputError("compare: name the libraries, --library NAME=PATH.so for each")
        _only_truth(model, parse_shapes(shapes), truth)
        return
    if local_device() is None:
        raise DeviceError("compare: there is no GPU here")
    paths = {}
    for text in libraries:
        name, found, path = text.partition("=")
        if not found or not name:
            raise InputError(f"--library {text!r}: write NAME=PATH.so")
        paths[name] = Path(path)
    from ..bench.compare import compare

    line = json.dumps(compare(model, parse_shapes(shapes), paths, rounds, truth))
    if output is not None:
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    click.echo(line)


def _only_truth(path: Path, shapes: dict[str, tuple[int, ...]], truth: Path) -> None:
    from ..bench.truth import float64_truth
    from ..graph.onnx_check import random_inputs
    from ..graph.onnx_load import load_model

    model = load_model(path, shapes)
    float64_truth(model, random_inputs(model), truth)
    click.echo(f"wrote {truth}", err=True)
