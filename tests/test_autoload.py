"""The hook in ``import tvm``: registered in either order, quick, and never in the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = """
pass_ = tvm.relax.transform.VibeGEMMOffload(target="sm_90")
assert pass_.info.name == "VibeGEMMOffload", pass_
assert "vibegemm" in tvm.relax.pipeline.PIPELINE_MAP
import tvm_ffi
assert tvm_ffi.get_global_func("relax.ext.vibegemm") is not None
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )


@pytest.mark.parametrize(
    "imports", ["import tvm", "import tvm_vibegemm, tvm", "import tvm, tvm_vibegemm"]
)
def test_either_order(imports: str) -> None:
    done = run(f"{imports}\n{CHECK}")
    assert done.returncode == 0, done.stderr


def test_turned_off() -> None:
    done = run(
        "import tvm; assert not hasattr(tvm.relax.transform, 'VibeGEMMOffload')",
        TVM_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.returncode == 0, done.stderr


def test_a_failure_is_one_warning() -> None:
    code = """
import warnings, tvm
from tvm_vibegemm import autoload
del tvm.relax
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    autoload.register()
assert len(caught) == 1 and "tvm-vibegemm" in str(caught[0].message), caught
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_adds_little_to_the_import() -> None:
    # What TVM does at its end: load the entry point, then call it.
    code = """
import time, tvm
start = time.perf_counter()
from tvm_vibegemm.autoload import register
register()
print(time.perf_counter() - start)
"""
    times = [float(run(code, TVM_DEVICE_BACKEND_AUTOLOAD="0").stdout) for _ in range(5)]
    assert min(times) < 0.05
    # And none of ours is imported but the hook and the package's own file.
    imported = run(
        "import tvm, sys; print(sorted(m for m in sys.modules if m.startswith('tvm_vibegemm')))"
    )
    assert imported.stdout.strip() == "['tvm_vibegemm', 'tvm_vibegemm.autoload']"


def test_by_hand_where_autoload_is_off() -> None:
    """The pipeline registers what it needs, so that it works without the entry point."""
    code = """
import tvm
from tvm_vibegemm.graph.pipeline import vibegemm_pipeline
vibegemm_pipeline()
import tvm_ffi
assert tvm_ffi.get_global_func("relax.ext.vibegemm") is not None
"""
    done = run(code, TVM_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
