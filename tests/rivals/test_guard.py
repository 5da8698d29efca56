"""Guarded schedules: an exception of a rule is reported, and the next rule serves."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.s_tir import dlight

from tvm_vibegemm.rivals.guard import Skipped, default_rules, guarded_schedules

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


class Throws:
    """A rule that cannot do anything, as dlight's Matmul rule at some convolutions."""

    def apply(self, func: object, target: object, tunable: bool) -> None:
        raise ValueError("first line\nno such loop\n")


class Passes:
    """A rule that has nothing for any function."""

    def apply(self, func: object, target: object, tunable: bool) -> None:
        return None


def lowered() -> tvm.IRModule:
    """Return a module of one element-wise PrimFunc and its caller."""
    x = relax.Var("x", relax.TensorType((64, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return relax.transform.LegalizeOps()(builder.get())


def scheduled(mod: tvm.IRModule) -> list[str]:
    functions = mod.functions_items()
    return [
        str(gvar.name_hint)
        for gvar, function in functions
        if isinstance(function, tvm.tirx.PrimFunc) and function.attrs.get("tirx.is_scheduled", 0)
    ]


def test_the_next_rule_serves_and_the_exception_is_reported() -> None:
    skipped: list[Skipped] = []
    with TARGET:
        result = guarded_schedules(skipped, [Throws(), Passes(), dlight.gpu.Fallback()])(lowered())
    assert scheduled(result) == ["tir_exp"]
    assert skipped == [Skipped("tir_exp", "Throws", "no such loop")]
    assert "threadIdx.x" in result["tir_exp"].script()


def test_no_rule_serves_leaves_the_function() -> None:
    skipped: list[Skipped] = []
    with TARGET:
        result = guarded_schedules(skipped, [Throws()])(lowered())
    assert scheduled(result) == []
    assert len(skipped) == 1


def test_a_scheduled_function_is_left_alone() -> None:
    before = lowered()
    before["tir_exp"] = before["tir_exp"].with_attr("tirx.is_scheduled", True)
    skipped: list[Skipped] = []
    with TARGET:
        result = guarded_schedules(skipped, [Throws()])(before)
    assert skipped == []
    tvm.ir.assert_structural_equal(result["tir_exp"], before["tir_exp"])


def test_same_as_tvm_where_nothing_throws() -> None:
    with TARGET:
        ours = guarded_schedules([])(lowered())
        theirs = dlight.ApplyDefaultSchedule(*default_rules())(lowered())
    tvm.ir.assert_structural_equal(ours["tir_exp"], theirs["tir_exp"])


def test_without_a_target_it_says_so() -> None:
    with pytest.raises(Exception, match=r"(?i)target"):
        guarded_schedules([])(lowered())
