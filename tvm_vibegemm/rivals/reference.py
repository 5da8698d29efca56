"""TVM's own schedule for a workload with its epilogue: the reference that a kernel must beat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..device import Device
from ..errors import BuildError, last_line
from ..kernel.module import cuda_target
from ..kernel.preamble import DEFAULT_SCALE
from ..toolchain import tvm_environment
from ..workload import DTYPES, BatchMap, Workload
from .guard import Skipped, guarded_schedules


def spellings(device: Device) -> list[str]:
    """Return the names of the architecture to try: TVM schedules ``sm_90`` and ``sm_90a`` apart."""
    return list(dict.fromkeys((device.arch, device.nvrtc_arch)))


def operand_shapes(workload: Workload) -> list[tuple[tuple[int, ...], str]]:
    """Return (shape, stored type) of A, B, the epilogue's operands, and D last.

    Batch dimensions stand in front where there is a batch; a broadcast operand has as many
    matrices as it holds.
    """
    m = workload.m
    assert m is not None and workload.a_batch is not None and workload.b_batch is not None
    n, k, batch = workload.n, workload.k, workload.batch

    def lead(matrices: BatchMap | int) -> tuple[int, ...]:
        count = matrices if isinstance(matrices, int) else matrices.mod
        return () if batch == 1 else (count,)

    a = lead(workload.a_batch) + ((k, m) if workload.trans_a else (m, k))
    b = lead(workload.b_batch) + ((n, k) if workload.trans_b else (k, n))
    shapes = [(a, DTYPES[workload.a].storage), (b, DTYPES[workload.b].storage)]
    d = (*lead(batch), m, n)
    for op in workload.epilogue:
        if op.dtype is not None:
            shapes.append(((n,) if op.kind == "bias" else d, DTYPES[op.dtype].storage))
    return [*shapes, (d, DTYPES[workload.out].storage)]


def relax_module(workload: Workload) -> Any:
    """Return the workload as a Relax module with one function ``main(A, B, operands…) -> D``.

    Raises
    ------
    BuildError
        For a batch broadcast that one Relax product cannot say.
    """
    *inputs, (_, out) = operand_shapes(workload)
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(inputs)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            value = _expression(builder, workload, params, out)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def _expression(builder: Any, workload: Workload, params: list[Any], out: str) -> Any:
    def swap(x: Any) -> Any:
        rank = len(x.ty.shape)
        return builder.emit(relax.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))

    a = swap(params[0]) if workload.trans_a else params[0]
    b = swap(params[1]) if workload.trans_b else params[1]
    for side in (workload.a_batch, workload.b_batch):
        if side is None or side not in (BatchMap(1, workload.batch), BatchMap(1, 1)):
            raise BuildError(f"reference of {workload.key}: TVM has no product with that broadcast")
    value = builder.emit(relax.op.matmul(a, b, out_dtype=out))
    operands = iter(params[2:])
    for op in workload.epilogue:
        match op.kind:
            case "bias" | "residual":
                operand = next(operands)
                if str(operand.ty.dtype) != out:
                    operand = builder.emit(relax.op.astype(operand, out))
                value = relax.op.add(value, operand)
            case "scale":
                factor = DEFAULT_SCALE if op.value is None else op.value
                value = relax.op.multiply(value, relax.const(factor, out))
            case "relu":
                value = relax.op.nn.relu(value)
            case "gelu_erf":
                value = relax.op.nn.gelu(value)
            case "gelu_tanh":
                value = relax.op.nn.gelu_tanh(value)
            case "silu":
                value = relax.op.nn.silu(value)
        value = builder.emit(value)
    return value


def build_reference(
    workload: Workload, device: Device, spelling: str, path: Path | None = None
) -> tuple[Any, list[Skipped]]:
    """Compile the reference for one spelling of the architecture.

    Parameters
    ----------
    workload, device
        What is built, and for what; M is fixed.
    spelling
        One of :func:`spellings`.
    path
        Where to export the library, or None.

    Returns
    -------
    executable, list of Skipped
        What ``relax.VirtualMachine`` runs (None where it was exported), and the rules that threw.

    Raises
    ------
    BuildError
        When TVM cannot compile it; the message has TVM's last line.
    """
    tvm_environment()
    skipped: list[Skipped] = []
    target = cuda_target(device, spelling)
    try:
        with target:
            module = tvm.transform.Sequential(
                [
                    relax.transform.LegalizeOps(),
                    relax.transform.AnnotateTIROpPattern(),
                    relax.transform.FoldConstant(),
                    relax.transform.FuseOps(),
                    relax.transform.FuseTIR(),
                    guarded_schedules(skipped),
                ]
            )(relax_module(workload))
            executable = tvm.compile(module, target=target)
        if path is not None:
            executable.export_library(str(path))
            return None, skipped
        return executable, skipped
    except BuildError:
        raise
    except Exception as error:  # TVM raises what it likes
        raise BuildError(
            f"reference of {workload.key} for {spelling}: TVM cannot build it: {last_line(error)}",
            str(error),
        ) from error
