"""Plan expressions: as numbers, as TIR, and whatever else someone may write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_vibegemm.errors import PlanError
from tvm_vibegemm.kernel import expr

GOOD = [
    "M",
    "ceildiv(M, 128) * N",
    "roundup(M, 16)",
    "M == 4",
    "M != 4 and M < 9",
    "not M",
    "not (M == 3)",
    "M and N",
    "M or 0",
    "min(M, 5)",
    "max(3, M, N)",
    "M if M else 3",
    "3 if M <= 4 else M",
    "1 < M < N",
    "(M > 3) * 5 + (M == 3)",
    "min(M < 3, 1) + -(not M)",
    "(M == 4) == (M < 9)",
    "M % 7 if M > 3 and not N == 4 else -M",
]


def test_numbers() -> None:
    env = {"M": 130, "BM": 128, "batch": 3}
    assert expr.evaluate("ceildiv(M, BM) * batch", env) == 6
    assert expr.evaluate("roundup(M, BM)", env) == 256
    assert expr.evaluate("min(M, BM) if batch > 1 else 0", env) == 128
    assert expr.evaluate("-7 // 2", env) == -4
    assert expr.evaluate(5, env) == 5


@pytest.mark.parametrize("text", GOOD)
def test_tir_agrees_with_numbers(text: str) -> None:
    tvm = pytest.importorskip("tvm")
    m = tvm.tirx.Var("m", "int64")
    symbolic = expr.evaluate(text, {"M": m, "N": 12})
    for value in (0, 1, 3, 4, 11, 100):
        number = expr.evaluate(text, {"M": value, "N": 12})
        if isinstance(symbolic, int):
            assert symbolic == number
            continue
        result = symbolic.asobject() if hasattr(symbolic, "asobject") else symbolic
        analyzer = tvm.sym.Analyzer()
        analyzer.bind(m, tvm.tirx.const(value, "int64"))
        assert int(analyzer.simplify(result).value) == int(number), (text, value)


BAD = [
    "-" * 999 + "1",
    "(" * 400 + "1" + ")" * 400,
    "not " * 240 + "1",
    "1" + "+1" * 499,
    "1 // 0",
    "1 % 0",
    "ceildiv(M, 0)",
    "9" * 500,
    "M" + "*4000000000" * 50,
    "M.x",
    "M[0]",
    "f(1)",
    "__import__('os')",
    "lambda: 1",
    "[1]",
    "1.5",
    "'a'",
    "2 ** 9",
    "1 << 3",
    "M := 3",
    "M / 2",
    "\0",
    "",
    "min()",
    "min(*M)",
    "min(1, key=M)",
    "ceildiv(1)",
    "ceildiv",
    "a if b",
    "unknown + 1",
    "x" * 2000,
]


@pytest.mark.parametrize("text", BAD)
def test_bad_expressions_are_plan_errors(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        expr.evaluate(text, {"M": 1})
    assert "\n" not in str(caught.value)


def test_large_plain_integer_is_out_of_range() -> None:
    with pytest.raises(PlanError, match="out of range"):
        expr.evaluate(10**30, {})


@given(st.text(alphabet="MN019+-*/%()<>=! ,andorifelsetcgmx._[]'", max_size=60))
def test_any_text_gives_a_number_or_a_plan_error(text: str) -> None:
    try:
        value = expr.evaluate(text, {"M": 5, "N": 0})
    except PlanError:
        return
    assert isinstance(value, int)


def test_names() -> None:
    assert expr.names("ceildiv(M, BM) + min(N, 4)") == {"M", "BM", "N"}
