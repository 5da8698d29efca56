"""Replies: which pair of blocks counts, and what is said where one is missing."""

from __future__ import annotations

import pytest

from tvm_vibegemm.errors import ReplyError
from tvm_vibegemm.generator.reply import parse_reply

SOURCE = 'extern "C" __global__ void k() {}\n'
PLAN = '{"launches": []}\n'


def block(language: str, text: str, fence: str = "```") -> str:
    return f"{fence}{language}\n{text}{fence}\n"


@pytest.mark.parametrize("language", ["cuda", "cpp", "c++", "CUDA", "cu"])
def test_pair(language: str) -> None:
    parsed = parse_reply("Thoughts.\n\n" + block(language, SOURCE) + "\n" + block("json", PLAN))
    assert (parsed.source, parsed.plan) == (SOURCE, PLAN)


def test_last_complete_pair_wins() -> None:
    first = block("cuda", SOURCE.replace("k", "draft")) + block("json", PLAN)
    last = block("cuda", SOURCE) + "the plan:\n" + block("json", '{"launches": [1]}\n')
    sketch = block("cuda", "__device__ int helper();\n")
    parsed = parse_reply(first + sketch + last + sketch)
    assert (parsed.source, parsed.plan) == (SOURCE, '{"launches": [1]}\n')


def test_incomplete_later_pair_does_not_hide_the_earlier() -> None:
    later = block("cuda", SOURCE.replace("k", "later"))
    assert parse_reply(block("cuda", SOURCE) + block("json", PLAN) + later).source == SOURCE


def test_plan_first() -> None:
    assert parse_reply(block("json", PLAN) + block("cuda", SOURCE)).source == SOURCE


def test_thoughts_are_dropped() -> None:
    draft = block("cuda", SOURCE.replace("k", "draft")) + block("json", PLAN)
    answer = block("cuda", SOURCE) + block("json", PLAN)
    assert parse_reply(f"<think>\n{draft}</think>\n{answer}").source == SOURCE
    assert parse_reply(f"{draft}</think>\n{answer}").source == SOURCE
    with pytest.raises(ReplyError, match="no ```cuda"):
        parse_reply(f"<think>{draft}</think>\nDone.")


def test_longer_fence_and_carriage_returns() -> None:
    text = block("cuda", SOURCE, "````") + block("json", PLAN, "~~~")
    assert parse_reply(text.replace("\n", "\r\n")).source == SOURCE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no ```cuda block .* and no ```json"),
        (block("cuda", SOURCE), "no ```json"),
        (block("json", PLAN), "no ```cuda"),
        (block("cuda", SOURCE) + "```json\n{", "JSON plan is not closed"),
        (block("cuda", SOURCE) + block("json", '{"a": 1}\n'), "no ```json"),
        (block("cuda", "int x;\n") + block("json", PLAN), "no ```cuda"),
    ],
)
def test_faults_are_one_line(text: str, says: str) -> None:
    with pytest.raises(ReplyError, match=says) as caught:
        parse_reply(text)
    assert "\n" not in str(caught.value)
