"""A cache of build results on disk, safe with many processes.

An entry is written to a temporary file and renamed, and carries the hash of its content: what a
killed process left half-written is not read, but built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FORMAT = 1


def cached(folder: Path, key: str, produce: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the entry of a key, producing it once however many processes ask.

    Parameters
    ----------
    folder
        Of the cache; where it cannot be written, nothing is cached.
    key
        Hexadecimal hash of all that the value depends on.
    produce
        Makes the value (JSON) where it is missing or damaged.

    Returns
    -------
    dict
        The value.
    """
    path = folder / f"v{FORMAT}" / key[:2] / f"{key}.json"
    value = _read(path)
    if value is not None:
        return value
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o644)
    except OSError:
        return produce()
    with _locked(lock):
        value = _read(path)
        if value is None:
            value = produce()
            _write(path, value)
    return value


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    # The kernel drops a flock when its holder dies, so a killed builder blocks nobody.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        digest, _, text = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return json.loads(text) if _digest(text) == digest else None


def _write(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value)
    with contextlib.suppress(OSError):  # a full or read-only disk costs time, not the result
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{_digest(text)}\n{text}")
            os.replace(name, path)
        except OSError:
            os.unlink(name)
