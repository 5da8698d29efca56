"""Finds the data folders ``codegen/`` and ``schedules/``, in a checkout and in a wheel alike."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def data_root() -> Path:
    """Return the folder that holds ``codegen`` and ``schedules``.

    Returns
    -------
    Path
        ``tvm_vibegemm/_data`` of an installed wheel, else the root of the checkout.

    Raises
    ------
    FileNotFoundError
        When the installation carries neither.
    """
    package = Path(__file__).resolve().parent
    for root in (package / "_data", package.parent):
        if (root / "codegen" / "include").is_dir():
            return root
    raise FileNotFoundError(
        f"{package}: the data folders codegen/ and schedules/ are missing; reinstall"
    )


def codegen_dir() -> Path:
    """Return the folder of prompts, device prelude, device data and transcripts."""
    return data_root() / "codegen"


def schedules_dir() -> Path:
    """Return the folder of the shipped tuning database in text form."""
    return data_root() / "schedules"
