"""The device prelude compiles for every architecture, with every wrapper that it has there."""

from __future__ import annotations

import json
import re

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

# What the 8-bit types need besides: built with both FP8 types, so that all of it is there.
NARROW = r"""
using namespace vg;
template <typename T> VG_DEV void convert(T* p, const float (&v)[16]) {
    const float two[2] = {v[0], v[1]};
    store<16>(p, v); store<2>(p + 20, two); store_n<16>(p + 32, v, 3);
    p[64] = from_float<T>(to_float(p[65]) + 1.f);
    ((u32*)p)[20] = pack4<T>(v[0], v[1], v[2], v[3]);
}
extern "C" __global__ void __launch_bounds__(128, 1) uses(unsigned char* D, const float* x) {
    float v[16], d[4] = {};
    u32 r4[4] = {1, 2, 3, 4}, r2[2] = {5, 6};
    for (int i = 0; i < 16; ++i) v[i] = x[i];
    convert((signed char*)D, v);
    convert((__nv_fp8_e4m3*)(D + 128), v);
    convert((__nv_fp8_e5m2*)(D + 256), v);
#if __CUDA_ARCH__ >= 890
    mma_m16n8k32<__nv_fp8_e4m3, __nv_fp8_e4m3>(d, r4, r2);
    mma_m16n8k32<__nv_fp8_e4m3, __nv_fp8_e5m2>(d, r4, r2);
    mma_m16n8k32<__nv_fp8_e5m2, __nv_fp8_e4m3>(d, r4, r2);
    mma_m16n8k32<__nv_fp8_e5m2, __nv_fp8_e5m2>(d, r4, r2);
#endif
    store<4>((float*)(D + 512), d);
}
"""

WGMMA_N = [8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256]
WGMMA = (
    r"""
using namespace vg;
template <int N, int TB> VG_DEV void use(acc_t* D, const u32 (&a)[4]) {
    __shared__ __align__(1024) unsigned char raw[1024];
    acc_t acc[N / 2];
    const u64 desc = smem_desc(smem_addr(raw), 16, 1024, 1);
    wgmma_fence();
    wgmma<N, TB, TB, a_t, b_t>(acc, desc, desc, 0);
    wgmma_rs<N, TB, a_t, b_t>(acc, a, desc, 1);
    wgmma_commit(); wgmma_wait<0>(); wgmma_use(acc);
    for (int i = 0; i < N / 2; ++i) D[threadIdx.x * 256 + i] += acc[i];
}
extern "C" __global__ void __launch_bounds__(128, 1) uses(acc_t* D, const u32* x) {
    const u32 a[4] = {x[0], x[1], x[2], x[3]};
"""
    + "\n".join(f"    use<{n}, 0>(D, a);" for n in WGMMA_N)
    + """
    if constexpr (sizeof(a_t) == 2) use<64, 1>(D, a);
}
"""
)
WGMMA_TYPES = {
    ("f16", "f16"): "k16.f32.f16.f16",
    ("bf16", "bf16"): "k16.f32.bf16.bf16",
    ("tf32", "tf32"): "k8.f32.tf32.tf32",
    ("s8", "s8"): "k32.s32.s8.s8",
    ("f8e4m3", "f8e4m3"): "k32.f32.e4m3.e4m3",
    ("f8e4m3", "f8e5m2"): "k32.f32.e4m3.e5m2",
    ("f8e5m2", "f8e4m3"): "k32.f32.e5m2.e4m3",
    ("f8e5m2", "f8e5m2"): "k32.f32.e5m2.e5m2",
}


@pytest.fixture
def ptx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the PTX of every build."""
    texts: list[str] = []
    monkeypatch.setattr(f"{build.__module__}.check_ptx", lambda text, name: texts.append(text))
    return texts


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


@pytest.mark.parametrize("arch", known_archs())
def test_8_bit_wrappers_build(arch: str, ptx: list[str]) -> None:
    workload = Workload(1, 1, 1, "f8e4m3", "f8e5m2", out="f8e4m3")
    report = build(kernel(NARROW), workload, device_for(arch), cache=False).report["uses"]
    assert report.spill_bytes == 0
    assert "cvt.pack.sat.s8.s32.b32" in ptx[0]
    pairs = {f"{a}.{b}" for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")}
    has = device_for(arch).has("fp8")
    found = set(re.findall(r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.(\w+\.\w+)\.f32", ptx[0]))
    assert found == (pairs if has else set())
    for kind in ("e4m3", "e5m2"):  # in hardware, two values an instruction
        assert (f"cvt.rn.satfinite.{kind}x2.f32" in ptx[0]) == has


@pytest.mark.parametrize("types", WGMMA_TYPES, ids=" ".join)
def test_wgmma_forms_are_the_instructions(types: tuple[str, str], ptx: list[str]) -> None:
    acc = "s32" if types[0] == "s8" else "f32"
    build(kernel(WGMMA), Workload(1, 1, 1, *types, acc=acc), device_for("sm_90"), cache=False)
    # Braces around four registers of A follow the accumulators in the register form alone.
    form = r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)(k\S+) \{([^}]*)\}, (\{?)"
    found = set()
    for n, kind, accumulators, brace in re.findall(form, ptx[0]):
        assert kind == WGMMA_TYPES[types]
        assert len(accumulators.split(",")) == int(n) // 2
        found.add((int(n), bool(brace)))
    assert found == {(n, rs) for n in WGMMA_N for rs in (False, True)}


@pytest.mark.parametrize(
    "form", ["wgmma<8, 0, 1, a_t>(acc, 1, 2, 0)", "wgmma_rs<8, 1, a_t>(acc, a, 2, 0)"]
)
def test_only_16_bit_operands_can_be_mn_major(form: str) -> None:
    source = (
        'extern "C" __global__ void uses(int* D) {\n'
        f"    int acc[4]; const unsigned a[4] = {{}}; vg::{form}; D[0] = acc[0];\n}}"
    ).replace("a_t", "vg::a_t")
    with pytest.raises(BuildError, match="only 16-bit types can be MN-major"):
        build(kernel(source), Workload(1, 1, 1, "s8", "s8"), device_for("sm_90"), cache=False)


def test_a_wrapper_that_is_not_there_is_named() -> None:
    source = SOURCE.replace("cp_async_commit();", "cp_async_commit_twice();")
    with pytest.raises(BuildError, match="cp_async_commit_twice"):
        build(kernel(source), Workload(1, 1, 1), device_for("sm_90"))
