"""``vibegemm compile``: an ONNX model to a library, with a table of what became of each product."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..errors import DeviceError, InputError
from .output import print_compiled


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return ``{"x": (1, 3, 48, 320)}`` from ``("x:1,3,48,320",)``.

    Raises
    ------
    InputError
        For a text of another form, or a name that stands there twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        if name in shapes:
            raise InputError(f"--shape {text!r}: {name!r} has a shape already")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError as error:
            raise InputError(f"--shape {text!r}: write NAME:1,3,48,320") from error
        if not name:
            raise InputError(f"--shape {text!r}: write NAME:1,3,48,320")
    return shapes


@click.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--shape", "shapes", multiple=True, help="NAME:1,3,48,320; once for each input.")
@click.option("--arch", default=None, help="E.g. sm_90; default: this machine's GPU.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The library to write.")
@click.option(
    "--select",
    type=click.Choice(["measured", "valid"]),
    default="measured",
    show_default=True,
    help="measured: what won at that very workload; valid: the best that fits.",
)
@click.option(
    "--fallback",
    type=click.Choice(["metaschedule", "reference"]),
    default="metaschedule",
    show_default=True,
)
@click.option("--database", help="URL or path of the tuning database.")
@click.option("--plain", is_flag=True, help="The same pipeline without our kernels.")
@click.option("--cuda-graph", is_flag=True, help="Static parts run as CUDA graphs.")
@click.option("--check", is_flag=True, help="Run it and compare with ONNX Runtime (needs a GPU).")
@click.option("--explain", is_flag=True, help="Print every product by itself, with all reasons.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: Path,
    shapes: tuple[str, ...],
    arch: str | None,
    output: Path | None,
    select: str,
    fallback: str,
    database: str | None,
    plain: bool,
    cuda_graph: bool,
    check: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Compile MODEL (an .onnx file) with LLM-written kernels."""
    from ..toolchain import local_device

    sizes = parse_shapes(shapes)
    found = local_device()
    if arch is None:
        if found is None:
            raise DeviceError(
                "compile: there is no GPU here; name what to compile for: --arch sm_90"
            )
        arch = found[0]
    if check:
        _can_check(arch, found)
    from ..graph.onnx import compile_onnx

    checked = None
    # What TVM prints on its way is for people; standard output is the answer alone.
    with contextlib.redirect_stdout(sys.stderr):
        result = compile_onnx(
            model,
            sizes,
            arch,
            output,
            database=database,
            select=select,
            fallback=fallback,
            offload=not plain,
            cuda_graph=cuda_graph,
            progress=lambda line: click.echo(line, err=True),
        )
        if check:
            from ..graph.onnx_check import check_model

            click.echo("checking against ONNX Runtime", err=True)
            checked = check_model(model, sizes, result)
    if as_json:
        click.echo(json.dumps(_as_json(result, checked)))
    else:
        print_compiled(result, checked, explain)


def _can_check(arch: str, found: tuple[str, str] | None) -> None:
    """Refuse a check that cannot be made, before minutes of compiling."""
    from ..device import normalize_arch

    if found is None:
        raise DeviceError("compile --check: needs a GPU, and there is none here; leave --check out")
    if normalize_arch(arch) != found[0]:
        raise DeviceError(
            f"compile --check: the GPU here is {found[0]} ({found[1]}), which cannot run what is"
            f" compiled for {arch}; leave --check or --arch out"
        )
    if importlib.util.find_spec("onnxruntime") is None:
        raise InputError(
            "compile --check: ONNX Runtime is missing; pip install 'tvm-vibegemm[check]'"
        )


def _as_json(result: Any, checked: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "arch": result.device.arch,
        "device": result.device.name,
        "library": str(result.library) if result.library else None,
        "sites": [
            {
                "op": site.op,
                "name": site.name,
                "workload": site.workload,
                "decision": site.decision,
                "reason": site.reason,
                "expected_us": site.expected_us,
                "chain_end": site.chain_end,
            }
            for site in result.sites
        ],
        "skipped_rules": [asdict(skip) for skip in result.skipped],
        "seconds": result.seconds,
        "check": checked,
    }
