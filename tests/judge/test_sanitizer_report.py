"""The sanitizer's text becomes findings: kinds, counts, places; nothing it says is dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_vibegemm.errors import InputError
from tvm_vibegemm.judge.sanitizer_report import (
    ALLOWED,
    NEVER_ALLOWED,
    NOT_CHECKED,
    NOT_PRINTED,
    Finding,
    allowed,
    load_allowed,
    missing_reproducers,
    parse_report,
)

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"vg_0123456789abcdef0123_0": "gemm"}

CLEAN = """\
========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
CLEAN_RACE = """\
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""
OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at vg_0123456789abcdef0123_0+0x90
=========     by thread (31,0,0) in block (2,0,0)
=========     Address 0x7f8cd3a01284 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f8cd3a01200 of size 132 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at vg_0123456789abcdef0123_0+0x90
=========     by thread (32,0,0) in block (2,0,0)
=========     Address 0x7f8cd3a01288 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f8cd3a01200 of size 132 bytes
=========
========= Invalid __shared__ read of size 16 bytes
=========     at vg_0123456789abcdef0123_0+0x1b0
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x8 is misaligned
=========
========= ERROR SUMMARY: 3 errors
"""
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 2 bytes
=========     at 0x3b0 in vg_0123456789abcdef0123_0
=========     by thread (251,0,0) in block (0,0,0)
=========     Address 0x964000008 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x331d50]
=========                in /usr/lib/x86_64-linux-gnu/libcuda.so.1
=========\x20
========= ERROR SUMMARY: 1 error
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at vg_0123456789abcdef0123_0+0x90
=========     and Read access at vg_0123456789abcdef0123_0+0x100 [508 hazards]
=========     and Read access at vg_0123456789abcdef0123_0+0x140 [12 hazards]
=========
========= Warning: Race reported between Write access at vg_0123456789abcdef0123_0+0x200
=========     and Write access at vg_0123456789abcdef0123_0+0x200 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
HAZARD = """\
========= COMPUTE-SANITIZER
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in \
block (0,0,0) :
=========     Write Thread (35,0,0) at vg_0123456789abcdef0123_0+0x90
=========     Read Thread (32,0,0) at vg_0123456789abcdef0123_0+0x120
=========     Current Value : 35
=========
========= Potential invalid __shared__ read of size 4 bytes
=========     at vg_0123456789abcdef0123_0+0x170
=========     by thread (0,0,0) in block (1,0,0)
=========     Address 0x1000400 is located in a block that might have already exited
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
UNINITIALIZED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vg_0123456789abcdef0123_0+0x70
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
BARRIER = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at vg_0123456789abcdef0123_0+0xf0
=========     by thread (37,0,0) in block (0,0,0)
=========
========= Barrier error detected. Invalid arguments
=========     at __cuda_sm70_warpsync+0x30
=========     by thread (0,0,0) in block (0,0,0)
=========     Device Frame: vg_0123456789abcdef0123_0+0x3c0
=========
========= ERROR SUMMARY: 2 errors
"""
UNSUPPORTED = """\
========= COMPUTE-SANITIZER
========= Error: Device not supported. Please refer to the "Supported Devices" section of the \
sanitizer documentation
=========
========= Target application returned an error
========= ERROR SUMMARY: 0 errors
"""
NEVER_STARTED = """\
========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
=========     The application may have hit an error when dereferencing Unified Memory from the \
host. Please rerun the application under cuda-gdb or a host debugger to catch host side errors.
========= Error: Target application terminated before first instrumented API call
"""


@pytest.mark.parametrize(
    ("tool", "text"), [("memcheck", CLEAN), ("synccheck", CLEAN), ("racecheck", CLEAN_RACE)]
)
def test_clean(tool: str, text: str) -> None:
    report = parse_report(text, tool, NAMES)
    assert report.findings == () and report.complete and report.refused is None


def test_silence_is_not_clean() -> None:
    for text in ("", "========= COMPUTE-SANITIZER\n", "no such tool"):
        assert not parse_report(text, "memcheck").complete


def test_out_of_bounds() -> None:
    report = parse_report(OUT_OF_BOUNDS, "memcheck", NAMES)
    assert [(f.kind, f.count) for f in report.findings] == [
        ("invalid-global-write", 2),
        ("invalid-shared-read", 1),
    ]
    first = report.findings[0]
    assert first.where.kernel == "gemm" and first.where.offset == "0x90"
    assert (first.where.block, first.where.thread) == ("(2,0,0)", "(31,0,0)")
    assert str(first.where) == "gemm+0x90 block (2,0,0) thread (31,0,0)"
    assert "1 bytes after the nearest allocation" in first.message
    assert "size 4 bytes" in first.message


def test_older_form_without_the_hosts_frames() -> None:
    (finding,) = parse_report(OLDER, "memcheck", NAMES).findings
    assert (finding.where.kernel, finding.where.offset) == ("gemm", "0x3b0")
    assert finding.message.endswith("is out of bounds")


def test_races() -> None:
    report = parse_report(RACE, "racecheck", NAMES)
    assert [(f.kind, f.where.offset) for f in report.findings] == [
        ("race", "0x90"),
        ("race", "0x200"),
    ]
    assert report.findings[0].count == 508
    assert "Read access at gemm+0x140" in report.findings[0].message


def test_hazards() -> None:
    report = parse_report(HAZARD, "racecheck", NAMES)
    assert [f.kind for f in report.findings] == ["hazard-raw", "potential-invalid-shared-read"]
    assert report.findings[0].where.block == "(0,0,0)"
    assert report.findings[0].where.thread == "(35,0,0)"


def test_uninitialized_read() -> None:
    (finding,) = parse_report(UNINITIALIZED, "initcheck", NAMES).findings
    assert finding.kind == "uninitialized-global-read"
    assert "0x7f3c7ec000fc" not in finding.message  # another in every run


def test_divergent_barrier() -> None:
    first, second = parse_report(BARRIER, "synccheck", NAMES).findings
    assert first.kind == second.kind == "barrier-error"
    assert "Divergent thread(s) in block" in first.message
    assert second.where.kernel == "__cuda_sm70_warpsync"


def test_a_device_that_the_tool_refuses() -> None:
    report = parse_report(UNSUPPORTED, "memcheck")
    assert report.refused is not None and "Device not supported" in report.refused
    assert report.findings == ()


def test_a_target_that_the_tool_cannot_start() -> None:
    report = parse_report(NEVER_STARTED, "memcheck")
    assert report.findings == () and not report.complete
    assert report.refused is not None and "before first instrumented" in report.refused


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Warning: Detected overflow of tracked cuda::barrier structures.", NOT_CHECKED),
        ("Warning: Maximum number of hazards reached.", NOT_CHECKED),
        ("Internal Sanitizer Error: The Sanitizer encountered an error", NOT_CHECKED),
        ("Deadlock detected in Cuda::barrier wait called by threads", "deadlock"),
        ("Something that nobody has read before", "other"),
    ],
)
def test_whatever_else_it_says_is_a_finding(line: str, kind: str) -> None:
    text = f"========= COMPUTE-SANITIZER\n========= {line}\n========= ERROR SUMMARY: 0 errors\n"
    (finding,) = parse_report(text, "synccheck").findings
    assert finding.kind == kind


def test_errors_that_are_counted_and_not_printed() -> None:
    text = OUT_OF_BOUNDS.replace(
        "3 errors",
        "90 errors\n========= ERROR SUMMARY: 87 errors were not printed. Use --print-limit option",
    )
    last = parse_report(text, "memcheck", NAMES).findings[-1]
    assert (last.kind, last.count) == (NOT_PRINTED, 87)


# -- false findings ------------------------------------------------------------------------------

ENTRY = {
    "tool": "racecheck",
    "kind": "race",
    "pattern": r"Write access at \w+\+0x[0-9a-f]+",
    "reproducer": "tests/exploits/reproducers/mbarrier.cu",
    "why": "the tool does not know this barrier",
}


def test_shipped_list_is_well_formed_and_has_its_reproducers() -> None:
    assert missing_reproducers(ROOT) == []
    assert isinstance(load_allowed(ALLOWED), tuple)


def test_allowed_by_tool_kind_and_pattern(tmp_path: Path) -> None:
    path = tmp_path / "allowed.json"
    path.write_text(json.dumps([ENTRY]))
    (race, _) = parse_report(RACE, "racecheck", NAMES).findings
    assert allowed(race, path) == Path(ENTRY["reproducer"])
    assert allowed(Finding("racecheck", "hazard-raw", race.message), path) is None
    assert allowed(Finding("memcheck", "race", race.message), path) is None
    assert allowed(Finding("racecheck", "race", "between others"), path) is None
    assert missing_reproducers(tmp_path, path) == [ENTRY["reproducer"]]
    assert allowed(race) is None  # the shipped list excuses none


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "valgrind"},
        {"reproducer": "/etc/passwd"},
        {"reproducer": "tests/exploits/reproducers/../kernels/x.cu"},
        {"pattern": "("},
        {"why": " "},
        {"more": "x"},
        *({"kind": kind} for kind in NEVER_ALLOWED),
    ],
)
def test_malformed_entries_are_refused(change: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "allowed.json"
    path.write_text(json.dumps([ENTRY | change]))
    with pytest.raises(InputError, match="entry 0"):
        load_allowed(path)
