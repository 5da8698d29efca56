"""The first loop: a reply becomes a kernel, or the facts go back to its author."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvm_vibegemm.cli.build import command as build_command
from tvm_vibegemm.cli.generate import command as generate_command
from tvm_vibegemm.errors import InputError, PlanError, ProviderError, ReplyError, VibeGEMMError
from tvm_vibegemm.generator.brief import Brief
from tvm_vibegemm.generator.prompt import conversation, example
from tvm_vibegemm.generator.provider import Message, Provider, Reply
from tvm_vibegemm.generator.replay import ReplayProvider
from tvm_vibegemm.generator.transcript import Transcript
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.plan import Plan, kernel_hash
from tvm_vibegemm.tuning.generate import check_reply, coverage, generate

KEY = "vg1:f16.f16.f32.f16:nt:x1:m*:n512:k1024:bias(f16)+gelu_erf"
BRIEF = Brief.model_validate(
    {
        "name": "example_simt",
        "task": "A small one.",
        "arch": ["sm_90", "sm_80"],
        "types": [{"a": "f16", "b": "f16", "acc": "f32", "out": ["f16"]}],
        "layouts": ["nn", "nt"],
        "timed": [{"workload": "vg1:f16.f16.f32.f16:nt:x6:m33:n65:k7:bias(f16)"}],
    }
)


def reply(source: str | None = None, **changes: object) -> str:
    """Return the prompt's own example as an answer, with fields of its plan replaced."""
    cuda, plan = example()
    data = {**json.loads(plan), **changes}
    return f"Like this.\n\n```cuda\n{source or cuda}```\n\n```json\n{json.dumps(data)}\n```\n"


class Scripted(Provider):
    """Gives its answers in order and keeps what it was asked."""

    name = "scripted"

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[list[Message]] = []

    def complete(self, messages: Sequence[Message]) -> Reply:
        self.asked.append(list(messages))
        return Reply(self.answers.pop(0))


def broken() -> str:
    return example()[0].replace("epi.apply(v, b, m, n);", "epi.apply(v, b, m, nn);")


def test_the_prompts_example_passes_every_check(tmp_path: Path) -> None:
    result = generate(BRIEF, Scripted(reply()), transcripts=tmp_path)
    source, plan = example()
    assert result.kernel.hash == kernel_hash(source, Plan.load(plan))
    assert result.attempts == 1
    assert {case.split()[0] for case in result.binaries} == {"sm_90", "sm_80"}
    assert any("BM=16" in case for case in result.binaries), "each tunable's choices are built"
    recorded = Transcript.load(tmp_path / "example_simt.json")
    assert recorded == result.transcript
    assert recorded.kernels == [result.kernel.hash]
    again = generate(BRIEF, ReplayProvider([tmp_path]), transcripts=tmp_path / "again")
    assert again.kernel == result.kernel
    assert (tmp_path / "again" / "example_simt.json").read_text() == result.transcript.dumps()


def test_compiler_errors_go_back_and_the_next_answer_counts(tmp_path: Path) -> None:
    author = Scripted(reply(broken()), reply())
    result = generate(BRIEF, author, repairs=1, transcripts=tmp_path)
    assert result.attempts == 2
    first, second = author.asked
    assert second[: len(first)] == first
    assert second[len(first)] == Message("assistant", reply(broken()))
    facts = second[-1].content
    assert 'identifier "nn" is undefined' in facts
    assert facts.count("is undefined") < 10, "the same log is given once"
    turns = result.transcript.turns
    assert turns[1].verdict.startswith("Building for") and turns[1].kernel is None
    assert turns[-1].verdict == "built"


def test_gives_up_in_one_line_and_keeps_the_transcript(tmp_path: Path) -> None:
    with pytest.raises(
        ReplyError, match="no reply of 2 passed; last fault: Reading the answer"
    ) as e:
        generate(BRIEF, Scripted("no", "no code"), repairs=1, transcripts=tmp_path)
    assert "\n" not in str(e.value)
    kept = Transcript.load(tmp_path / "example_simt.json")
    assert [turn.message.role for turn in kept.turns] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("nothing", "Reading the answer"),
        (reply(surprise=1), "Reading the plan"),
        (reply(requires=["Q > 1"]), "Reading the plan"),
        (reply("#include <stdio.h>\n" + example()[0]), "Checking the source"),
        (reply(name="other"), "Comparing the plan"),
        (reply(arch=["sm_90"]), "Comparing the plan"),
    ],
)
def test_faults_before_the_build(text: str, stage: str) -> None:
    checked = check_reply(text, BRIEF)
    assert checked.faults[0].stage.startswith(stage)
    assert not checked.binaries


def test_coverage_names_what_is_missing() -> None:
    base = json.loads(example()[1])

    def missing(**changes: object) -> str:
        plan = Plan.model_validate({**base, **changes})
        return "; ".join(fault.summary for fault in coverage(plan, BRIEF))

    assert missing() == ""
    assert "layout nt" in missing(layouts=["nn"])
    assert "batched" in missing(batched=False)
    assert "f16, f16, f32 → f16" in missing(
        types=[{"a": "f16", "b": "f16", "acc": "f32", "out": ["f32"]}]
    )
    assert "no choice of tunables serves it" in missing(requires=["K % 8 == 0"])
    # A condition that some choice of tunables meets is fine.
    assert missing(requires=["M >= BM"]) == ""


def test_mailbox_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    brief = tmp_path / "example.json"
    brief.write_text(BRIEF.model_dump_json(exclude_defaults=True))
    arguments = [str(brief), "--mailbox", "box", "--wait", "0", "--transcripts", "talks", "--json"]
    run = CliRunner().invoke(generate_command, arguments)
    assert isinstance(run.exception, ProviderError)
    assert not Path("kernels").exists() and not Path("talks").exists()
    (prompt,) = Path("box").glob("*.prompt.md")
    assert prompt.read_text() == conversation(BRIEF).messages[0].content.rstrip() + "\n"
    answer = prompt.with_name(prompt.name.replace(".prompt.", ".reply."))
    answer.write_text(reply())
    run = CliRunner().invoke(generate_command, arguments)
    assert run.exception is None, run.exception
    summary = json.loads(run.stdout)
    kernel = Kernel.load(Path(summary["path"]))
    assert kernel.hash == summary["kernel"]


def test_build_verb(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text(reply())
    bad.write_text(reply(broken()))
    run = CliRunner().invoke(
        build_command, [str(good), "--workload", KEY, "--tunable", "BM=32", "--json"]
    )
    assert run.exception is None, run.exception
    shown = json.loads(run.stdout)
    assert shown["tunables"] == {"BM": 32, "BN": 64}
    assert shown["entries"]["example_simt"]["registers"] > 16
    assert shown["entries"]["example_simt"]["spill_bytes"] == 0
    run = CliRunner().invoke(build_command, [str(bad), "--workload", KEY])
    assert isinstance(run.exception, VibeGEMMError)
    assert 'identifier "nn" is undefined' in run.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--tunable", "BM=x"], InputError),
        (["--tunable", "BM=7"], PlanError),
        (["--arch", "sm_70"], VibeGEMMError),
    ],
)
def test_build_verb_bad_input(
    tmp_path: Path, arguments: list[str], error: type[VibeGEMMError]
) -> None:
    path = tmp_path / "good.md"
    path.write_text(reply())
    run = CliRunner().invoke(build_command, [str(path), "--workload", KEY, *arguments])
    assert isinstance(run.exception, error)
    assert "\n" not in str(run.exception)


def test_render_only(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        generate_command, ["small_m_16bit", "--mailbox", str(tmp_path), "--render-only"]
    )
    assert run.exception is None, run.exception
    assert Path(run.stdout.strip()).read_text().startswith("# Write a CUDA-C")
