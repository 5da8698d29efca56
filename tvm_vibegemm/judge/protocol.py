"""What a worker and its parent say to each other: JSON, one message a line, capped in size.

A request is ``{"id": str, "job": {...}}``. Its answer is any number of
``{"id", "progress": str}``, then ``{"id", "result": any JSON}`` or
``{"id", "error": {"reason", "message", "fatal"}}``. Once, when it has started, a worker says
``{"ready": pid}`` or ``{"failed": str}``.

Nothing that arrives is believed. A line over the cap, what is no JSON (NaN and infinities are
none), another job's id, a field too many: each is a :class:`ProtocolError`. Only the standard
library is imported here, since a worker imports this before anything else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from ..errors import VibeGEMMError
from .verdict import Reason

#: Most bytes of one message, its end of line included, in either direction.
MAX_BYTES = 16 * 2**20
#: Most characters of a line of progress or of an error's message.
MAX_TEXT = 1000

Kind = Literal["progress", "result", "error"]


class ProtocolError(VibeGEMMError):
    """A message is too long, is no JSON, or is not what is due."""


class FatalDeviceError(VibeGEMMError):
    """The device context is lost (a sticky CUDA error): the worker must go.

    A job's handler raises it; the worker answers and exits, and the next job gets a new one.

    Parameters
    ----------
    message
        One line: what failed, with the driver's name for it.
    reason
        What it says of the kernel.
    """

    def __init__(self, message: str, reason: Reason = Reason.CRASHED) -> None:
        super().__init__(message)
        self.reason = reason


class WorkerFailure(VibeGEMMError):
    """A job has no result.

    Parameters
    ----------
    reason
        Why, from the closed list.
    message
        One line of detail.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WorkerStartError(WorkerFailure):
    """No worker could be started, so nothing was learnt about the job: it may be tried elsewhere.

    Parameters
    ----------
    message
        One line: the device, and what hindered the start.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Reason.CRASHED, message)


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """Fold a text into a single line of at most ``limit`` characters."""
    return " ".join(text[: 4 * limit].split())[:limit]


def encode(message: Mapping[str, Any], cap: int = MAX_BYTES) -> bytes:
    """Return a message as one line.

    Parameters
    ----------
    message
        JSON values only, all numbers finite.
    cap
        Most bytes.

    Raises
    ------
    ProtocolError
        It is no JSON, or too long.
    """
    try:
        text = json.dumps(message, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the message is no JSON: {one_line(str(error))}") from None
    if len(text) + 1 > cap:  # ASCII, so characters are bytes
        raise ProtocolError(f"the message has {len(text) + 1} bytes, more than the {cap} allowed")
    return text.encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read one line back.

    Parameters
    ----------
    line
        UTF-8, with or without its end of line, no longer than the reader's cap.

    Raises
    ------
    ProtocolError
        It is no JSON object, or holds NaN or an infinity, be it as an overflow (``1e999``).
    """
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        shown = ascii(line[:60])[2:-1]
        raise ProtocolError(f"no JSON: {one_line(str(error), 200)} in '{shown}'") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"a JSON object was due, not {type(message).__name__}")
    return message


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is infinite as a double")
    return value


def read_request(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return a request's id and job.

    Raises
    ------
    ProtocolError
        The line is no request.
    """
    message = decode(line)
    identity, job = message.get("id"), message.get("job")
    if set(message) != {"id", "job"} or not isinstance(identity, str) or not isinstance(job, dict):
        raise ProtocolError("a request has an id and a job, and nothing else")
    return identity, job


def read_reply(line: bytes, identity: str) -> tuple[Kind, Any]:
    """Return what a reply is, and what it holds.

    Parameters
    ----------
    line
        One line of a worker.
    identity
        Of the job that runs; a reply to another one is an error.

    Returns
    -------
    tuple
        ``("progress", str)``, ``("result", any JSON)`` or ``("error", dict)``; the dictionary has
        ``reason`` (a :class:`Reason`), ``message`` (one line) and ``fatal`` (bool).

    Raises
    ------
    ProtocolError
        The line is none of these.
    """
    message = decode(line)
    if message.pop("id", None) != identity:
        raise ProtocolError("a reply that names another job than the one that runs")
    if len(message) == 1:
        [(kind, value)] = message.items()
        if kind == "result":
            return "result", value
        if kind == "progress" and isinstance(value, str):
            return "progress", one_line(value)
        if kind == "error" and isinstance(value, dict):
            return "error", _read_error(value)
    raise ProtocolError("a reply holds one progress line, one result or one error")


def _read_error(value: dict[str, Any]) -> dict[str, Any]:
    message, fatal = value.get("message"), value.get("fatal")
    try:
        reason = Reason(str(value.get("reason")))
    except ValueError:
        raise ProtocolError("an error whose reason is not in the list") from None
    if not isinstance(message, str) or not isinstance(fatal, bool) or reason is Reason.ACCEPTED:
        raise ProtocolError("an error has a reason, a message and whether it is fatal")
    return {"reason": reason, "message": one_line(message), "fatal": fatal}


class LineBuffer:
    """Cuts a stream of bytes into lines, and holds no more of it than one line may have.

    Parameters
    ----------
    cap
        Most bytes of a line, its end included.
    """

    def __init__(self, cap: int = MAX_BYTES) -> None:
        self._cap = cap
        self._data = bytearray()
        self._seen = 0  # bytes known to hold no end of line

    def __len__(self) -> int:
        """Return how many bytes wait."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add what was read; take out every whole line with :meth:`pop` before the next call."""
        self._data += data

    def pop(self) -> bytes | None:
        """Return the next whole line without its end, or None while it is not all there.

        Raises
        ------
        ProtocolError
            The line is longer than the cap, whether or not its end has come.
        """
        end = self._data.find(b"\n", self._seen)
        if (len(self._data) if end < 0 else end + 1) > self._cap:
            raise ProtocolError(f"a line of more than the {self._cap} bytes allowed")
        if end < 0:
            self._seen = len(self._data)
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        self._seen = 0
        return line
