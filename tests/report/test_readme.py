"""The README's figures are those of the shipped records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_vibegemm.errors import InputError
from tvm_vibegemm.report.readme import fill, section
from tvm_vibegemm.resources import schedules_dir

README = Path(__file__).parents[2] / "README.md"


def test_readme_is_up_to_date() -> None:
    assert fill(README, schedules_dir() / "sm_90") == README.read_text(encoding="utf-8")


def test_section_shows_figures() -> None:
    text = section(schedules_dir() / "sm_90")
    assert text.count("µs |") >= 10


def test_a_readme_without_the_section(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(InputError, match="no section"):
        fill(tmp_path / "README.md", schedules_dir() / "sm_90")
