"""Where the variables of one Relax function are bound and used, nested blocks included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from . import tensors

_IN_PLACE = ("relax.call_tir_inplace", "relax.call_inplace_packed")


@dataclass(frozen=True)
class Site:
    """The place of one binding.

    Parameters
    ----------
    block, index
        Identity of the block, and the place within it.
    binding
        The binding.
    dataflow
        True inside a dataflow block.
    """

    block: int
    index: int
    binding: Any
    dataflow: bool


class Scope:
    """Bindings, uses and barriers of a function.

    Functions nested in it are part of it, except those that belong to a code generator: their
    bindings are listed in :attr:`foreign` and stay as they are.

    Parameters
    ----------
    function
        A Relax function, in the normal form of Relax (one operation a binding).
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.sites: list[Site] = []
        self.foreign: list[Any] = []
        self.nested: list[Any] = []  # calls that are bound to no variable
        self._bound: dict[int, Site] = {}
        self._uses: dict[int, int] = {}
        self._user: dict[int, Site | None] = {}
        self._barriers: list[Site] = []
        self._here: Site | None = None
        self._visit(function.body)

    # -- questions -------------------------------------------------------------------------------

    def site(self, var: Any) -> Site | None:
        """Return where a variable is bound, or None for a parameter."""
        return self._bound.get(tensors.key(var))

    def uses(self, var: Any) -> int:
        """Return how often a variable is read."""
        return self._uses.get(tensors.key(var), 0)

    def only_user(self, var: Any) -> Site | None:
        """Return the binding that reads a variable, where that happens exactly once."""
        return self._user.get(tensors.key(var)) if self.uses(var) == 1 else None

    def may_move(self, first: Site, last: Site) -> bool:
        """Return True where the operation at ``first`` may as well run at ``last``.

        Pure values can, unless something between may overwrite what they read.
        """
        if not self._barriers:
            return True
        return first.block == last.block and not any(
            barrier.block == first.block and first.index < barrier.index < last.index
            for barrier in self._barriers
        )

    # -- the walk --------------------------------------------------------------------------------

    def _visit(self, expr: Any) -> None:
        if isinstance(expr, relax.SeqExpr):
            for block in expr.blocks:
                self._visit_block(block)
            self._use(expr.body)
        elif isinstance(expr, relax.Function):
            self._visit(expr.body)
        else:
            self._use(expr)

    def _visit_block(self, block: Any) -> None:
        dataflow = isinstance(block, relax.DataflowBlock)
        for index, binding in enumerate(block.bindings):
            site = Site(tensors.key(block), index, binding, dataflow)
            self.sites.append(site)
            self._bound[tensors.key(binding.var)] = site
            value = binding.value
            if is_barrier(value):
                self._barriers.append(site)
            outer, self._here = self._here, site
            if isinstance(value, relax.Function) and is_foreign(value):
                self.foreign.append(value)
                for var in relax.analysis.free_vars(value):
                    self._count(var, None)
            else:
                self._use(value)
            self._here = outer

    def _use(self, expr: Any) -> None:
        if isinstance(expr, relax.If):
            self._use(expr.cond)
            here, self._here = self._here, None
            self._visit(expr.true_branch)
            self._visit(expr.false_branch)
            self._here = here
        elif isinstance(expr, relax.Function | relax.SeqExpr):
            here, self._here = self._here, None
            self._visit(expr)
            self._here = here
        elif isinstance(expr, relax.Var):
            self._count(expr, self._here)
        else:
            if isinstance(expr, relax.Call) and not self._is_bound(expr):
                self.nested.append(expr)
            for child in children(expr):
                self._use(child)

    def _is_bound(self, expr: Any) -> bool:
        here = self._here
        return here is not None and tensors.key(here.binding.value) == tensors.key(expr)

    def _count(self, var: Any, user: Site | None) -> None:
        name = tensors.key(var)
        self._uses[name] = self._uses.get(name, 0) + 1
        self._user[name] = user


def children(expr: Any) -> Iterator[Any]:
    """Yield the expressions that an expression reads."""
    if isinstance(expr, relax.Call):
        yield expr.op
        yield from expr.args
    elif isinstance(expr, relax.Tuple):
        yield from expr.fields
    elif isinstance(expr, relax.TupleGetItem):
        yield expr.tuple_value


def is_foreign(function: Any) -> bool:
    """Return True where a function is a code generator's, or TVM's fused primitive."""
    attrs = function.attrs or {}
    return any(name in attrs for name in ("Composite", "Codegen", "Primitive"))


def is_barrier(value: Any) -> bool:
    """Return True where a value may overwrite tensors or has another side effect."""
    if not isinstance(value, relax.Call):
        return isinstance(value, relax.If) and relax.analysis.contains_impure_call(value)
    if isinstance(value.op, ir.Op):
        return value.op.name in _IN_PLACE or not value.op.get_attr("FPurity")
    ty = getattr(value.op, "ty", None)
    return isinstance(ty, relax.FuncType) and not ty.purity
