#include "vibegemm.cuh"

// fp32 products of every shape, layout, alignment and batch on the CUDA cores (sm_80 and newer).
// A thread owns TM x TN elements, BM / TM rows and BN / TN columns apart, so that neighbouring
// threads touch neighbouring words. Slabs of BK go through a ring of STAGES slots by cp.async:
// 16 bytes at a time where rows are aligned, else 4.
using namespace vg;

#define TY (BM / TM)
#define TX (BN / TN)
#define THREADS (TX * TY)
#define PAD 4
#define A_ROWS (VG_TRANS_A ? BK : BM)          // as stored: rows x contiguous columns
#define A_COLS (VG_TRANS_A ? BM : BK)
#define B_ROWS (VG_TRANS_B ? BN : BK)
#define B_COLS (VG_TRANS_B ? BK : BN)
#define A_PITCH (A_COLS + PAD)
#define B_PITCH (B_COLS + PAD)
#define A_ELEMS (A_ROWS * A_PITCH)
#define SLOT (A_ELEMS + B_ROWS * B_PITCH)

// A ROWS x COLS piece at (r0, c0) of a matrix with `rows` x `cols` elements, zero outside.
template <int ROWS, int COLS, int PITCH>
__device__ __forceinline__ void load(u32 dst, const float* src, int rows, int cols, int r0, int c0, bool vec)
{
    if (vec) {
        constexpr int CHUNKS = COLS / 4;
#pragma unroll
        for (int i = 0; i < (ROWS * CHUNKS + THREADS - 1) / THREADS; ++i) {
            const int id = i * THREADS + threadIdx.x;
            if (ROWS * CHUNKS % THREADS != 0 && id >= ROWS * CHUNKS) break;
            const int r = id / CHUNKS, c = id % CHUNKS * 4;
            const int left = r0 + r < rows ? cols - c0 - c : 0;
            const int count = min(max(left, 0), 4);
            cp_async<16>(dst + (r * PITCH + c) * 4, src + (count ? (long long)(r0 + r) * cols + c0 + c : 0), 4 * count);
        }
    } else {
#pragma unroll 4
        for (int id = threadIdx.x; id < ROWS * COLS; id += THREADS) {
            const int r = id / COLS, c = id % COLS;
            const bool in = r0 + r < rows && c0 + c < cols;
            cp_async<4>(dst + (r * PITCH + c) * 4, src + (in ? (long long)(r0 + r) * cols + c0 + c : 0), in ? 4 : 0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_simt(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ D,
          int M, int N, int K VG_EPILOGUE_PARAMS)
{
    VG_EPILOGUE(epi, M, N);
    extern __shared__ __align__(16) float slots[];
    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    long long t = blockIdx.x;
    const long long b = t / ((long long)tiles_m * tiles_n);
    t -= b * tiles_m * tiles_n;
    const int group = (int)t / (8 * tiles_n);
    const int rows = min(8, tiles_m - group * 8);
    const int rem = (int)t - group * 8 * tiles_n;
    const int m0 = (group * 8 + rem % rows) * BM, n0 = rem / rows * BN;
    const float* a = A + batch_a(b) * M * K;
    const float* w = B + batch_b(b) * N * K;
    const bool vec_a = aligned<16>(a) && (VG_TRANS_A ? M : K) % 4 == 0;
    const bool vec_b = aligned<16>(w) && (VG_TRANS_B ? K : N) % 4 == 0;
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    const int steps = (K + BK - 1) / BK;

    auto fetch = [&](int step) {
        if (step < steps) {
            const u32 slot = smem_addr(slots) + step % STAGES * SLOT * 4;
            const int k0 = step * BK;
            if (VG_TRANS_A) load<A_ROWS, A_COLS, A_PITCH>(slot, a, K, M, k0, m0, vec_a);
            else load<A_ROWS, A_COLS, A_PITCH>(slot, a, M, K, m0, k0, vec_a);
            if (VG_TRANS_B) load<B_ROWS, B_COLS, B_PITCH>(slot + A_ELEMS * 4, w, N, K, n0, k0, vec_b);
            else load<B_ROWS, B_COLS, B_PITCH>(slot + A_ELEMS * 4, w, K, N, k0, n0, vec_b);
        }
        cp_async_commit();
    };

    float acc[TM][TN] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(s);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        const float* sa = slots + step % STAGES * SLOT;
        const float* sb = sa + A_ELEMS;
#pragma unroll
        for (int k = 0; k < BK; k += 4) {
            float fa[TM][4], fb[TN][4];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if (VG_TRANS_A) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) fa[i][e] = sa[(k + e) * A_PITCH + ty + i * TY];
                } else {
                    const float4 x = *reinterpret_cast<const float4*>(sa + (ty + i * TY) * A_PITCH + k);
                    fa[i][0] = x.x; fa[i][1] = x.y; fa[i][2] = x.z; fa[i][3] = x.w;
                }
            }
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                if (VG_TRANS_B) {
                    const float4 x = *reinterpret_cast<const float4*>(sb + (tx + j * TX) * B_PITCH + k);
                    fb[j][0] = x.x; fb[j][1] = x.y; fb[j][2] = x.z; fb[j][3] = x.w;
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) fb[j][e] = sb[(k + e) * B_PITCH + tx + j * TX];
                }
            }
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) acc[i][j] = fmaf(fa[i][e], fb[j][e], acc[i][j]);
        }
    }
    cp_async_wait<0>();

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = m0 + ty + i * TY;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int n = n0 + tx + j * TX;
            if (n < N) D[(b * M + m) * N + n] = epi(acc[i][j], b, m, n);
        }
    }
}
