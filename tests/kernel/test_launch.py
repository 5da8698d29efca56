"""Host functions: what is launched, with which sizes, and that it links and exports with no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm import tirx

from tvm_vibegemm.device import device_for
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.launch import Branch, host_function, workspace_bytes
from tvm_vibegemm.kernel.module import link
from tvm_vibegemm.resources import codegen_dir, schedules_dir
from tvm_vibegemm.rivals.reference import operand_shapes
from tvm_vibegemm.workload import EpilogueOp, Workload

DEVICE = device_for("sm_90")


def example() -> Kernel:
    return Kernel.load(codegen_dir() / "prompts" / "example.cu")


def shipped(name: str) -> Kernel:
    return Kernel.load(schedules_dir() / "sm_90" / "kernels" / f"{name}.cu")


def host(workload: Workload, branches: list[Branch], name: str = "f"):  # noqa: ANN201
    *inputs, output = operand_shapes(workload)
    return host_function(name, workload, DEVICE, branches, inputs, [output])


def test_static_sizes() -> None:
    text = str(host(Workload(100, 64, 32), [Branch(example(), {"BM": 32})]).function)
    assert ", 100, 64, 32, 4, 1, 1, 256, 1, 1, 0)" in text  # M, N, K, grid, block, shared bytes


def test_empty_output_launches_nothing() -> None:
    for workload in (Workload(0, 64, 32), Workload(4, 0, 32), Workload(4, 4, 4, batch=0)):
        hosted = host(workload, [Branch(example(), {})])
        assert "call_packed" not in str(hosted.function)
        assert hosted.codes == ()


def test_dynamic_m_branches_in_order_and_guards_zero() -> None:
    m = tirx.Var("m", "int64")
    workload = Workload(None, 64, 32)
    hosted = host_function(
        "f",
        workload,
        DEVICE,
        [Branch(example(), {"BM": 16}, 64), Branch(example(), {"BM": 64})],
        [((m, 32), "float16"), ((32, 64), "float16")],
        [((m, 64), "float16")],
    )
    text = str(hosted.function)
    assert text.index("m > ") < text.index("m <= T.int64(64)") < text.index("else")
    assert len(hosted.codes) == 2


def test_one_cubin_for_equal_sites_and_two_for_different_ones() -> None:
    one, two, other = (
        host(Workload(m, 64, 32, epilogue=e), [Branch(example(), {})], name)
        for m, e, name in (
            (100, (), "one"),
            (200, (), "two"),
            (100, (EpilogueOp("relu"),), "other"),
        )
    )
    assert one.codes[0].binary.key == two.codes[0].binary.key != other.codes[0].binary.key
    entries = [set(h.codes[0].entries) for h in (one, two, other)]
    assert entries[0] == entries[1] and not entries[0] & entries[2]
    module = link([one, two, other], DEVICE)
    assert len(module.imports) == 2


def test_tensor_maps_cluster_and_export(tmp_path: Path) -> None:
    workload = Workload(512, 768, 768, trans_b=True, epilogue=(EpilogueOp("bias", "f16"),))
    kernel = shipped("sm90_wgmma_16bit")
    hosted = host(workload, [Branch(kernel, {"CLUSTER": 2})])
    text = str(hosted.function)
    assert text.count("cuTensorMapEncodeTiled") == 3
    (entry,) = hosted.codes[0].entries.values()
    assert entry["arg_extra_tags"][:4] == [1, 1, 1, 0]
    assert entry["launch_param_tags"][6:9] == [f"clusterCtaIdx.{x}" for x in "xyz"]
    assert entry["launch_param_tags"][-1] == "tirx.use_dyn_shared_memory"
    library = tmp_path / "f.so"
    link([hosted], DEVICE).export_library(str(library))
    loaded = tvm.runtime.load_module(str(library))
    assert loaded.implements_function("f", query_imports=True)
    # The cubin is in there as machine code: its entry's name stands in an ELF symbol table.
    assert entry["name"].encode() in library.read_bytes()


def test_workspace_is_the_largest_of_the_branches() -> None:
    assert workspace_bytes(Workload(8, 8, 8), DEVICE, [Branch(example(), {})]) == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("name", ["general_mma_16bit", "general_simt_f32"])
def test_general_kernels_build_for_every_architecture(name: str, arch: str) -> None:
    from tvm_vibegemm.kernel.build import build
    from tvm_vibegemm.kernel.validity import why_not

    kernel = shipped(name)
    dtype = kernel.plan.types[0].a
    workload = Workload(77, 33, 55, dtype, dtype, out=dtype, trans_b=True, batch=3)
    device = device_for(arch)
    assert why_not(kernel.plan, workload, device) is None
    report = build(kernel, workload, device).report
    assert all(entry.spill_bytes == 0 and entry.registers > 0 for entry in report.values())
