"""The hook that TVM calls at the end of ``import tvm`` (entry-point group ``tvm.backends``).

It imports nothing heavy and no TVM at its top: TVM is still importing when it calls, and a
program may have imported this package first. What it registers loads the rest on first use.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

PIPELINE = "vibegemm"
CODEGEN = "relax.ext.vibegemm"


def _offload(**options: Any) -> Any:
    """Return the pass that offloads matrix products; see ``tvm_vibegemm.VibeGEMMOffload``."""
    from .graph.offload import VibeGEMMOffload

    return VibeGEMMOffload(**options)


def _codegen(functions: Any, options: Any, constants: Any) -> Any:
    from .graph.codegen import vibegemm_codegen

    return vibegemm_codegen(functions, options, constants)


def _pipeline(**options: Any) -> Any:
    from .graph.pipeline import vibegemm_pipeline

    return vibegemm_pipeline(**options)


def register() -> None:
    """Register the pass, the code generator and the pipeline with TVM; never raises.

    A failure in this package is one warning: it must not break ``import tvm``.
    """
    try:
        tvm = sys.modules["tvm"]
        if getattr(tvm, "_RUNTIME_ONLY", False):
            return  # a runtime without the compiler has no passes
        _offload.__name__ = "VibeGEMMOffload"
        tvm.relax.transform.VibeGEMMOffload = _offload
        import tvm_ffi

        tvm_ffi.register_global_func(CODEGEN, _codegen, override=True)
        tvm.relax.pipeline.PIPELINE_MAP.setdefault(PIPELINE, _pipeline)
    except Exception as error:
        warnings.warn(f"tvm-vibegemm: not registered with TVM ({error!r})", stacklevel=2)
