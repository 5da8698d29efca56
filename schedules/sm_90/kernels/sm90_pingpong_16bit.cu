#include "vibegemm.cuh"

// D = A . B for fp16/bf16 on Hopper, ping-pong: persistent and warp-specialised, with one whole tile
// of BM x BN for each of two consumer warpgroups. Their main loops take turns on the tensor cores
// (an ordering barrier passes the right to go on), so that one warpgroup's epilogue and store run
// while the other multiplies. With CLUSTER = 2 the two blocks of a cluster own tiles one above the
// other, and each loads half of their common B slab and multicasts it.
using namespace vg;

#define BK 64
#define MI (BM / 64)                           // wgmma row blocks of a tile
#define A_BYTES (BM * BK * 2)
#define B_BYTES (BN * BK * 2)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define CHUNK_BYTES 8192                       // 64 rows of 128 bytes
#define OUT_16BIT (VG_OUT_F16 || VG_OUT_BF16)
#define STAGING_OFF (STAGES * STAGE_BYTES)
#define STAGING_WG (BM * BN * 2)               // one warpgroup's tile in 16 bits
#define BAR_OFF (STAGING_OFF + (OUT_16BIT ? 2 * STAGING_WG : 0))
#define TURN 3                                 // named barriers TURN, TURN + 1: who may multiply

struct Tile { int m0, n0, b; };

__device__ __forceinline__ Tile tile_at(int t, int tiles_m, int tiles_n, int rank) {
    const int per_product = tiles_m * tiles_n;
    Tile o;
    o.b = 0;
#if VG_BATCHED
    o.b = t / per_product;
    t -= o.b * per_product;
#endif
    // Groups of GROUP_M rows of tiles, walked column by column: neighbours share A and B in L2.
    const int per_group = GROUP_M * tiles_n;
    const int g = t / per_group, rem = t - g * per_group;
    const int rows = min(GROUP_M, tiles_m - g * GROUP_M);
    const int n = rem / rows;
    o.m0 = ((g * GROUP_M + rem - n * rows) * CLUSTER + rank) * BM;
    o.n0 = n * BN;
    return o;
}

__device__ __forceinline__ void release(u32 bar, int lane) {
    if (lane < CLUSTER) {
        if (CLUSTER > 1) mbar_arrive_remote(bar, lane);
        else mbar_arrive(bar);
    }
}

// Rows m and m + 8, columns n + 8 j and the next, of one 64 x BN accumulator.
template <bool WHOLE>
__device__ __forceinline__ void finish(float (&acc)[BN / 2], const Epilogue& epi, int b, int m, int n) {
    if (Epilogue::identity) return;
#pragma unroll
    for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float v[2] = {acc[4 * j + 2 * i], acc[4 * j + 2 * i + 1]};
            epi.apply<2, WHOLE>(v, b, m + 8 * i, n + 8 * j);
            acc[4 * j + 2 * i] = v[0];
            acc[4 * j + 2 * i + 1] = v[1];
        }
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_pingpong(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
              const __grid_constant__ CUtensorMap map_d, out_t* __restrict__ D,
              int M, int N, int K, int batch VG_EPILOGUE_PARAMS)
{
    VG_EPILOGUE(epi, M, N);
    extern __shared__ unsigned char raw[];
    const u32 smem = (smem_addr(raw) + 1023u) & ~1023u;
    const u32 full = smem + BAR_OFF, empty = full + 8 * STAGES;
    const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0);
    const int lane = threadIdx.x & 31;
    const int wg = warp >> 2;
    const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;

    if (threadIdx.x == 0) {
        prefetch_tensormap(&map_a);
        prefetch_tensormap(&map_b);
        for (int s = 0; s < STAGES; ++s) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 4 * CLUSTER);     // the four warps of the slot's one consumer
        }
        fence_mbar_init();
    }
    __syncthreads();
    if (CLUSTER > 1) cluster_sync();

    const int tiles_m = (M + CLUSTER * BM - 1) / (CLUSTER * BM);
    const int tiles_n = (N + BN - 1) / BN;
    const int tiles = tiles_m * tiles_n * batch;
    const int workers = gridDim.x / CLUSTER;
    const int first = blockIdx.x / CLUSTER;
    const int num_k = (K + BK - 1) / BK;

    if (wg == 0) {
        setmaxnreg_dec<40>();
        if (warp == 0 && lane == 0) {
            int s = 0;
            u32 phase = 0;
            for (int t = first; t < tiles; t += workers) {
                const Tile o = tile_at(t, tiles_m, tiles_n, rank);
                const int ba = (int)batch_a(o.b), bb = (int)batch_b(o.b);
                for (int k = 0; k < num_k; ++k) {
                    const u32 slot = smem + s * STAGE_BYTES, bar = full + 8 * s;
                    mbar_wait(empty + 8 * s, phase ^ 1);
                    mbar_expect_tx(bar, STAGE_BYTES);
                    tma_load_3d(slot, &map_a, k * BK, o.m0, ba, bar);
#if VG_TRANS_B
                    // B stored N x K: BN rows of 64 k, in CLUSTER pieces.
                    constexpr int ROWS = BN / CLUSTER;
                    const u32 dst = slot + A_BYTES + rank * (ROWS * 128);
                    if (CLUSTER > 1) tma_load_3d_multicast(dst, &map_b, k * BK, o.n0 + rank * ROWS, bb, bar, 3);
                    else tma_load_3d(dst, &map_b, k * BK, o.n0, bb, bar);
#else
                    // B stored K x N: chunks of 64 columns by 64 k; the blocks of a cluster take turns.
#pragma unroll
                    for (int c = 0; c < BN / 64; ++c) {
                        const u32 dst = slot + A_BYTES + c * CHUNK_BYTES;
                        if (CLUSTER == 1) tma_load_3d(dst, &map_b, o.n0 + 64 * c, k * BK, bb, bar);
                        else if ((c & 1) == rank)
                            tma_load_3d_multicast(dst, &map_b, o.n0 + 64 * c, k * BK, bb, bar, 3);
                    }
#endif
                    if (++s == STAGES) { s = 0; phase ^= 1; }
                }
            }
            // The peer's releases of this block's slots have landed before it may exit.
            if (CLUSTER > 1) {
                for (int i = 0; i < STAGES; ++i) {
                    mbar_wait(empty + 8 * s, phase ^ 1);
                    if (++s == STAGES) { s = 0; phase ^= 1; }
                }
            }
        }
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        const int cw = wg - 1;
        const int w = warp & 3;
        const int tid = threadIdx.x & 127;
        const u32 staging = smem + STAGING_OFF + cw * STAGING_WG;
        bool stored = false;
        float acc[MI][BN / 2];
        int i = cw;                                        // number of the tile within this block
        for (int t = first + cw * workers; t < tiles; t += 2 * workers, i += 2) {
            const Tile o = tile_at(t, tiles_m, tiles_n, rank);
            // The ring goes on through both warpgroups' tiles: tile i starts at step i num_k.
            int s = (int)((u32)(i * num_k) % STAGES);
            u32 phase = ((u32)(i * num_k) / STAGES) & 1;
            if (i > 0) bar_sync(TURN + cw, 256);           // the tile before has issued its products
            int last = 0;
            for (int k = 0; k < num_k; ++k) {
                mbar_wait(full + 8 * s, phase);
                const u32 slot = smem + s * STAGE_BYTES;
                const u64 da = smem_desc(slot, 16, 1024, 1);
                const u64 db = VG_TRANS_B ? smem_desc(slot + A_BYTES, 16, 1024, 1)
                                          : smem_desc(slot + A_BYTES, CHUNK_BYTES, 1024, 1);
                constexpr int STEP_B = VG_TRANS_B ? 2 : 128;    // 16 k further on
                wgmma_fence();
#pragma unroll
                for (int q = 0; q < 4; ++q)
#pragma unroll
                    for (int r = 0; r < MI; ++r)               // 64 rows further: 8 KiB, in 16-byte units
                        wgmma<BN, 0, VG_TRANS_B ? 0 : 1, a_t>(acc[r], da + 512 * r + 2 * q,
                                                              db + STEP_B * q, k > 0 || q > 0);
                wgmma_commit();
                if (k > 0) {
                    wgmma_wait<1>();
                    release(empty + 8 * last, lane);
                }
                last = s;
                if (++s == STAGES) { s = 0; phase ^= 1; }
            }
            if (t + workers < tiles) bar_arrive(TURN + 1 - cw, 256);
            wgmma_wait<0>();
#pragma unroll
            for (int r = 0; r < MI; ++r) wgmma_use(acc[r]);
            release(empty + 8 * last, lane);

            // Lane l of warp w has rows 16 w + l/4 and 8 further, columns 8 j + 2 (l % 4) and the next.
            const int m = o.m0 + w * 16 + (lane >> 2);
            const int n = o.n0 + 2 * (lane & 3);
            // A tile wholly inside D needs no tests: its bias and residual loads are in flight together.
            const bool whole = o.m0 + BM <= M && o.n0 + BN <= N;
#if OUT_16BIT
            // The previous tile's store has read the staging buffer.
            if (stored && tid == 0) bulk_wait_read<0>();
            bar_sync(1 + cw, 128);
            const int row_in = w * 16 + (lane & 15);            // the row that this lane addresses
#endif
#pragma unroll
            for (int r = 0; r < MI; ++r) {
                if (whole) finish<true>(acc[r], epi, o.b, m + 64 * r, n);
                else finish<false>(acc[r], epi, o.b, m + 64 * r, n);
#if OUT_16BIT
                // Chunks of 64 columns: BM rows of 128 bytes, swizzled as the tensor map reads them.
                const u32 row = staging + (64 * r + row_in) * 128;
#pragma unroll
                for (int j = 0; j < BN / 8; j += 2) {
                    const int c16 = (j & 7) + (lane >> 4);      // 16-byte column within 64 columns
                    stmatrix_x4(row + (j >> 3) * (BM * 128) + ((c16 ^ (row_in & 7)) << 4),
                                pack<out_t>(acc[r][4 * j], acc[r][4 * j + 1]),
                                pack<out_t>(acc[r][4 * j + 2], acc[r][4 * j + 3]),
                                pack<out_t>(acc[r][4 * j + 4], acc[r][4 * j + 5]),
                                pack<out_t>(acc[r][4 * j + 6], acc[r][4 * j + 7]));
                }
#else
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int at = m + 64 * r + 8 * h;
                    if (at >= M) continue;
                    out_t* d = D + ((long long)o.b * M + at) * N + n;
#pragma unroll
                    for (int j = 0; j < BN / 8; ++j) {
                        const float v[2] = {acc[r][4 * j + 2 * h], acc[r][4 * j + 2 * h + 1]};
                        if (whole) *reinterpret_cast<float2*>(d + 8 * j) = make_float2(v[0], v[1]);   // N is even
                        else if (n + 8 * j < N) store_n<2>(d + 8 * j, v, N - n - 8 * j);
                    }
                }
#endif
            }
#if OUT_16BIT
            fence_async_shared();
            bar_sync(1 + cw, 128);
            if (tid == 0) {
#pragma unroll
                for (int c = 0; c < BN / 64; ++c)
                    if (o.n0 + 64 * c < N)
                        tma_store_3d(&map_d, staging + c * (BM * 128), o.n0 + 64 * c, o.m0, o.b);
                bulk_commit();
                stored = true;
            }
#endif
        }
        if (stored) bulk_wait<0>();
        __syncwarp();
    }
    if (CLUSTER > 1) cluster_sync();
}

