"""Builds the private function of a site, and the call that takes the chain's place."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax.expr import _update_type

from .grow import Chain
from .patterns import Operand
from .tensors import key

CODEGEN = "vibegemm"
COMPOSITE = "vibegemm.matmul"
SITE = "vibegemm.site"


def build_function(chain: Chain, symbol: str, site: str, workspace: Any = 0) -> Any:
    """Build the function that the code generator will be given.

    Parameters
    ----------
    chain
        What the function computes.
    symbol
        Its ``global_symbol``.
    site
        Its ``vibegemm.site`` attribute.
    workspace
        Bytes of workspace, a number or an expression over the chain's symbols; 0 for none.

    Returns
    -------
    relax.Function
        ``(A, B, operands…) -> D``, or ``-> (D, workspace)`` where there is one. Its body calls a
        composite function that holds the operations as they stood in the graph.
    """
    inner = _composite(chain)
    params = [relax.Var(var.name, var.ty) for var in inner.params]
    local = relax.Var("composite", inner.ty)
    result = relax.Var("result", chain.result.ty)
    bindings = [
        relax.VarBinding(local, inner),
        relax.VarBinding(result, _typed(relax.Call(local, params), result.ty)),
    ]
    output: Any = result
    if not (isinstance(workspace, int) and workspace == 0):
        # A placeholder: a second output makes the memory planner allocate the workspace.
        zeros = relax.op.zeros(relax.ShapeExpr([workspace]), "uint8")
        zeros = relax.BlockBuilder().normalize(zeros)
        space = relax.Var("workspace", zeros.ty)
        both = relax.Tuple([result, space])
        output = relax.Var("outputs", both.ty)
        bindings += [relax.VarBinding(space, zeros), relax.VarBinding(output, both)]
    attrs = {"Codegen": CODEGEN, "global_symbol": symbol, SITE: site}
    function = _function(params, [relax.BindingBlock(bindings)], output, attrs)
    # Parameters and symbols of their own: a symbol belongs to one function.
    return relax.utils.copy_with_new_vars(function)


def build_call(chain: Chain, gvar: Any) -> list[Any]:
    """Return the bindings that take the place of the chain's last one.

    Parameters
    ----------
    chain
        What is replaced.
    gvar
        The function from :func:`build_function`, with its type.

    Returns
    -------
    list of relax.Binding
        The last binds the chain's own result variable, so nothing that reads it changes.
    """
    result = chain.result
    call = relax.Call(gvar, chain.params)
    if not isinstance(gvar.ty.ret, relax.TupleType):
        return [relax.VarBinding(result, _typed(call, result.ty))]
    call = relax.BlockBuilder().normalize(call)
    kind = relax.DataflowVar if chain.sites[-1].dataflow else relax.Var
    outputs = kind(f"{result.name}_outputs", call.ty)
    item = _typed(relax.TupleGetItem(outputs, 0), result.ty)
    return [relax.VarBinding(outputs, call), relax.VarBinding(result, item)]


def _composite(chain: Chain) -> Any:
    names = ["a", "b", *(f"e{i}" for i in range(len(chain.operands)))]
    params = [relax.Var(name, arg.ty) for name, arg in zip(names, chain.params, strict=True)]
    bindings: list[Any] = []
    product = chain.sites[0].binding
    value = _emit(
        bindings,
        product,
        [
            _operand(bindings, params[0], chain.a, product.value.args[0]),
            _operand(bindings, params[1], chain.b, product.value.args[1]),
        ],
        "product",
    )
    rest = params[2:]
    for number, site in enumerate(chain.sites[1:]):
        before = chain.sites[number].binding.var
        args = []
        for arg in site.binding.value.args:
            if isinstance(arg, relax.Var) and key(arg) == key(before):
                args.append(value)
            elif rest and _same(arg, chain.operands[len(chain.operands) - len(rest)]):
                args.append(rest.pop(0))
            elif isinstance(arg, relax.Var):
                # A shape that was computed before: by now it is known.
                args.append(relax.ShapeExpr(site.binding.value.ty.shape.values))
            else:
                args.append(arg)  # a scalar constant, a shape, a type
        value = _emit(bindings, site.binding, args, f"step{number}")
    # The last one leaves the dataflow block.
    last = bindings.pop()
    output = relax.Var("output", last.var.ty)
    bindings.append(relax.VarBinding(output, last.value))
    return _function(params, [relax.DataflowBlock(bindings)], output, {"Composite": COMPOSITE})


def _operand(bindings: list[Any], param: Any, operand: Operand, seen: Any) -> Any:
    value = param
    for number, var in enumerate(operand.permutes):
        rank = var.ty.ndim
        axes = [*range(rank - 2), rank - 1, rank - 2]
        call = _typed(relax.op.permute_dims(value, axes), var.ty)
        value = relax.DataflowVar(f"{param.name}_t{number}", var.ty)
        bindings.append(relax.VarBinding(value, call))
    return value


def _emit(bindings: list[Any], old: Any, args: list[Any], name: str) -> Any:
    call = old.value
    value = relax.Call(call.op, args, call.attrs, call.ty_args)
    var = relax.DataflowVar(name, old.var.ty)
    bindings.append(relax.VarBinding(var, _typed(value, call.ty)))
    return var


def _same(x: Any, y: Any) -> bool:
    return isinstance(x, relax.Var | ir.GenericConst) and key(x) == key(y)


def _function(params: list[Any], blocks: list[Any], output: Any, attrs: dict[str, Any]) -> Any:
    body = _typed(relax.SeqExpr(blocks, output), output.ty)
    return relax.Function(params, body, output.ty, True, ir.make_node("ir.DictAttrs", **attrs))


def _typed(expr: Any, ty: Any) -> Any:
    if expr.ty.is_missing():
        _update_type(expr, ty)
    return expr
