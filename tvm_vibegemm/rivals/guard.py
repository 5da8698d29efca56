"""TVM's default schedule rules, each guarded: where one throws, the next is tried.

dlight's rules can throw on legal functions (its Matmul rule on some fused convolutions), which
would end the whole compilation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from ..errors import last_line


@dataclass(frozen=True)
class Skipped:
    """A rule that threw, and on what."""

    function: str
    rule: str
    error: str


def default_rules() -> list[Any]:
    """Return TVM's rules for CUDA, in its order."""
    gpu = dlight.gpu
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def _first_schedule(
    name: str, function: Any, target: Any, rules: list[Any], skipped: list[Skipped]
) -> Any:
    for rule in rules:
        try:
            space = rule.apply(function, target, False)
        except Exception as error:  # whatever a rule throws, the next one may serve
            skipped.append(Skipped(name, type(rule).__name__, last_line(error, 200)))
            continue
        if space is not None:
            return space if isinstance(space, s_tir.Schedule) else space[0]
    return None


def guarded_schedules(skipped: list[Skipped], rules: list[Any] | None = None) -> Any:
    """Return a pass like ``dlight.ApplyDefaultSchedule`` that survives a rule's exception.

    Parameters
    ----------
    skipped
        Receives what was skipped.
    rules
        Schedule rules in order; by default TVM's for CUDA.

    Returns
    -------
    tvm.transform.Pass
        Schedules every PrimFunc that is not scheduled yet, for the current target.
    """

    def schedule(module: Any, _: Any) -> Any:
        chosen = rules or default_rules()
        for gvar, function in list(module.functions_items()):
            if not isinstance(function, tirx.PrimFunc):
                continue
            if function.attrs.get("tirx.is_scheduled", 0) == 1:
                continue
            target = function.attrs.get("target") or tvm.target.Target.current(allow_none=False)
            name = str(gvar.name_hint)
            found = _first_schedule(name, function, target, chosen, skipped)
            if found is not None:
                scheduled = found.mod["main"].with_attr("tirx.is_scheduled", True)
                module[gvar] = scheduled
        return module

    return tvm.transform.module_pass(schedule, opt_level=0, name="GuardedDefaultSchedule")
