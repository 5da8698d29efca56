"""Puts decomposed activations back together: gelu (both forms) and silu.

Exporters write gelu as a handful of multiplications around ``erf`` or ``tanh``, in many orders.
Instead of one pattern for each, an expression is read as a polynomial over its input ``x`` and one
transcendental ``t`` of a polynomial in ``x``; equal functions then have equal coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax.expr import _update_type

from . import tensors
from .patterns import VIEWS
from .rewrite import Rewrite, map_functions, rewrite_function
from .scope import Scope, Site

# Exponents of (x, t) → coefficient.
Polynomial = dict[tuple[int, int], float]

_MAX_DEGREE = 4
_MAX_NODES = 40
# One rounding of a constant, and one more where constants were multiplied before.
_TOLERANCE = {"f32": 2e-5, "f16": 2e-3, "bf16": 8e-3}
_SIGMOID = "relax.sigmoid"
_TRANSCENDENTAL = ("relax.erf", "relax.tanh", _SIGMOID, "relax.exp")
_CUBIC = 0.044715
_ROOT = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class _Activation:
    """An activation in normal form: ``value`` over x and ``t = function(argument)``."""

    op: str
    function: str
    argument: Polynomial
    value: Polynomial


_HALF = {(1, 0): 0.5, (1, 1): 0.5}
_ACTIVATIONS = (
    _Activation("relax.nn.gelu", "relax.erf", {(1, 0): math.sqrt(0.5)}, _HALF),
    _Activation("relax.nn.gelu_tanh", "relax.tanh", {(1, 0): _ROOT, (3, 0): _ROOT * _CUBIC}, _HALF),
    # 0.5 (1 + tanh(z)) is sigmoid(2 z).
    _Activation(
        "relax.nn.gelu_tanh",
        _SIGMOID,
        {(1, 0): 2 * _ROOT, (3, 0): 2 * _ROOT * _CUBIC},
        {(1, 1): 1.0},
    ),
    _Activation("relax.nn.silu", _SIGMOID, {(1, 0): 1.0}, {(1, 1): 1.0}),
)


def recompose(mod: Any) -> Any:
    """Replace decomposed gelu and silu by ``R.nn.gelu``, ``R.nn.gelu_tanh`` and ``R.nn.silu``.

    Only where no intermediate value is read elsewhere. Functions of code generators are left
    alone.

    Parameters
    ----------
    mod : tvm.IRModule
        Left as it is.

    Returns
    -------
    tvm.IRModule
        The same object where there was nothing to do.
    """
    return map_functions(mod, _recompose_function)


def _recompose_function(function: Any) -> Any | None:
    scope = Scope(function)
    rewrite = Rewrite()
    reaches: dict[int, bool] = {}  # whether a transcendental is among what a variable is made of
    for site in scope.sites:
        value = site.binding.value
        name = tensors.op_name(value)
        if name in _TRANSCENDENTAL:
            reaches[tensors.key(site.binding.var)] = True
        elif name in _ALGEBRA or name in VIEWS:
            found = any(reaches.get(tensors.key(arg), False) for arg in value.args)
            reaches[tensors.key(site.binding.var)] = found
            if found and name in ("relax.multiply", "relax.divide"):
                match = _match(scope, site, rewrite.replace)
                if match is not None:
                    op, x, inner = match
                    for var in inner:
                        rewrite.drop.add(tensors.key(var))
                    rewrite.replace[tensors.key(site.binding.var)] = _activation(site, op, x)
                    reaches[tensors.key(site.binding.var)] = False
    return rewrite_function(function, rewrite) if rewrite.replace else None


def _activation(site: Site, op: str, x: Any) -> list[Any]:
    var = site.binding.var
    call = relax.Call(ir.Op.get(op), [x])
    _update_type(call, x.ty)
    mine, own = tensors.dims(x) or (), tensors.dims(var) or ()
    if len(mine) == len(own) and tensors.same_shape(mine, own):
        return [relax.VarBinding(var, call)]
    inner = (relax.DataflowVar if site.dataflow else relax.Var)(f"{var.name}_activation", x.ty)
    reshape = relax.op.reshape(inner, relax.ShapeExpr(var.ty.shape.values))
    _update_type(reshape, var.ty)
    return [relax.VarBinding(inner, call), relax.VarBinding(var, reshape)]


def _match(
    scope: Scope, root: Site, done: dict[int, list[Any]]
) -> tuple[str, Any, list[Any]] | None:
    """Return the activation that ``root`` computes, its input, and what lies between."""
    own = tensors.dtype(root.binding.var)
    if own not in _TOLERANCE or tensors.dims(root.binding.var) is None:
        return None
    for x in _candidates(scope, root, done):
        if tensors.dtype(x) != own or tensors.dims(x) is None:
            continue
        reader = _Reader(scope, root, x, done)
        try:
            value = reader.read_binding(root)
        except _NotPolynomialError:
            continue
        if reader.term is None or not reader.private():
            continue
        function, argument = reader.term
        for form in _ACTIVATIONS:
            if (
                form.function == function
                and _close(argument, form.argument, _TOLERANCE[own])
                and _close(value, form.value, _TOLERANCE[own])
            ):
                return form.op, x, [site.binding.var for site in reader.inner.values()]
    return None


def _candidates(scope: Scope, root: Site, done: dict[int, list[Any]]) -> Iterator[Any]:
    """Yield the variables below a transcendental of ``root``, outermost first: x is one."""
    seen: set[int] = set()
    queue = [(arg, False) for arg in root.binding.value.args]
    for _ in range(_MAX_NODES):
        if not queue:
            return
        expr, below = queue.pop(0)
        if not isinstance(expr, relax.Var):
            continue
        if below and tensors.key(expr) not in seen:
            seen.add(tensors.key(expr))
            yield expr
        site = scope.site(expr)
        if site is None or tensors.key(expr) in done:
            continue
        name = tensors.op_name(site.binding.value)
        if name in _ALGEBRA or name in VIEWS or name in _TRANSCENDENTAL:
            below = below or name in _TRANSCENDENTAL
            queue += [(arg, below) for arg in site.binding.value.args]


def _close(found: Polynomial, wanted: Polynomial, tolerance: float) -> bool:
    return found.keys() == wanted.keys() and all(
        abs(found[power] - value) <= tolerance * abs(value) for power, value in wanted.items()
    )


class _NotPolynomialError(Exception):
    """The expression has another form."""


@dataclass
class _Reader:
    """Reads an expression as a polynomial over ``x`` and one transcendental."""

    scope: Scope
    root: Site
    x: Any
    done: dict[int, list[Any]]
    term: tuple[str, Polynomial] | None = None
    inner: dict[int, Site] = field(default_factory=dict)
    _read: dict[int, Polynomial] = field(default_factory=dict)
    _reads: dict[int, int] = field(default_factory=dict)

    def private(self) -> bool:
        """Return True where nothing else reads the values in between."""
        return all(
            self.scope.uses(site.binding.var) == self._reads[name]
            for name, site in self.inner.items()
        )

    def read(self, expr: Any) -> Polynomial:
        if isinstance(expr, ir.GenericConst):
            value = tensors.scalar(expr)
            if value is None:
                raise _NotPolynomialError
            return {(0, 0): value} if value else {}
        if not isinstance(expr, relax.Var):
            raise _NotPolynomialError
        name = tensors.key(expr)
        if name == tensors.key(self.x):
            return {(1, 0): 1.0}
        self._reads[name] = self._reads.get(name, 0) + 1
        if name not in self._read:
            site = self.scope.site(expr)
            if (
                site is None
                or name in self.done
                or site.block != self.root.block
                or len(self.inner) >= _MAX_NODES
                or not self.scope.may_move(site, self.root)
            ):
                raise _NotPolynomialError
            self.inner[name] = site
            self._read[name] = self.read_binding(site)
        return self._read[name]

    def read_binding(self, site: Site) -> Polynomial:
        if not isinstance(site.binding, relax.VarBinding):
            raise _NotPolynomialError
        call = site.binding.value
        name = tensors.op_name(call) or ""
        shape = tensors.dims(call)
        if shape is None or tensors.dtype(call) != tensors.dtype(self.x):
            raise _NotPolynomialError
        if name in VIEWS:
            return self.read(call.args[0])
        # Broadcasting would make the flat order differ.
        for arg in call.args:
            own = tensors.dims(arg)
            if tensors.scalar(arg) is None and (own is None or not tensors.same_shape(own, shape)):
                raise _NotPolynomialError
        if name in _TRANSCENDENTAL:
            return self._transcend(name, self.read(call.args[0]))
        if name in _ALGEBRA:
            return _ALGEBRA[name](self, call.args)
        raise _NotPolynomialError

    def _transcend(self, name: str, argument: Polynomial) -> Polynomial:
        if any(t for _, t in argument) or self.term not in (None, (name, argument)):
            raise _NotPolynomialError
        self.term = (name, argument)
        return {(0, 1): 1.0}

    # -- algebra ---------------------------------------------------------------------------------

    def multiply(self, args: Any) -> Polynomial:
        return _times(self.read(args[0]), self.read(args[1]))

    def add(self, args: Any) -> Polynomial:
        return _plus(self.read(args[0]), self.read(args[1]), 1.0)

    def subtract(self, args: Any) -> Polynomial:
        return _plus(self.read(args[0]), self.read(args[1]), -1.0)

    def negative(self, args: Any) -> Polynomial:
        return _plus({}, self.read(args[0]), -1.0)

    def power(self, args: Any) -> Polynomial:
        exponent = tensors.scalar(args[1])
        if exponent is None or exponent not in (1.0, 2.0, 3.0, 4.0):
            raise _NotPolynomialError
        base = self.read(args[0])
        result = base
        for _ in range(int(exponent) - 1):
            result = _times(result, base)
        return result

    def divide(self, args: Any) -> Polynomial:
        above, below = self.read(args[0]), self.read(args[1])
        if below.keys() == {(0, 0)}:
            return {power: value / below[0, 0] for power, value in above.items()}
        # x / (1 + exp(-z)) is x sigmoid(z).
        if self.term is None or self.term[0] != "relax.exp" or any(t for _, t in above):
            raise _NotPolynomialError
        if not _close(below, {(0, 0): 1.0, (0, 1): 1.0}, 1e-6):
            raise _NotPolynomialError
        self.term = (_SIGMOID, _plus({}, self.term[1], -1.0))
        return _times(above, {(0, 1): 1.0})


def _times(x: Polynomial, y: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (i, j), p in x.items():
        for (k, m), q in y.items():
            if i + k > _MAX_DEGREE or j + m > 1:
                raise _NotPolynomialError
            result[i + k, j + m] = result.get((i + k, j + m), 0.0) + p * q
    return result


def _plus(x: Polynomial, y: Polynomial, sign: float) -> Polynomial:
    result = dict(x)
    for power, value in y.items():
        result[power] = result.get(power, 0.0) + sign * value
    return result


_ALGEBRA: dict[str, Callable[[_Reader, Any], Polynomial]] = {
    "relax.multiply": _Reader.multiply,
    "relax.divide": _Reader.divide,
    "relax.add": _Reader.add,
    "relax.subtract": _Reader.subtract,
    "relax.negative": _Reader.negative,
    "relax.power": _Reader.power,
}
