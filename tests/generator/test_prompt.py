"""Briefs and prompts: complete, drawn from the code, deterministic."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from tvm_vibegemm.errors import InputError
from tvm_vibegemm.generator.brief import Brief
from tvm_vibegemm.generator.prompt import (
    MAX_FACT_CHARS,
    Fault,
    conversation,
    example,
    render_brief,
    repair_message,
)
from tvm_vibegemm.generator.transcript import Transcript, transcripts_dir
from tvm_vibegemm.kernel import plan
from tvm_vibegemm.resources import codegen_dir

FAMILIES = [
    "general_mma_16bit",
    "general_simt_f32",
    "sm90_3xtf32_f32",
    "sm90_wgmma_16bit",
    "sm90_wgmma_ragged_f16",
    "small_m_16bit",
]
MINIMAL = {
    "name": "mini",
    "task": "Try.",
    "arch": ["sm_80"],
    "types": [{"a": "f32", "b": "f32", "acc": "f32", "out": ["f32"]}],
    "layouts": ["nn"],
    "timed": [{"workload": "vg1:f32.f32.f32.f32:nn:x1:m64:n64:k64:-"}],
}


def test_families_are_shipped() -> None:
    assert set(FAMILIES) <= set(Brief.names())


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_says_everything(name: str) -> None:
    brief = Brief.load(name)
    text = render_brief(brief)
    assert text == render_brief(brief)
    prelude = (codegen_dir() / "include" / "vibegemm.cuh").read_text(encoding="utf-8")
    assert prelude in text
    assert all(part in text for part in example())
    for timed in brief.timed:
        assert f"`{timed.workload}`" in text
    for hint in brief.hints:
        assert hint in text
    own = text.replace(prelude, "")  # inline PTX has braces of its own
    assert "{{ " not in own and "{% " not in own
    # Tables must not be torn by blank lines, or a reader sees loose bars.
    assert not re.search(r"^\|[-| ]+\|\n\n", text, re.MULTILINE)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_hold_no_paths(name: str) -> None:
    text = conversation(Brief.load(name)).messages[-1].content
    assert str(codegen_dir()) not in text
    assert str(Path.home()) + "/" not in text


def test_every_field_of_the_plan_is_explained() -> None:
    text = render_brief(Brief.model_validate(MINIMAL))
    models: list[type[BaseModel]] = [
        plan.Plan, plan.Launch, plan.Tunable, plan.Types, plan.TensorMapParam, plan.PointerParam,
        plan.Int32Param, plan.Int64Param, plan.EpilogueParam,
    ]  # fmt: skip
    for model in models:
        for field in model.model_fields:
            assert re.search(rf'[`"]{field}[`"]', text), f"{model.__name__}.{field}"
    for name in plan.NAMES:
        assert f"| `{name}` |" in text


def test_exemplar_is_the_earlier_turn() -> None:
    brief = Brief.load("sm90_wgmma_16bit")
    assert brief.exemplar is not None
    talk = conversation(brief)
    earlier = Transcript.load(transcripts_dir() / f"{brief.exemplar.transcript}.json")
    assert [message.role for message in talk.messages] == ["user", "assistant", "user"]
    assert talk.messages[:2] == earlier.messages
    last = talk.messages[2].content
    assert all(fact in last for fact in [*brief.exemplar.facts, *brief.exemplar.changes])
    assert render_brief(brief).strip() in last


def test_repair_gives_the_facts() -> None:
    long = "error: bad ```\n" * 5000
    message = repair_message([Fault("Building for sm_90", "it does not build", long)], 2)
    assert message.role == "user"
    assert "attempt 2" in message.content and "it does not build" in message.content
    assert "characters left out" in message.content
    assert len(message.content) < MAX_FACT_CHARS + 2000
    assert "bad ```" not in message.content, "a log must not close its own fence"


def test_builds_cover_every_form() -> None:
    brief = Brief.load("general_mma_16bit")
    cases = list(brief.builds())
    assert {arch for arch, _ in cases} == set(brief.arch)
    primary = {(w.a, w.out, w.layout) for arch, w in cases if arch == "sm_90"}
    assert len(primary) == 2 * 3 * 4
    assert {bool(w.epilogue) for _, w in cases} == {True, False}
    assert {w.batch for _, w in cases} == {1, 6}
    assert all(w.m is None for _, w in cases)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"arch": ["gpu"]}, "not an SM version"),
        ({"layouts": ["nt"]}, "layout nn is not listed"),
        ({"timed": [{"workload": "x"}]}, "workload key 'x'"),
        ({"timed": []}, "timed"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_malformed_briefs(tmp_path: Path, change: dict[str, object], says: str) -> None:
    path = tmp_path / "mini.json"
    path.write_text(json.dumps({**MINIMAL, **change}))
    with pytest.raises(InputError, match=says) as caught:
        Brief.load(path)
    assert "\n" not in str(caught.value)


def test_unknown_brief_names_the_known() -> None:
    with pytest.raises(InputError, match="shipped: general_mma_16bit"):
        Brief.load("nothing_such")
