#include "vibegemm.cuh"

// D^T = B^T * A^T: wgmma's M dimension (64) runs over the columns n of D, its N dimension (BM) over
// the rows m. A block has BN columns and 1/S of K (S = cluster size); one producer warp, one consumer
// warpgroup. The S partial tiles are added through distributed shared memory, in rank order.
using namespace vg;

#define CONSUMERS 128
#define THREADS 160
#define NB (BN / 64)
#define B_BYTES (BN * BK * 2)
#define A_BYTES (BM * BK * 2)
#define LDP (BN + 4)        // row of the fp32 partial tile [m][n]: conflict-free and 16-byte aligned

VG_DEV void load_stage(u32 st, u32 bar, const CUtensorMap* mapA, const CUtensorMap* mapB, int n0, int k0) {
    mbar_expect_tx(bar, B_BYTES + A_BYTES);
#if VG_TRANS_B
#pragma unroll
    for (int i = 0; i < BK / 64; ++i) tma_load_2d(st + i * (BN * 128), mapB, k0 + i * 64, n0, bar);
#else
#pragma unroll
    for (int j = 0; j < NB; ++j) tma_load_2d(st + j * (BK * 128), mapB, n0 + j * 64, k0, bar);
#endif
#pragma unroll
    for (int i = 0; i < BK / 64; ++i) tma_load_2d(st + B_BYTES + i * (BM * 128), mapA, k0 + i * 64, 0, bar);
}

VG_DEV void ld_cluster4(float (&v)[4], u32 addr) {
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(addr) : "memory");
}
VG_DEV void st_shared(u32 addr, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(addr), "f"(v) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, OCC)
small_m_16bit(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
              vg::out_t* __restrict__ D, int M, int N, int K, int S VG_EPILOGUE_PARAMS)
{
    VG_EPILOGUE(epi, M, N);
    extern __shared__ unsigned char smem_raw[];
    const u32 base = (smem_addr(smem_raw) + 1023u) & ~1023u;
    const u32 full = base + STAGES * STAGE_BYTES;
    const u32 empty = full + STAGES * 8;

    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const int rank = S > 1 ? (int)cluster_rank() : 0;
    const int n0 = (int)(blockIdx.x / (u32)S) * BN;
    const int steps = (int)(((long long)K + BK - 1) / BK);
    const int first = (int)((long long)steps * rank / S);
    const int count = (int)((long long)steps * (rank + 1) / S) - first;   // may be 0

    if (tid == CONSUMERS) {
        prefetch_tensormap(&mapB);
        prefetch_tensormap(&mapA);
        for (int i = 0; i < STAGES; ++i) {
            mbar_init(full + 8 * i, 1);
            mbar_init(empty + 8 * i, CONSUMERS / 32);
        }
        fence_mbar_init();
        fence_async_shared();
        // The pipeline starts before the block has met: only this thread touches `full` until then.
        const int pre = count < STAGES ? count : STAGES;
        for (int i = 0; i < pre; ++i)
            load_stage(base + i * STAGE_BYTES, full + 8 * i, &mapA, &mapB, n0, (first + i) * BK);
    }
    __syncthreads();

    if (warp == CONSUMERS / 32) {
        if (lane == 0) {
            int s = 0;
            u32 ph = 0;
            for (int it = STAGES; it < count; ++it) {
                mbar_wait(empty + 8 * s, ph);
                load_stage(base + s * STAGE_BYTES, full + 8 * s, &mapA, &mapB, n0, (first + it) * BK);
                if (++s == STAGES) { s = 0; ph ^= 1; }
            }
        }
        __syncwarp();
    } else {
        float acc[NB][BM / 2];
#pragma unroll
        for (int j = 0; j < NB; ++j)
#pragma unroll
            for (int i = 0; i < BM / 2; ++i) acc[j][i] = 0.f;

        int s = 0;
        u32 ph = 0;
        for (int it = 0; it < count; ++it) {
            mbar_wait(full + 8 * s, ph);
            __syncwarp();
            const u32 sb = base + s * STAGE_BYTES;
            const u64 db = smem_desc(sb, VG_TRANS_B ? 16 : BK * 128, 1024, 1);
            const u64 da = smem_desc(sb + B_BYTES, 16, 1024, 1);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < BK / 16; ++kk) {
                const u64 a = da + (((kk / 4) * (BM * 128) + (kk % 4) * 32) >> 4);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    const u64 b = db + ((VG_TRANS_B ? (kk / 4) * (BN * 128) + j * 8192 + (kk % 4) * 32
                                                    : j * (BK * 128) + kk * 2048) >> 4);
                    wgmma<BM, VG_TRANS_B ? 0 : 1, 0, vg::a_t>(acc[j], b, a, 1);
                }
            }
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int j = 0; j < NB; ++j) wgmma_use(acc[j]);
            if (lane == 0) mbar_arrive(empty + 8 * s);
            __syncwarp();
            if (++s == STAGES) { s = 0; ph ^= 1; }
        }

        // All copies have landed and all four warps have read them: the stages become the partial tile.
        bar_sync(1, CONSUMERS);
        const u32 p = base + 4 * (16 * warp + (lane >> 2) + 2 * (lane & 3) * LDP);
#pragma unroll
        for (int j = 0; j < NB; ++j)
#pragma unroll
            for (int q = 0; q < BM / 8; ++q) {
                if (8 * q < M) {
#pragma unroll
                    for (int i = 0; i < 2; ++i)
#pragma unroll
                        for (int e = 0; e < 2; ++e)
                            st_shared(p + 4 * (64 * j + 8 * i + (8 * q + e) * LDP), acc[j][4 * q + 2 * i + e]);
                }
            }
    }

    if (S > 1) cluster_sync(); else __syncthreads();

    // Four adjacent columns an item; each block of the cluster finishes its share of the tile.
    const int items = (M < BM ? M : BM) * (BN / 4);
    const int per = ((items + S - 1) / S + 7) & ~7;
    const int end = min(items, (rank + 1) * per);
    for (int i = rank * per + tid; i < end; i += THREADS) {
        const int m = i / (BN / 4), c = i % (BN / 4) * 4;
        const int n = n0 + c;
        if (n >= N) continue;
        const u32 at = base + 4 * (m * LDP + c);
        float v[4];
        if (S == 1) {
            ld_cluster4(v, at);
        } else {
            float part[8][4];
#pragma unroll
            for (int r = 0; r < 8; ++r)
                if (r < S) ld_cluster4(part[r], map_to_cta(at, r));
#pragma unroll
            for (int x = 0; x < 4; ++x) v[x] = part[0][x];
#pragma unroll
            for (int r = 1; r < 8; ++r)
                if (r < S) {
#pragma unroll
                    for (int x = 0; x < 4; ++x) v[x] += part[r][x];
                }
        }
        epi.apply(v, 0, m, n);
        store_n<4>(D + (long long)m * N + n, v, N - n);
    }

    __syncwarp();
    if (S > 1) cluster_sync();      // nobody leaves while its partial sums may be read
}
