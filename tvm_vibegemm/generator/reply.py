"""Reads a kernel out of a model's reply: one CUDA block and one JSON plan."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ReplyError

MAX_REPLY_CHARS = 4_000_000
_LANGUAGES = {
    "cuda": "cuda", "cu": "cuda", "cpp": "cuda", "c++": "cuda", "c": "cuda", "json": "json",
}  # fmt: skip
_FENCE = re.compile(r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
_CLOSED_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


@dataclass(frozen=True)
class ParsedReply:
    """A kernel's two texts as the model wrote them.

    Parameters
    ----------
    source
        CUDA-C.
    plan
        JSON text, not yet checked.
    """

    source: str
    plan: str


def _without_thoughts(text: str) -> str:
    text = _CLOSED_THOUGHT.sub("", text)
    # Some endpoints cut the opening tag: everything before the last closing one is thought.
    return _THOUGHT_END.split(text)[-1]


def _blocks(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """Return the fenced blocks (kind, text) in order, and the kind of an unclosed last one."""
    blocks: list[tuple[str, str]] = []
    fence, kind, lines = "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line.rstrip("\r"))
        if not fence:
            if match:
                words = match["info"].strip().lower().split()
                fence, lines = match["fence"], []
                kind = _LANGUAGES.get(words[0], "") if words else ""
        elif match and match["fence"].startswith(fence) and not match["info"].strip():
            blocks.append((kind, "\n".join(lines) + "\n"))
            fence = ""
        else:
            lines.append(line.rstrip("\r"))
    return blocks, kind if fence else None


def _is_candidate(kind: str, text: str) -> bool:
    # A sketch in passing is neither a kernel nor a plan.
    return (kind == "cuda" and "__global__" in text) or (kind == "json" and '"launches"' in text)


def parse_reply(text: str) -> ParsedReply:
    """Return the source and the plan of a reply.

    Thoughts in ``<think>`` tags are dropped. A reply may hold several blocks: the last complete
    pair of a CUDA block (``cuda``, ``cu``, ``cpp``, ``c++`` or ``c``) and a ``json`` block next to
    each other counts.

    Raises
    ------
    ReplyError
        One line that says which of the two is missing or cut off.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise ReplyError(f"reply: {len(text)} characters; at most {MAX_REPLY_CHARS} are read")
    blocks, unclosed = _blocks(_without_thoughts(text))
    found = [(kind, body) for kind, body in blocks if _is_candidate(kind, body)]
    kinds = [kind for kind, _ in found]
    json_first = bool(kinds) and kinds[0] == "json" and kinds[-1] == "cuda"
    wanted = ["json", "cuda"] if json_first else ["cuda", "json"]
    for index in range(len(found) - 2, -1, -1):
        if kinds[index : index + 2] == wanted:
            pair = dict(found[index : index + 2])
            return ParsedReply(source=pair["cuda"], plan=pair["json"])
    if unclosed is not None:
        what = {"cuda": "the CUDA block", "json": "the JSON plan"}.get(unclosed, "a block")
        raise ReplyError(f"reply: {what} is not closed; the answer seems to be cut off")
    missing = [
        what
        for kind, what in (
            ("cuda", "```cuda block with a __global__ function"),
            ("json", '```json block with the plan (an object with "launches")'),
        )
        if kind not in kinds
    ]
    if not missing:
        raise ReplyError("reply: the ```cuda block is not followed by its ```json plan")
    raise ReplyError(f"reply: no {' and no '.join(missing)}")
