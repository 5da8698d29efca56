"""The Relax pipeline ``vibegemm``: TVM's own for CUDA, with the offload and guarded schedules.

"Plain TVM" is the same pipeline without the offload.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cuda import pipeline as cuda

from ..autoload import register
from ..rivals.guard import Skipped, guarded_schedules
from ..toolchain import tvm_environment
from .offload import VibeGEMMOffload
from .powers import expand_powers
from .report import REPORT, SiteReport, read_report


def vibegemm_pipeline(
    *,
    offload: bool = True,
    target: Any = None,
    database: Any = None,
    select: str = "measured",
    fallback: str = "metaschedule",
    generate: Any = None,
    sites: list[SiteReport] | None = None,
    skipped: list[Skipped] | None = None,
) -> Any:
    """Return the pipeline as one pass, for ``tvm.compile(mod, target, relax_pipeline=…)``.

    Parameters
    ----------
    offload
        False for plain TVM: everything but the offload.
    target, database, select, fallback, generate
        As of :func:`VibeGEMMOffload`.
    sites
        Receives what became of each matrix product.
    skipped
        Receives the schedule rules that threw and were passed over.

    Returns
    -------
    tvm.transform.Pass
        A module pass; it needs a CUDA target, current or given.
    """
    rules: list[Skipped] = [] if skipped is None else skipped
    register()  # TVM has called it already where this package is installed

    def run(module: Any, _: Any) -> Any:
        current = tvm.target.Target.current(allow_none=False)
        tvm_environment()  # TVM builds its own kernels after this pipeline
        passes: list[Any] = []
        if offload:
            passes.append(
                VibeGEMMOffload(
                    target=target,
                    database=database,
                    select=select,
                    fallback=fallback,
                    generate=generate,
                )
            )
        module = expand_powers(module)
        module = tvm.transform.Sequential(passes)(module) if passes else module
        found = read_report(module)
        if sites is not None:
            sites.extend(found)
        if REPORT in (module.attrs or {}):
            module = module.without_attr(REPORT)
        *front, _schedules = cuda.legalize_passes(current)
        return tvm.transform.Sequential(
            [
                relax.transform.RunCodegen(),
                *cuda.library_dispatch_passes(current),
                *front,
                guarded_schedules(rules),
                *cuda.dataflow_lower_passes(current),
                *cuda.finalize_passes(current),
            ]
        )(module)

    return tvm.transform.module_pass(run, opt_level=0, name="VibeGEMMPipeline")
