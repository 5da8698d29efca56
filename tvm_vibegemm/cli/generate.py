"""``vibegemm generate``: ask a language model for the kernel of a brief."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..errors import InputError


@click.command("generate")
@click.argument("brief")
@click.option("--provider", "provider_name", help="mailbox, replay, openai or a plug-in's name.")
@click.option("--mailbox", type=click.Path(path_type=Path), help="Folder of the mailbox provider.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    help="Seconds to wait for a mailbox reply; for ever by default, 0 looks once.",
)
@click.option("--repairs", type=click.IntRange(0, 20), default=2, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("kernels"),
    show_default=True,
    help="Folder for the kernel's .cu and .json.",
)
@click.option(
    "--transcripts",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the transcript; codegen/transcripts by default.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Builds at a time; one a CPU by default.")
@click.option("--render-only", is_flag=True, help="Write the prompt into the mailbox and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    brief: str,
    provider_name: str | None,
    mailbox: Path | None,
    wait: float | None,
    repairs: int,
    out: Path,
    transcripts: Path | None,
    jobs: int | None,
    render_only: bool,
    as_json: bool,
) -> None:
    """Ask for the kernel of BRIEF (a shipped name or a JSON file), check it and build it.

    A run that waits for a mailbox reply may be interrupted: run it again and it goes on.
    """
    from ..generator.brief import Brief
    from ..generator.mailbox import MailboxProvider
    from ..generator.prompt import conversation
    from ..generator.provider import load_provider

    def progress(line: str) -> None:
        click.echo(line, err=True)

    loaded = Brief.load(brief)
    if provider_name is None and (mailbox is not None or render_only):
        provider_name = "mailbox"
    options: dict[str, Any] = {}
    if provider_name == "mailbox":
        options = {
            "folder": mailbox,
            "wait_s": wait,
            "label": loaded.name,
            "notify": lambda path: progress(f"waiting for the reply to {path}"),
        }
    elif mailbox is not None or wait is not None or render_only:
        raise InputError("generate: --mailbox, --wait and --render-only go with --provider mailbox")
    provider = load_provider(provider_name, **options)
    if render_only:
        assert isinstance(provider, MailboxProvider)
        path = provider.post(conversation(loaded).messages)
        click.echo(json.dumps({"prompt": str(path)}) if as_json else str(path))
        return

    from ..tuning.generate import generate

    result = generate(
        loaded,
        provider,
        repairs=repairs,
        transcripts=transcripts,
        jobs=jobs,
        progress=progress,
    )
    path = result.kernel.save(out)
    worst = max(
        (entry.registers, entry.spill_bytes)
        for binary in result.binaries.values()
        for entry in binary.report.values()
    )
    if as_json:
        summary = {
            "kernel": result.kernel.hash,
            "name": result.kernel.plan.name,
            "path": str(path),
            "transcript": result.transcript.name,
            "attempts": result.attempts,
            "builds": {
                case: {name: vars(entry) for name, entry in sorted(binary.report.items())}
                for case, binary in sorted(result.binaries.items())
            },
        }
        click.echo(json.dumps(summary, indent=1, sort_keys=True))
    else:
        click.echo(
            f"{path}: kernel {result.kernel.hash[:16]} after {result.attempts} replies; "
            f"{len(result.binaries)} forms built, at most {worst[0]} registers a thread"
        )
