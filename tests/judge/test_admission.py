"""A kernel enters a folder of schedules with a clean report of every sanitizer tool, or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.errors import InputError
from tvm_vibegemm.judge.admission import FILE, TOOLS, Sanitized
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.resources import schedules_dir


def row(kernel: str = "k" * 64, **changes: Any) -> dict[str, Any]:
    tools = [{"tool": tool, "launches": 3, "findings": [], "seconds": 1.0} for tool in TOOLS]
    return {"kernel": kernel, "name": "x", "clean": True, "tools": tools, **changes}


def report(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "report.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_a_clean_report_lets_a_kernel_in_and_is_kept(tmp_path: Path) -> None:
    held = Sanitized(tmp_path / "sm_90")
    held.take(report(tmp_path, row(), row("z" * 64)))
    held.must_hold("k" * 64, "x")
    held.write({"k" * 64})
    again = Sanitized(tmp_path / "sm_90")
    again.must_hold("k" * 64, "x")
    assert list(again.rows) == ["k" * 64]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clean": False}, "found faults"),
        ({"tools": row()["tools"][:3]}, "not every tool"),
        ({"tools": [{**t, "launches": 0} for t in row()["tools"]]}, "not every tool"),
        ({"kernel": "y" * 64}, "no report"),
    ],
)
def test_anything_less_keeps_it_out(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    held = Sanitized(tmp_path)
    held.take(report(tmp_path, {**row(), **changes}))
    with pytest.raises(InputError, match=why):
        held.must_hold("k" * 64, "x")


def test_a_damaged_report_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}\n")
    with pytest.raises(InputError, match="cannot be read"):
        Sanitized(tmp_path)


def test_every_shipped_kernel_was_clean() -> None:
    folder = Path(schedules_dir()) / "sm_90"
    held = Sanitized(folder)
    for path in sorted((folder / "kernels").glob("*.cu")):
        kernel = Kernel.load(path)
        held.must_hold(kernel.hash, kernel.name)
