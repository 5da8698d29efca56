"""tvm-vibegemm: matrix products of a TVM program compiled with LLM-written, verified kernels.

Importing this package imports no TVM: TVM itself imports it half-way through its own start (the
entry point group ``tvm.backends``), in whichever order a program imports the two.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "VibeGEMMOffload": "tvm_vibegemm.graph.offload",
    "compile_onnx": "tvm_vibegemm.graph.onnx",
    "Database": "tvm_vibegemm.database",
    "Workload": "tvm_vibegemm.workload",
    "Device": "tvm_vibegemm.device",
}
__all__ = ["Database", "Device", "VibeGEMMOffload", "Workload", "__version__", "compile_onnx"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
