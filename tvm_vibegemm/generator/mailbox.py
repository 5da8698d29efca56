"""The mailbox provider: a prompt is a file, and so is its answer.

Anyone or anything may answer: a person with a chat window, a script, a batch queue. The file's
name is the hash of the conversation, so a run that was interrupted finds its answer when it is
started again, and nothing is asked twice.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config import Settings
from ..errors import ProviderError
from .provider import Message, Provider, Reply, conversation_hash

MAX_REPLY_BYTES = 4 << 20


def render_conversation(messages: Sequence[Message]) -> str:
    """Return a whole conversation as one Markdown text.

    A single user message stands alone; otherwise each turn gets a heading with its role.
    """
    if len(messages) == 1:
        return messages[0].content.rstrip() + "\n"
    turns = []
    for number, message in enumerate(messages, 1):
        turns.append(
            f"<!-- turn {number} of {len(messages)} -->\n"
            f"# [{message.role}]\n\n{message.content.strip()}\n"
        )
    head = (
        "This is a conversation in several turns, oldest first. "
        "Answer its last turn, which is the user's.\n"
    )
    return head + "\n" + "\n".join(turns)


class MailboxProvider(Provider):
    """Writes ``<id>.prompt.md`` into a folder and reads ``<id>.reply.md`` from it.

    Parameters
    ----------
    folder
        The mailbox; made when it is missing.
    wait_s
        Seconds to wait for an answer; None waits for ever, 0 looks once.
    settle_s
        Seconds for which a reply's size and time must stay the same before it is read, so that a
        half-written one is not. Writing another file and renaming it is safe at any rate.
    label
        Put before the hash in the file's name, for whoever answers.
    notify
        Called once with the prompt's path when the wait begins.
    """

    name = "mailbox"

    def __init__(
        self,
        folder: Path,
        *,
        wait_s: float | None = None,
        settle_s: float = 2.0,
        poll_s: float = 0.5,
        label: str = "",
        notify: Callable[[Path], None] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.wait_s = wait_s
        self.settle_s = settle_s
        self.poll_s = poll_s
        self.label = label
        self.notify = notify

    @classmethod
    def from_settings(cls, config: Settings, **options: Any) -> MailboxProvider:
        """Return the mailbox of the settings' folder, or of the option ``folder``."""
        folder = options.pop("folder", None) or config.mailbox
        return cls(Path(folder), **options)

    def path(self, messages: Sequence[Message], kind: str) -> Path:
        """Return where the ``prompt`` or ``reply`` of a conversation lies."""
        prefix = f"{self.label}-" if self.label else ""
        return self.folder / f"{prefix}{conversation_hash(messages)[:16]}.{kind}.md"

    def post(self, messages: Sequence[Message]) -> Path:
        """Write the prompt file (atomically; left alone where it is there) and return its path."""
        path = self.path(messages, "prompt")
        if path.exists():
            return path
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(render_conversation(messages))
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ProviderError(
                f"mailbox {self.folder}: cannot write a prompt ({error})"
            ) from error
        return path

    def complete(self, messages: Sequence[Message]) -> Reply:
        """Post the prompt and return the answer; see :class:`Provider`."""
        prompt = self.post(messages)
        reply = self.path(messages, "reply")
        deadline = None if self.wait_s is None else time.monotonic() + self.wait_s
        told = False
        while True:
            text = self._read(reply)
            if text is not None:
                return Reply(text=text)
            if not told and self.notify is not None:
                self.notify(prompt)
                told = True
            if deadline is not None and time.monotonic() >= deadline:
                raise ProviderError(
                    f"mailbox: no answer to {prompt} yet; put it in {reply.name} beside it "
                    "and run again"
                )
            time.sleep(self.poll_s)

    def _read(self, path: Path) -> str | None:
        try:
            before = path.stat()
            if before.st_size == 0:
                return None
            if before.st_size > MAX_REPLY_BYTES:
                raise ProviderError(
                    f"mailbox: {path} has {before.st_size} bytes; "
                    f"at most {MAX_REPLY_BYTES} are read"
                )
            # A file whose last change is old enough was not touched meanwhile; only a fresh one
            # has to be watched.
            if time.time() - before.st_mtime < self.settle_s:
                time.sleep(self.settle_s)
            text = path.read_text(encoding="utf-8")
            after = path.stat()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise ProviderError(f"mailbox: {path} is not UTF-8 text ({error})") from error
        except OSError as error:
            raise ProviderError(f"mailbox: {path} cannot be read ({error})") from error
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        return text if same and text.strip() else None
