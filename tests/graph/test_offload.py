"""The pass: same numbers after it, whatever the form, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_vibegemm.errors import DeviceError, InputError
from tvm_vibegemm.graph import VibeGEMMOffload
from tvm_vibegemm.graph.report import read_report
from tvm_vibegemm.tuning.decision import Decision
from tvm_vibegemm.workload import Workload

from .helpers import (
    CPU,
    KERNEL,
    StubDatabase,
    apply,
    build,
    check,
    execute,
    inputs_of,
    use,
    with_codegen,
)

op = relax.op


def kernels(mod: Any) -> Any:
    return [f for f in mod.functions.values() if (f.attrs or {}).get("Codegen") == "vibegemm"]


def workloads(report: Any) -> Any:
    return [site.workload for site in report]


def swapped(x: Any) -> Any:
    rank = x.ty.ndim
    return op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2])


# -- numbers -----------------------------------------------------------------------------------

OPERANDS = [
    ((4, 8), (8, 16)),
    ((8,), (8, 16)),
    ((4, 8), (8,)),
    ((8,), (8,)),
    ((8,), (3, 8, 16)),
    ((3, 4, 8), (8,)),
    ((2, 3, 8), (8, 16)),
    ((2, 3, 8), (1, 8, 16)),
    ((2, 3, 8), (2, 8, 16)),
    ((2, 1, 3, 8), (1, 5, 8, 16)),
    ((3, 8), (2, 5, 8, 16)),
    ((5, 3, 8), (2, 1, 8, 16)),
]


LAYOUTS = [
    (a, b, x + y)
    for a, b in OPERANDS
    for x in ("nt" if len(a) > 1 else "n")
    for y in ("nt" if len(b) > 1 else "n")
]


@pytest.mark.parametrize(("a", "b", "layout"), LAYOUTS)
def test_operand_forms(a: Any, b: Any, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(shape: Any, letter: Any) -> Any:
        return (*shape[:-2], shape[-1], shape[-2]) if letter == "t" and len(shape) > 1 else shape

    def body(x: Any, y: Any) -> Any:
        x = swapped(x) if layout[0] == "t" and len(a) > 1 else x
        y = swapped(y) if layout[1] == "t" and len(b) > 1 else y
        return op.matmul(x, y)

    shapes = {"x": (stored(a, layout[0]), "float32"), "y": (stored(b, layout[1]), "float32")}
    mod, report = check(build(shapes, body), monkeypatch)
    assert [site.decision for site in report] == ["kernel"]
    assert not calls(mod, "relax.permute_dims")
    assert not calls(mod, "relax.matmul")


def calls(mod: Any, name: Any, function: Any = "main") -> Any:
    found = []

    def visit(expr: Any) -> Any:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op) and expr.op.name == name:
            found.append(expr)

    relax.analysis.post_order_visit(mod[function], visit)
    return found


STEPS = ("bias", "residual", "relu", "gelu", "gelu_tanh", "silu", "scale", "divide", "reshape")


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=5),
    dtype=st.sampled_from(["float32", "float16"]),
    cast=st.sampled_from([None, "float32", "float16"]),
    swap=st.booleans(),
    transposed=st.booleans(),
    workspace=st.sampled_from([0, 64]),
)
def test_random_chain(
    steps: Any, dtype: Any, cast: Any, swap: Any, transposed: Any, workspace: Any
) -> None:
    shape, flat = (2, 3, 16), [False]
    parameters = {"x": ((2, 3, 8), dtype), "w": ((16, 8) if transposed else (8, 16), dtype)}
    is_flat = False
    for i, step in enumerate(steps):
        if step == "reshape":
            is_flat = not is_flat
        elif step == "bias":
            parameters[f"e{i}"] = ((16,), dtype)
        elif step == "residual":
            parameters[f"e{i}"] = ((6, 16) if is_flat else shape, dtype)

    def body(x: Any, w: Any, *operands: Any) -> Any:
        operands, now = list(operands), flat[0]
        y = op.matmul(x, swapped(w) if transposed else w)
        for step in steps:
            match step:
                case "bias" | "residual":
                    other = operands.pop(0)
                    y = op.add(other, y) if swap else op.add(y, other)
                case "scale":
                    y = op.multiply(y, relax.const(1.5, dtype))
                case "divide":
                    y = op.divide(y, relax.const(2.0, dtype))
                case "reshape":
                    now = not now
                    y = op.reshape(y, (6, 16) if now else shape)
                case _:
                    y = getattr(op.nn, step)(y)
        return op.astype(y, cast) if cast else y

    with pytest.MonkeyPatch.context() as monkeypatch:
        mod, report = check(build(parameters, body), monkeypatch, workspace=workspace)
    (site,) = report
    kinds = {"gelu": "gelu_erf", "divide": "scale"}
    wanted = [kinds.get(step, step) for step in steps if step != "reshape"]
    assert [x.kind for x in Workload.parse(site.workload).epilogue] == wanted
    assert not calls(mod, "relax.matmul")
    assert not calls(mod, "relax.add")


def test_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = build(
        {"x": ((4, 8), "bfloat16"), "w": ((16, 8), "bfloat16"), "b": ((16,), "bfloat16")},
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, swapped(w)), b)),
    )
    result = apply(mod, monkeypatch)
    inputs = inputs_of(mod)
    (got,) = execute(with_codegen(result), inputs)
    x, w, b = (value.astype("float64") for value in inputs)
    np.testing.assert_allclose(got.astype("float64"), np.maximum(x @ w.T + b, 0), 1e-2, 1e-2)


def test_feed_forward_as_bert_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both products of an onnxslim-ed feed-forward, with the reshapes it stands between."""

    def body(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        c = [relax.const(v, "float32") for v in (2**0.5, 1.0, 0.5)]
        h = op.reshape(op.add(b1, op.matmul(op.reshape(x, (6, 8)), w1)), (2, 3, 16))
        e = op.add(op.erf(op.divide(h, c[0])), c[1])
        g = op.multiply(op.multiply(h, e), c[2])
        y = op.reshape(op.add(b2, op.matmul(op.reshape(g, (6, 16)), w2)), (2, 3, 8))
        return op.add(x, y)

    bb = relax.BlockBuilder()
    shapes = {"x": (2, 3, 8), "w1": (8, 16), "b1": (16,), "w2": (16, 8), "b2": (8,)}
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    with bb.function("main", params):
        x, w1, b1, w2, b2 = params
        with bb.dataflow():
            h = bb.emit(op.matmul(bb.emit(op.reshape(x, (6, 8))), w1))
            h = bb.emit(op.reshape(bb.emit(op.add(b1, h)), (2, 3, 16)))
            e = bb.emit(op.erf(bb.emit(op.divide(h, relax.const(2**0.5, "float32")))))
            e = bb.emit(op.add(e, relax.const(1.0, "float32")))
            g = bb.emit(op.multiply(bb.emit(op.multiply(h, e)), relax.const(0.5, "float32")))
            y = bb.emit(op.matmul(bb.emit(op.reshape(g, (6, 16))), w2))
            y = bb.emit(op.reshape(bb.emit(op.add(b2, y)), (2, 3, 8)))
            out = bb.emit_output(op.add(x, y))
        bb.emit_func_output(out)
    _, report = check(bb.get(), monkeypatch)
    assert workloads(report) == [
        "vg1:f32.f32.f32.f32:nn:x1:m6:n16:k8:bias(f32)+gelu_erf",
        "vg1:f32.f32.f32.f32:nn:x1:m6:n8:k16:bias(f32)+residual(f32)",
    ]


@pytest.mark.parametrize("workspace", [0, 64])
def test_dynamic_rows(monkeypatch: pytest.MonkeyPatch, workspace: Any) -> None:
    b, n = (tvm.tirx.Var(name, "int64") for name in "bn")
    mod = build(
        {"x": ((b, n, 8), "float32"), "w": ((8, 16), "float32"), "r": ((b, n, 16), "float32")},
        lambda x, w, r: op.add(op.matmul(x, w), r),
    )
    for symbols in ({"b": 2, "n": 3}, {"b": 1, "n": 1}):
        _, report = check(mod, monkeypatch, symbols, workspace=workspace)
        assert workloads(report) == ["vg1:f32.f32.f32.f32:nn:x1:m*:n16:k8:residual(f32)"]


def test_dynamic_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of workspace may depend on M; the planner gets the expression."""
    n = tvm.tirx.Var("n", "int64")
    mod = build({"x": ((n, 8), "float32"), "w": ((8, 16), "float32")}, lambda x, w: op.matmul(x, w))
    _, report = check(mod, monkeypatch, {"n": 5}, workspace=n * 64)
    assert workloads(report) == ["vg1:f32.f32.f32.f32:nn:x1:m*:n16:k8:-"]


def test_reshape_by_a_shape_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32")) -> R.Tensor(
            (2, 2, 16), "float32"
        ):
            with R.dataflow():
                s = R.shape([2, 2, 16])
                y = R.reshape(R.matmul(x, w), s)
                z = R.nn.relu(y)
                R.output(z)
            return z

    _, report = check(Module, monkeypatch)
    assert workloads(report) == ["vg1:f32.f32.f32.f32:nn:x1:m4:n16:k8:relu"]


def test_function_inside_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32")) -> R.Tensor(
            (4, 16), "float32"
        ):
            @R.function
            def inner(y: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 16), "float32"):
                z = R.matmul(y, w)
                u = R.nn.relu(z)
                return u

            v = inner(x)
            return v

    result = apply(Module, monkeypatch)
    assert workloads(read_report(result)) == ["vg1:f32.f32.f32.f32:nn:x1:m4:n16:k8:relu"]
    x, w = inputs_of(Module)
    (got,) = execute(relax.transform.LambdaLift()(with_codegen(result)), [x, w])
    np.testing.assert_allclose(got, np.maximum(x @ w, 0), 1e-5, 1e-5)


def test_reshape_to_dynamic_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    b, n = (tvm.tirx.Var(name, "int64") for name in "bn")
    mod = build(
        {"x": ((b * n, 8), "float32"), "w": ((8, 16), "float32"), "r": ((b, n, 16), "float32")},
        lambda x, w, r: op.add(op.reshape(op.matmul(x, w), (b, n, 16)), r),
    )
    result = apply(mod, monkeypatch)
    # b and n cannot be read off x alone, but they can off the residual; the product comes first.
    assert read_report(result)[0].decision in ("kernel", "declined")


# -- the function that the code generator gets ----------------------------------------------------


def test_function_holds_the_site_and_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = build(
        {"x": ((8, 4), "float16"), "w": ((16, 8), "float16"), "bias_of_mine": ((16,), "float16")},
        lambda x, w, b: op.multiply(
            op.add(b, op.matmul(swapped(x), swapped(w))), relax.const(0.5, "float16")
        ),
    )
    result = apply(mod, monkeypatch)
    (function,) = kernels(result)
    site = json.loads(function.attrs["vibegemm.site"])
    assert site == {
        "workload": "vg1:f16.f16.f32.f16:tt:x1:m4:n16:k8:bias(f16)+scale",
        "scales": [0.5],
        "choices": [[None, "0" * 64, {}]],
        "arch": "sm_90",
        "device": "NVIDIA H200",
    }
    assert [[int(d) for d in p.ty.shape.values] for p in function.params] == [[8, 4], [16, 8], [16]]
    assert "bias_of_mine" not in function.script()
    # Without a code generator the composite's own operations run.
    inputs = inputs_of(mod)
    plain = tvm.IRModule(
        {
            gvar: f.without_attr("Codegen") if (f.attrs or {}).get("Codegen") else f
            for gvar, f in result.functions.items()
        }
    )
    np.testing.assert_allclose(
        execute(relax.transform.LambdaLift()(plain), inputs)[0].astype("float32"),
        execute(mod, inputs)[0].astype("float32"),
        1e-2,
        1e-2,
    )


def test_equal_sites_share_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any, w: Any, v: Any, b: Any) -> Any:
        y = op.matmul(x, w)
        z = op.matmul(x, v)
        return relax.Tuple([y, z, op.add(op.matmul(x, w), b)])

    mod = build(
        {
            "x": ((4, 8), "float32"),
            "w": ((8, 16), "float32"),
            "v": ((8, 16), "float32"),
            "b": ((16,), "float32"),
        },
        body,
    )
    result, report = check(mod, monkeypatch)
    assert len(report) == 3
    assert len(kernels(result)) == 2
    assert len({site.symbol for site in report}) == 2


def test_operand_order_keeps_functions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = op.add(op.add(op.matmul(x, w), b), r)
        z = op.add(op.add(op.matmul(x, w), r), b)
        return relax.Tuple([y, z])

    shapes = {"x": (4, 8), "w": (8, 16), "b": (16,), "r": (4, 16)}
    mod = build({name: (shape, "float32") for name, shape in shapes.items()}, body)
    result, _ = check(mod, monkeypatch)
    assert len(kernels(result)) == 2


def test_name_does_not_depend_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(names: Any) -> Any:
        return build(
            {names[0]: ((4, 8), "float32"), names[1]: ((8, 16), "float32")},
            lambda x, w: op.matmul(x, w),
        )

    one, two = (read_report(apply(make(names), monkeypatch)) for names in ("xw", "ab"))
    assert one == two


# -- composition -------------------------------------------------------------------------------


def linear(shape: Any = (4, 8)) -> Any:
    return build(
        {"x": (shape, "float32"), "w": ((16, 8), "float32"), "b": ((16,), "float32")},
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, swapped(w)), b)),
    )


def test_input_module_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = linear()
    text = mod.script()
    apply(mod, monkeypatch)
    assert mod.script() == text


def test_twice_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = apply(linear(), monkeypatch)
    twice = apply(once, monkeypatch)
    assert read_report(once) == read_report(twice)
    tvm.ir.assert_structural_equal(once, twice)


@pytest.mark.parametrize("first", [True, False])
def test_lift_transform_params(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = linear()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    lift = relax.transform.LiftTransformParams()
    result = lift(apply(mod, monkeypatch)) if first else apply(lift(mod), monkeypatch)
    assert [site.decision for site in read_report(result)] == ["kernel"]
    x, w, b = inputs_of(linear())
    with CPU:
        machine = relax.VirtualMachine(tvm.compile(with_codegen(result), target=CPU), tvm.cpu())
    params = machine["main_transform_params"]([tvm.runtime.tensor(v) for v in (w, b)])
    got = machine["main"](tvm.runtime.tensor(x), *params).numpy()
    np.testing.assert_allclose(got, np.maximum(x @ w.T + b, 0), 1e-5, 1e-5)


def test_outside_dataflow_and_convert_to_dataflow(monkeypatch: pytest.MonkeyPatch) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32")) -> R.Tensor(
            (4, 16), "float32"
        ):
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            return z

    result, report = check(Module, monkeypatch)
    assert [Workload.parse(s.workload).epilogue[0].kind for s in report] == ["relu"]
    after = relax.transform.ConvertToDataflow()(result)
    relax.analysis.well_formed(after)
    _, again = check(relax.transform.ConvertToDataflow()(Module), monkeypatch)
    assert again == report


def test_branches_and_several_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((4, 8), "float16"), w: R.Tensor((8, 16), "float16"), c: R.Tensor((), "bool")
        ) -> R.Tensor((4, 16), "float32"):
            if c:
                y = R.matmul(x, w, out_dtype="float32")
                out = R.nn.relu(y)
            else:
                z = R.matmul(x, w)
                out = R.astype(z, "float32")
            return out

        @R.function
        def other(x: R.Tensor((4, 8), "float16"), w: R.Tensor((8, 16), "float16")) -> R.Tensor(
            (4, 16), "float16"
        ):
            with R.dataflow():
                y = R.nn.relu(R.matmul(x, w))
                R.output(y)
            return y

    result = apply(Module, monkeypatch)
    keys = workloads(read_report(result))
    assert keys == [
        "vg1:f16.f16.f32.f32:nn:x1:m4:n16:k8:relu",
        "vg1:f16.f16.f32.f32:nn:x1:m4:n16:k8:-",
        "vg1:f16.f16.f32.f16:nn:x1:m4:n16:k8:relu",
    ]
    x, w = inputs_of(Module, function="other")
    run = with_codegen(result)
    product = x.astype("float32") @ w.astype("float32")
    for condition, want in ((True, np.maximum(product, 0)), (False, product)):
        (got,) = execute(run, [x, w, np.array(condition)])
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    np.testing.assert_allclose(execute(run, [x, w], "other")[0], np.maximum(product, 0), 1e-2, 1e-2)


def test_lowered_matmul_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = relax.transform.LegalizeOps()(linear())
    result = apply(mod, monkeypatch)
    (site,) = read_report(result)
    assert (site.decision, site.workload) == ("declined", None)
    assert "call_tir" in site.reason


def test_permute_with_other_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any, w: Any) -> Any:
        t = op.permute_dims(w, [1, 0])
        return relax.Tuple([op.matmul(x, t), t])

    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((16, 8), "float32"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            t = bb.emit(op.permute_dims(w, [1, 0]))
            y = bb.emit(op.matmul(x, t))
            out = bb.emit_output(relax.Tuple([y, op.add(t, t)]))
        bb.emit_func_output(out)
    result, report = check(bb.get(), monkeypatch)
    assert len(calls(result, "relax.permute_dims")) == 1
    assert ":nt:" in report[0].workload


def test_overwriting_between_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved over an operation with side effects."""

    @I.ir_module
    class Module:
        @R.function(pure=False)
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32")) -> R.Tensor(
            (4, 16), "float32"
        ):
            y = R.matmul(x, w)
            _ = R.call_packed("test.scribble", x, ty_args=R.Tuple())
            z = R.nn.relu(y)
            return z

    result = apply(Module, monkeypatch)
    (site,) = read_report(result)
    assert site.workload.endswith(":-")
    assert "side effects" in site.chain_end


# -- decisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["metaschedule", "reference"])
def test_other_decisions_leave_the_graph(decision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = linear()
    result = apply(mod, monkeypatch, lambda *_, **__: Decision(decision, "slower", 3.0, ()))
    assert read_report(result)[0].decision == decision
    assert read_report(result)[0].reason == "slower"
    tvm.ir.assert_structural_equal(result["main"], mod["main"])
    assert len(result.functions) == 1


def test_decided_once_a_workload_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def decide(workload: Any, device: Any, database: Any, **options: Any) -> Any:
        asked.append((workload.key, device.arch, options))
        return KERNEL

    def body(x: Any, w: Any, v: Any) -> Any:
        return relax.Tuple([op.matmul(x, w), op.matmul(x, v)])

    shapes = {"x": (4, 8), "w": (8, 16), "v": (8, 16)}
    mod = build({name: (shape, "float32") for name, shape in shapes.items()}, body)
    generated = []
    apply(
        mod,
        monkeypatch,
        decide,
        select="valid",
        fallback="reference",
        generate=lambda workload, device: generated.append(workload.key),
    )
    key = "vg1:f32.f32.f32.f32:nn:x1:m4:n16:k8:-"
    assert asked == [(key, "sm_90", {"select": "valid", "fallback": "reference"})]
    assert generated == [key]


def test_generate_is_not_asked_for_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Measured:
        subject = "kernel"

    monkeypatch.setattr(
        "graph.helpers.StubDatabase.accepted", lambda *_: {("NVIDIA H200", "run"): [Measured()]}
    )
    generated = []
    apply(linear(), monkeypatch, generate=lambda *args: generated.append(args))
    assert generated == []


# -- targets -----------------------------------------------------------------------------------


def offloaded_for(mod: Any, monkeypatch: pytest.MonkeyPatch, target: Any) -> Any:
    use(monkeypatch, None)
    result = VibeGEMMOffload(target=target, database=StubDatabase())(mod)
    (function,) = kernels(result)
    site = json.loads(function.attrs["vibegemm.site"])
    return site["arch"], site["device"]


@pytest.mark.parametrize(
    "target",
    [
        "sm_90",
        "sm_90a",
        {"kind": "cuda", "arch": "sm_90a"},
        tvm.target.Target({"kind": "cuda", "arch": "sm_90"}),
    ],
)
def test_target_argument(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offloaded_for(linear(), monkeypatch, target) == ("sm_90", "NVIDIA H200")


def test_current_target(monkeypatch: pytest.MonkeyPatch) -> None:
    with tvm.target.Target({"kind": "cuda", "arch": "sm_80"}):
        assert offloaded_for(linear(), monkeypatch, None)[0] == "sm_80"
        assert offloaded_for(linear(), monkeypatch, "sm_90")[0] == "sm_90"


def test_target_of_the_vdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = linear()
    vdevice = relax.VDevice({"kind": "cuda", "arch": "sm_89"}, 0, "global")
    mod.update_global_info("vdevice", [vdevice])
    assert offloaded_for(mod, monkeypatch, None)[0] == "sm_89"


def test_local_gpu_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tvm_vibegemm.toolchain.local_device", lambda: ("sm_90", "NVIDIA H100 PCIe")
    )
    assert offloaded_for(linear(), monkeypatch, None) == ("sm_90", "NVIDIA H100 PCIe")


@pytest.mark.parametrize(
    "target", ["llvm", "sm_999", "nonsense", {"kind": "cuda", "arch": "sm_42"}, None]
)
def test_bad_target_is_one_line(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_vibegemm.toolchain.local_device", lambda: None)
    use(monkeypatch, None)
    with pytest.raises(DeviceError) as caught:
        VibeGEMMOffload(target=target)(linear())
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("options", [{"select": "fastest"}, {"fallback": "cublas"}])
def test_unknown_option(options: Any) -> None:
    with pytest.raises(InputError, match="known:"):
        VibeGEMMOffload(**options)
