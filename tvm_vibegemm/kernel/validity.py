"""When a plan may be used: derived from workload, device and plan, never taken on trust."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ..device import Device
from ..errors import PlanError
from ..workload import DTYPES, Workload
from . import expr
from .plan import Launch, Plan, TensorMapParam

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_CLUSTER = 8
INT32_MAX = 2**31 - 1
_FP8 = {"f8e4m3", "f8e5m2"}
_INNER_BYTES = {"32B": 32, "64B": 64, "128B": 128}
# A dynamic M is judged at the ends of its range and around the powers of two in it.
_LARGEST_M = 1 << 24


class ResourceReason(str):
    """A reason that names a resource: a block asks for more than the device has of it."""

    __slots__ = ()


def why_not(
    plan: Plan,
    workload: Workload,
    device: Device,
    tunables: Mapping[str, int] | None = None,
    m_range: tuple[int, int | None] | None = None,
) -> str | None:
    """Return why a plan does not serve a workload on a device, or None where it does.

    Parameters
    ----------
    plan, workload, device, tunables
        What is asked; tunables left out take their defaults.
    m_range
        Smallest and largest M (None: unbounded) where the workload's M is dynamic; by default
        every M ≥ 1.

    Returns
    -------
    str or None
        One short sentence, or None. It is a :class:`ResourceReason` where shared memory or
        threads do not suffice; what registers allow is known after the build.
    """
    try:
        values = plan.check_tunables(tunables or {})
        return _static(plan, workload, device) or _dynamic(
            plan, workload, device, values, m_range or (1, None)
        )
    except PlanError as error:
        return str(error)


def _static(plan: Plan, workload: Workload, device: Device) -> str | None:
    if device.arch not in plan.arch:
        return f"it is for {', '.join(plan.arch)}, not {device.arch}"
    fits = [t for t in plan.types if (t.a, t.b, t.acc) == (workload.a, workload.b, workload.acc)]
    if not any(workload.out in types.out for types in fits):
        return f"types {workload.a}·{workload.b}→{workload.out} are not among its own"
    if workload.layout not in plan.layouts:
        return f"layout {workload.layout} is not among {', '.join(plan.layouts)}"
    if workload.batch != 1 and not plan.batched:
        return "it serves no batch"
    if workload.epilogue and not plan.epilogue:
        return "it takes no epilogue"
    narrow = [op.dtype for op in workload.epilogue if op.dtype in _FP8]
    if narrow and not _FP8 & {workload.a, workload.b, workload.out}:
        # The prelude has the FP8 types only where A, B or D needs them.
        return f"an epilogue operand of {narrow[0]} needs FP8 in A, B or D too"
    if workload.m is None and not plan.dynamic_m:
        return "it needs a fixed M"
    if workload.is_empty:
        return None
    if any(launch.cooperative for launch in plan.launches) and not device.has("cooperative"):
        return f"{device.arch} has no cooperative launches"
    return None


def _dynamic(
    plan: Plan,
    workload: Workload,
    device: Device,
    tunables: dict[str, int],
    m_range: tuple[int, int | None],
) -> str | None:
    if workload.is_empty:
        return None
    if workload.m is not None:
        return _at(plan, workload, device, tunables, workload.m)
    low, high = m_range
    for text in plan.requires:
        if "M" in expr.names(text) and not _bound_on_m(text):
            return f"requires {text}, which depends on a dynamic M"
    for launch in plan.launches:
        # TVM raises an entry's limit of shared memory once, at its first call.
        if isinstance(launch.shared_bytes, str) and "M" in expr.names(launch.shared_bytes):
            return f"launch {launch.entry}: shared_bytes depends on a dynamic M"
    top = high if high is not None else _LARGEST_M
    near = (1 << bit for bit in range(top.bit_length() + 1))
    probes = {low, top, *(m + d for m in near for d in (-1, 0, 1) if low <= m + d <= top)}
    # The ends first: they are where a plan mostly fails.
    for m in sorted(probes, key=lambda m: (m not in (low, top), m)):
        reason = _at(plan, workload, device, tunables, m)
        if reason:
            return reason if low == top else _behind(f"at M = {m}, ", reason)
    return None


def _bound_on_m(text: str) -> bool:
    """Return True for ``M <= 64`` and its like: true at both ends means true in between."""
    node = expr.parse(text)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    if not isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return False
    sides = (node.left, node.comparators[0])
    return any(
        isinstance(x, ast.Name) and x.id == "M" and "M" not in expr.names(ast.unparse(y))
        for x, y in (sides, sides[::-1])
    )


def _at(
    plan: Plan, workload: Workload, device: Device, tunables: dict[str, int], m: int
) -> str | None:
    env = plan.env(workload, device, tunables, m)
    for text in plan.requires:
        if not expr.evaluate(text, env):
            return f"requires {text}"
    workspace = expr.evaluate(plan.workspace_bytes, env)
    if workspace < 0 or workspace > 1 << 40:
        return f"workspace_bytes = {workspace} is out of range"
    shared: dict[str, int] = {}
    for launch in plan.launches:
        if not expr.evaluate(launch.when, env):
            continue
        size = expr.evaluate(launch.shared_bytes, env)
        if shared.setdefault(launch.entry, size) != size:
            return f"launch {launch.entry}: one entry with two sizes of shared memory"
        reason = _launch(launch, workload, device, env, workspace)
        if reason:
            return _behind(f"launch {launch.entry}: ", reason)
    return None


def _behind(place: str, reason: str) -> str:
    """Return a reason with its place before it, and of its own type."""
    return type(reason)(place + reason)


def _launch(
    launch: Launch, workload: Workload, device: Device, env: Mapping[str, Any], workspace: int
) -> str | None:
    grid = [expr.evaluate(size, env) for size in launch.grid]
    block = [expr.evaluate(size, env) for size in launch.block]
    cluster = [expr.evaluate(size, env) for size in launch.cluster]
    for name, sizes, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if not 1 <= size <= limit:
                kind = ResourceReason if name == "block" and size > limit else str
                return kind(f"{name} {axis} = {size} is not between 1 and {limit}")
    if block[0] * block[1] * block[2] > MAX_THREADS:
        threads = block[0] * block[1] * block[2]
        return ResourceReason(f"{threads} threads in a block; at most {MAX_THREADS}")
    if cluster != [1, 1, 1]:
        if not device.has("cluster"):
            return f"{device.arch} has no clusters"
        if not 1 <= cluster[0] * cluster[1] * cluster[2] <= MAX_CLUSTER:
            return f"a cluster of {cluster}; at most {MAX_CLUSTER} blocks"
        if any(g % c for g, c in zip(grid, cluster, strict=True)):
            return f"grid {grid} is not a multiple of cluster {cluster}"
    if launch.cooperative and grid[0] * grid[1] * grid[2] > device.num_sms:
        return f"{grid} cooperative blocks do not all fit {device.num_sms} multiprocessors"
    shared = expr.evaluate(launch.shared_bytes, env)
    if not 0 <= shared <= device.smem_per_block:
        kind = ResourceReason if shared > 0 else str
        return kind(f"{shared} bytes of shared memory; {device.arch} has {device.smem_per_block}")
    for param in launch.params:
        reason = None
        if isinstance(param, TensorMapParam):
            reason = _tensor_map(param, workload, device, env)
        elif (text := getattr(param, "int32", None)) is not None:
            value = expr.evaluate(text, env)
            reason = f"int32 {text} = {value} overflows" if abs(value) > INT32_MAX else None
        elif getattr(param, "pointer", None) == "workspace":
            offset = expr.evaluate(param.offset, env)  # type: ignore[union-attr]
            if not 0 <= offset < workspace:
                reason = f"a workspace pointer at {offset} of {workspace} bytes"
        if reason:
            return reason
    return None


def map_extent(
    param: TensorMapParam, workload: Workload, env: Mapping[str, Any]
) -> tuple[str, list[Any]]:
    """Return canonical type and extents, innermost first, of what a tensor map covers."""
    if param.tensor_map == "workspace":
        assert param.dtype is not None and param.rows is not None and param.cols is not None
        return param.dtype, [expr.evaluate(param.cols, env), expr.evaluate(param.rows, env)]
    m, n, k = env["M"], workload.n, workload.k
    dtype, inner, rows, count = {
        "A": (workload.a, *((m, k) if workload.trans_a else (k, m)), env["a_batch"]),
        "B": (workload.b, *((k, n) if workload.trans_b else (n, k)), env["b_batch"]),
        "D": (workload.out, n, m, workload.batch),
    }[param.tensor_map]
    if len(param.box) == 3:
        return dtype, [inner, rows, count]
    return dtype, [inner, rows * count]


def _tensor_map(
    param: TensorMapParam, workload: Workload, device: Device, env: Mapping[str, Any]
) -> str | None:
    """Check the rules of ``cuTensorMapEncodeTiled`` (CUDA driver API)."""
    name = f"tensor map over {param.tensor_map}"
    if not device.has("tma"):
        return f"{device.arch} has no bulk tensor copies"
    dtype, dims = map_extent(param, workload, env)
    size = DTYPES[dtype].bytes
    if any(extent < 1 or extent >= 1 << 32 for extent in dims):
        return f"{name}: extent {dims} is not between 1 and 2^32"
    pitch = size
    for extent in dims[:-1]:
        pitch *= extent
        if pitch % 16 or pitch >= 1 << 40:
            return f"{name}: a row of {pitch} bytes is not a multiple of 16"
    box = [expr.evaluate(extent, env) for extent in param.box]
    if any(not 1 <= extent <= 256 for extent in box):
        return f"{name}: box {box} is not between 1 and 256"
    inner = box[0] * size
    if inner % 16 or inner > _INNER_BYTES.get(param.swizzle, inner):
        return f"{name}: inner box of {inner} bytes does not fit swizzle {param.swizzle}"
    if param.tensor_map == "workspace" and expr.evaluate(param.offset, env) % 128:
        return f"{name}: offset {param.offset} is not a multiple of 128 bytes"
    if param.as_tf32 and dtype not in ("f32", "tf32"):
        return f"{name}: as_tf32 needs fp32 elements"
    return None
