"""What matches: one check for the product, one table for what may follow it.

Every check answers either with numbers for the workload or with a reason from the closed lists of
:mod:`.reasons`. Nothing here looks at other bindings than through ``definition``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax

from ..workload import BatchMap, EpilogueOp, Workload
from . import tensors
from .reasons import ChainEnd, Decline
from .tensors import Dim

Definition = Callable[[Any], Any]
MAX_EPILOGUE = 16  # what a workload key can name
_LEAST_DIVISOR = 1e-37  # below, 1/x leaves float32


@dataclass(frozen=True)
class Operand:
    """A or B of a product.

    Parameters
    ----------
    source
        The tensor as it lies in memory, before any transposing.
    permutes
        Variables of the ``permute_dims`` between ``source`` and the product, outermost last.
    """

    source: Any
    permutes: tuple[Any, ...] = ()

    @property
    def transposed(self) -> bool:
        """True where the product sees the transpose of what is stored."""
        return len(self.permutes) % 2 == 1


@dataclass(frozen=True)
class Product:
    """A matmul that can be offloaded, without what follows it.

    Parameters
    ----------
    a, b
        Operands.
    workload
        The product's workload, with an empty epilogue.
    """

    a: Operand
    b: Operand
    workload: Workload


def check_product(call: Any, definition: Definition) -> Product | Decline:
    """Check one ``relax.matmul``.

    Parameters
    ----------
    call
        The call.
    definition
        Gives the value that a variable is bound to where it may be looked through, else None.

    Returns
    -------
    Product or Decline
        What it asks for, or why it cannot be had.
    """
    seen = call.args
    shapes = [tensors.dims(x) for x in (*seen, call)]
    if any(shape is None for shape in shapes):
        return Decline.UNKNOWN_SHAPE
    if not all(tensors.on_gpu(x) for x in (*seen, call)):
        return Decline.OTHER_DEVICE
    types = [tensors.dtype(x) for x in (*seen, call)]
    if types[0] != types[1] or any(name not in tensors.FLOATS for name in types):
        return Decline.DTYPE
    left, right, out = (shape for shape in shapes if shape is not None)
    a, b = (find_operand(x, definition) for x in seen)

    # numpy: a vector on the left is one row, on the right one column; that dimension is dropped.
    m, k = (1, left[0]) if len(left) == 1 else left[-2:]
    n = 1 if len(right) == 1 else right[-1]
    if not tensors.all_static((n, k)):
        return Decline.SYMBOLIC_NK
    a_dims, b_dims = left[:-2], right[:-2]
    batch_dims = out[: len(out) - (len(left) > 1) - (len(right) > 1)]

    maps: tuple[BatchMap | None, BatchMap | None] = (None, None)
    if not a.transposed and _is_one(b_dims):
        # One B for all: rows of all the batch follow each other in memory, so they are M.
        batch = 1
        m = tensors.product((*batch_dims, m))
    else:
        if not tensors.all_static(batch_dims):
            return Decline.SYMBOLIC_BATCH
        batch = int(tensors.product(batch_dims))
        maps = (batch_map(a_dims, batch_dims), batch_map(b_dims, batch_dims))
        if None in maps:
            return Decline.BATCH_BROADCAST
    if not tensors.inferable([a.source, b.source], [call]):
        return Decline.NOT_INFERABLE
    workload = Workload(
        m=m if isinstance(m, int) else None,
        n=n,
        k=k,
        a=str(types[0]),
        b=str(types[1]),
        acc="f32",
        out=str(types[2]),
        trans_a=a.transposed,
        trans_b=b.transposed,
        batch=batch,
        a_batch=maps[0],
        b_batch=maps[1],
    )
    return Product(a, b, workload)


def find_operand(expr: Any, definition: Definition) -> Operand:
    """Return what lies in memory behind an operand, through swaps of the last two dimensions."""
    permutes: list[Any] = []
    while (value := definition(expr)) is not None:
        if tensors.op_name(value) != "relax.permute_dims" or not _swaps_last_two(value):
            break
        permutes.insert(0, expr)
        expr = value.args[0]
    return Operand(expr, tuple(permutes))


def _swaps_last_two(call: Any) -> bool:
    rank = call.ty.ndim
    if rank < 2 or tensors.dims(call.args[0]) is None:
        return False
    axes = call.attrs.axes
    order = list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _is_one(shape: tuple[Dim, ...]) -> bool:
    return all(isinstance(x, int) and x == 1 for x in shape)


def batch_map(own: tuple[Dim, ...], full: tuple[Dim, ...]) -> BatchMap | None:
    """Return which of an operand's matrices each product uses.

    Parameters
    ----------
    own
        The operand's batch dimensions; broadcast ones are 1 or missing.
    full
        The batch dimensions of the result, all static.

    Returns
    -------
    BatchMap or None
        None where the operand's own dimensions are not adjacent, as in (3, 1, 5) to (3, 4, 5).
    """
    if 0 in full:
        return BatchMap(1, 0)
    padded = (1,) * (len(full) - len(own)) + own
    # True where the operand has the dimension; dimensions of size 1 belong to either side.
    pairs = [(x, int(y)) for x, y in zip(padded, full, strict=True) if y != 1]
    kept = [not (isinstance(x, int) and x == 1) for x, _ in pairs]
    if True not in kept:
        return BatchMap(1, 1)
    first = kept.index(True)
    last = len(kept) - 1 - kept[::-1].index(True)
    if not all(kept[first : last + 1]):
        return None
    sizes = [y for _, y in pairs]
    return BatchMap(
        div=int(tensors.product(tuple(sizes[last + 1 :]))),
        mod=int(tensors.product(tuple(sizes[first : last + 1]))),
    )


# -- what follows ------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """A product with as much of its chain as has been taken.

    Parameters
    ----------
    shape
        Dimensions of the value so far.
    dtype
        Its canonical type.
    n
        Columns of the product: the last dimension of ``shape``, or 1.
    epilogue, operands
        Steps so far, and the tensors that they read, in order.
    closed
        True after a cast that rounds.
    """

    shape: tuple[Dim, ...]
    dtype: str
    n: int
    epilogue: tuple[EpilogueOp, ...] = ()
    operands: tuple[Any, ...] = field(default=())
    closed: bool = False

    def then(self, op: EpilogueOp, call: Any, *operands: Any) -> State:
        """Return the state after one more step that gives ``call``."""
        return replace(
            self,
            shape=tensors.dims(call) or (),
            epilogue=(*self.epilogue, op),
            operands=(*self.operands, *operands),
        )


Follower = Callable[[State, Any, int], "State | ChainEnd"]


def _unary(kind: str) -> Follower:
    def follow(state: State, call: Any, place: int) -> State | ChainEnd:
        return state.then(EpilogueOp(kind), call)

    return follow


def _add(state: State, call: Any, place: int) -> State | ChainEnd:
    other = call.args[1 - place]
    shape, result, other_type = tensors.dims(other), tensors.dims(call), tensors.dtype(other)
    if shape is None or result is None or other_type not in tensors.FLOATS:
        return ChainEnd.OPERAND
    if not tensors.on_gpu(other) or not tensors.same_shape(result, state.shape):
        return ChainEnd.OPERAND  # the other operand is the larger one
    own = tensors.strip_ones(shape)
    columns = () if state.n == 1 else (state.n,)
    is_vector = len(own) == len(columns) and all(
        isinstance(x, int) and x == y for x, y in zip(own, columns, strict=True)
    )
    # Numpy lines shapes up at their last dimension, which is N here, so only such a vector is a
    # bias. With N = 1 it is a single number, whatever the last dimension is.
    if is_vector:
        return state.then(EpilogueOp("bias", other_type), call, other)
    if tensors.same_shape(shape, state.shape):
        return state.then(EpilogueOp("residual", other_type), call, other)
    return ChainEnd.OPERAND


def _scale(state: State, call: Any, place: int) -> State | ChainEnd:
    divides = tensors.op_name(call) == "relax.divide"
    factor = tensors.scalar(call.args[1 - place])
    result = tensors.dims(call)
    if factor is None or result is None or not tensors.same_shape(result, state.shape):
        return ChainEnd.OPERAND
    if divides and (place == 1 or abs(factor) < _LEAST_DIVISOR):
        return ChainEnd.OPERAND
    return state.then(EpilogueOp("scale", value=1.0 / factor if divides else factor), call)


def _cast(state: State, call: Any, place: int) -> State | ChainEnd:
    target = tensors.dtype(call)
    if target not in tensors.FLOATS:
        return ChainEnd.DTYPE
    rounds = target not in (state.dtype, "f32")
    return replace(state, dtype=str(target), closed=rounds)


def _view(state: State, call: Any, place: int) -> State | ChainEnd:
    shape = tensors.dims(call)
    if place != 0 or shape is None:
        return ChainEnd.RESHAPE
    # Values stay in their columns, so that a vector along N may follow. One column is any shape.
    if state.n != 1 and not (shape and tensors.same_dim(shape[-1], state.n)):
        return ChainEnd.RESHAPE
    return replace(state, shape=shape)


VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
FOLLOWERS: dict[str, Follower] = {
    "relax.add": _add,
    "relax.multiply": _scale,
    "relax.divide": _scale,
    "relax.nn.relu": _unary("relu"),
    "relax.nn.gelu": _unary("gelu_erf"),
    "relax.nn.gelu_tanh": _unary("gelu_tanh"),
    "relax.nn.silu": _unary("silu"),
    "relax.astype": _cast,
    **dict.fromkeys(VIEWS, _view),
}


def follow(state: State, call: Any, place: int) -> State | ChainEnd:
    """Take one operation into the chain.

    Parameters
    ----------
    state
        The chain so far.
    call
        The operation that reads its value.
    place
        Which of the call's arguments the value is.

    Returns
    -------
    State or ChainEnd
        The longer chain, or why the operation stays outside.
    """
    if state.closed:
        return ChainEnd.CAST
    follower = FOLLOWERS.get(tensors.op_name(call) or "")
    if follower is None or not isinstance(call.ty, relax.TensorType):
        return ChainEnd.NOT_FUSIBLE
    after = follower(state, call, place)
    if isinstance(after, State) and len(after.epilogue) > MAX_EPILOGUE:
        return ChainEnd.LONG
    return after
