"""Every tutorial runs, from a folder that is not the checkout, and leaves nothing there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "tutorials").glob("*.py"))


def test_they_are_numbered_in_order() -> None:
    assert [path.name[:3] for path in TUTORIALS] == [f"{i + 1:02}_" for i in range(len(TUTORIALS))]
    assert len(TUTORIALS) >= 2


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,  # a minute on two free cores
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "kernel: " in done.stdout  # something was offloaded
    assert list(tmp_path.iterdir()) == []
