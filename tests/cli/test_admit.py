"""Results enter a folder of schedules only as answers to jobs that were asked, by clean kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.cli import main
from tvm_vibegemm.cli.judge import read_jobs
from tvm_vibegemm.database import Measurement
from tvm_vibegemm.judge.admission import TOOLS
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.resources import schedules_dir

KEY = "vg1:f32.f32.f32.f32:nn:x1:m64:n64:k64:-"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a kernel, a job for it, a clean report and a result."""
    Kernel.load(Path(schedules_dir()) / "sm_90" / "kernels" / "general_simt_f32.cu").save(tmp_path)
    write_job(tmp_path, KEY)
    write_report(tmp_path)
    write_result(tmp_path)
    return tmp_path


def kernel(place: Path) -> Kernel:
    return Kernel.load(place / "general_simt_f32.cu")


def write_job(place: Path, key: str) -> None:
    job = {"workload": key, "kernels": [{"kernel": "general_simt_f32.cu"}]}
    (place / "jobs.jsonl").write_text(json.dumps(job) + "\n")


def write_report(place: Path, **changes: Any) -> None:
    tools = [{"tool": tool, "launches": 1, "findings": [], "seconds": 1.0} for tool in TOOLS]
    it = kernel(place)
    row = {"kernel": it.hash, "name": it.name, "clean": True, "tools": tools, **changes}
    (place / "report.jsonl").write_text(json.dumps(row) + "\n")


def write_result(place: Path, **changes: Any) -> None:
    (job,) = read_jobs(place / "jobs.jsonl")
    (candidate,) = job.candidates
    fields: dict[str, Any] = {
        "workload": KEY,
        "arch": "sm_90",
        "device": "NVIDIA H200",
        "subject": "kernel",
        "kernel": candidate.kernel.hash,
        "tunables": dict(candidate.tunables),
        "run": "r",
        "verdict": "accepted",
        "median_us": 5.0,
        "low_us": 4.9,
        "high_us": 5.1,
        "evidence": {"judge": "strict-1", "job": job.id},
    }
    (place / "results.jsonl").write_text(Measurement(**{**fields, **changes}).to_json() + "\n")


def admit(place: Path, *extra: str) -> int | str | None:
    arguments = ["admit", str(place / "results.jsonl"), "--jobs", str(place / "jobs.jsonl")]
    arguments += ["--kernel", str(place / "general_simt_f32.cu"), "--folder", str(place / "out")]
    try:
        main([*arguments, "--sanitized", str(place / "report.jsonl"), *extra])
    except SystemExit as stop:
        return stop.code
    return 0


def test_an_answer_to_a_job_enters(place: Path) -> None:
    assert admit(place) == 0
    folder = place / "out" / "sm_90"
    assert (folder / "kernels" / "general_simt_f32.cu").is_file()
    assert len((folder / "records.jsonl").read_text().splitlines()) == 1
    assert len((folder / "sanitizer.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: write_result(p, evidence={"judge": "strict-1"}), "answers no job"),
        (lambda p: write_result(p, evidence={"job": "f" * 32}), "answers no job"),
        (lambda p: write_result(p, tunables={"BM": 7}), "did not ask for kernel"),
        (lambda p: write_result(p, workload=KEY.replace("m64", "m65")), "asked for"),
        (lambda p: write_job(p, KEY.replace("m64", "m65")), "answers no job"),
        (lambda p: write_report(p, clean=False), "found faults"),
        (lambda p: write_report(p, kernel="0" * 64), "no report"),
        (lambda p: (p / "report.jsonl").write_text("nonsense\n"), "cannot be read"),
        (lambda p: (p / "results.jsonl").write_text("{}\n"), "results.jsonl, line 1: "),
    ],
)
def test_anything_else_is_one_line_and_writes_nothing(
    change: Any, why: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(place)
    assert admit(place) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1
    assert not (place / "out").exists()
