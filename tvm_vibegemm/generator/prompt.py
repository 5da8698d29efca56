"""Renders prompts: a brief, an earlier reply to start from, and facts for the next attempt.

The texts are the templates of ``codegen/prompts``. All that code decides (names, limits, types,
functions) comes from the code itself, so a prompt cannot promise what the schema refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from ..device import device_for
from ..errors import InputError
from ..kernel import expr, plan
from ..kernel.preamble import preamble
from ..resources import codegen_dir
from ..workload import DTYPES, EPILOGUE_KINDS, Workload
from .brief import Brief
from .provider import Message
from .transcript import Transcript, transcripts_dir

CUDA_VERSION = "13.0"
# The allow-list of the device contract, which the source check enforces.
INCLUDES = ("cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h", "mma.h", "vibegemm.cuh")
MAX_FACT_CHARS = 12_000
_GENERATED_FOR = Workload(
    m=None, n=768, k=3072, epilogue=Workload.parse(
        "vg1:f16.f16.f32.f16:nn:x1:m1:n1:k1:bias(f16)+gelu_erf+residual(f16)"
    ).epilogue,
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fact about an attempt that did not pass.

    Parameters
    ----------
    stage
        What was done, e.g. ``Build for sm_90, f16 nt``.
    summary
        One line.
    detail
        Compiler log or where the result is wrong; shortened in the middle if it is long.
    """

    stage: str
    summary: str
    detail: str = ""


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(codegen_dir() / "prompts"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the output is a prompt, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _file(*parts: str) -> str:
    path = codegen_dir().joinpath(*parts)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"prompt: {path} cannot be read ({error})") from error
    return text if text.endswith("\n") else text + "\n"


def _microseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _timed_rows(brief: Brief) -> list[dict[str, str]]:
    device = device_for(brief.arch[0])
    rows = []
    for timed in brief.timed:
        workload = Workload.parse(timed.workload)
        rows.append(
            {
                "key": workload.key,
                "roofline": _microseconds(workload.roofline_us(device)),
                "rivals": ", ".join(
                    f"{name} {_microseconds(us)}" for name, us in sorted(timed.rivals.items())
                ),
            }
        )
    return rows


def example() -> tuple[str, str]:
    """Return source and plan of the example that prompts show (and tests build)."""
    return _file("prompts", "example.cu"), _file("prompts", "example.json")


def render_brief(brief: Brief) -> str:
    """Return the prompt for a brief alone.

    Raises
    ------
    InputError
        When a data file is missing.
    DeviceError
        When an architecture of the brief is unknown.
    """
    rows = _timed_rows(brief)
    source, plan_text = example()
    context: dict[str, Any] = {
        "brief": brief,
        "device": device_for(brief.arch[0]),
        "others": [device_for(arch) for arch in brief.arch[1:]],
        "timed": rows,
        "any_rivals": any(row["rivals"] for row in rows),
        "cuda": CUDA_VERSION,
        "includes": INCLUDES,
        "epilogue_kinds": EPILOGUE_KINDS,
        "plan_version": plan.PLAN_VERSION,
        "max_variants": plan.MAX_VARIANTS,
        "max_launches": plan.MAX_LAUNCHES,
        "names": plan.NAMES,
        "functions": expr.FUNCTIONS,
        "dtypes": list(DTYPES),
        "example_source": source,
        "example_plan": plan_text,
        "prelude": _file("include", "vibegemm.cuh"),
        "generated": preamble(
            _GENERATED_FOR, {"BM": 128, "STAGES": 4}, device_for(brief.arch[0]).arch
        ),
        "generated_key": _GENERATED_FOR.key,
    }
    return _templates().get_template("kernel.md.j2").render(context)


def conversation(brief: Brief) -> Transcript:
    """Return the conversation that asks for a brief's kernel.

    Without an exemplar it is one user message. With one, it is the exemplar's recorded
    conversation with the brief's prompt as its next turn.
    """
    body = render_brief(brief)
    if brief.exemplar is None:
        return Transcript(brief.name).ask(Message("user", body))
    earlier = Transcript.load(transcripts_dir() / f"{brief.exemplar.transcript}.json")
    text = _templates().get_template("adapt.md.j2").render(exemplar=brief.exemplar, body=body)
    return Transcript(brief.name, earlier.turns).ask(Message("user", text))


def repair_message(faults: Sequence[Fault], attempt: int) -> Message:
    """Return the user turn that gives the facts about an attempt and asks for the next one."""
    shown = [{"stage": f.stage, "summary": f.summary, "detail": _shorten(f.detail)} for f in faults]
    text = _templates().get_template("repair.md.j2").render(faults=shown, attempt=attempt)
    return Message("user", text)


def _shorten(text: str) -> str:
    text = text.strip().replace("```", "'''")
    if len(text) <= MAX_FACT_CHARS:
        return text
    half = MAX_FACT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
