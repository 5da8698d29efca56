// The device prelude: types, conversions and thin wrappers over PTX, for kernels on sm_80 and newer.
// Each wrapper is one instruction (or a few); what it needs of the caller stands above it.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#if VG_A_F8E4M3 || VG_A_F8E5M2 || VG_B_F8E4M3 || VG_B_F8E5M2 || VG_OUT_F8E4M3 || VG_OUT_F8E5M2
#include <cuda_fp8.h>
#define VG_HAS_FP8 1                                              // the types; sm_89 and newer compute in them
#else
#define VG_HAS_FP8 0
#endif

// Opaque: encoded on the host. Take it as `const __grid_constant__ CUtensorMap`.
struct __align__(64) CUtensorMap { unsigned long long opaque[16]; };

#define VG_DEV __device__ __forceinline__
#define VG_HAS_TMA (__CUDA_ARCH__ >= 900)                        // bulk tensor copies, clusters
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define VG_HAS_WGMMA 1                                            // sm_90a only
#else
#define VG_HAS_WGMMA 0
#endif

namespace vg {
typedef unsigned int u32;
typedef unsigned long long u64;

// ---------------------------------------------------------------- conversions
VG_DEV float to_float(float x) { return x; }
VG_DEV float to_float(__half x) { return __half2float(x); }
VG_DEV float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
VG_DEV float to_float(signed char x) { return (float)x; }
VG_DEV float to_float(int x) { return (float)x; }
template <typename T> VG_DEV T from_float(float x);               // one rounding, to nearest even
template <> VG_DEV float from_float<float>(float x) { return x; }
template <> VG_DEV __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> VG_DEV __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> VG_DEV int from_float<int>(float x) { return __float2int_rn(x); }
template <> VG_DEV signed char from_float<signed char>(float x) {
    return (signed char)max(-128, min(127, __float2int_rn(x)));
}
#if VG_HAS_FP8
VG_DEV float to_float(__nv_fp8_e4m3 x) { return (float)x; }
VG_DEV float to_float(__nv_fp8_e5m2 x) { return (float)x; }
// Past the largest finite value (448, 57344): that value. NaN stays NaN.
template <> VG_DEV __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float x) { return __nv_fp8_e4m3(x); }
template <> VG_DEV __nv_fp8_e5m2 from_float<__nv_fp8_e5m2>(float x) { return __nv_fp8_e5m2(x); }
#endif
// Two values as one 32-bit word of T (16-bit types), `lo` in the low half.
template <typename T> VG_DEV u32 pack(float lo, float hi);
template <> VG_DEV u32 pack<__half>(float lo, float hi) {
    __half2 h = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<u32*>(&h);
}
template <> VG_DEV u32 pack<__nv_bfloat16>(float lo, float hi) {
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<u32*>(&h);
}
// Four values as one 32-bit word of T (8-bit types), `a` in the lowest byte; rounded as from_float.
template <typename T> VG_DEV u32 pack4(float a, float b, float c, float d);
template <> VG_DEV u32 pack4<signed char>(float a, float b, float c, float d) {
    u32 r;
    asm("{\n .reg .b32 hi;\n cvt.pack.sat.s8.s32.b32 hi, %4, %3, 0;\n cvt.pack.sat.s8.s32.b32 %0, %2, %1, hi;\n}"
        : "=r"(r) : "r"(__float2int_rn(a)), "r"(__float2int_rn(b)), "r"(__float2int_rn(c)), "r"(__float2int_rn(d)));
    return r;
}
#if VG_HAS_FP8
#define VG_PACK4(T, kind)                                                                           \
    template <> VG_DEV u32 pack4<T>(float a, float b, float c, float d) {                           \
        return (u32)__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kind) |             \
               ((u32)__nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kind) << 16);      \
    }
VG_PACK4(__nv_fp8_e4m3, __NV_E4M3)
VG_PACK4(__nv_fp8_e5m2, __NV_E5M2)
#endif

// W elements that move as one access; `aligned` says whether a pointer allows it.
template <typename T, int W> struct __align__(sizeof(T) * W) Vec { T v[W]; };
template <int BYTES> VG_DEV bool aligned(const void* p) {
    return (reinterpret_cast<u64>(p) & (BYTES - 1)) == 0;
}
// Store W floats as T, in pieces of up to 16 bytes where the address allows, else one by one.
template <int W, typename T> VG_DEV void store(T* p, const float (&v)[W]) {
    constexpr int PIECE = 16 / (int)sizeof(T) < W ? 16 / (int)sizeof(T) : W;
    if ((W % PIECE) == 0 && (PIECE & (PIECE - 1)) == 0 && aligned<PIECE * sizeof(T)>(p)) {
#pragma unroll
        for (int i = 0; i < W; i += PIECE) {
            if constexpr (sizeof(T) == 1 && PIECE % 4 == 0) {
                Vec<u32, PIECE / 4> words;
#pragma unroll
                for (int j = 0; j < PIECE; j += 4)
                    words.v[j / 4] = pack4<T>(v[i + j], v[i + j + 1], v[i + j + 2], v[i + j + 3]);
                *reinterpret_cast<Vec<u32, PIECE / 4>*>(p + i) = words;
            } else {
                Vec<T, PIECE> piece;
#pragma unroll
                for (int j = 0; j < PIECE; ++j) piece.v[j] = from_float<T>(v[(i + j) % W]);
                *reinterpret_cast<Vec<T, PIECE>*>(p + i) = piece;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < W; ++i) p[i] = from_float<T>(v[i]);
    }
}
// Store only the first `count` of W floats (a ragged edge).
template <int W, typename T> VG_DEV void store_n(T* p, const float (&v)[W], int count) {
    if (count >= W) return store<W>(p, v);
#pragma unroll
    for (int i = 0; i < W; ++i)
        if (i < count) p[i] = from_float<T>(v[i]);
}

// ---------------------------------------------------------------- shared memory, cp.async
VG_DEV u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Copy BYTES (4, 8 or 16) global → shared without registers; both addresses aligned to BYTES.
// Reads only the first `valid` bytes and fills the rest with zeros (valid = 0: global is not read).
template <int BYTES> VG_DEV void cp_async(u32 dst, const void* src, int valid = BYTES) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(dst), "l"(src), "r"(valid), "n"(BYTES == 16 ? 4 : BYTES) : "memory");
}
VG_DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most N of this thread's committed groups are still in flight.
template <int N> VG_DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---------------------------------------------------------------- warp matrix loads and products
// Each lane names one 16-byte row of an 8×8 matrix of 16-bit values (x4: lanes 0–7 matrix 0, …).
// Other types: a row is any 16 bytes, lane l gets bytes 4*(l%4)… of row l/4. So rows m (or n) of 32 bytes
// of k, loaded as for m16n8k16, are the fragments of m16n8k32 (8-bit) and m16n8k8 (TF32). _trans moves
// pairs of bytes: an 8-bit or TF32 operand that is not K-major must be transposed otherwise.
VG_DEV void ldmatrix_x4(u32 (&r)[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
VG_DEV void ldmatrix_x4_trans(u32 (&r)[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
VG_DEV void ldmatrix_x2(u32 (&r)[2], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(addr) : "memory");
}
VG_DEV void ldmatrix_x2_trans(u32 (&r)[2], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(addr) : "memory");
}
#define VG_MMA(shape, types)                                                                        \
    asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
// One warp: d (16×8) += a (16×16, row-major fragments) · b (16×8); T is __half or __nv_bfloat16.
template <typename T> VG_DEV void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);
template <> VG_DEV void mma_m16n8k16<__half>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    VG_MMA("m16n8k16", "f32.f16.f16.f32");
}
template <> VG_DEV void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    VG_MMA("m16n8k16", "f32.bf16.bf16.f32");
}
// One warp: d (16×8) += a (16×8) · b (8×8), operands float bits of which TF32 is used.
VG_DEV void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    VG_MMA("m16n8k8", "f32.tf32.tf32.f32");
}
// One warp: d (16×8, int) += a (16×32) · b (32×8), signed bytes.
VG_DEV void mma_m16n8k32_s8(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#if __CUDA_ARCH__ >= 890
// One warp: d (16×8) += a (16×32) · b (32×8), both e4m3.
VG_DEV void mma_m16n8k32_e4m3(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    VG_MMA("m16n8k32", "f32.e4m3.e4m3.f32");
}
#if VG_HAS_FP8
// The same for a of type T and b of type U, each __nv_fp8_e4m3 or __nv_fp8_e5m2.
template <typename T, typename U> VG_DEV void mma_m16n8k32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);
#define VG_MMA_F8(T, U, types)                                                                      \
    template <> VG_DEV void mma_m16n8k32<T, U>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { \
        VG_MMA("m16n8k32", types);                                                                  \
    }
VG_MMA_F8(__nv_fp8_e4m3, __nv_fp8_e4m3, "f32.e4m3.e4m3.f32")
VG_MMA_F8(__nv_fp8_e4m3, __nv_fp8_e5m2, "f32.e4m3.e5m2.f32")
VG_MMA_F8(__nv_fp8_e5m2, __nv_fp8_e4m3, "f32.e5m2.e4m3.f32")
VG_MMA_F8(__nv_fp8_e5m2, __nv_fp8_e5m2, "f32.e5m2.e5m2.f32")
#endif
#endif
// x rounded to TF32 (nearest), as float bits.
VG_DEV u32 to_tf32(float x) {
    u32 r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
// Barrier `id` (1–15) among `threads` threads of the block (a multiple of 32).
VG_DEV void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
VG_DEV void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---------------------------------------------------------------- reads and adds across blocks
VG_DEV u32 ld_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
VG_DEV void red_release_add(u32* p, u32 v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

#if VG_HAS_TMA
// ---------------------------------------------------------------- mbarriers (8 bytes of shared memory)
VG_DEV void mbar_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
// After initialising barriers, by the thread that did it, before the block (or cluster) synchronises.
VG_DEV void fence_mbar_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival that also announces `bytes` of bulk copies to come.
VG_DEV void mbar_expect_tx(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
VG_DEV void mbar_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrive at the barrier of block `cta` of the cluster that stands at the same offset as `bar` here.
VG_DEV void mbar_arrive_remote(u32 bar, u32 cta) {
    asm volatile("{\n .reg .b32 ra;\n mapa.shared::cluster.u32 ra, %0, %1;\n"
                 " mbarrier.arrive.shared::cluster.b64 _, [ra];\n}" ::"r"(bar), "r"(cta) : "memory");
}
// Spin until the phase of `parity` (0 first, then alternating) is complete.
VG_DEV void mbar_wait(u32 bar, u32 parity) {
    u32 done;
    do {
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     " selp.b32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}
// cp.async of this thread that are in flight count as one (already expected) arrival when they land.
VG_DEV void cp_async_mbar_arrive(u32 bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

// ---------------------------------------------------------------- bulk tensor copies (one thread each)
// Coordinates innermost first, in elements; `dst` 128-byte aligned (1024 for the 128B swizzle's atom).
VG_DEV void prefetch_tensormap(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
VG_DEV void tma_load_2d(u32 dst, const CUtensorMap* map, int x, int y, u32 bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
VG_DEV void tma_load_3d(u32 dst, const CUtensorMap* map, int x, int y, int z, u32 bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}
// The same box into every block of the cluster whose bit is set in `mask`, at the same offsets.
VG_DEV void tma_load_2d_multicast(u32 dst, const CUtensorMap* map, int x, int y, u32 bar, unsigned short mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory");
}
VG_DEV void tma_load_3d_multicast(u32 dst, const CUtensorMap* map, int x, int y, int z, u32 bar, unsigned short mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "h"(mask) : "memory");
}
VG_DEV void tma_store_2d(const CUtensorMap* map, u32 src, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(x), "r"(y), "r"(src) : "memory");
}
VG_DEV void tma_store_3d(const CUtensorMap* map, u32 src, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(map), "r"(x), "r"(y), "r"(z), "r"(src) : "memory");
}
VG_DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// At most N store groups of this thread still read shared memory (may overwrite the rest).
template <int N> VG_DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> VG_DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
// Ordinary shared-memory writes of this thread become visible to bulk copies and wgmma.
VG_DEV void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
VG_DEV void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---------------------------------------------------------------- clusters
VG_DEV u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
VG_DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
VG_DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
VG_DEV void cluster_sync() { cluster_arrive(); cluster_wait(); }
// Address of `addr` (shared::cta) in block `cta`; a value read from there.
VG_DEV u32 map_to_cta(u32 addr, u32 cta) {
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(cta));
    return r;
}
VG_DEV float ld_cluster(u32 addr) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(addr) : "memory");
    return v;
}
// Four 8×8 matrices of 16-bit values, registers → shared; each lane names one 16-byte row.
VG_DEV void stmatrix_x4(u32 addr, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
#endif  // VG_HAS_TMA

#if VG_HAS_WGMMA
// ---------------------------------------------------------------- wgmma (one warpgroup: 4 warps, first a multiple of 4)
// Registers move between warpgroups: the kernel needs __launch_bounds__(threads, 1); N a multiple of 8.
template <int N> VG_DEV void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> VG_DEV void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
VG_DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
VG_DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> VG_DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Tie the accumulators to the wait above, so that nothing reads them earlier.
template <int R> VG_DEV void wgmma_use(float (&acc)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+f"(acc[i])::"memory");
}
template <int R> VG_DEV void wgmma_use(int (&acc)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+r"(acc[i])::"memory");
}
// Shared-memory descriptor. swizzle 1 = 128B, 2 = 64B, 3 = 32B, 0 = none; offsets in bytes.
// K-major operand, 128B swizzle, rows of 64 16-bit values: leading ignored (16), stride 1024 (8 rows).
// MN-major operand, 128B swizzle, boxes of 64 columns × k rows: leading = bytes from one box of 64
// columns to the next, stride = 1024. Advance along k: add bytes >> 4 to the descriptor.
// K-major rows of 128 bytes are 64 16-bit, 32 TF32 or 128 8-bit values; one wgmma takes 32 bytes of k.
VG_DEV u64 smem_desc(u32 addr, u32 leading, u32 stride, int swizzle) {
    return (u64)((addr & 0x3ffffu) >> 4) | ((u64)(leading >> 4) << 16) | ((u64)(stride >> 4) << 32) | ((u64)swizzle << 62);
}
// acc[N/2] (64×N) = (scale_d ? acc : 0) + A (64×k, shared) · B (k×N, shared). T, U: types of A and B:
//   T = U = __half or __nv_bfloat16: k = 16;  T = U = float: k = 8, TF32 of the operands' bits;
//   __nv_fp8_e4m3 or __nv_fp8_e5m2, each: k = 32;  T = U = signed char: k = 32, acc is int[N/2].
// TA, TB: 0 = K-major (A stored M×K, B stored N×K), 1 = MN-major (A stored K×M, B stored K×N), which
// only 16-bit types can be.
// Lane l of warp w: acc[4*j + 2*i + e] is row 16*w + l/4 + 8*i, column 8*j + 2*(l%4) + e.
template <int N, int TA, int TB, typename T, typename U = T> struct Wgmma;
#define VG_C4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define VG_C8(c, i) VG_C4(c, i), VG_C4(c, i + 4)
#define VG_C16(c, i) VG_C8(c, i), VG_C8(c, i + 8)
#define VG_C32(c, i) VG_C16(c, i), VG_C16(c, i + 16)
#define VG_C64(c, i) VG_C32(c, i), VG_C32(c, i + 32)
// VG_An(c): n accumulators with constraint c; VG_Pn: their placeholders.
#define VG_A4(c) VG_C4(c, 0)
#define VG_A8(c) VG_C8(c, 0)
#define VG_A12(c) VG_C8(c, 0), VG_C4(c, 8)
#define VG_A16(c) VG_C16(c, 0)
#define VG_A24(c) VG_C16(c, 0), VG_C8(c, 16)
#define VG_A32(c) VG_C32(c, 0)
#define VG_A40(c) VG_C32(c, 0), VG_C8(c, 32)
#define VG_A48(c) VG_C32(c, 0), VG_C16(c, 32)
#define VG_A64(c) VG_C64(c, 0)
#define VG_A80(c) VG_C64(c, 0), VG_C16(c, 64)
#define VG_A96(c) VG_C64(c, 0), VG_C32(c, 64)
#define VG_A128(c) VG_C64(c, 0), VG_C64(c, 64)
#define VG_P4 "%0,%1,%2,%3"
#define VG_P8 VG_P4 ",%4,%5,%6,%7"
#define VG_P12 VG_P8 ",%8,%9,%10,%11"
#define VG_P16 VG_P12 ",%12,%13,%14,%15"
#define VG_P24 VG_P16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define VG_P32 VG_P24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define VG_P40 VG_P32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define VG_P48 VG_P40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define VG_P64 VG_P48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define VG_P80 VG_P64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define VG_P96 VG_P80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define VG_P128 VG_P96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// What stands after `p`: scales of A and B (not for integers), and transpositions x (16-bit types only).
#define VG_TAIL16(x) ", 1, 1" x
#define VG_TAIL8(x) ", 1, 1"
#define VG_TAIL_INT(x) ""
// C, c: the accumulators' type and constraint; n: columns; x: n/2, and y…v the numbers after it.
#define VG_WGMMA_T(T, U, C, c, kind, TAIL, n, x, y, z, t, u, w, v)                                  \
    template <int TA, int TB> struct Wgmma<n, TA, TB, T, U> {                                       \
        static VG_DEV void ss(C (&d)[n / 2], u64 da, u64 db, int scale_d) {                         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #z ", 0;\n"                           \
                         "wgmma.mma_async.sync.aligned.m64n" #n kind " {" VG_P##x "}, %" #x ", %" #y ", p" TAIL(", %" #t ", %" #u) ";\n}" \
                         : VG_A##x(c) : "l"(da), "l"(db), "r"(scale_d), "n"(TA), "n"(TB));          \
        }                                                                                           \
        static VG_DEV void rs(C (&d)[n / 2], const u32 (&a)[4], u64 db, int scale_d) {              \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #w ", 0;\n"                           \
                         "wgmma.mma_async.sync.aligned.m64n" #n kind " {" VG_P##x "}, {%" #x ",%" #y ",%" #z ",%" #t "}, %" #u ", p" TAIL(", %" #v) ";\n}" \
                         : VG_A##x(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(scale_d), "n"(TB)); \
        }                                                                                           \
    };
#if VG_HAS_FP8
#define VG_WGMMA_F8(...)                                                                            \
    VG_WGMMA_T(__nv_fp8_e4m3, __nv_fp8_e4m3, float, "+f", "k32.f32.e4m3.e4m3", VG_TAIL8, __VA_ARGS__) \
    VG_WGMMA_T(__nv_fp8_e4m3, __nv_fp8_e5m2, float, "+f", "k32.f32.e4m3.e5m2", VG_TAIL8, __VA_ARGS__) \
    VG_WGMMA_T(__nv_fp8_e5m2, __nv_fp8_e4m3, float, "+f", "k32.f32.e5m2.e4m3", VG_TAIL8, __VA_ARGS__) \
    VG_WGMMA_T(__nv_fp8_e5m2, __nv_fp8_e5m2, float, "+f", "k32.f32.e5m2.e5m2", VG_TAIL8, __VA_ARGS__)
#else
#define VG_WGMMA_F8(...)
#endif
#define VG_WGMMA(...)                                                                               \
    VG_WGMMA_T(__half, __half, float, "+f", "k16.f32.f16.f16", VG_TAIL16, __VA_ARGS__)              \
    VG_WGMMA_T(__nv_bfloat16, __nv_bfloat16, float, "+f", "k16.f32.bf16.bf16", VG_TAIL16, __VA_ARGS__) \
    VG_WGMMA_T(float, float, float, "+f", "k8.f32.tf32.tf32", VG_TAIL8, __VA_ARGS__)                \
    VG_WGMMA_T(signed char, signed char, int, "+r", "k32.s32.s8.s8", VG_TAIL_INT, __VA_ARGS__)      \
    VG_WGMMA_F8(__VA_ARGS__)
VG_WGMMA(8, 4, 5, 6, 7, 8, 9, 10)
VG_WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
VG_WGMMA(24, 12, 13, 14, 15, 16, 17, 18)
VG_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
VG_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
VG_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
VG_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
VG_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
VG_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
VG_WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
VG_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
VG_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)
template <int N, int TA, int TB, typename T, typename U = T, typename C>
VG_DEV void wgmma(C (&acc)[N / 2], u64 desc_a, u64 desc_b, int scale_d) {
    static_assert(sizeof(T) == 2 || (TA == 0 && TB == 0), "wgmma: only 16-bit types can be MN-major");
    Wgmma<N, TA, TB, T, U>::ss(acc, desc_a, desc_b, scale_d);
}
// The same with A (64×k) in registers, k being 32 bytes: lane l of warp w holds in a[r] bytes 4*x … 4*x + 3,
// x = l%4 + 4*(r/2), of row 16*w + l/4 + 8*(r%2) (as ldmatrix_x4 gives it). wgmma_fence() stands between
// the last write of `a` or acc and this; `a` must not change until the wait.
template <int N, int TB, typename T, typename U = T, typename C>
VG_DEV void wgmma_rs(C (&acc)[N / 2], const u32 (&a)[4], u64 desc_b, int scale_d) {
    static_assert(sizeof(T) == 2 || TB == 0, "wgmma_rs: only 16-bit types can be MN-major");
    Wgmma<N, 0, TB, T, U>::rs(acc, a, desc_b, scale_d);
}
#endif  // VG_HAS_WGMMA
}  // namespace vg
