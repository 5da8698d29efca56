"""Turns a plan into what TVM runs: a host PrimFunc that launches the kernel's entries.

The host function checks its tensors (TVM generates that), encodes tensor maps, and calls each
entry of the cubin as a packed function whose launch sizes follow its arguments. Nothing of the
language model's runs on the host: every number here comes from a plan expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from ..device import Device
from ..errors import PlanError
from ..workload import DTYPES, Workload
from . import expr
from .build import Binary, build, build_zero
from .kernel import Kernel
from .plan import (
    EpilogueParam,
    Int32Param,
    Int64Param,
    Launch,
    Param,
    Plan,
    PointerParam,
    TensorMapParam,
)
from .validity import map_extent

# Values of the CUDA driver's CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapDataType.
_SWIZZLE = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
_L2 = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
_CU_TFLOAT32 = 11
_KEEP_DTYPE = -1
_ZERO_BLOCK = 256


@dataclass(frozen=True)
class Branch:
    """One kernel of a site, for M up to a bound.

    Parameters
    ----------
    kernel
        What runs.
    tunables
        Its compile-time choices.
    m_max
        Largest M it serves; None where there is no bound.
    """

    kernel: Kernel
    tunables: Mapping[str, int]
    m_max: int | None = None


@dataclass(frozen=True)
class Code:
    """A binary with TVM's description of its entries (argument types, launch tags)."""

    binary: Binary
    entries: dict[str, Any]


@dataclass(frozen=True)
class Hosted:
    """A host function with the code that its calls need."""

    function: tirx.PrimFunc
    codes: tuple[Code, ...]


def workspace_bytes(
    workload: Workload, device: Device, branches: Sequence[Branch], m: Any = None
) -> Any:
    """Return the bytes of workspace that a call needs, the largest over the branches.

    Parameters
    ----------
    workload, device, branches
        What is launched.
    m
        M where the workload's is dynamic: a number or a TIR expression.

    Returns
    -------
    int or tvm PrimExpr
        Bytes; 0 where no branch uses a workspace.
    """
    total: Any = 0
    for branch in branches:
        plan = branch.kernel.plan
        if plan.workspace_bytes == 0:
            continue
        need = expr.evaluate(plan.workspace_bytes, plan.env(workload, device, branch.tunables, m))
        # In whole pieces of the launch that zeroes it.
        need = expr.evaluate("ceildiv(need, 16) * 16", {"need": need})
        if isinstance(total, int) and isinstance(need, int):
            total = max(total, need)
        elif isinstance(total, int) and total == 0:
            total = need
        else:
            total = tirx.max(need, total)
    return total


def host_function(
    name: str,
    workload: Workload,
    device: Device,
    branches: Sequence[Branch],
    inputs: Sequence[tuple[Sequence[Any], str]],
    outputs: Sequence[tuple[Sequence[Any], str]],
) -> Hosted:
    """Build the host PrimFunc of one site, and its cubins.

    Parameters
    ----------
    name
        Global symbol of the function.
    workload, device, branches
        What is launched; branches are in ascending order of ``m_max``.
    inputs
        Shape and stored type of A, B and the epilogue's operands, in this order.
    outputs
        Shape and stored type of D, and of the workspace where there is one.

    Returns
    -------
    Hosted
        Destination-passing function ``(A, B, operands…, D[, workspace])`` and its binaries.

    Raises
    ------
    PlanError, SourceError, BuildError
        When a kernel's plan does not fit or its source does not compile.
    """
    labels = ["A", "B", *(f"E{i}" for i in range(len(inputs) - 2))]
    buffers = [
        _buffer(shape, dtype, tag) for (shape, dtype), tag in zip(inputs, labels, strict=True)
    ]
    buffers += [
        _buffer(shape, dtype, tag)
        for (shape, dtype), tag in zip(outputs, ["D", "workspace"], strict=False)
    ]
    if workload.is_empty:
        return Hosted(_function(name, buffers, tirx.Evaluate(0)), ())

    m: Any = workload.m
    if m is None:
        rows: Any = 1
        for extent in outputs[0][0]:
            rows = rows * extent
        m = Analyzer().simplify(rows // (workload.n * workload.batch))
    codes: list[Code] = []
    body: tirx.Stmt | None = None
    for branch in reversed(branches):
        emitter = _Emitter(workload, device, branch, m, buffers, len(inputs))
        statement = emitter.emit()
        codes += emitter.codes
        if body is None or branch.m_max is None:
            body = statement
        else:
            body = tirx.IfThenElse(m <= branch.m_max, statement, body)
    if body is None:
        raise PlanError(f"site {name}: no kernel to launch")
    if workload.m is None:
        body = tirx.IfThenElse(m > 0, body, None)
    unique = {code.binary.key: code for code in codes}
    return Hosted(_function(name, buffers, body), tuple(unique.values()))


def _buffer(shape: Sequence[Any], dtype: str, name: str) -> Any:
    extents = [tirx.const(x, "int64") if isinstance(x, int) else x for x in shape]
    return tirx.decl_buffer(extents, dtype, name)


def _function(name: str, buffers: list[Any], body: tirx.Stmt) -> tirx.PrimFunc:
    function = tirx.PrimFunc(buffers, body)
    # is_scheduled: TVM's own schedule rules leave the function alone.
    return function.with_attr({"global_symbol": name, "tirx.is_scheduled": True})


def _sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(0)
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def _int64(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else tirx.Cast("int64", value)


def _int32(value: Any) -> Any:
    return tirx.const(value, "int32") if isinstance(value, int) else tirx.Cast("int32", value)


class _Emitter:
    """Writes the statements of one branch."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        branch: Branch,
        m: Any,
        buffers: list[Any],
        num_inputs: int,
    ) -> None:
        self.workload, self.device, self.plan = workload, device, branch.kernel.plan
        self.env = self.plan.env(workload, device, branch.tunables, m)
        self.binary = build(branch.kernel, workload, device, branch.tunables)
        entries = _entries(self.binary, self.plan, workload, self.env)
        self.codes = [Code(self.binary, entries)]
        self.operands = {"A": buffers[0], "B": buffers[1], "D": buffers[num_inputs]}
        if len(buffers) > num_inputs + 1:
            self.operands["workspace"] = buffers[num_inputs + 1]
        self.epilogue = buffers[2:num_inputs]

    def value(self, text: str | int) -> Any:
        return expr.evaluate(text, self.env)

    def emit(self) -> tirx.Stmt:
        statements: list[tirx.Stmt] = []
        if self.plan.workspace_zero:
            statements.append(self._zero())
        for launch in self.plan.launches:
            condition = expr.truth(self.value(launch.when))
            if isinstance(condition, int) and not condition:
                continue
            body = _sequence(self._launch(launch))
            if not isinstance(condition, int):
                body = tirx.IfThenElse(condition, body, None)
            statements.append(body)
        return _sequence(statements)

    def _zero(self) -> tirx.Stmt:
        # TVM has no device memset, so zeroing is a launch of its own (and is timed as one).
        zero = build_zero(self.device)
        needed = self.value(self.plan.workspace_bytes)
        words = expr.evaluate("ceildiv(needed, 16)", {"needed": needed})
        blocks = expr.evaluate(
            f"max(1, min(ceildiv(words, {_ZERO_BLOCK}), 16 * sms))",
            {"words": words, "sms": self.device.num_sms},
        )
        (entry,) = zero.entries.values()
        self.codes.append(Code(zero, {entry: _entry(entry, [("handle", 0), ("int64", 0)], [])}))
        sizes = [_int32(blocks), *map(_int32, (1, 1, _ZERO_BLOCK, 1, 1))]
        pointer = self._operand("workspace").data
        return tirx.Evaluate(tirx.call_packed(entry, pointer, _int64(words), *sizes))

    def _operand(self, name: str) -> Any:
        if name not in self.operands:
            raise PlanError(f"plan {self.plan.name}: uses a workspace but asks for no bytes")
        return self.operands[name]

    def _launch(self, launch: Launch) -> list[tirx.Stmt]:
        before: list[tirx.Stmt] = []
        args: list[Any] = []
        for param in launch.params:
            args += self._argument(param, before)
        sizes = [self.value(size) for size in (*launch.grid, *launch.block)]
        if _uses_cluster(launch, self.env):
            sizes += [self.value(size) for size in launch.cluster]
        values = [_int32(size) for size in sizes]
        if launch.cooperative:
            values.append(_int32(1))
        values.append(_int32(self.value(launch.shared_bytes)))
        entry = self.binary.entries[launch.entry]
        return [*before, tirx.Evaluate(tirx.call_packed(entry, *args, *values))]

    def _argument(self, param: Param, before: list[tirx.Stmt]) -> list[Any]:
        match param:
            case Int32Param():
                return [_int32(self.value(param.int32))]
            case Int64Param():
                return [_int64(self.value(param.int64))]
            case EpilogueParam():
                return [buffer.data for buffer in self.epilogue]
            case PointerParam():
                return [self._pointer(param.pointer, param.offset)]
            case TensorMapParam():
                return [self._tensor_map(param, before)]
        raise AssertionError(param)

    def _pointer(self, name: str, offset: str | int) -> Any:
        buffer = self._operand(name)
        start = self.value(offset)
        if isinstance(start, int) and start == 0:
            return buffer.data
        return tirx.address_of(tirx.BufferLoad(buffer, [_int64(start)]))

    def _tensor_map(self, param: TensorMapParam, before: list[tirx.Stmt]) -> Any:
        dtype, dims = map_extent(param, self.workload, self.env)
        base = self._pointer(param.tensor_map, param.offset)
        size = DTYPES[dtype].bytes
        strides, pitch = [], size
        for extent in dims[:-1]:
            pitch = pitch * extent
            strides.append(_int64(pitch))
        tensor_map = tirx.Var("tensor_map", _TENSOR_MAP)
        before.append(tirx.Bind(tensor_map, tirx.tvm_stack_alloca("tensormap", 1)))
        box = [_int32(self.value(extent)) for extent in param.box]
        call = tirx.call_packed(
            "runtime.cuTensorMapEncodeTiled",
            tensor_map,
            DTYPES[dtype].storage,
            len(dims),
            base,
            *[_int64(extent) for extent in dims],
            *strides,
            *box,
            *[_int32(1)] * len(dims),
            0,  # not interleaved
            _SWIZZLE[param.swizzle],
            _L2[param.l2],
            0,  # reads out of bounds give zero
            _CU_TFLOAT32 if param.as_tf32 else _KEEP_DTYPE,
        )
        before.append(tirx.Evaluate(call))
        return tensor_map


def _tensor_map_type() -> Any:
    from tvm.script import tirx as T

    return T.handle("tensormap").ty


_TENSOR_MAP = _tensor_map_type()


def _entry(name: str, types: list[tuple[str, int]], tags: list[str]) -> dict[str, Any]:
    axes = [f"{axis}.{dim}" for axis in ("blockIdx", "threadIdx") for dim in "xyz"]
    return {
        "name": name,
        "arg_types": [kind for kind, _ in types],
        "launch_param_tags": [*axes, *tags],
        "arg_extra_tags": [extra for _, extra in types],
    }


def _entries(
    binary: Binary, plan: Plan, workload: Workload, env: Mapping[str, Any]
) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for launch in plan.launches:
        entry = binary.entries[launch.entry]
        types = [kind for param in launch.params for kind in _argument_types(param, workload)]
        tags: list[str] = []
        if _uses_cluster(launch, env):
            tags += [f"clusterCtaIdx.{dim}" for dim in "xyz"]
        if launch.cooperative:
            tags.append("tirx.use_cooperative_launch")
        tags.append("tirx.use_dyn_shared_memory")  # TVM wants this one last
        info[entry] = _entry(entry, types, tags)
    return info


def _uses_cluster(launch: Launch, env: Mapping[str, Any]) -> bool:
    return [expr.evaluate(size, env) for size in launch.cluster] != [1, 1, 1]


def _argument_types(param: Param, workload: Workload) -> list[tuple[str, int]]:
    match param:
        case Int32Param():
            return [("int32", 0)]
        case Int64Param():
            return [("int64", 0)]
        case TensorMapParam():
            return [("handle", 1)]  # 1: a CUtensorMap passed by value
        case EpilogueParam():
            return [("handle", 0)] * sum(op.dtype is not None for op in workload.epilogue)
        case _:
            return [("handle", 0)]
