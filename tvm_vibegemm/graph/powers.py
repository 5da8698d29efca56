"""Rewrites powers with small whole exponents as products, in every site of a module.

TVM compiles its CUDA kernels with fast math, where ``powf(x, 2)`` is ``exp2(2 · log2(x))``: NaN for
every negative x. Exporters write the variance of a layer normalisation as such a power.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from . import tensors
from .rewrite import Rewrite, map_functions, rewrite_function
from .scope import Scope

_LARGEST = 4


def expand_powers(mod: Any) -> Any:
    """Return ``mod`` with ``R.power(x, 2)`` to ``R.power(x, 4)`` as products of x.

    Parameters
    ----------
    mod : tvm.IRModule
        Left as it is.

    Returns
    -------
    tvm.IRModule
        The same module where there is nothing to rewrite.
    """
    return map_functions(mod, _expand_function)


def _expand_function(function: Any) -> Any | None:
    rewrite = Rewrite()
    for site in Scope(function).sites:
        bindings = _expanded(site.binding)
        if bindings:
            rewrite.replace[tensors.key(site.binding.var)] = bindings
    return rewrite_function(function, rewrite) if rewrite.replace else None


def _expanded(binding: Any) -> list[Any] | None:
    value = binding.value
    if tensors.op_name(value) != "relax.power":
        return None
    base, exponent = value.args
    factor = tensors.scalar(exponent)
    if factor is None or not float(factor).is_integer() or not 2 <= factor <= _LARGEST:
        return None
    if tensors.dims(base) is None or tensors.dims(base) != tensors.dims(binding.var):
        return None
    bindings: list[Any] = []
    product = base
    for step in range(2, int(factor) + 1):
        last = step == int(factor)
        kind = relax.DataflowVar if isinstance(binding.var, relax.DataflowVar) else relax.Var
        var = binding.var if last else kind(f"power_{step}", base.ty)
        bindings.append(relax.VarBinding(var, _typed(relax.op.multiply(product, base), base)))
        product = var
    return bindings


def _typed(call: Any, like: Any) -> Any:
    from tvm.relax.expr import _update_type

    _update_type(call, like.ty)
    return call
