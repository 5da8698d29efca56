"""Workload keys round trip; what is no workload is an InputError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import InputError
from tvm_vibegemm.workload import (
    DTYPES,
    EPILOGUE_KINDS,
    OPERAND_DTYPES,
    BatchMap,
    EpilogueOp,
    Workload,
    dtype_from_storage,
)

SIZE = st.integers(0, 10**12)


@st.composite
def epilogue_ops(draw: st.DrawFn) -> EpilogueOp:
    kind = draw(st.sampled_from(EPILOGUE_KINDS))
    dtype = draw(st.sampled_from(sorted(DTYPES))) if kind in ("bias", "residual") else None
    return EpilogueOp(kind, dtype)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    div, mod, rest = (draw(st.integers(1, 6)) for _ in range(3))
    batch = draw(st.sampled_from([1, 0, div * mod * rest]))
    maps = st.sampled_from([None, BatchMap(1, 1), BatchMap(div, mod)] if batch else [None])
    return Workload(
        m=draw(st.none() | SIZE),
        n=draw(SIZE),
        k=draw(SIZE),
        a=draw(st.sampled_from(OPERAND_DTYPES)),
        b=draw(st.sampled_from(OPERAND_DTYPES)),
        acc=draw(st.sampled_from(sorted(DTYPES))),
        out=draw(st.sampled_from(sorted(DTYPES))),
        trans_a=draw(st.booleans()),
        trans_b=draw(st.booleans()),
        batch=batch,
        a_batch=draw(maps) if batch != 1 else None,
        b_batch=draw(maps) if batch != 1 else None,
        epilogue=tuple(draw(st.lists(epilogue_ops(), max_size=5))),
    )


@given(workloads())
def test_key_round_trips(workload: Workload) -> None:
    assert Workload.parse(workload.key) == workload
    assert Workload.parse(workload.key).key == workload.key


@given(workloads(), workloads())
def test_keys_are_equal_only_for_equal_workloads(one: Workload, other: Workload) -> None:
    assert (one.key == other.key) == (one == other)


@given(st.text(max_size=60) | st.from_regex(r"vg1:[a-z0-9.:*()/,+x-]{0,60}", fullmatch=True))
def test_any_text_is_a_key_or_an_input_error(text: str) -> None:
    try:
        assert Workload.parse(text).key == text.strip()
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "vg2:f16.f16.f32.f16:nn:x1:m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x1:m01:n1:k1:-",
        "vg1:f99.f16.f32.f16:nn:x1:m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x1:m1:n1:k1:swish",
        "vg1:f16.f16.f32.f16:nn:x1:m1:n1:k1:bias",
        "vg1:f16.f16.f32.f16:nn:x1:m1:n1:k1:relu(f16)",
        "vg1:f16.f16.f32.f16:nn:x6(a0/2):m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x6(a2/0):m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x6(a1/4):m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x6(a1/6):m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x6(b1/1,a1/1):m1:n1:k1:-",
        "vg1:f16.f16.f32.f16:nn:x1:m１:n1:k1:-",
    ],
)
def test_bad_keys(key: str) -> None:
    with pytest.raises(InputError):
        Workload.parse(key)


def test_negative_sizes() -> None:
    for sizes in ((-1, 1, 1), (1, -1, 1), (1, 1, -1)):
        with pytest.raises(InputError, match="negative"):
            Workload(*sizes)


def test_costs() -> None:
    workload = Workload.parse("vg1:f16.f16.f32.f16:nn:x2(b1/1):m3:n5:k7:bias(f32)+residual(f16)")
    assert workload.flops() == 2 * 2 * 3 * 5 * 7
    parts = (2 * 3 * 7 * 2, 7 * 5 * 2, 2 * 3 * 5 * 2, 5 * 4, 2 * 3 * 5 * 2)
    assert workload.min_bytes() == sum(parts)
    assert workload.roofline_us(device_for("sm_90")) > 0
    with pytest.raises(InputError, match="dynamic"):
        Workload(None, 1, 1).flops()
    assert Workload(None, 1, 1).at(4).flops() == 8


def test_float32_is_never_tf32() -> None:
    assert dtype_from_storage("float32") == "f32"
    assert dtype_from_storage("float128") is None
