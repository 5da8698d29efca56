"""The mailbox: atomic prompts, no half-written reply, interrupted and resumed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tvm_vibegemm.errors import ProviderError
from tvm_vibegemm.generator.mailbox import MailboxProvider, render_conversation
from tvm_vibegemm.generator.provider import Message

ASK = [Message("user", "Write a kernel.")]
LONG = [*ASK, Message("assistant", "Here."), Message("user", "It does not build.")]


def box(folder: Path, **options: object) -> MailboxProvider:
    return MailboxProvider(folder, **{"settle_s": 0.2, "poll_s": 0.02, "wait_s": 0, **options})  # type: ignore[arg-type]


def test_prompt_is_the_whole_conversation(tmp_path: Path) -> None:
    path = box(tmp_path / "new", label="family").post(LONG)
    assert path.name.startswith("family-") and path.name.endswith(".prompt.md")
    text = path.read_text(encoding="utf-8")
    assert text == render_conversation(LONG)
    assert all(message.content in text for message in LONG)
    assert text.index("[assistant]") < text.index("It does not build.")
    assert render_conversation(ASK) == "Write a kernel.\n"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_without_an_answer_says_where_it_belongs_and_resumes(tmp_path: Path) -> None:
    provider = box(tmp_path)
    with pytest.raises(ProviderError, match=r"put it in \w+\.reply\.md"):
        provider.complete(ASK)
    prompt = provider.path(ASK, "prompt")
    stamp = prompt.stat().st_mtime_ns
    provider.path(ASK, "reply").write_text("answer ×\n", encoding="utf-8")
    assert box(tmp_path).complete(ASK).text == "answer ×\n"
    assert prompt.stat().st_mtime_ns == stamp, "a prompt is written once"
    with pytest.raises(ProviderError):
        provider.complete(LONG)


def test_a_half_written_reply_is_not_read(tmp_path: Path) -> None:
    provider = box(tmp_path, wait_s=10)
    reply = provider.path(ASK, "reply")

    def write_slowly() -> None:
        with reply.open("w") as stream:
            for part in range(5):
                stream.write(f"part {part}\n")
                stream.flush()
                os.fsync(stream.fileno())
                time.sleep(0.08)

    writer = threading.Thread(target=write_slowly)
    writer.start()
    text = provider.complete(ASK).text
    writer.join()
    assert text == "".join(f"part {part}\n" for part in range(5))


def test_an_empty_reply_is_not_an_answer(tmp_path: Path) -> None:
    provider = box(tmp_path)
    provider.path(ASK, "reply").write_text("  \n")
    with pytest.raises(ProviderError, match="no answer"):
        provider.complete(ASK)


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    provider = box(tmp_path)
    provider.path(ASK, "reply").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProviderError, match="not UTF-8"):
        provider.complete(ASK)
    (tmp_path / "file").write_text("")
    with pytest.raises(ProviderError, match="cannot write a prompt"):
        box(tmp_path / "file").post(ASK)


def test_notify_once(tmp_path: Path) -> None:
    seen: list[Path] = []
    with pytest.raises(ProviderError):
        box(tmp_path, wait_s=0.1, notify=seen.append).complete(ASK)
    assert seen == [box(tmp_path).path(ASK, "prompt")]
