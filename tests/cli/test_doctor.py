"""``vibegemm doctor`` finds what is there, for people and as JSON."""

from __future__ import annotations

import json

from .test_compile import run


def test_json() -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {"TVM", "NVRTC", "CUDA headers", "C++ compiler", "driver", "device", "database"} <= set(
        checks
    )
    for name in ("TVM", "NVRTC", "CUDA headers", "database"):
        assert checks[name]["ok"], checks[name]
    for check in checks.values():
        assert check["ok"] or check["consequence"]


def test_table() -> None:
    done = run("doctor")
    assert done.returncode == 0 and "NVRTC" in done.stdout
