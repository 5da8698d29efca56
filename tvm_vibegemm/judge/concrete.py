"""Evaluates a plan at one workload into plain numbers, for a launcher that knows no TVM.

It says what :mod:`..kernel.launch` writes into a host function: the two must agree, and a test
compares them argument by argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..device import Device
from ..errors import InputError, PlanError, ResourceError
from ..kernel import expr
from ..kernel.build import full_source
from ..kernel.kernel import Kernel
from ..kernel.plan import (
    EpilogueParam,
    Int32Param,
    Int64Param,
    Launch,
    Param,
    PointerParam,
    TensorMapParam,
)
from ..kernel.preamble import epilogue_operands
from ..kernel.validity import ResourceReason, map_extent, why_not
from ..rivals.reference import operand_shapes
from ..workload import DTYPES, Workload

# Values of the CUDA driver's CUtensorMapSwizzle and CUtensorMapL2promotion.
_SWIZZLE = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
_L2 = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
# CUtensorMapDataType of a stored type, as TVM's runtime chooses it: a byte is a byte.
_DATA_TYPE = {
    "float64": 8,
    "float32": 7,
    "float16": 6,
    "bfloat16": 9,
    "int32": 3,
    "int8": 0,
    "uint8": 0,
    "float8_e4m3fn": 0,
    "float8_e5m2": 0,
}
_TFLOAT32 = 11


def concrete_launches(
    kernel: Kernel, workload: Workload, device: Device, tunables: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return a plan's buffers and launches at a workload, every expression evaluated.

    Nothing is compiled: the entries' names in the cubin follow from the source.

    Parameters
    ----------
    kernel, workload, device
        What is launched; the workload's M is fixed.
    tunables
        Compile-time choices; those left out take their defaults.

    Returns
    -------
    dict
        Plain data. ``buffers``: ``{"name", "dtype", "bytes", "fill"}`` for A, B, the epilogue's
        operands, D and the workspace (where there is one), in this order; ``fill`` is ``values``,
        ``zero`` (before every run) or ``none``. ``launches``: ``{"entry", "grid", "block",
        "cluster", "shared_bytes", "cooperative", "args"}``, where an argument is ``{"pointer":
        buffer, "offset": bytes}``, ``{"int32": n}``, ``{"int64": n}`` or ``{"tensor_map":
        {"buffer", "offset", "data_type", "dims", "strides", "box", "swizzle", "l2"}}``, extents
        innermost first and strides in bytes. ``entries``: name in the cubin → name in the source.

    Raises
    ------
    InputError
        When M is dynamic, or D has no element.
    PlanError
        When the plan does not serve the workload, or reaches past its workspace.
    """
    if workload.m is None or workload.is_empty:
        why = "M is dynamic: fix it first" if workload.m is None else "D has no element"
        raise InputError(f"workload {workload.key}: cannot be launched: {why}")
    values = kernel.plan.check_tunables(tunables or {})
    reason = why_not(kernel.plan, workload, device, values)
    if reason is not None:
        kind = ResourceError if isinstance(reason, ResourceReason) else PlanError
        raise kind(f"plan {kernel.name}: not valid for {workload.key}: {reason}")
    evaluator = _Evaluator(kernel, workload, device, values)
    return {
        "kernel": kernel.name,
        "workload": workload.key,
        "tunables": values,
        "entries": {new: old for old, new in evaluator.entries.items()},
        "buffers": evaluator.buffers,
        "launches": evaluator.launches(),
    }


class _Evaluator:
    def __init__(
        self, kernel: Kernel, workload: Workload, device: Device, tunables: Mapping[str, int]
    ) -> None:
        self.plan, self.workload = kernel.plan, workload
        self.env = self.plan.env(workload, device, tunables)
        _, self.entries = full_source(kernel, workload, device, tunables)
        types = [workload.a, workload.b, *(op.dtype for op in epilogue_operands(workload))]
        names = ["A", "B", *(f"E{i}" for i in range(len(types) - 2)), "D"]
        self.buffers: list[dict[str, Any]] = []
        for name, dtype, (shape, _) in zip(
            names, [*types, workload.out], operand_shapes(workload), strict=True
        ):
            assert dtype is not None
            size = math.prod(shape) * DTYPES[dtype].bytes
            self._buffer(name, dtype, size, "none" if name == "D" else "values")
        workspace = self.value(self.plan.workspace_bytes)
        if workspace:
            zeroed = "zero" if self.plan.workspace_zero else "none"
            self._buffer("workspace", "u8", workspace, zeroed)
        self.index = {buffer["name"]: i for i, buffer in enumerate(self.buffers)}

    def _buffer(self, name: str, dtype: str, size: int, fill: str) -> None:
        self.buffers.append({"name": name, "dtype": dtype, "bytes": size, "fill": fill})

    def value(self, text: str | int) -> int:
        return int(expr.evaluate(text, self.env))

    def launches(self) -> list[dict[str, Any]]:
        return [
            self._launch(launch)
            for launch in self.plan.launches
            if expr.truth(expr.evaluate(launch.when, self.env))
        ]

    def _launch(self, launch: Launch) -> dict[str, Any]:
        return {
            "entry": self.entries[launch.entry],
            "grid": [self.value(size) for size in launch.grid],
            "block": [self.value(size) for size in launch.block],
            "cluster": [self.value(size) for size in launch.cluster],
            "shared_bytes": self.value(launch.shared_bytes),
            "cooperative": launch.cooperative,
            "args": [arg for param in launch.params for arg in self._arguments(param)],
        }

    def _arguments(self, param: Param) -> list[dict[str, Any]]:
        match param:
            case Int32Param():
                return [{"int32": self.value(param.int32)}]
            case Int64Param():
                return [{"int64": self.value(param.int64)}]
            case EpilogueParam():
                extras = [i for name, i in self.index.items() if name.startswith("E")]
                return [{"pointer": i, "offset": 0} for i in extras]
            case PointerParam():
                index = self._index(param.pointer)
                return [{"pointer": index, "offset": self.value(param.offset)}]
            case TensorMapParam():
                return [{"tensor_map": self._tensor_map(param)}]
        raise AssertionError(param)

    def _index(self, name: str) -> int:
        if name not in self.index:
            raise PlanError(f"plan {self.plan.name}: uses a workspace but asks for no bytes")
        return self.index[name]

    def _tensor_map(self, param: TensorMapParam) -> dict[str, Any]:
        dtype, dims = map_extent(param, self.workload, self.env)
        index = self._index(param.tensor_map)
        offset = self.value(param.offset)
        strides, pitch = [], DTYPES[dtype].bytes
        for extent in dims[:-1]:
            pitch *= extent
            strides.append(pitch)
        end, size = offset + pitch * dims[-1], self.buffers[index]["bytes"]
        if end > size:
            raise PlanError(
                f"plan {self.plan.name}: a tensor map over {param.tensor_map} ends at byte {end}"
                f" of {size}"
            )
        return {
            "buffer": index,
            "offset": offset,
            "data_type": _TFLOAT32 if param.as_tf32 else _DATA_TYPE[DTYPES[dtype].storage],
            "dims": dims,
            "strides": strides,
            "box": [self.value(extent) for extent in param.box],
            "swizzle": _SWIZZLE[param.swizzle],
            "l2": _L2[param.l2],
        }
