"""Rebuilds a Relax function with some bindings replaced and some dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.relax.expr import _update_type

from . import tensors
from .scope import is_foreign


@dataclass
class Rewrite:
    """What changes, by the identity (:func:`.tensors.key`) of the bound variable.

    Parameters
    ----------
    replace
        Bindings that take a binding's place; the last binds the same variable, so that whatever
        reads it stays as it is.
    drop
        Variables that nothing reads any more.
    """

    replace: dict[int, list[Any]] = field(default_factory=dict)
    drop: set[int] = field(default_factory=set)


def map_functions(mod: Any, change: Callable[[Any], Any | None]) -> Any:
    """Return a module with its Relax functions changed; other code generators' are left alone.

    Parameters
    ----------
    mod : tvm.IRModule
        Left as it is.
    change
        Returns a function's replacement, or None where there is nothing to do.

    Returns
    -------
    tvm.IRModule
        The same object where nothing changed.
    """
    changed = {}
    for gvar, function in mod.functions.items():
        if isinstance(function, relax.Function) and not is_foreign(function):
            new = change(function)
            if new is not None:
                changed[gvar] = new
    if not changed:
        return mod
    result = mod.clone()
    for gvar, function in changed.items():
        result.update_func(gvar, function)
    return result


def rewrite_function(function: Any, rewrite: Rewrite) -> Any:
    """Return ``function`` rewritten; untouched blocks, constants and variables stay the same."""
    body = _rewrite(function.body, rewrite)
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )


def _rewrite(expr: Any, rewrite: Rewrite) -> Any:
    if isinstance(expr, relax.SeqExpr):
        blocks = [_rewrite_block(block, rewrite) for block in expr.blocks]
        new: Any = relax.SeqExpr(blocks, expr.body, expr.span)
    elif isinstance(expr, relax.If):
        new = relax.If(
            expr.cond,
            _rewrite(expr.true_branch, rewrite),
            _rewrite(expr.false_branch, rewrite),
            expr.span,
        )
    elif isinstance(expr, relax.Function):
        return expr if is_foreign(expr) else rewrite_function(expr, rewrite)
    else:
        return expr
    _update_type(new, expr.ty)
    return new


def _rewrite_block(block: Any, rewrite: Rewrite) -> Any:
    bindings: list[Any] = []
    changed = False
    for binding in block.bindings:
        name = tensors.key(binding.var)
        if name in rewrite.drop:
            changed = True
        elif name in rewrite.replace:
            changed = True
            bindings += rewrite.replace[name]
        elif isinstance(binding, relax.VarBinding) and isinstance(
            binding.value, relax.If | relax.Function
        ):
            changed = True
            bindings.append(
                relax.VarBinding(binding.var, _rewrite(binding.value, rewrite), binding.span)
            )
        else:
            bindings.append(binding)
    return type(block)(bindings, block.span) if changed else block
