"""The one hash of several parts: what kernels, builds and folders are named by."""

from __future__ import annotations

import hashlib


def digest(*parts: str | bytes) -> str:
    """Return the SHA-256, in hex, of texts or bytes in order, each preceded by its length.

    The length keeps the parts apart: ``digest("ab", "c")`` differs from ``digest("a", "bc")``.

    Raises
    ------
    UnicodeEncodeError
        When a text has no UTF-8 form.
    """
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()
