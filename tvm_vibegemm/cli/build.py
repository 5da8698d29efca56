"""``vibegemm build``: check and compile one kernel, as its author would before answering."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import BuildError, InputError, PlanError

if TYPE_CHECKING:
    from ..kernel.kernel import Kernel


def read_kernel(path: Path) -> Kernel:
    """Return the kernel of ``X.cu`` (with ``X.json`` beside it) or of a reply in ``X.md``.

    Raises
    ------
    InputError, ReplyError, PlanError
        When the file cannot be read as a kernel.
    """
    from ..generator.reply import parse_reply
    from ..kernel.kernel import Kernel
    from ..kernel.plan import Plan

    if path.suffix == ".cu":
        return Kernel.load(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"build {path}: {error}") from error
    parsed = parse_reply(text)
    return Kernel(parsed.source, Plan.load(parsed.plan))


def read_tunables(texts: tuple[str, ...]) -> dict[str, int]:
    """Return ``{"BM": 64}`` from ``("BM=64",)``.

    Raises
    ------
    InputError
        For a text of another form.
    """
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            values[name.strip()] = int(value)
        except ValueError as error:
            raise InputError(f"--tunable {text!r}: write NAME=INTEGER") from error
    return values


@click.command("build")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--workload", "key", required=True, help="Workload key, e.g. vg1:f16.f16.f32.f16:…")
@click.option("--arch", default="sm_90", show_default=True, help="Architecture to build for.")
@click.option("--tunable", "tunables", multiple=True, metavar="NAME=INT", help="May be repeated.")
@click.option("--no-cache", is_flag=True, help="Compile even where the cubin is at hand.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    file: Path, key: str, arch: str, tunables: tuple[str, ...], no_cache: bool, as_json: bool
) -> None:
    """Check FILE (a kernel's .cu, or a reply in a .md file) and compile it for one workload.

    Prints registers, spills and shared memory of each entry, or the compiler's errors.
    """
    from ..device import device_for
    from ..kernel.build import build
    from ..kernel.source import check_source
    from ..kernel.validity import why_not
    from ..workload import Workload

    kernel = read_kernel(file)
    workload, device = Workload.parse(key), device_for(arch)
    values = kernel.plan.check_tunables(read_tunables(tunables))
    check_source(kernel.source, kernel.plan)
    reason = why_not(kernel.plan, workload, device, values)
    if reason is not None:
        raise PlanError(f"build {file}: not valid for {workload.key} on {device.arch}: {reason}")
    try:
        binary = build(kernel, workload, device, values, cache=not no_cache)
    except BuildError as error:
        if error.log:
            click.echo(error.log, err=True)
        raise
    if as_json:
        summary = {
            "kernel": kernel.hash,
            "workload": workload.key,
            "arch": device.arch,
            "tunables": values,
            "cubin_bytes": len(binary.cubin),
            "entries": {name: vars(entry) for name, entry in binary.report.items()},
            "log": binary.log,
        }
        click.echo(json.dumps(summary, indent=1, sort_keys=True))
        return
    click.echo(f"{kernel.plan.name} {kernel.hash[:16]} for {workload.key} on {device.nvrtc_arch}")
    for name, entry in binary.report.items():
        click.echo(
            f"  {name}: {entry.registers} registers, {entry.spill_bytes} bytes spilled, "
            f"{entry.stack_bytes} of stack, {entry.shared_bytes} of static shared memory"
        )
    if binary.log.strip():
        click.echo(binary.log.strip(), err=True)
