"""Which workload each form of a product asks for, or why it is declined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tvm_vibegemm.graph.grow import Chain, match
from tvm_vibegemm.graph.patterns import batch_map
from tvm_vibegemm.graph.reasons import ChainEnd, Decline
from tvm_vibegemm.graph.scope import Scope
from tvm_vibegemm.workload import BatchMap

from .helpers import build

op = relax.op


def outcomes(mod: Any) -> Any:
    scope = Scope(mod["main"])
    found = [match(scope, site) for site in scope.sites]
    return [x for x in found if x is not None]


def product_of(
    a: Any,
    b: Any,
    dtype: Any = "float16",
    out_dtype: Any = None,
    swap_a: Any = False,
    swap_b: Any = False,
) -> Any:
    def body(x: Any, y: Any) -> Any:
        def swapped(t: Any) -> Any:
            rank = t.ty.ndim
            return op.permute_dims(t, [*range(rank - 2), rank - 1, rank - 2])

        x = swapped(x) if swap_a else x
        y = swapped(y) if swap_b else y
        return op.matmul(x, y, out_dtype=out_dtype)

    (outcome,) = outcomes(build({"x": (a, dtype), "y": (b, dtype)}, body))
    return outcome


@pytest.mark.parametrize(
    ("a", "b", "options", "key"),
    [
        ((4, 8), (8, 16), {}, "f16:nn:x1:m4:n16:k8:-"),
        ((4, 8), (8, 16), {"dtype": "float32"}, "f32:nn:x1:m4:n16:k8:-"),
        ((4, 8), (8, 16), {"dtype": "bfloat16"}, "bf16:nn:x1:m4:n16:k8:-"),
        ((8,), (8, 16), {}, "f16:nn:x1:m1:n16:k8:-"),
        ((4, 8), (8,), {}, "f16:nn:x1:m4:n1:k8:-"),
        ((8,), (8,), {}, "f16:nn:x1:m1:n1:k8:-"),
        ((8,), (3, 8, 16), {}, "f16:nn:x3(a1/1):m1:n16:k8:-"),
        ((3, 4, 8), (8,), {}, "f16:nn:x1:m12:n1:k8:-"),
        ((8, 4), (8, 16), {"swap_a": True}, "f16:tn:x1:m4:n16:k8:-"),
        ((4, 8), (16, 8), {"swap_b": True}, "f16:nt:x1:m4:n16:k8:-"),
        ((8, 4), (16, 8), {"swap_a": True, "swap_b": True}, "f16:tt:x1:m4:n16:k8:-"),
        ((2, 3, 8), (8, 16), {}, "f16:nn:x1:m6:n16:k8:-"),
        ((2, 3, 8), (1, 8, 16), {}, "f16:nn:x1:m6:n16:k8:-"),
        ((2, 3, 8), (16, 8), {"swap_b": True}, "f16:nt:x1:m6:n16:k8:-"),
        ((2, 8, 3), (8, 16), {"swap_a": True}, "f16:tn:x2(b1/1):m3:n16:k8:-"),
        ((1, 8, 3), (8, 16), {"swap_a": True}, "f16:tn:x1:m3:n16:k8:-"),
        ((2, 5, 3, 8), (2, 5, 8, 16), {}, "f16:nn:x10:m3:n16:k8:-"),
        ((2, 1, 3, 8), (1, 5, 8, 16), {}, "f16:nn:x10(a5/2,b1/5):m3:n16:k8:-"),
        ((3, 8), (2, 5, 8, 16), {}, "f16:nn:x10(a1/1):m3:n16:k8:-"),
        ((5, 3, 8), (2, 1, 8, 16), {}, "f16:nn:x10(a1/5,b5/2):m3:n16:k8:-"),
        ((2, 3, 8), (2, 16, 8), {"swap_b": True}, "f16:nt:x2:m3:n16:k8:-"),
        ((0, 8), (8, 16), {}, "f16:nn:x1:m0:n16:k8:-"),
        ((4, 0), (0, 16), {}, "f16:nn:x1:m4:n16:k0:-"),
        ((0, 3, 8), (0, 8, 16), {}, "f16:nn:x0:m3:n16:k8:-"),
    ],
)
def test_product(a: Any, b: Any, options: Any, key: Any) -> None:
    dtype, rest = key.split(":", 1)
    outcome = product_of(a, b, **options)
    assert isinstance(outcome, Chain)
    assert outcome.workload.key == f"vg1:{dtype}.{dtype}.f32.{dtype}:{rest}"


def test_output_type_of_its_own() -> None:
    outcome = product_of((4, 8), (8, 16), out_dtype="float32")
    assert outcome.workload.key == "vg1:f16.f16.f32.f32:nn:x1:m4:n16:k8:-"


def symbols(*names: Any) -> Any:
    return [tvm.tirx.Var(name, "int64") for name in names]


def test_dynamic_rows() -> None:
    n, b = symbols("n", "b")
    assert product_of((n, 8), (8, 16)).workload.m is None
    flat = product_of((b, n, 8), (8, 16)).workload
    assert (flat.m, flat.batch) == (None, 1)
    batched = product_of((3, n, 8), (3, 8, 16)).workload
    assert (batched.m, batched.batch) == (None, 3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda n: product_of((4, 8), (8, 16), dtype="float64"), Decline.DTYPE),
        (lambda n: product_of((4, 8), (8, 16), dtype="int8", out_dtype="int32"), Decline.DTYPE),
        (lambda n: product_of((4, 8), (8, n)), Decline.SYMBOLIC_NK),
        (lambda n: product_of((4, n), (n, 8)), Decline.SYMBOLIC_NK),
        (lambda n: product_of((n, 4, 8), (n, 8, 16)), Decline.SYMBOLIC_BATCH),
        (lambda n: product_of((n, 8, 4), (8, 16), swap_a=True), Decline.SYMBOLIC_BATCH),
        (lambda n: product_of((3, 1, 5, 4, 8), (3, 2, 5, 8, 16)), Decline.BATCH_BROADCAST),
        (lambda n: product_of((n + 1, 8), (8, 16)), Decline.NOT_INFERABLE),
    ],
)
def test_declined(make: Any, reason: Any) -> None:
    (n,) = symbols("n")
    assert make(n) is reason


def test_unknown_shape_is_declined() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dtype="float16", ndim=2))
    w = relax.Var("w", relax.TensorType([8, 16], "float16"))
    with bb.function("main", [x, w]):
        bb.emit_func_output(bb.emit(op.matmul(x, w)))
    assert outcomes(bb.get()) == [Decline.UNKNOWN_SHAPE]


def test_tensor_on_another_device_is_declined() -> None:
    cpu = relax.VDevice("llvm")
    x = relax.Var("x", relax.TensorType([4, 8], "float16", cpu))
    w = relax.Var("w", relax.TensorType([8, 16], "float16", cpu))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        bb.emit_func_output(bb.emit(op.matmul(x, w)))
    assert outcomes(bb.get()) == [Decline.OTHER_DEVICE]


@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=4).flatmap(
        lambda full: st.tuples(
            st.just(full), st.lists(st.booleans(), min_size=len(full), max_size=len(full))
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_batch_map_is_numpy_broadcasting(case: Any) -> None:
    full, kept = case
    own = tuple(x if keep else 1 for x, keep in zip(full, kept, strict=True))
    numbers = np.arange(int(np.prod(own, dtype=int))).reshape(own)
    wanted = np.broadcast_to(numbers, full).reshape(-1)
    found = batch_map(own, tuple(full))
    if found is None:
        # Then there is no such map: search them all.
        maps = [
            BatchMap(d, m) for d in range(1, wanted.size + 1) for m in range(1, wanted.size + 1)
        ]
        assert not any(
            [(i // x.div) % x.mod for i in range(wanted.size)] == wanted.tolist() for x in maps
        )
    else:
        assert [(i // found.div) % found.mod for i in range(wanted.size)] == wanted.tolist()
        assert found.mod == numbers.size


# -- chains ------------------------------------------------------------------------------------


def chain_of(body: Any, **more: Any) -> Any:
    parameters = {"x": ((2, 3, 8), "float16"), "w": ((8, 16), "float16")}
    parameters |= {name: (shape, "float16") for name, shape in more.items()}
    (outcome,) = outcomes(build(parameters, body))
    assert isinstance(outcome, Chain)
    return outcome


def const(value: Any, dtype: Any = "float16") -> Any:
    return relax.const(value, dtype)


@pytest.mark.parametrize(
    ("body", "more", "epilogue", "out"),
    [
        (lambda y, b: op.add(y, b), {"b": (16,)}, "bias(f16)", "f16"),
        (lambda y, b: op.add(b, y), {"b": (1, 1, 16)}, "bias(f16)", "f16"),
        (lambda y, r: op.add(y, r), {"r": (2, 3, 16)}, "residual(f16)", "f16"),
        (lambda y, r: op.add(r, y), {"r": (1, 2, 3, 16)}, "residual(f16)", "f16"),
        (lambda y: op.nn.relu(y), {}, "relu", "f16"),
        (lambda y: op.nn.gelu(y), {}, "gelu_erf", "f16"),
        (lambda y: op.nn.gelu_tanh(y), {}, "gelu_tanh", "f16"),
        (lambda y: op.nn.silu(y), {}, "silu", "f16"),
        (lambda y: op.multiply(const(0.5), y), {}, "scale", "f16"),
        (lambda y: op.divide(y, const([[4.0]])), {}, "scale", "f16"),
        (lambda y: op.astype(y, "float32"), {}, "-", "f32"),
        (lambda y: op.nn.relu(op.astype(y, "bfloat16")), {}, "-", "bf16"),
        (lambda y: op.nn.relu(op.astype(y, "float32")), {}, "relu", "f32"),
        (
            lambda y, b: op.nn.silu(op.reshape(op.add(y, b), (6, 16))),
            {"b": (16,)},
            "bias(f16)+silu",
            "f16",
        ),
        (lambda y, b: op.add(op.reshape(y, (6, 16)), b), {"b": (6, 16)}, "residual(f16)", "f16"),
        (lambda y, b: op.add(op.reshape(y, (3, 32)), b), {"b": (32,)}, "-", "f16"),
        (lambda y: op.divide(const(2.0), y), {}, "-", "f16"),
        (lambda y: op.divide(y, const(0.0)), {}, "-", "f16"),
        (lambda y: op.multiply(y, const(float("inf"))), {}, "-", "f16"),
        (lambda y, b: op.add(y, b), {"b": (3, 16)}, "-", "f16"),
        (lambda y, b: op.add(y, b), {"b": (3, 1)}, "-", "f16"),
        (lambda y, b: op.add(y, b), {"b": (1,)}, "-", "f16"),
        (lambda y, b: op.multiply(y, b), {"b": (16,)}, "-", "f16"),
        (lambda y, b: op.add(y, b), {"b": (5, 2, 3, 16)}, "-", "f16"),
        (lambda y: op.exp(y), {}, "-", "f16"),
        (lambda y: op.add(y, y), {}, "-", "f16"),
    ],
)
def test_follower(body: Any, more: Any, epilogue: Any, out: Any) -> None:
    chain = chain_of(lambda x, w, *rest: body(op.matmul(x, w), *rest), **more)
    assert chain.workload.key == f"vg1:f16.f16.f32.{out}:nn:x1:m6:n16:k8:{epilogue}"


def test_chain_says_why_it_ends() -> None:
    ends = {
        ChainEnd.OUTPUT: lambda y: op.nn.relu(y),
        ChainEnd.USED_ELSEWHERE: lambda y: op.add(y, y),
        ChainEnd.NOT_FUSIBLE: lambda y: op.exp(y),
        ChainEnd.CAST: lambda y: op.nn.relu(op.astype(y, "bfloat16")),
        ChainEnd.RESHAPE: lambda y: op.nn.relu(op.reshape(y, (96,))),
        ChainEnd.DTYPE: lambda y: op.astype(y, "float64"),
    }
    for end, body in ends.items():
        assert chain_of(lambda x, w, body=body: body(op.matmul(x, w))).end is end


def test_scale_factors_in_order() -> None:
    chain = chain_of(
        lambda x, w: op.divide(op.nn.relu(op.multiply(op.matmul(x, w), const(3.0))), const(4.0))
    )
    assert [step.value for step in chain.workload.epilogue] == [3.0, None, 0.25]
