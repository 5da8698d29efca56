"""The device prelude compiles for every architecture, with every wrapper that it has there."""

from __future__ import annotations

import json

import pytest

from tvm_vibegemm.device import device_for, known_archs
from tvm_vibegemm.errors import BuildError
from tvm_vibegemm.kernel.build import build
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.workload import Workload

SOURCE = r"""
using namespace vg;
extern "C" __global__ void __launch_bounds__(128, 1)
uses(const __grid_constant__ CUtensorMap map, const a_t* A, float* D, int M) {
    __shared__ __align__(1024) unsigned char raw[4096];
    u32 s = smem_addr(raw), r4[4], r2[2];
    float d[4] = {};
    int i4[4] = {};
    cp_async<16>(s, A, M); cp_async<8>(s + 16, A); cp_async<4>(s + 32, A);
    cp_async_commit(); cp_async_wait<0>();
    ldmatrix_x4(r4, s); ldmatrix_x2_trans(r2, s); mma_m16n8k16<a_t>(d, r4, r2);
    ldmatrix_x4_trans(r4, s); ldmatrix_x2(r2, s); mma_m16n8k8_tf32(d, r4, r2);
    mma_m16n8k32_s8(i4, r4, r2);
#if __CUDA_ARCH__ >= 890
    mma_m16n8k32_e4m3(d, r4, r2);
#endif
    d[0] += i4[0] + to_tf32(d[1]);
    bar_arrive(1, 128); bar_sync(1, 128);
    D[ld_acquire((const u32*)D)] = pack<a_t>(d[0], d[1]);
    red_release_add((u32*)D, 1);
    store<4>(D, d); store_n<4>(D + 4, d, 3); store<4>((out_t*)D, d);
#if VG_HAS_TMA
    mbar_init(s, 1); fence_mbar_init(); mbar_expect_tx(s, 16); mbar_arrive(s);
    mbar_arrive_remote(s, 0); cp_async_mbar_arrive(s); prefetch_tensormap(&map);
    tma_load_2d(s, &map, 0, 0, s); tma_load_3d(s, &map, 0, 0, 0, s);
    tma_load_2d_multicast(s, &map, 0, 0, s, 3); tma_load_3d_multicast(s, &map, 0, 0, 0, s, 3);
    mbar_wait(s, 0); tma_store_2d(&map, s, 0, 0); tma_store_3d(&map, s, 0, 0, 0);
    bulk_commit(); bulk_wait_read<0>(); bulk_wait<0>(); fence_async_shared(); fence_async();
    cluster_sync(); D[1] = ld_cluster(map_to_cta(s, cluster_rank())); stmatrix_x4(s, 1, 2, 3, 4);
#endif
#if VG_HAS_WGMMA
    setmaxnreg_inc<240>();
#define USE(N) {                                                                                  \
        float acc[N / 2];                                                                         \
        const u64 desc = smem_desc(s, 16, 1024, 1);                                               \
        wgmma_fence(); wgmma<N, 0, 1, a_t>(acc, desc, desc, 0); wgmma<N, 1, 0, a_t>(acc, 1, 2, 1); \
        wgmma_commit(); wgmma_wait<0>(); wgmma_use(acc);                                          \
        for (int i = 0; i < N / 2; ++i) D[threadIdx.x * 256 + i] += acc[i];                       \
    }
    USE(8) USE(16) USE(24) USE(32) USE(48) USE(64) USE(80) USE(96) USE(128) USE(160)
    USE(192) USE(256)
#endif
}
"""


def kernel(source: str) -> Kernel:
    plan = {
        "name": "uses_the_prelude",
        "arch": known_archs(),
        "types": [{"a": "f16", "b": "f16", "acc": "f32", "out": ["f16"]}],
        "layouts": ["nn"],
        "epilogue": False,
        "launches": [{"entry": "uses", "grid": [1, 1, 1], "block": [128, 1, 1], "params": []}],
    }
    return Kernel(source, Plan.load(json.dumps(plan)))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("arch", known_archs())
def test_every_wrapper_builds(arch: str, dtype: str) -> None:
    workload = Workload(1, 1, 1, dtype, dtype, out=dtype)
    report = build(kernel(SOURCE), workload, device_for(arch), cache=False).report["uses"]
    assert report.spill_bytes == 0
    # The wgmma forms are built where the chip has them: they need many registers.
    assert (report.registers > 100) == device_for(arch).has("wgmma")


def test_a_wrapper_that_is_not_there_is_named() -> None:
    source = SOURCE.replace("cp_async_commit();", "cp_async_commit_twice();")
    with pytest.raises(BuildError, match="cp_async_commit_twice"):
        build(kernel(source), Workload(1, 1, 1), device_for("sm_90"))
