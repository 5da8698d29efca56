"""What a language-model provider is, and how one is found by name.

A provider turns a conversation into one reply. Built in are ``mailbox`` (files that anyone or
anything answers), ``replay`` (recorded conversations, no key needed) and ``openai`` (any compatible
endpoint); other packages add theirs through the entry-point group ``tvm_vibegemm.providers``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal

from ..config import Settings, settings
from ..errors import ProviderError

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")
GROUP = "tvm_vibegemm.providers"


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Parameters
    ----------
    role
        ``system``, ``user`` or ``assistant``.
    content
        The text.
    """

    role: Role
    content: str


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    Parameters
    ----------
    text
        The whole answer.
    model
        Name of the model as the provider gives it; ``recorded`` where it is not known.
    usage
        Token counts by name, e.g. ``prompt_tokens``; empty where unknown.
    finish_reason
        ``stop`` where the model ended of itself.
    """

    text: str
    model: str = "recorded"
    usage: Mapping[str, int] = field(default_factory=dict)
    finish_reason: str = "stop"


class Provider(ABC):
    """Answers conversations.

    An implementation also offers ``from_settings(settings, **options)``, which the look-up by
    name calls.
    """

    name: str = "provider"

    @abstractmethod
    def complete(self, messages: Sequence[Message]) -> Reply:
        """Return the model's next turn.

        Parameters
        ----------
        messages
            The conversation so far; the last message is the user's.

        Raises
        ------
        ProviderError
            When there is no answer, or an empty, cut or refused one.
        """


def conversation_hash(messages: Sequence[Message]) -> str:
    """Return the name of a conversation: SHA-256 of its roles and texts, in hex."""
    data = [[message.role, message.content] for message in messages]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


Factory = Callable[..., Provider]
_BUILT_IN = {
    "mailbox": "tvm_vibegemm.generator.mailbox:MailboxProvider",
    "replay": "tvm_vibegemm.generator.replay:ReplayProvider",
    "openai": "tvm_vibegemm.generator.openai_provider:OpenAIProvider",
}


def provider_names() -> list[str]:
    """Return the names that :func:`load_provider` takes, sorted."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def default_provider(config: Settings | None = None) -> str:
    """Return the provider's name from the settings, else ``openai`` with a key, else ``replay``."""
    config = config or settings()
    if config.provider:
        return config.provider
    return "openai" if config.api_key or os.environ.get("OPENAI_API_KEY") else "replay"


def load_provider(
    name: str | None = None, config: Settings | None = None, **options: Any
) -> Provider:
    """Return a provider by its name.

    Parameters
    ----------
    name
        One of :func:`provider_names`; None takes :func:`default_provider`.
    config
        Settings to read; None reads the process's.
    options
        Passed to the provider's ``from_settings`` (e.g. ``folder`` of the mailbox).

    Raises
    ------
    ProviderError
        For an unknown name, a provider that cannot be imported, or missing settings.
    """
    config = config or settings()
    name = name or default_provider(config)
    try:
        if name in _BUILT_IN:
            module, _, attribute = _BUILT_IN[name].partition(":")
            cls = getattr(importlib.import_module(module), attribute)
        else:
            found = [point for point in entry_points(group=GROUP) if point.name == name]
            if not found:
                raise ProviderError(
                    f"provider {name!r} is unknown; known: {', '.join(provider_names())}"
                )
            cls = found[0].load()
        provider: Provider = cls.from_settings(config, **options)
    except ProviderError:
        raise
    except Exception as error:  # a plug-in may fail in any way: one line all the same
        raise ProviderError(
            f"provider {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return provider
