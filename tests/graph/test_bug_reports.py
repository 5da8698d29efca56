"""Faults that others' users have reported of such passes, each by its trigger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, topi
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_vibegemm.graph.report import read_report
from tvm_vibegemm.workload import Workload

from .helpers import Decision, apply, build, check, execute, with_codegen

op = relax.op


def module(body: Any, dtype: Any = "float32", **shapes: Any) -> Any:
    return build({name: (shape, dtype) for name, shape in shapes.items()}, body)


def kinds(report: Any) -> Any:
    return [[step.kind for step in Workload.parse(site.workload).epilogue] for site in report]


def assert_offloaded(mod: Any, report: Any, count: Any = 1) -> Any:
    """Report 32: a test of the pass must not pass because nothing was offloaded."""
    assert [site.decision for site in report] == ["kernel"] * count
    names = {site.symbol for site in report}
    assert names <= {str(gvar.name_hint) for gvar in mod.functions}
    assert "R.matmul" not in mod["main"].script()


def test_01_residual_is_no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w, r: op.add(op.matmul(x, w), r), x=(4, 8), w=(8, 16), r=(4, 16))
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)
    assert kinds(report) == [["residual"]]


def test_01_vector_along_m_is_no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where M = N only the place of the dimension tells."""
    mod = module(lambda x, w, b: op.add(op.matmul(x, w), b), x=(16, 8), w=(8, 16), b=(16, 1))
    result, report = check(mod, monkeypatch)
    assert kinds(report) == [[]]
    assert "R.add" in result["main"].script()


def test_02_bias_of_full_shape_is_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w, b: op.add(op.matmul(x, w), b), x=(1, 5, 8), w=(8, 16), b=(1, 5, 16))
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)
    assert kinds(report) == [["residual"]]


def test_02_bias_shared_by_the_batch_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w, b: op.add(op.matmul(x, w), b), x=(3, 5, 8), w=(8, 16), b=(1, 5, 16))
    _, report = check(mod, monkeypatch)
    assert kinds(report) == [[]]


def test_03_general_broadcast_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(
        lambda x, w, b: op.add(op.matmul(x, w), b), x=(2, 4, 4, 8), w=(8, 16), b=(2, 1, 1, 16)
    )
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)
    assert kinds(report) == [[]]


def test_04_operand_that_depends_on_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    bb = relax.BlockBuilder()
    params = [
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (4, 8)), ("w", (8, 16)))
    ]
    with bb.function("main", params):
        with bb.dataflow():
            y = bb.emit(op.matmul(*params))
            z = bb.emit(op.power(y, relax.const(2.0, "float32")))
            out = bb.emit_output(op.add(y, z))
        bb.emit_func_output(out)
    result, report = check(bb.get(), monkeypatch)
    assert_offloaded(result, report)
    assert kinds(report) == [[]]


def test_04_intermediate_that_is_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    bb = relax.BlockBuilder()
    params = [
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (4, 8)), ("w", (8, 16)))
    ]
    with bb.function("main", params):
        with bb.dataflow():
            y = bb.emit_output(op.matmul(*params))
            z = bb.emit_output(op.nn.relu(y))
        bb.emit_func_output(relax.Tuple([y, z]))
    result, report = check(bb.get(), monkeypatch)
    assert_offloaded(result, report)
    assert kinds(report) == [[]]


def mixed() -> Any:
    """Return a module that has a call of a TIR function between two products."""
    bb = relax.BlockBuilder()
    shapes = {"x": (4, 8), "w": (8, 16), "v": (16, 16)}
    params = [relax.Var(name, relax.TensorType(s, "float32")) for name, s in shapes.items()]
    with bb.function("main", params):
        x, w, v = params
        with bb.dataflow():
            y = bb.emit(op.matmul(x, w))
            z = bb.emit_te(topi.exp, y, primfunc_name_hint="mine")
            out = bb.emit_output(op.nn.relu(bb.emit(op.matmul(z, v))))
        bb.emit_func_output(out)
    return bb.get()


def test_05_call_tir_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = mixed()
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report, 2)
    assert kinds(report) == [[], ["relu"]]
    tvm.ir.assert_structural_equal(result["mine"], mod["mine"])


def test_05_composites_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = is_op("relax.nn.relu")(is_op("relax.matmul")(wildcard(), wildcard()))
    fuse = relax.transform.FuseOpsByPattern([("other.matmul", pattern)], annotate_codegen=True)
    mod = fuse(mixed())
    result = apply(mod, monkeypatch)
    reasons = [(site.decision, site.reason) for site in read_report(result)]
    assert [decision for decision, _ in reasons].count("kernel") == 1
    assert [decision for decision, _ in reasons].count("declined") == 1
    assert any("another code generator" in reason for _, reason in reasons)
    (name,) = (g for g, f in mod.functions.items() if (f.attrs or {}).get("Codegen") == "other")
    tvm.ir.assert_structural_equal(result[name.name_hint], mod[name.name_hint])


def test_05_fused_primitives_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w: op.nn.relu(op.matmul(x, w)), x=(4, 8), w=(8, 16))
    fused = tvm.ir.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
        ]
    )(mod)
    result = apply(fused, monkeypatch)
    assert "kernel" not in {site.decision for site in read_report(result)}


def constant(shape: Any, seed: Any = 0) -> Any:
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def test_06_transposed_constant_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = constant((16, 8))
    mod = module(lambda x: op.matmul(x, op.permute_dims(weight)), x=(4, 8))
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)
    assert ":nt:" in report[0].workload
    assert "permute_dims" not in result["main"].script()


def test_06_fold_constant_before(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = constant((16, 8))
    mod = module(lambda x: op.matmul(x, op.permute_dims(weight)), x=(4, 8))
    _, report = check(relax.transform.FoldConstant()(mod), monkeypatch)
    assert [site.decision for site in report] == ["kernel"]


def test_07_shared_weight_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = constant((16, 8))
    bb = relax.BlockBuilder()
    for name, rows in (("prefill", 32), ("decode", 1)):
        x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
        with bb.function(name, [x]):
            with bb.dataflow():
                out = bb.emit_output(op.matmul(x, bb.emit(op.permute_dims(weight))))
            bb.emit_func_output(out)
    result = apply(bb.get(), monkeypatch)
    assert len(read_report(result)) == 2
    found = []

    def visit(expr: Any) -> Any:
        if isinstance(expr, tvm.ir.GenericConst):
            found.append(expr)

    for function in result.functions.values():
        relax.analysis.post_order_visit(function, visit)
    assert len(found) == 2
    assert all(each.same_as(weight) for each in found)
    x = np.ones((1, 8), "float32")
    want = x @ weight.value.numpy().T
    np.testing.assert_allclose(execute(with_codegen(result), [x], "decode")[0], want, 1e-4, 1e-4)


def test_08_biases_of_parallel_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any, w: Any, v: Any, b: Any, c: Any) -> Any:
        left = op.add(op.matmul(x, w), b)
        right = op.add(op.matmul(x, v), c)
        return op.concat([left, right], axis=0)

    mod = module(body, x=(2, 8), w=(8, 5), v=(8, 5), b=(1, 5), c=(2, 5))
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report, 2)
    assert kinds(report) == [["bias"], ["residual"]]


def test_09_three_dimensional_chain_with_flat_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(
        lambda x, w, v: op.matmul(op.nn.relu(op.matmul(x, w)), v), x=(2, 3, 8), w=(8, 16), v=(16, 4)
    )
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report, 2)
    assert [Workload.parse(site.workload).m for site in report] == [6, 6]


def test_10_one_pattern_not_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory grows with the number of runs."""
    import resource

    mod = module(
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, w), b)), x=(4, 8), w=(8, 16), b=(16,)
    )
    for _ in range(20):
        apply(mod, monkeypatch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        apply(mod, monkeypatch)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 20 * 1024


@pytest.mark.parametrize(("a", "b"), [((16,), (16, 32)), ((8, 16), (16,)), ((16,), (16,))])
def test_11_vectors(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result, report = check(module(lambda x, w: op.matmul(x, w), x=a, w=b), monkeypatch)
    assert_offloaded(result, report)


@pytest.mark.parametrize(("a", "b"), [((0, 2), (2,)), ((0, 2), (2, 3)), ((0, 3, 2), (0, 2, 4))])
def test_12_empty(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = apply(module(lambda x, w: op.matmul(x, w), x=a, w=b), monkeypatch)
    (site,) = read_report(result)
    assert Workload.parse(site.workload).is_empty


@pytest.mark.parametrize(("b", "batch"), [((8, 16), 1), ((1, 8, 16), 1), ((3, 8, 16), 3)])
def test_13_flattened_only_when_one_matrix_serves_all(
    b: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, report = check(module(lambda x, w: op.matmul(x, w), x=(3, 4, 8), w=b), monkeypatch)
    assert_offloaded(result, report)
    assert Workload.parse(report[0].workload).batch == batch


def test_13_batch_of_one_on_the_left(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w: op.matmul(x, w), x=(1, 4, 8), w=(3, 8, 16))
    _, report = check(mod, monkeypatch)
    assert ":x3(a1/1):" in report[0].workload


def test_14_symbol_that_no_shape_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    n = tvm.tirx.Var("n", "int64")
    mod = module(
        lambda s, x, w: relax.Tuple([op.nn.relu(op.matmul(x, w)), s]),
        s=(n,),
        x=(n + 1, 8),
        w=(8, 16),
    )
    (site,) = read_report(apply(mod, monkeypatch))
    assert site.decision == "declined"
    assert "symbolic" in site.reason


def test_14_symbol_in_the_reshape_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    b, n = (tvm.tirx.Var(name, "int64") for name in "bn")
    mod = module(
        lambda x, w, s: relax.Tuple([op.nn.relu(op.reshape(op.matmul(x, w), (b, n, 16))), s]),
        x=(b * n, 8),
        w=(8, 16),
        s=(b, n),
    )
    result = apply(mod, monkeypatch)
    relax.analysis.well_formed(with_codegen(result))
    (site,) = read_report(result)
    assert site.decision == "declined"


def test_15_alias_by_match_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32")) -> R.Tensor(
            (4, 16), "float32"
        ):
            y = R.matmul(x, w)
            z = R.match_cast(y, R.Tensor((4, 16), "float32"))
            u = R.add(z, R.const(1.0, "float32"))
            v = R.add(u, y)
            return v

    result, report = check(Module, monkeypatch)
    assert_offloaded(result, report)
    assert kinds(report) == [[]]


@pytest.mark.parametrize("c", [(), (1,), (16,), (4, 1), (1, 16), (4, 16), (1, 1)])
def test_16_17_gemm_bias_of_each_rank(c: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any, w: Any, b: Any) -> Any:
        scaled = op.multiply(op.matmul(x, op.permute_dims(w)), relax.const(0.5, "float32"))
        return op.add(scaled, op.multiply(b, relax.const(2.0, "float32")))

    mod = module(body, x=(4, 8), w=(16, 8), b=c)
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)
    taken = {(16,): "bias", (1, 16): "bias", (4, 16): "residual"}.get(c)
    assert kinds(report) == [["scale", taken] if taken else ["scale"]]


def test_16_zero_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(
        lambda x, w: op.multiply(op.matmul(x, w), relax.const(0.0, "float32")), x=(4, 8), w=(8, 16)
    )
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)


def test_17_one_element_bias_of_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w, b: op.add(op.matmul(x, w), b), x=(4, 8), w=(8, 1), b=(1,))
    _, report = check(mod, monkeypatch)
    assert kinds(report) == [["bias"]]
    vector = module(lambda x, w, r: op.add(op.matmul(x, w), r), x=(4, 8), w=(8,), r=(4,))
    _, report = check(vector, monkeypatch)
    assert kinds(report) == [["residual"]]


def test_18_integer_products_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w: op.matmul(x, w, out_dtype="int32"), "int8", x=(4, 8), w=(8, 16))
    (site,) = read_report(apply(mod, monkeypatch))
    assert site.decision == "declined"
    assert "float32" in site.reason


def test_22_only_swaps_of_the_last_two_dimensions_are_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A permutation that a kernel cannot read in place stays in the graph."""
    mod = module(lambda x, w: op.matmul(op.permute_dims(x, [1, 0, 2]), w), x=(3, 4, 8), w=(8, 16))
    result, report = check(mod, monkeypatch)
    assert_offloaded(result, report)
    assert "permute_dims" in result["main"].script()


def test_24_half_precision_accumulates_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(lambda x, w: op.matmul(x, w), "float16", x=(4, 8), w=(8, 16))
    (site,) = read_report(apply(mod, monkeypatch))
    assert Workload.parse(site.workload).acc == "f32"


def test_26_key_names_the_exact_arch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def decide(workload: Any, device: Any, database: Any, **options: Any) -> Any:
        seen.append(device.arch)
        return Decision("reference", "nothing measured", None, ())

    mod = module(lambda x, w: op.matmul(x, w), x=(4, 8), w=(8, 16))
    for target in ("sm_80", "sm_90", "sm_90a"):
        apply(mod, monkeypatch, decide, target=target)
    assert seen == ["sm_80", "sm_90", "sm_90"]
