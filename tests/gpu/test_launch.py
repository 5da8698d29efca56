"""Launching on the GPU: workspace, dynamic M, empty sizes, equal entry names, CUDA graphs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tvm

from tvm_vibegemm.database import open_default
from tvm_vibegemm.device import Device, device_for
from tvm_vibegemm.judge.inputs import magnitude, make_inputs, truth
from tvm_vibegemm.judge.numerics import stats_of
from tvm_vibegemm.judge.timing import Stream
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.launch import Branch, Hosted, host_function, workspace_bytes
from tvm_vibegemm.kernel.module import link
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.rivals.reference import operand_shapes
from tvm_vibegemm.toolchain import local_device
from tvm_vibegemm.tuning.decision import decide, load_kernel
from tvm_vibegemm.workload import BatchMap, EpilogueOp, Workload

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> Device:
    found = local_device()
    assert found is not None
    return device_for(*found)


def branches_for(workload: Workload, device: Device) -> list[Branch]:
    with open_default() as database:
        decision = decide(workload, device, database, select="valid")
        assert decision.decision == "kernel", decision.reason
        return [
            Branch(load_kernel(database, choice.kernel), choice.tunables, choice.m_max)
            for choice in decision.choices
        ]


def hosted(name: str, workload: Workload, device: Device, branches: list[Branch]) -> Hosted:
    *inputs, output = operand_shapes(workload)
    outputs = [output]
    size = workspace_bytes(workload, device, branches)
    if size:
        outputs.append(((size,), "uint8"))
    return host_function(name, workload, device, branches, inputs, outputs)


def check(function: object, workload: Workload, workspace: int = 0, index: int = 0) -> None:
    dev = tvm.cuda(index)
    for kind in ("dense", "normal"):
        arrays = make_inputs(workload, kind, 3)
        shape, dtype = operand_shapes(workload)[-1]
        output = tvm.runtime.empty(shape, dtype, dev)
        extra = [tvm.runtime.empty((workspace,), "uint8", dev)] if workspace else []
        assert callable(function)
        function(*[tvm.runtime.tensor(x, dev) for x in arrays], output, *extra)
        assert_right(workload, kind, arrays, output.numpy())


def assert_right(workload: Workload, kind: str, arrays: list, got: np.ndarray) -> None:
    want, size = truth(workload, arrays), magnitude(workload, arrays)
    stats = stats_of(workload, kind, got, want, size)
    assert stats.wrong == stats.not_finite == stats.finite == 0, (workload.key, kind, stats)


SIZES = [
    *((1, 1, 1), (7, 5, 3), (64, 64, 64), (129, 257, 65), (1, 1024, 1024), (300, 1, 77)),
    *((1001, 1003, 1005), (512, 768, 3072)),
]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_layout_and_size(dtype: str, layout: str, device: Device) -> None:
    for number, (m, n, k) in enumerate(SIZES):
        epilogue = (
            (EpilogueOp("bias", dtype), EpilogueOp("gelu_tanh"), EpilogueOp("residual", dtype))
            if number % 2
            else ()
        )
        workload = Workload(
            m,
            n,
            k,
            dtype,
            dtype,
            out=dtype,
            trans_a=layout[0] == "t",
            trans_b=layout[1] == "t",
            epilogue=epilogue,
        )
        function = link([hosted("f", workload, device, branches_for(workload, device))], device)[
            "f"
        ]
        check(function, workload)


@pytest.mark.parametrize(
    "a_batch", [BatchMap(1, 6), BatchMap(1, 1), BatchMap(3, 2), BatchMap(1, 3)]
)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_broadcast_batch(dtype: str, a_batch: BatchMap, device: Device) -> None:
    workload = Workload(
        65, 72, 40, dtype, dtype, out=dtype, batch=6, a_batch=a_batch, b_batch=BatchMap(1, 6)
    )
    function = link([hosted("f", workload, device, branches_for(workload, device))], device)["f"]
    check(function, workload)


def test_batch_over_the_grid_limit_of_y_and_z(device: Device) -> None:
    workload = Workload(3, 4, 8, "f32", "f32", out="f32", batch=70_000)
    function = link([hosted("f", workload, device, branches_for(workload, device))], device)["f"]
    check(function, workload)


def test_no_k_gives_the_epilogue_of_zero(device: Device) -> None:
    for dtype in ("f16", "f32"):
        workload = Workload(
            33, 40, 0, dtype, dtype, out=dtype, epilogue=(EpilogueOp("bias", dtype),)
        )
        function = link([hosted("f", workload, device, branches_for(workload, device))], device)[
            "f"
        ]
        arrays = make_inputs(workload, "normal", 0)
        output = tvm.runtime.empty((33, 40), workload.out.replace("f", "float"), tvm.cuda(0))
        function(*[tvm.runtime.tensor(x, tvm.cuda(0)) for x in arrays], output)
        np.testing.assert_array_equal(output.numpy(), np.broadcast_to(arrays[2], (33, 40)))


def test_dynamic_m_branches_and_takes_zero(device: Device) -> None:
    from tvm import tirx

    for dtype, storage in (("f16", "float16"), ("f32", "float32")):
        workload = Workload(None, 96, 64, dtype, dtype, out=dtype)
        m = tirx.Var("m", "int64")
        branches = branches_for(workload, device)
        host = host_function(
            "f",
            workload,
            device,
            branches,
            [((m, 64), storage), ((64, 96), storage)],
            [((m, 96), storage)],
        )
        function = link([host], device)["f"]
        for size in (0, 1, 16, 64, 65, 500):
            if size:
                check(function, workload.at(size))
            else:
                empty = [
                    tvm.runtime.empty(s, storage, tvm.cuda(0)) for s in ((0, 64), (64, 96), (0, 96))
                ]
                function(*empty)


SPLIT_SOURCE = """
extern "C" __global__ void part(const float* A, const float* B, float* W, int M, int N, int K) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y;
    if (i >= M * N) return;
    float v = 0.f;
    for (int k = s; k < K; k += SPLITS) v = fmaf(A[i / N * K + k], B[k * N + i % N], v);
    atomicAdd(W + i, v * FACTOR);
}
extern "C" __global__ void finish(const float* W, float* D, int M, int N VG_EPILOGUE_PARAMS) {
    VG_EPILOGUE(epi, M, N);
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M * N) D[i] = epi(W[i], 0, i / N, i % N);
}
"""


def split_kernel(factor: int) -> Kernel:
    """Two launches through a zeroed workspace; exact for integers, whatever the order."""
    grid = ["ceildiv(M * N, 128)", "SPLITS", 1]
    plan = {
        "name": f"split_{factor}",
        "arch": ["sm_80", "sm_90"],
        "types": [{"a": "f32", "b": "f32", "acc": "f32", "out": ["f32"]}],
        "layouts": ["nn"],
        "tunables": {"SPLITS": {"choices": [4], "default": 4}},
        "constants": {"FACTOR": factor},
        "workspace_bytes": "M * N * 4",
        "workspace_zero": True,
        "launches": [
            {
                "entry": "part",
                "grid": grid,
                "block": [128, 1, 1],
                "params": [
                    *({"pointer": x} for x in ("A", "B", "workspace")),
                    *({"int32": x} for x in "MNK"),
                ],
            },
            {
                "entry": "finish",
                "grid": [grid[0], 1, 1],
                "block": [128, 1, 1],
                "params": [
                    *({"pointer": x} for x in ("workspace", "D")),
                    *({"int32": x} for x in "MN"),
                    {"epilogue": True},
                ],
            },
        ],
    }
    return Kernel(SPLIT_SOURCE, Plan.load(json.dumps(plan)))


def test_zeroed_workspace_and_equal_entry_names(device: Device) -> None:
    workload = Workload(50, 70, 90, "f32", "f32", out="f32")
    single, double = (Branch(split_kernel(factor), {}) for factor in (1, 2))
    module = link(
        [hosted("one", workload, device, [single]), hosted("two", workload, device, [double])],
        device,
    )
    dev = tvm.cuda(0)
    arrays = make_inputs(workload, "dense", 0)
    inputs = [tvm.runtime.tensor(x, dev) for x in arrays]
    want = truth(workload, arrays)
    dirty = tvm.runtime.tensor(np.full(50 * 70 * 4, 0x7F, np.uint8), dev)
    for name, factor in (("one", 1), ("two", 2), ("one", 1)):
        output = tvm.runtime.empty((50, 70), "float32", dev)
        module[name](*inputs, output, dirty)
        np.testing.assert_array_equal(output.numpy(), factor * want)


def test_capture_into_a_cuda_graph(device: Device) -> None:
    workload = Workload(256, 256, 256)
    function = link([hosted("f", workload, device, branches_for(workload, device))], device)["f"]
    dev = tvm.cuda(0)
    arrays = make_inputs(workload, "normal", 0)
    inputs = [tvm.runtime.tensor(x, dev) for x in arrays]
    output = tvm.runtime.empty((256, 256), "float16", dev)
    with Stream(dev) as stream:
        function(*inputs, output)
        dev.sync(stream.handle)
        graph = stream.capture([lambda: function(*inputs, output)] * 4)
        output.copyfrom(np.zeros((256, 256), np.float16))
        stream.launch(graph)
        dev.sync(stream.handle)
    assert_right(workload, "normal", arrays, output.numpy())


def test_strided_input_is_refused(device: Device) -> None:
    workload = Workload(64, 64, 64)
    function = link([hosted("f", workload, device, branches_for(workload, device))], device)["f"]
    dev = tvm.cuda(0)
    wrong = tvm.runtime.empty((64, 65), "float16", dev)
    right = tvm.runtime.empty((64, 64), "float16", dev)
    with pytest.raises(Exception, match=r"(?i)shape|mismatch|expect|65"):
        function(wrong, right, right)
