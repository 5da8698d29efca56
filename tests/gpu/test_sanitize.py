"""compute-sanitizer on the GPU: honest kernels are clean, a race and a stray write are found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tvm_vibegemm.device import Device, device_for
from tvm_vibegemm.errors import ToolchainError
from tvm_vibegemm.judge.sanitize import (
    TOOLS,
    Finding,
    allowed,
    find_sanitizer,
    sanitize,
    small_workloads,
)
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.resources import schedules_dir
from tvm_vibegemm.toolchain import local_device
from tvm_vibegemm.workload import Workload

pytestmark = pytest.mark.gpu

KERNELS = sorted((schedules_dir() / "sm_90" / "kernels").glob("*.cu"))
WORKLOAD = Workload(33, 40, 24, "f32", "f32", out="f32")
# One block a row of D: the row of A goes through shared memory.
SOURCE = """\
extern "C" __global__ void rows(const float* a, const float* b, float* d, int m, int n, int k,
                                unsigned char* space) {
    extern __shared__ float row[];
    const int i = blockIdx.x;
    for (int p = threadIdx.x; p < k; p += blockDim.x) row[k - 1 - p] = a[i * k + p];
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += blockDim.x) {
        float sum = 0.f;
        for (int p = 0; p < k; ++p) sum += row[k - 1 - p] * b[p * n + j];
        d[i * n + j] = sum;
    }
}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    found = local_device()
    assert found is not None
    if find_sanitizer() is None:
        pytest.skip("compute-sanitizer is not installed")
    return device_for(*found)


def kernel(source: str, **fields: Any) -> Kernel:
    data = {
        "name": "rows",
        "arch": ["sm_80", "sm_90"],
        "types": [{"a": "f32", "b": "f32", "acc": "f32", "out": ["f32"]}],
        "layouts": ["nn"],
        "epilogue": False,
        "workspace_bytes": 64,
        "launches": [
            {
                "entry": "rows",
                "grid": ["M", 1, 1],
                "block": [64, 1, 1],
                "shared_bytes": "4 * K",
                "params": [
                    *({"pointer": x} for x in "ABD"),
                    *({"int32": x} for x in "MNK"),
                    {"pointer": "workspace"},
                ],
            }
        ],
    }
    return Kernel(source, Plan.load(json.dumps(data | fields)))


def check(source: str, device: Device, **fields: Any) -> list[Finding]:
    try:
        return sanitize(kernel(source, **fields), [WORKLOAD], {}, device)
    except ToolchainError as error:
        pytest.skip(str(error))


def changed(old: str, new: str) -> str:
    assert SOURCE.count(old) == 1
    return SOURCE.replace(old, new)


def found(findings: list[Finding], tool: str) -> set[str]:
    return {finding.kind for finding in findings if finding.tool == tool}


def test_honest(device: Device) -> None:
    assert check(SOURCE, device) == []


def test_a_barrier_removed_is_a_race(device: Device) -> None:
    findings = check(changed("    __syncthreads();\n", ""), device)
    assert "race" in found(findings, "racecheck")
    assert {finding.where.kernel for finding in findings} == {"rows"}


@pytest.mark.parametrize("index", ["m * n", "-1"])
def test_a_write_beside_the_output(index: str, device: Device) -> None:
    stray = changed("d[i * n + j] = sum;", f"d[i * n + j] = sum; if (i + j == 0) d[{index}] = 0.f;")
    assert "invalid-global-write" in found(check(stray, device), "memcheck")


def test_a_read_past_an_operand(device: Device) -> None:
    far = changed("float sum = 0.f;", "float sum = 0.f * b[n * k + j];")
    assert "invalid-global-read" in found(check(far, device), "memcheck")


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_workspace_read_before_it_is_written(zeroed: bool, device: Device) -> None:
    early = changed("float sum = 0.f;", "float sum = space[0];")
    findings = check(early, device, workspace_zero=zeroed)
    want = set() if zeroed else {"uninitialized-global-read"}
    assert found(findings, "initcheck") == want


def test_the_output_read_before_it_is_written(device: Device) -> None:
    early = changed("float sum = 0.f;", "float sum = d[i * n + j];")
    assert "uninitialized-global-read" in found(check(early, device), "initcheck")


def test_a_barrier_that_not_all_threads_reach(device: Device) -> None:
    apart = changed("    __syncthreads();\n", "    __syncthreads();\n    if (threadIdx.x < 40) {\n")
    apart = apart.replace("    for (int j", "    __syncthreads(); }\n    for (int j")
    assert "barrier-error" in found(check(apart, device), "synccheck")


@pytest.mark.slow
@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("tool", TOOLS)
def test_shipped_kernels(path: Any, tool: str, device: Device) -> None:
    shipped = Kernel.load(path)
    workloads = small_workloads(shipped.plan, device)
    try:
        findings = sanitize(shipped, workloads, {}, device, tools=[tool])
    except ToolchainError as error:
        pytest.skip(str(error))
    assert [finding for finding in findings if allowed(finding) is None] == []
