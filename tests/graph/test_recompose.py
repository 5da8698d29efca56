"""Decomposed gelu and silu come back, in the forms that exporters write."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvm_vibegemm.graph.recompose import recompose

from .helpers import CPU, build, execute, inputs_of

op = relax.op
ROOT2 = math.sqrt(2.0)
ROOT_PI = math.sqrt(2 / math.pi)
SHAPE = (6, 16)


def forms(dtype: Any) -> Any:
    """Return decompositions by name: (activation, body)."""

    def c(value: Any) -> Any:
        return relax.const(np.asarray(value, "float32").astype(dtype), dtype)

    def m(*values: Any) -> Any:
        result = values[0]
        for value in values[1:]:
            result = op.multiply(result, value)
        return result

    def erf1(x: Any) -> Any:
        return op.add(op.erf(op.divide(x, c(ROOT2))), c(1.0))

    def cubic(x: Any) -> Any:
        return op.add(x, m(c(0.044715), op.power(x, c(3.0))))

    def cubic_products(x: Any) -> Any:
        return m(x, op.add(c(1.0), m(x, m(c(0.044715), x))))

    def tanh1(x: Any, inner: Any) -> Any:
        return op.add(c(1.0), op.tanh(m(c(ROOT_PI), inner(x))))

    return {
        "onnx": ("gelu", lambda x: m(m(x, erf1(x)), c(0.5))),
        "half_first": ("gelu", lambda x: m(m(x, c(0.5)), erf1(x))),
        "half_last": ("gelu", lambda x: m(c(0.5), m(x, erf1(x)))),
        "half_inside": ("gelu", lambda x: m(x, m(c(0.5), erf1(x)))),
        "times_root": (
            "gelu",
            lambda x: m(m(x, op.add(c(1.0), op.erf(m(x, c(1 / ROOT2))))), c(0.5)),
        ),
        "tvm": (
            "gelu",
            lambda x: m(x, op.add(c(0.5), m(op.erf(m(x, c(math.sqrt(0.5)))), c(0.5)))),
        ),
        "divide_by_two": ("gelu", lambda x: op.divide(m(x, erf1(x)), c(2.0))),
        "one_element": ("gelu", lambda x: m(m(x, erf1(x)), c([[0.5]]))),
        "reshaped": (
            "gelu",
            lambda x: m(m(op.reshape(x, (2, 3, 16)), op.reshape(erf1(x), (2, 3, 16))), c(0.5)),
        ),
        "tanh": ("gelu_tanh", lambda x: m(m(c(0.5), x), tanh1(x, cubic))),
        "tanh_products": ("gelu_tanh", lambda x: m(m(x, tanh1(x, cubic_products)), c(0.5))),
        "sigmoid_cubic": ("gelu_tanh", lambda x: m(x, op.sigmoid(m(c(2 * ROOT_PI), cubic(x))))),
        "silu": ("silu", lambda x: m(x, op.sigmoid(x))),
        "silu_swapped": ("silu", lambda x: m(op.sigmoid(x), x)),
        "silu_exp": ("silu", lambda x: op.divide(x, op.add(c(1.0), op.exp(op.negative(x))))),
    }


def names(mod: Any) -> Any:
    return [b.value.op.name for block in mod["main"].body.blocks for b in block.bindings]


NAMES = list(forms("float32"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_found(name: Any, dtype: Any) -> None:
    activation, body = forms(dtype)[name]
    mod = recompose(build({"x": (SHAPE, dtype)}, body))
    relax.analysis.well_formed(mod)
    reshape = ["relax.reshape"] if name == "reshaped" else []
    found = names(mod)
    assert found == [f"relax.nn.{activation}", *reshape] or (
        # There x is the reshaped tensor for one factor and the plain one for the other.
        reshape and sorted(found) == sorted([f"relax.nn.{activation}", *reshape])
    )


@pytest.mark.parametrize("name", ["onnx", "tvm", "tanh", "silu", "reshaped"])
def test_same_numbers(name: Any) -> None:
    _, body = forms("float32")[name]
    mod = build({"x": (SHAPE, "float32")}, body)
    (x,) = inputs_of(mod)
    x = x * 4
    (want,), (got,) = execute(mod, [x]), execute(recompose(mod), [x])
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["onnx", "tanh", "silu"])
def test_numerics_no_worse_in_half_precision(name: Any) -> None:
    """TVM's own form of the activation is as near to float64 as the decomposed one."""
    x = np.linspace(-12, 12, 96).reshape(SHAPE)
    activation, body = forms("float16")[name]
    mod = build({"x": (SHAPE, "float16")}, body)
    exact = {
        "gelu": lambda v: 0.5 * v * (1 + np.vectorize(math.erf)(v / ROOT2)),
        "gelu_tanh": lambda v: 0.5 * v * (1 + np.tanh(ROOT_PI * (v + 0.044715 * v**3))),
        "silu": lambda v: v / (1 + np.exp(-v)),
    }[activation](x.astype("float16").astype("float64"))
    (before,) = execute(mod, [x.astype("float16")])
    (after,) = execute(recompose(mod), [x.astype("float16")])
    errors = [np.abs(y.astype("float64") - exact).max() for y in (before, after)]
    assert np.isfinite(after.astype("float32")).all()
    assert errors[1] <= 1.5 * errors[0] + 1e-3


def c32(value: Any) -> Any:
    return relax.const(value, "float32")


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.multiply(
            op.multiply(x, op.add(op.erf(op.divide(x, c32(1.5))), c32(1.0))), c32(0.5)
        ),
        lambda x: op.multiply(x, op.add(op.erf(op.divide(x, c32(ROOT2))), c32(1.0))),
        lambda x: op.multiply(
            op.multiply(x, op.add(op.erf(op.divide(x, c32(ROOT2))), c32(2.0))), c32(0.5)
        ),
        lambda x: op.multiply(x, op.sigmoid(op.multiply(x, c32(1.702)))),
        lambda x: op.multiply(op.exp(x), op.sigmoid(x)),
        lambda x: op.divide(x, op.add(c32(1.0), op.exp(x))),
        lambda x: op.multiply(x, op.tanh(x)),
    ],
)
def test_near_misses_stay(body: Any) -> None:
    mod = build({"x": (SHAPE, "float32")}, body)
    assert recompose(mod) is mod


def test_gelu_of_something_else_stays() -> None:
    mod = build(
        {"x": (SHAPE, "float32"), "z": (SHAPE, "float32")},
        lambda x, z: op.multiply(
            op.multiply(z, op.add(op.erf(op.divide(x, c32(ROOT2))), c32(1.0))), c32(0.5)
        ),
    )
    assert recompose(mod) is mod


def test_broadcast_is_not_an_activation() -> None:
    mod = build(
        {"x": ((1, 16), "float32")},
        lambda x: op.multiply(op.reshape(x, (16, 1)), op.sigmoid(x)),
    )
    assert recompose(mod) is mod


def test_intermediate_read_elsewhere_stays() -> None:
    def body(x: Any) -> Any:
        gate = op.sigmoid(x)
        return op.add(op.multiply(x, gate), gate)

    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            gate = bb.emit(op.sigmoid(x))
            out = bb.emit_output(op.add(bb.emit(op.multiply(x, gate)), gate))
        bb.emit_func_output(out)
    mod = bb.get()
    assert recompose(mod) is mod


def test_input_that_is_itself_a_product() -> None:
    """The search for x does not run through the multiplication that makes it."""
    bb = relax.BlockBuilder()
    a, b = (relax.Var(n, relax.TensorType(SHAPE, "float32")) for n in "ab")
    with bb.function("main", [a, b]):
        with bb.dataflow():
            x = bb.emit(op.multiply(a, b))
            out = bb.emit_output(op.multiply(x, bb.emit(op.sigmoid(x))))
        bb.emit_func_output(out)
    assert names(recompose(bb.get())) == ["relax.multiply", "relax.nn.silu"]


def test_symbolic_shape_and_compile() -> None:
    import tvm

    n = tvm.tirx.Var("n", "int64")
    _, body = forms("float16")["onnx"]
    mod = recompose(build({"x": ((n, 16), "float16")}, body))
    assert names(mod) == ["relax.nn.gelu"]
    tvm.compile(mod, target=CPU)
