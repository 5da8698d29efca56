"""A recorded conversation: every message, who answered, and the kernels that came of it.

One JSON file a conversation. Texts are stored as lists of lines, so that a review tool shows what
changed; there are no times, paths or names in it, so the same conversation is the same file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..resources import codegen_dir
from .provider import ROLES, Message, Reply, conversation_hash

VERSION = 1


@dataclass(frozen=True)
class Turn:
    """One message of a transcript.

    Parameters
    ----------
    message
        Role and text.
    model, finish_reason, usage
        Of an assistant's turn; see :class:`.provider.Reply`.
    kernel
        Hash of the kernel that this reply became, or None.
    verdict
        One line: what the checks said of this reply (``built`` or the first fault).
    """

    message: Message
    model: str = ""
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    kernel: str | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Transcript:
    """A conversation under a name.

    Parameters
    ----------
    name
        Its file's stem.
    turns
        Oldest first.
    """

    name: str
    turns: tuple[Turn, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The bare conversation."""
        return [turn.message for turn in self.turns]

    @property
    def kernels(self) -> list[str]:
        """Hashes of the kernels that came of it, in order, each once."""
        return list(dict.fromkeys(turn.kernel for turn in self.turns if turn.kernel))

    def ask(self, message: Message) -> Transcript:
        """Return the transcript with one more message that is not a reply."""
        return Transcript(self.name, (*self.turns, Turn(message)))

    def answer(self, reply: Reply, kernel: str | None = None, verdict: str = "") -> Transcript:
        """Return the transcript with one more reply and what became of it."""
        turn = Turn(
            Message("assistant", reply.text),
            model=reply.model,
            finish_reason=reply.finish_reason,
            usage=dict(reply.usage),
            kernel=kernel,
            verdict=verdict,
        )
        return Transcript(self.name, (*self.turns, turn))

    def replies(self) -> dict[str, Reply]:
        """Return every recorded reply by the hash of the messages before it."""
        messages = self.messages
        return {
            conversation_hash(messages[:index]): Reply(
                turn.message.content, turn.model or "recorded", turn.usage, turn.finish_reason
            )
            for index, turn in enumerate(self.turns)
            if turn.message.role == "assistant"
        }

    # -- files -----------------------------------------------------------------------------------

    def dumps(self) -> str:
        """Return the file's text; equal transcripts give equal texts."""
        messages = self.messages
        turns: list[dict[str, Any]] = []
        for index, turn in enumerate(self.turns):
            entry: dict[str, Any] = {
                "role": turn.message.role,
                "hash": conversation_hash(messages[: index + 1]),
                "content": turn.message.content.split("\n"),
            }
            for name in ("model", "finish_reason", "usage", "kernel", "verdict"):
                if getattr(turn, name):
                    entry[name] = getattr(turn, name)
            turns.append(entry)
        data = {"version": VERSION, "name": self.name, "kernels": self.kernels, "turns": turns}
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def loads(cls, text: str, origin: str = "transcript") -> Transcript:
        """Read a file's text and check the hash of every turn.

        Raises
        ------
        InputError
            When it is malformed, of another version, or was changed after it was recorded.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise InputError(f"{origin}: version {data['version']!r}, this reads {VERSION}")
            transcript = cls(str(data["name"]))
            for entry in data["turns"]:
                if entry["role"] not in ROLES:
                    raise InputError(f"{origin}: unknown role {entry['role']!r}")
                turn = Turn(
                    Message(entry["role"], "\n".join(entry["content"])),
                    model=entry.get("model", ""),
                    finish_reason=entry.get("finish_reason", ""),
                    usage=dict(entry.get("usage", {})),
                    kernel=entry.get("kernel"),
                    verdict=entry.get("verdict", ""),
                )
                transcript = cls(transcript.name, (*transcript.turns, turn))
                if conversation_hash(transcript.messages) != entry["hash"]:
                    number = len(transcript.turns)
                    raise InputError(f"{origin}: turn {number} does not have the recorded hash")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{origin}: not a transcript ({error!r})") from error
        return transcript

    @classmethod
    def load(cls, path: Path) -> Transcript:
        """Read a transcript file; see :meth:`loads`."""
        try:
            return cls.loads(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"transcript {path}: {error}") from error

    def save(self, folder: Path | None = None) -> Path:
        """Write ``<name>.json`` atomically and return its path.

        Parameters
        ----------
        folder
            Where; by default the checkout's ``codegen/transcripts``.

        Raises
        ------
        InputError
            When the folder cannot be written.
        """
        folder = transcripts_dir() if folder is None else folder
        path = folder / f"{self.name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(self.dumps())
                Path(temporary).chmod(0o644)
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise InputError(f"transcript {path}: cannot be written ({error})") from error
        return path


def transcripts_dir() -> Path:
    """Return the folder of the shipped transcripts."""
    return codegen_dir() / "transcripts"


def load_transcripts(folders: Sequence[Path] | None = None) -> list[Transcript]:
    """Return every transcript of some folders (default: the shipped ones), by file name."""
    found = []
    for folder in [transcripts_dir()] if folders is None else folders:
        found += [Transcript.load(path) for path in sorted(folder.glob("*.json"))]
    return found
