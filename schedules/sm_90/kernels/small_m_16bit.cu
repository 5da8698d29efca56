#include "vibegemm.cuh"

// Few rows: a block takes 8 MT of them, and M is at most 64. The weights B are the tensor cores' 16-row side and are read from memory once,
// straight into fragments; A is small and stays in the caches. The sum over K is split between the
// WARPS warps of a block and the SPLIT blocks of a cluster, and added up in shared memory in a fixed
// order, so that repeated runs agree to the bit.
//   B stored N x K: a thread reads 8 adjacent k of a row; both operands permute k alike.
//   B stored K x N: a thread reads 8 adjacent n of four k, and pairs the k with byte permutes.
using namespace vg;

#define FR (VG_TRANS_B ? RN : 8)               // fragments of 16 n
#define NB (16 * FR)                           // columns of a block
#define SLICE (VG_TRANS_B ? 32 : 16)           // k of one step
#define UNROLL (VG_TRANS_B ? 4 : 2)
#define ROWS (8 * MT)
#define ELEMS (ROWS * NB)

__device__ __forceinline__ uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemm_small_m(const a_t* __restrict__ A, const b_t* __restrict__ B, out_t* __restrict__ D,
             int M, int N, int K VG_EPILOGUE_PARAMS)
{
    VG_EPILOGUE(epi, M, N);
    extern __shared__ __align__(16) float sums[];           // [WARPS][ELEMS]
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int rank = SPLIT > 1 ? (int)cluster_rank() : 0;
    const int blocks_m = (M + ROWS - 1) / ROWS;              // neighbours share their weights in L2
    const int m0 = blockIdx.x / SPLIT % blocks_m * ROWS;
    const int n0 = blockIdx.x / SPLIT / blocks_m * NB;
    const uint4 zero = make_uint4(0, 0, 0, 0);

    float acc[FR][MT][4] = {};
    const int chunks = (K + SLICE * UNROLL - 1) / (SLICE * UNROLL);
    for (int c = rank * WARPS + warp; c < chunks; c += SPLIT * WARPS) {
        const int k0 = c * SLICE * UNROLL;
#if VG_TRANS_B
        uint4 w[UNROLL][FR][2];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int f = 0; f < FR; ++f)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int n = n0 + 16 * f + 8 * h + g, k = k0 + u * SLICE + 8 * q;
                    w[u][f][h] = n < N && k < K ? load_stream(B + (long long)n * K + k) : zero;
                }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int t = 0; t < MT; ++t) {
                const int m = m0 + 8 * t + g, k = k0 + u * SLICE + 8 * q;
                const uint4 x = m < M && k < K ? __ldg(reinterpret_cast<const uint4*>(A + (long long)m * K + k)) : zero;
                const u32 x0[2] = {x.x, x.y}, x1[2] = {x.z, x.w};
#pragma unroll
                for (int f = 0; f < FR; ++f) {
                    const u32 a0[4] = {w[u][f][0].x, w[u][f][1].x, w[u][f][0].y, w[u][f][1].y};
                    const u32 a1[4] = {w[u][f][0].z, w[u][f][1].z, w[u][f][0].w, w[u][f][1].w};
                    mma_m16n8k16<a_t>(acc[f][t], a0, x0);
                    mma_m16n8k16<a_t>(acc[f][t], a1, x1);
                }
            }
#else
        uint4 w[UNROLL][2][4];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int n = n0 + 64 * h + 8 * g, k = k0 + u * SLICE + 4 * q + e;
                    w[u][h][e] = n < N && k < K ? load_stream(B + (long long)k * N + n) : zero;
                }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            u32 x[MT][2];
#pragma unroll
            for (int t = 0; t < MT; ++t) {
                const int m = m0 + 8 * t + g, k = k0 + u * SLICE + 4 * q;
                uint2 v = make_uint2(0, 0);
                if (m < M && k < K) v = __ldg(reinterpret_cast<const uint2*>(A + (long long)m * K + k));
                x[t][0] = v.x; x[t][1] = v.y;
            }
#pragma unroll
            for (int f = 0; f < 8; ++f) {
                u32 a[4];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const u32* r0 = &w[u][h][0].x; const u32* r1 = &w[u][h][1].x;
                    const u32* r2 = &w[u][h][2].x; const u32* r3 = &w[u][h][3].x;
                    const u32 pick = f & 1 ? 0x7632 : 0x5410;
                    a[h] = __byte_perm(r0[f >> 1], r1[f >> 1], pick);
                    a[2 + h] = __byte_perm(r2[f >> 1], r3[f >> 1], pick);
                }
#pragma unroll
                for (int t = 0; t < MT; ++t) mma_m16n8k16<a_t>(acc[f][t], a, x[t]);
            }
        }
#endif
    }

    // Fragment rows are n, columns are m.
    float* mine = sums + warp * ELEMS;
#pragma unroll
    for (int f = 0; f < FR; ++f)
#pragma unroll
        for (int t = 0; t < MT; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = i >> 1, m = 8 * t + 2 * q + (i & 1);
                const int n = VG_TRANS_B ? 16 * f + 8 * h + g : 64 * h + 8 * g + f;
                mine[m * NB + n] = acc[f][t][i];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < ELEMS; i += 32 * WARPS) {
        float v = sums[i];
#pragma unroll
        for (int s = 1; s < WARPS; ++s) v += sums[s * ELEMS + i];
        if (SPLIT > 1) {
            sums[i] = v;
        } else {
            const int m = m0 + i / NB, n = n0 + i % NB;
            if (m < M && n < N) D[(long long)m * N + n] = from_float<out_t>(epi(v, 0, m, n));
        }
    }
    if (SPLIT > 1) {
        cluster_sync();
        const u32 base = smem_addr(sums);
        for (int i = rank * (ELEMS / SPLIT) + threadIdx.x; i < (rank + 1) * (ELEMS / SPLIT); i += 32 * WARPS) {
            float v = 0.f;
#pragma unroll
            for (int s = 0; s < SPLIT; ++s) v += ld_cluster(map_to_cta(base + 4 * i, s));
            const int m = m0 + i / NB, n = n0 + i % NB;
            if (m < M && n < N) D[(long long)m * N + n] = from_float<out_t>(epi(v, 0, m, n));
        }
        cluster_sync();                        // nobody leaves while its sums are being read
    }
}
