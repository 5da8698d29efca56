"""The command line: ``vibegemm VERB``, one file a verb, loaded only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from .. import __version__
from ..errors import VibeGEMMError

# Verb → (module in this folder, one line of help): listing them imports none.
VERBS = {
    "admit": ("admit", "Take judged kernels into a folder of schedules."),
    "build": ("build", "Check and compile one kernel."),
    "compare": ("compare", "Run compiled libraries of one model side by side on the GPU."),
    "compile": ("compile", "Compile an ONNX model with LLM-written kernels."),
    "db": ("db", "Look at a tuning database, check it, prune it, hold it against another."),
    "doctor": ("doctor", "Show what is there for compiling and running, and what is not."),
    "generate": ("generate", "Ask a language model for a kernel family."),
    "judge": ("judge", "Check and time kernels on this machine's GPU."),
    "sanitize": ("sanitize", "Run kernels under NVIDIA's compute-sanitizer."),
    "verify": ("verify", "Judge one kernel and show where it is wrong."),
}


class _Verbs(click.Group):
    """A group whose commands are imported on use, so that ``--help`` loads no TVM."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a verb's command."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f".{VERBS[cmd_name][0]}", __name__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs' help lines without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, VERBS[verb][1]) for verb in sorted(VERBS)])


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="vibegemm")
@click.pass_context
def group(context: click.Context) -> None:
    """Matrix products of TVM programs compiled with LLM-written, verified CUDA kernels."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(argv: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one line on standard error and exit status 2."""
    try:
        group.main(args=argv, prog_name="vibegemm", standalone_mode=False)
    except VibeGEMMError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_status)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {' '.join(error.format_message().split())}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("error: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a file that went away, a full disk: the user's to mend
        what = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {what}{error.strerror or error}", err=True)
        sys.exit(2)
