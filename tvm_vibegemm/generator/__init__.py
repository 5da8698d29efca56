"""Asks a language model for kernels: prompt, providers, reply, transcript."""

from __future__ import annotations

from .brief import Brief
from .provider import Message, Provider, Reply, conversation_hash, load_provider, provider_names
from .reply import ParsedReply, parse_reply
from .transcript import Transcript, Turn

__all__ = [
    "Brief",
    "Message",
    "ParsedReply",
    "Provider",
    "Reply",
    "Transcript",
    "Turn",
    "conversation_hash",
    "load_provider",
    "parse_reply",
    "provider_names",
]
