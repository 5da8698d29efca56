"""The tuning database: kernels and measurements, with their evidence; decisions are queries."""

from __future__ import annotations

from .default import open_default
from .identity import kernel_text_hash
from .location import UnwritableError
from .measurement import ACCEPTED, SUBJECTS, Measurement
from .rows import KernelRow
from .store import Database
from .text import load_schedules, write_schedules

__all__ = [
    "ACCEPTED",
    "SUBJECTS",
    "Database",
    "KernelRow",
    "Measurement",
    "UnwritableError",
    "kernel_text_hash",
    "load_schedules",
    "open_default",
    "write_schedules",
]
