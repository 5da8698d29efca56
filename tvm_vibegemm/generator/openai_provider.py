"""The OpenAI-compatible provider: any endpoint that speaks ``/chat/completions``."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openai

from ..config import Settings
from ..errors import ProviderError
from .provider import Message, Provider, Reply

# Too many requests, time-outs and the server's own faults pass; everything else stays as it is.
RETRY_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_CUT = {"length": "was cut off at the token limit", "content_filter": "was refused by a filter"}


class OpenAIProvider(Provider):
    """Asks an OpenAI-compatible endpoint.

    Parameters
    ----------
    model
        Model name at the endpoint.
    api_key
        Its key; never shown.
    base_url
        Its base URL; None means OpenAI's own.
    timeout_s
        Seconds that one request may take.
    retries
        How many times a request that may pass later is sent again.
    max_wait_s
        Longest wait between two requests, in seconds; an endpoint that asks for more is an error.
    sleep
        Waits; replaced in tests.
    """

    name = "openai"

    def __init__(
        self,
        model: str,
        api_key: str,
        base_url: str | None = None,
        *,
        timeout_s: float = 1800.0,
        retries: int = 5,
        max_wait_s: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model = model
        self.retries = retries
        self.max_wait_s = max_wait_s
        self._sleep = sleep
        # Our own loop retries: the client's caps Retry-After silently.
        self._client = openai.OpenAI(
            api_key=api_key, base_url=base_url, timeout=timeout_s, max_retries=0
        )

    @classmethod
    def from_settings(cls, config: Settings, **options: Any) -> OpenAIProvider:
        """Return the provider from ``VIBEGEMM_*``, each missing value from ``OPENAI_*``.

        Raises
        ------
        ProviderError
            When there is no key or no model.
        """
        key = config.api_key or os.environ.get("OPENAI_API_KEY")
        model = options.pop("model", None) or config.model or os.environ.get("OPENAI_MODEL")
        base_url = config.base_url or os.environ.get("OPENAI_BASE_URL")
        if not key:
            raise ProviderError("openai: no key; set VIBEGEMM_API_KEY (or OPENAI_API_KEY)")
        if not model:
            raise ProviderError("openai: no model; set VIBEGEMM_MODEL (or OPENAI_MODEL)")
        return cls(model, key, base_url, **options)

    def complete(self, messages: Sequence[Message]) -> Reply:
        """Ask the endpoint; see :class:`Provider`."""
        last = ""
        for attempt in range(self.retries + 1):
            try:
                return self._read(
                    self._client.chat.completions.create(
                        model=self.model,
                        messages=[{"role": m.role, "content": m.content} for m in messages],  # type: ignore[misc]
                    )
                )
            except openai.APIStatusError as error:
                last = f"status {error.status_code}: {_short(error.message)}"
                if error.status_code not in RETRY_STATUS:
                    raise ProviderError(f"openai: {last}") from error
                wait = _retry_after(error.response.headers)
            except openai.APITimeoutError:
                last, wait = "the request timed out", None
            except openai.APIConnectionError as error:
                cause = error.__cause__ or error
                last, wait = f"no connection to {self._client.base_url} ({_short(cause)})", None
            except openai.OpenAIError as error:
                raise ProviderError(f"openai: {type(error).__name__}: {_short(error)}") from error
            except ValueError as error:
                raise ProviderError(f"openai: the answer is not JSON ({_short(error)})") from error
            if attempt < self.retries:
                seconds = min(2.0**attempt, self.max_wait_s) if wait is None else wait
                if seconds > self.max_wait_s:
                    raise ProviderError(
                        f"openai: {last}; the endpoint asks to wait {seconds:.0f} s, more than "
                        f"{self.max_wait_s:.0f}"
                    )
                self._sleep(seconds)
        raise ProviderError(f"openai: no answer after {self.retries + 1} requests; last: {last}")

    def _read(self, answer: Any) -> Reply:
        # Compatible endpoints are not all exact: nothing of the answer's form is relied on.
        choices = getattr(answer, "choices", None)
        if not choices:
            raise ProviderError(f"openai: {self.model} gave an answer without choices")
        message, reason = choices[0].message, choices[0].finish_reason or "stop"
        refusal = getattr(message, "refusal", None)
        if refusal:
            raise ProviderError(f"openai: {self.model} refused: {_short(refusal)}")
        if reason in _CUT:
            raise ProviderError(f"openai: the answer of {self.model} {_CUT[reason]}")
        text = getattr(message, "content", None)
        if not isinstance(text, str) or not text.strip():
            raise ProviderError(f"openai: {self.model} gave an empty answer")
        usage = answer.usage.model_dump() if getattr(answer, "usage", None) else {}
        counts = {name: value for name, value in usage.items() if isinstance(value, int)}
        return Reply(text, str(answer.model or self.model), counts, reason)


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 300 else line[:300] + " …"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that ``Retry-After`` asks for (a number or an HTTP date), or None."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, when.timestamp() - time.time())
