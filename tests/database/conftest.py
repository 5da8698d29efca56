"""A small database, and factories of what goes into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.database import Database, Measurement, kernel_text_hash

KEY = "vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)"
SOURCE = 'extern "C" __global__ void f() {}\n'


def plan_text(name: str = "one", **more: Any) -> str:
    return json.dumps({"name": name, "arch": ["sm_90"], "version": 1, **more})


def add(db: Database, name: str = "one", source: str = SOURCE, **more: Any) -> str:
    """Add a kernel and return its hash."""
    plan = plan_text(name, **more)
    hash = kernel_text_hash(source, plan)
    db.add_kernel(source, plan, hash, name, ["sm_90"], "test")
    return hash


def measured(kernel: str | None = None, **changes: Any) -> Measurement:
    fields: dict[str, Any] = {
        "workload": KEY,
        "arch": "sm_90",
        "device": "NVIDIA H200",
        "subject": "reference" if kernel is None else "kernel",
        "kernel": kernel,
        "tunables": {} if kernel is None else {"BM": 128, "STAGES": 4},
        "run": "run-1",
        "verdict": "accepted",
        "median_us": 12.5,
        "low_us": 12.25,
        "high_us": 13.0,
        "evidence": {"driver": "580.95", "max_error": 1e-3},
    }
    return Measurement(**{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db.sqlite"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    with Database(path) as database:
        yield database


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Make places read-only; to a process that is no root, that is."""
    changed: list[tuple[Path, int]] = []

    def make(place: Path) -> None:
        changed.append((place, place.stat().st_mode))
        place.chmod(0o555 if place.is_dir() else 0o444)

    yield make
    for place, mode in changed:
        place.chmod(mode)
