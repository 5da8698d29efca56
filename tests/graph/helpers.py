"""Runs modules on the CPU: plain, and offloaded with a numpy stand-in for the kernels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tvm_vibegemm.graph import offload, sites
from tvm_vibegemm.graph.report import SiteReport, read_report
from tvm_vibegemm.tuning.decision import Choice, Decision
from tvm_vibegemm.workload import DTYPES, Workload

CPU = tvm.target.Target("llvm")


def numpy_dtype(storage: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if storage == "bfloat16" else storage)


KERNEL = Decision("kernel", "stand-in", 1.0, (Choice(None, "0" * 64, {}),))


def epilogue(workload: Workload, scales: list[float], acc: np.ndarray, operands: list[Any]) -> Any:
    """Apply an epilogue to the accumulator (batch, M, N), reading operands as flat memory."""
    operands, scales = list(operands), list(scales)
    for op in workload.epilogue:
        if op.kind == "bias":
            acc = acc + operands.pop(0).reshape(workload.n).astype("float64")
        elif op.kind == "residual":
            acc = acc + operands.pop(0).reshape(acc.shape).astype("float64")
        elif op.kind == "scale":
            acc = acc * scales.pop(0)
        elif op.kind == "relu":
            acc = np.maximum(acc, 0)
        elif op.kind == "gelu_erf":
            acc = acc * 0.5 * (1 + np.vectorize(math.erf, otypes=["float64"])(acc / math.sqrt(2)))
        elif op.kind == "gelu_tanh":
            inner = math.sqrt(2 / math.pi) * (acc + 0.044715 * acc**3)
            acc = acc * 0.5 * (1 + np.tanh(inner))
        elif op.kind == "silu":
            acc = acc / (1 + np.exp(-acc))
        else:
            raise AssertionError(op.kind)
    assert not operands
    assert not scales
    return acc


def run_site(site: dict[str, Any], tensors: list[np.ndarray], elements: int) -> np.ndarray:
    """Compute D from the site's description alone, as a kernel would: from flat memory."""
    workload = Workload.parse(site["workload"])
    a, b, *operands = tensors
    for tensor, name in ((a, workload.a), (b, workload.b)):
        assert tensor.dtype == numpy_dtype(DTYPES[name].storage)
    m = workload.m
    if m is None:
        m = elements // (workload.n * workload.batch)
    assert workload.a_batch is not None
    assert workload.b_batch is not None
    mats = []
    for tensor, map_, rows, cols, trans in (
        (a, workload.a_batch, m, workload.k, workload.trans_a),
        (b, workload.b_batch, workload.k, workload.n, workload.trans_b),
    ):
        stored = (cols, rows) if trans else (rows, cols)
        flat = tensor.astype("float64").reshape(map_.mod, *stored)
        flat = flat.swapaxes(1, 2) if trans else flat
        index = [(i // map_.div) % map_.mod for i in range(workload.batch)]
        mats.append(flat[np.array(index, "int64")])
    value = epilogue(workload, site["scales"], mats[0] @ mats[1], operands)
    return np.asarray(value).astype(numpy_dtype(DTYPES[workload.out].storage))


def fake_codegen(functions: Any, options: Any, constants: Any) -> list[Any]:
    """Stand in for ``relax.ext.vibegemm``: a Python function under each symbol."""
    del options, constants  # scale factors: the site has them too
    for function in functions:
        site = json.loads(str(function.attrs["vibegemm.site"]))
        count = len(function.params)

        def call(*args: Any, site: dict[str, Any] = site, count: int = count) -> None:
            out = args[count]
            elements = math.prod(out.shape)
            value = run_site(site, [arg.numpy() for arg in args[:count]], elements)
            out.copyfrom(value.reshape(out.shape))
            for workspace in args[count + 1 :]:
                assert math.prod(workspace.shape) > 0

        tvm.register_global_func(str(function.attrs["global_symbol"]), call, override=True)
    return []


def apply(
    mod: Any, monkeypatch: Any, decide: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Run the pass with a stand-in database and decision."""
    use(monkeypatch, decide)
    workspace = options.pop("workspace", 0)
    monkeypatch.setattr(sites, "site_workspace", lambda *_: workspace)
    options = {"target": "sm_90", "database": StubDatabase(), **options}
    result = offload.VibeGEMMOffload(**options)(mod)
    relax.analysis.well_formed(result)
    return result


def use(monkeypatch: Any, decide: Callable[..., Any] | None) -> None:
    """Put a stand-in in the place of the decision, and of the database's kernels."""
    monkeypatch.setattr(offload, "decide", decide or (lambda *_, **__: KERNEL))
    monkeypatch.setattr(sites, "site_workspace", lambda *_: 0)


class StubDatabase:
    def measured_m(self, key: str, arch: str) -> list[int]:
        return []

    def accepted(self, key: str, arch: str) -> dict[Any, Any]:
        return {}


def execute(mod: Any, inputs: list[np.ndarray], function: str = "main") -> list[np.ndarray]:
    """Compile for the CPU and run; a tuple result gives several arrays."""
    with CPU:
        machine = relax.VirtualMachine(tvm.compile(mod, target=CPU), tvm.cpu())
    result = machine[function](*[tvm.runtime.tensor(x) for x in inputs])
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [x.numpy() for x in results]


def with_codegen(mod: Any) -> Any:
    with registered():
        return relax.transform.RunCodegen()(mod)


@contextmanager
def registered() -> Any:
    name = "relax.ext.vibegemm"
    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_global_func(name, fake_codegen, override=True)
    try:
        yield
    finally:
        tvm.register_global_func(name, before or fake_codegen, override=True)


def random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    return values.astype(numpy_dtype(dtype))


def inputs_of(mod: Any, symbols: dict[str, int] | None = None, function: str = "main") -> list[Any]:
    """Return random inputs for a function's parameters."""
    values = []
    for seed, param in enumerate(mod[function].params):
        shape = tuple(
            int(x) if isinstance(x, tvm.tirx.IntImm) else (symbols or {})[x.name]
            for x in param.ty.shape.values
        )
        values.append(random(shape, str(param.ty.dtype.dtype), seed))
    return values


TOLERANCE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}


def check(
    mod: Any, monkeypatch: Any, symbols: dict[str, int] | None = None, **options: Any
) -> tuple[Any, list[SiteReport]]:
    """Offload, run with the stand-in, and compare with the module as it was, run in TVM."""
    result = apply(mod, monkeypatch, **options)
    inputs = inputs_of(mod, symbols)
    want = execute(mod, inputs)
    got = execute(with_codegen(result), inputs)
    assert len(want) == len(got)
    for x, y in zip(want, got, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        # TVM rounds to the graph's types between the steps, a kernel only at the end.
        scale = max(TOLERANCE.get(str(v.dtype), 0.0) for v in (x, *inputs))
        np.testing.assert_allclose(
            y.astype("float64"), x.astype("float64"), rtol=scale, atol=scale * 4
        )
    return result, read_report(result)


def build(parameters: dict[str, tuple[Any, str]], body: Callable[..., Any]) -> Any:
    """Return a module whose ``main`` emits ``body(*parameters)`` in a dataflow block."""
    bb = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(s, d)) for name, (s, d) in parameters.items()]
    with bb.function("main", params):
        with bb.dataflow():
            value = body(*params)
            out = bb.emit_output(bb.normalize(value))
        bb.emit_func_output(out)
    return bb.get()
