"""Transcripts and replay: deterministic files, tamper-evident, answers by the messages' hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_vibegemm.config import Settings
from tvm_vibegemm.errors import InputError, ProviderError
from tvm_vibegemm.generator.provider import (
    Message,
    Reply,
    conversation_hash,
    default_provider,
    load_provider,
    provider_names,
)
from tvm_vibegemm.generator.replay import ReplayProvider
from tvm_vibegemm.generator.transcript import Transcript, load_transcripts
from tvm_vibegemm.resources import codegen_dir

TALK = (
    Transcript("talk")
    .ask(Message("user", "one\n\ntwo ×\n"))
    .answer(Reply("first", model="m", usage={"total_tokens": 3}), verdict="no plan")
    .ask(Message("user", "again"))
    .answer(Reply("second\n"), kernel="ab" * 32, verdict="built")
)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = TALK.save(tmp_path)
    again = Transcript.load(path)
    assert again == TALK
    assert again.dumps() == path.read_text(encoding="utf-8")
    assert again.kernels == ["ab" * 32]
    assert [entry.name for entry in tmp_path.iterdir()] == ["talk.json"]


def test_a_changed_turn_is_refused(tmp_path: Path) -> None:
    path = TALK.save(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("again", "anew"), encoding="utf-8")
    with pytest.raises(InputError, match="turn 3 does not have the recorded hash"):
        Transcript.load(path)


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"version": 2}', "{" * 5000])
def test_malformed_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Transcript.load(path)
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_replay_answers_every_recorded_turn(tmp_path: Path) -> None:
    TALK.save(tmp_path)
    replay = ReplayProvider([tmp_path])
    assert replay.complete(TALK.messages[:1]).text == "first"
    assert replay.complete(TALK.messages[:1]).usage == {"total_tokens": 3}
    assert replay.complete(TALK.messages[:3]).model == "recorded"
    with pytest.raises(ProviderError, match="no recorded reply"):
        replay.complete([Message("user", "one")])


def test_hash_depends_on_roles_and_borders() -> None:
    talks = [
        [Message("user", "ab")],
        [Message("system", "ab")],
        [Message("user", "a"), Message("user", "b")],
        [Message("user", "a"), Message("assistant", "b")],
    ]
    assert len({conversation_hash(talk) for talk in talks}) == len(talks)


def test_shipped_transcripts_load() -> None:
    shipped = {transcript.name: transcript for transcript in load_transcripts()}
    assert {"first_bf16_4096", "first_fp16_ragged", "first_fp32_4096"} <= set(shipped)
    for name, transcript in shipped.items():
        assert transcript.turns[0].message.role == "user", name
        assert str(codegen_dir().parent) not in transcript.dumps(), name


def test_providers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert {"mailbox", "openai", "replay"} <= set(provider_names())
    assert default_provider(Settings(api_key=None, provider=None)) == "replay"
    assert default_provider(Settings(api_key="k", provider=None)) == "openai"
    assert default_provider(Settings(api_key="k", provider="mailbox")) == "mailbox"
    assert load_provider("replay").name == "replay"
    with pytest.raises(ProviderError, match="'nobody' is unknown; known: mailbox"):
        load_provider("nobody")
