"""Plan expressions: ``ceildiv(M, BM) * batch`` and the like, as numbers or as TIR.

An expression is parsed with :mod:`ast` against an allow-list and walked by our own code; it is
never evaluated as Python. The same walk gives a number where every name is one, and a TIR
expression where M is a TIR variable (dynamic M).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ..errors import PlanError

MAX_LENGTH = 1000
MAX_DEPTH = 100
_LIMIT = 1 << 62

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.FloorDiv: lambda x, y: x // y,
    ast.Mod: lambda x, y: x % y,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda x, y: x == y,
    ast.NotEq: lambda x, y: x != y,
    ast.Lt: lambda x, y: x < y,
    ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y,
    ast.GtE: lambda x, y: x >= y,
}
FUNCTIONS = ("ceildiv", "min", "max", "roundup")


@cache
def parse(text: str) -> ast.expr:
    """Parse an expression and check it against the allow-list.

    Parameters
    ----------
    text
        Integers, names, ``+ - * // %``, comparisons, ``and or not``, ``x if c else y``, and the
        functions ``ceildiv(x, y)``, ``roundup(x, multiple)``, ``min``, ``max``.

    Returns
    -------
    ast.expr
        The checked tree.

    Raises
    ------
    PlanError
        For anything else, named by its place.
    """
    if len(text) > MAX_LENGTH:
        raise PlanError(f"plan expression of {len(text)} characters: at most {MAX_LENGTH}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PlanError(f"plan expression {text!r}: not an expression ({error})") from error
    _check(tree, text, MAX_DEPTH)
    return tree


def _check(node: ast.expr, text: str, depth: int) -> None:
    def bad(what: str) -> PlanError:
        return PlanError(f"plan expression {text!r}: {what} is not allowed")

    if depth == 0:
        raise bad(f"nesting deeper than {MAX_DEPTH}")
    children: list[ast.expr]
    match node:
        case ast.Constant(value=bool()):
            return
        case ast.Constant(value=int(value)):
            if abs(value) > _LIMIT:
                raise bad(f"the number {value}")
            return
        case ast.Name():
            return
        case ast.BinOp():
            if type(node.op) not in _BINARY:
                raise bad(f"the operator {type(node.op).__name__} (use // for division)")
            children = [node.left, node.right]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            children = [node.operand]
        case ast.Compare():
            if any(type(op) not in _COMPARE for op in node.ops):
                raise bad("that comparison")
            children = [node.left, *node.comparators]
        case ast.BoolOp():
            children = node.values
        case ast.IfExp():
            children = [node.test, node.body, node.orelse]
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS and not node.keywords:
            if name in ("ceildiv", "roundup") and len(node.args) != 2:
                raise bad(f"{name} with {len(node.args)} arguments")
            if not node.args:
                raise bad(f"{name}()")
            children = list(node.args)
        case _:
            raise bad(type(node).__name__)
    for child in children:
        _check(child, text, depth - 1)


def names(text: str) -> set[str]:
    """Return the variable names that an expression uses."""
    return {
        node.id
        for node in ast.walk(parse(text))
        if isinstance(node, ast.Name) and node.id not in FUNCTIONS
    }


def evaluate(text: str | int, env: Mapping[str, Any]) -> Any:
    """Evaluate an expression.

    Parameters
    ----------
    text
        The expression; a plain integer stands for itself.
    env
        Value of each name: integers, or TIR expressions (then the result is TIR too).

    Returns
    -------
    int, bool or tvm PrimExpr
        The value.

    Raises
    ------
    PlanError
        For an unknown name, a division by zero, or a number that is out of range.
    """
    if isinstance(text, int):
        return _bounded(text, text)
    try:
        value = _walk(parse(text), env)
    except KeyError as error:
        raise PlanError(
            f"plan expression {text!r}: unknown name {error.args[0]!r}; known: "
            + ", ".join(sorted(env))
        ) from error
    except ZeroDivisionError as error:
        raise PlanError(f"plan expression {text!r}: division by zero") from error
    return _bounded(value, text)


def _bounded(value: Any, text: str | int) -> Any:
    if isinstance(value, int) and abs(value) > _LIMIT:
        raise PlanError(f"plan expression {str(text)[:80]!r}: its value is out of range")
    return value


def _symbolic(*values: Any) -> bool:
    return any(not isinstance(value, int) for value in values)


def _walk(node: ast.expr, env: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return env[node.id]
        case ast.BinOp():
            left, right = _walk(node.left, env), _walk(node.right, env)
            return _BINARY[type(node.op)](_number(left), _number(right))
        case ast.UnaryOp(op=ast.USub()):
            return -_number(_walk(node.operand, env))
        case ast.UnaryOp():
            return _not(_walk(node.operand, env))
        case ast.Compare():
            operands = [_number(_walk(x, env)) for x in (node.left, *node.comparators)]
            tests = [
                _COMPARE[type(op)](x, y)
                for op, x, y in zip(node.ops, operands, operands[1:], strict=False)
            ]
            return _all(tests)
        case ast.BoolOp():
            values = [_walk(value, env) for value in node.values]
            return _all(values) if isinstance(node.op, ast.And) else _any(values)
        case ast.IfExp():
            return _select(
                _walk(node.test, env),
                lambda: _walk(node.body, env),
                lambda: _walk(node.orelse, env),
            )
        case ast.Call(func=ast.Name(id=name)):
            return _call(name, [_number(_walk(arg, env)) for arg in node.args])
    raise AssertionError(ast.dump(node))  # parse() lets nothing else through


def _call(name: str, args: list[Any]) -> Any:
    if name == "ceildiv":
        return (args[0] + args[1] - 1) // args[1]
    if name == "roundup":
        return (args[0] + args[1] - 1) // args[1] * args[1]
    if not _symbolic(*args):
        return (min if name == "min" else max)(args)
    from tvm import tirx

    fold = tirx.min if name == "min" else tirx.max
    result = args[0]
    for arg in args[1:]:
        result = fold(result, arg)
    return result


def _number(value: Any) -> Any:
    """Return a TIR condition as 0 or 1, as Python counts it; anything else as it is."""
    if isinstance(value, int) or str(value.ty) != "bool":
        return value
    from tvm import tirx

    return tirx.Cast("int64", value)


def _not(value: Any) -> Any:
    if not _symbolic(value):
        return not value
    from tvm import tirx

    return tirx.Not(truth(value))


def truth(value: Any) -> Any:
    """Return an expression's value as a condition: a number is true where it is not 0.

    Parameters
    ----------
    value
        What :func:`evaluate` gave: a number, or a TIR expression.

    Returns
    -------
    bool or tvm PrimExpr
        A Python bool, or a TIR expression of type bool.
    """
    if isinstance(value, int):
        return bool(value)
    value = value.asobject() if hasattr(value, "asobject") else value  # a deferred `==`
    return value if str(value.ty) == "bool" else (value != 0).asobject()


def _all(values: list[Any]) -> Any:
    known = [value for value in values if isinstance(value, int)]
    if not all(known):
        return False
    rest = [value for value in values if not isinstance(value, int)]
    if not rest:
        return True
    from tvm import tirx

    return tirx.all(*map(truth, rest))


def _any(values: list[Any]) -> Any:
    if any(value for value in values if isinstance(value, int)):
        return True
    rest = [value for value in values if not isinstance(value, int)]
    if not rest:
        return False
    from tvm import tirx

    return tirx.any(*map(truth, rest))


def _select(test: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    if not _symbolic(test):
        return then() if test else orelse()
    from tvm import tirx

    zero = tirx.const(0, "int64")
    return tirx.Select(truth(test), zero + _number(then()), zero + _number(orelse()))
