"""The pipeline ``vibegemm``: TVM's own for CUDA, plus the offload; plain TVM without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.s_tir import dlight

from tvm_vibegemm.graph.pipeline import vibegemm_pipeline
from tvm_vibegemm.graph.report import REPORT, SiteReport
from tvm_vibegemm.rivals.guard import Skipped

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def layer(dtype: str = "float32") -> tvm.IRModule:
    """Return relu(x·w + b), and an exp that is no product's epilogue."""
    shapes = {"x": (64, 64), "w": (64, 64), "b": (64,)}
    x, w, b = (relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            product = builder.emit(relax.op.add(relax.op.matmul(x, w), b))
            active = builder.emit(relax.op.nn.relu(product))
            out = builder.emit_output(relax.op.exp(active))
        builder.emit_func_output(out)
    return builder.get()


def extern_calls(mod: tvm.IRModule) -> list[str]:
    """Return the names of the packed functions that ``main`` calls by name."""
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, relax.ExternFunc):
            found.append(str(node.op.global_symbol))

    relax.analysis.post_order_visit(mod["main"], visit)
    return [name for name in found if name.startswith("vibegemm_")]


def test_offloads_and_reports() -> None:
    sites: list[SiteReport] = []
    with TARGET:
        result = vibegemm_pipeline(select="valid", sites=sites)(layer())
    assert [site.decision for site in sites] == ["kernel"]
    assert extern_calls(result) == [sites[0].symbol]
    assert REPORT not in (result.attrs or {})
    assert not any(
        "matmul" in str(gvar.name_hint) for gvar, _ in result.functions_items()
    )  # no schedule of TVM's beside ours


def test_plain_is_the_same_without_our_kernels() -> None:
    sites: list[SiteReport] = []
    with TARGET:
        result = vibegemm_pipeline(offload=False, sites=sites)(layer())
    assert sites == [] and extern_calls(result) == []
    assert any("matmul" in str(gvar.name_hint) for gvar, _ in result.functions_items())


def test_plain_gives_what_tvms_pipeline_gives() -> None:
    with TARGET:
        ours = vibegemm_pipeline(offload=False)(layer())
        theirs = relax.backend.cuda.pipeline.get_default_pipeline(TARGET)(layer())
    tvm.ir.assert_structural_equal(ours, theirs)


def test_a_rule_that_throws_does_not_end_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("cannot tensorise")

    monkeypatch.setattr(dlight.gpu.Matmul, "apply", broken)
    skipped: list[Skipped] = []
    with TARGET:
        vibegemm_pipeline(offload=False, skipped=skipped)(layer())
    assert {skip.rule for skip in skipped} == {"Matmul"}
    assert skipped[0].error == "cannot tensorise"


def test_named_pipeline_to_a_library_of_machine_code(tmp_path: Path) -> None:
    path = tmp_path / "layer.so"
    pipeline = relax.get_pipeline("vibegemm", select="valid")
    with TARGET:
        tvm.compile(layer(), TARGET, relax_pipeline=pipeline).export_library(str(path))
    kinds: list[str] = []

    def walk(module: Any) -> None:
        kinds.append(module.kind)
        for imported in module.imports:
            walk(imported)

    walk(tvm.runtime.load_module(str(path)))
    assert kinds.count("cuda") >= 1
    data = path.read_bytes()
    # One ELF is the library; each cuda module is one more, and none of them is source.
    assert data.count(b"\x7fELF") == 1 + kinds.count("cuda")
    assert b"__global__" not in data


def test_needs_a_target() -> None:
    with pytest.raises(Exception, match=r"(?i)target"):
        vibegemm_pipeline()(layer())
