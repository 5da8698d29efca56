"""Grows the chain behind each product over its followers, within one function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..workload import Workload
from . import tensors
from .patterns import VIEWS, Operand, Product, State, check_product, follow
from .reasons import ChainEnd, Decline
from .scope import Scope, Site


@dataclass(frozen=True)
class Chain:
    """A product with its followers: what becomes one function.

    Parameters
    ----------
    workload
        What it asks for, epilogue included.
    a, b
        Operands of the product.
    operands
        Tensors that the epilogue reads, in its order.
    sites
        Bindings of the product and of its followers, in order; the last one's variable is the
        result.
    end
        Why the chain ends there.
    """

    workload: Workload
    a: Operand
    b: Operand
    operands: tuple[Any, ...]
    sites: tuple[Site, ...]
    end: ChainEnd

    @property
    def result(self) -> Any:
        """The variable that the chain gives."""
        return self.sites[-1].binding.var

    @property
    def params(self) -> list[Any]:
        """A, B and the epilogue's operands, as they lie in memory."""
        return [self.a.source, self.b.source, *self.operands]


def match(scope: Scope, site: Site) -> Chain | Decline | None:
    """Match the binding at ``site``.

    Returns
    -------
    Chain, Decline or None
        The product with its chain, why it is declined, or None where it is no matmul.
    """
    call = site.binding.value
    if tensors.op_name(call) != "relax.matmul":
        return None
    if not isinstance(site.binding, relax.VarBinding):
        return Decline.NESTED

    def definition(expr: Any) -> Any:
        if not isinstance(expr, relax.Var):
            return None
        bound = scope.site(expr)
        if bound is None or not isinstance(bound.binding, relax.VarBinding):
            return None  # a parameter, or a match_cast that may define symbols
        return bound.binding.value if scope.may_move(bound, site) else None

    product = check_product(call, definition)
    return product if isinstance(product, Decline) else _grow(scope, site, product)


def _grow(scope: Scope, site: Site, product: Product) -> Chain:
    workload, shape = product.workload, tensors.dims(site.binding.value)
    assert shape is not None
    start = State(shape, workload.out, workload.n)
    sources = [product.a.source, product.b.source]
    taken: list[tuple[Site, State]] = [(site, start)]
    while True:
        step = _next(scope, site, sources, *taken[-1])
        if isinstance(step, ChainEnd):
            break
        taken.append(step)
    # A reshape that nothing follows costs nothing outside, and other passes may want to see it.
    while len(taken) > 1 and tensors.op_name(taken[-1][0].binding.value) in VIEWS:
        taken.pop()
    state = taken[-1][1]
    return Chain(
        workload=replace(workload, out=state.dtype, epilogue=state.epilogue),
        a=product.a,
        b=product.b,
        operands=state.operands,
        sites=tuple(place for place, _ in taken),
        end=step,
    )


def _next(
    scope: Scope, first: Site, sources: list[Any], last: Site, state: State
) -> tuple[Site, State] | ChainEnd:
    var = last.binding.var
    if scope.uses(var) > 1:
        return ChainEnd.USED_ELSEWHERE
    user = scope.only_user(var)
    if user is None or user.block != last.block or not isinstance(user.binding, relax.VarBinding):
        return ChainEnd.OUTPUT
    call = user.binding.value
    if not isinstance(call, relax.Call):
        return ChainEnd.NOT_FUSIBLE
    places = [i for i, arg in enumerate(call.args) if _is_var(arg, var)]
    if len(places) != 1:
        return ChainEnd.NOT_FUSIBLE
    if not scope.may_move(first, user):
        return ChainEnd.BARRIER
    after = follow(state, call, places[0])
    if isinstance(after, ChainEnd):
        return after
    if not tensors.inferable([*sources, *after.operands], [call]):
        return ChainEnd.NOT_INFERABLE
    return user, after


def _is_var(arg: Any, var: Any) -> bool:
    return isinstance(arg, relax.Var) and tensors.key(arg) == tensors.key(var)
