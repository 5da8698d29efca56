"""The replay provider: answers from recorded conversations, with no key and no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import Settings
from ..errors import ProviderError
from .provider import Message, Provider, Reply, conversation_hash
from .transcript import load_transcripts


class ReplayProvider(Provider):
    """Gives the recorded reply to exactly these messages.

    Parameters
    ----------
    folders
        Folders of transcripts; None means the shipped ``codegen/transcripts``.
    """

    name = "replay"

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        self._replies: dict[str, Reply] = {}
        for transcript in load_transcripts(folders):
            for key, reply in transcript.replies().items():
                self._replies.setdefault(key, reply)

    @classmethod
    def from_settings(cls, config: Settings, **options: Any) -> ReplayProvider:
        """Return the provider over the shipped transcripts, or over the option ``folders``."""
        return cls(**options)

    def complete(self, messages: Sequence[Message]) -> Reply:
        """Return the recorded reply; see :class:`Provider`."""
        key = conversation_hash(messages)
        if key not in self._replies:
            raise ProviderError(
                f"replay: no recorded reply to this conversation ({key[:16]}, {len(messages)} "
                f"messages) among {len(self._replies)}; choose the provider mailbox, or openai "
                "with a key"
            )
        return self._replies[key]
