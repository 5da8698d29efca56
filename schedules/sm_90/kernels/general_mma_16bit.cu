#include "vibegemm.cuh"

// fp16/bf16 products of every shape, layout, alignment and batch, with mma.sync (sm_80 and newer).
// Four warps, 2 x 2, compute a BM x BN tile; slabs of BK = 32 go through a ring of STAGES slots.
// Rows that start on 16 bytes come by cp.async, others by guarded element loads.
using namespace vg;

#define BK 32
#define THREADS 128
#define PAD 8                                  // 16 bytes: ldmatrix rows fall into different banks
#define A_ROWS (VG_TRANS_A ? BK : BM)          // as stored: rows x contiguous columns
#define A_COLS (VG_TRANS_A ? BM : BK)
#define B_ROWS (VG_TRANS_B ? BN : BK)
#define B_COLS (VG_TRANS_B ? BK : BN)
#define A_PITCH (A_COLS + PAD)
#define B_PITCH (B_COLS + PAD)
#define A_ELEMS (A_ROWS * A_PITCH)
#define SLOT (A_ELEMS + B_ROWS * B_PITCH)
#define MT (BM / 32)                           // 16-row tiles of a warp
#define NT (BN / 16)                           // 8-column tiles of a warp

// A ROWS x COLS piece at (r0, c0) of a matrix with `rows` x `cols` elements, zero outside.
template <int ROWS, int COLS, int PITCH>
__device__ __forceinline__ void load(u32 dst, const a_t* src, long long rows, long long cols, long long r0,
                                     long long c0, bool vec)
{
    constexpr int CHUNKS = COLS / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; ++i) {
        const int id = i * THREADS + threadIdx.x;
        const int r = id / CHUNKS, c = id % CHUNKS * 8;
        const long long row = r0 + r, col = c0 + c;
        const long long left = row < rows ? cols - col : 0;
        const int count = left <= 0 ? 0 : left >= 8 ? 8 : (int)left;
        const u32 at = dst + (r * PITCH + c) * 2;
        const a_t* p = src + (count > 0 ? row * cols + col : 0);
        if (vec) {
            cp_async<16>(at, p, 2 * count);
        } else {
            u32 w[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const u32 lo = 2 * e < count ? reinterpret_cast<const unsigned short*>(p)[2 * e] : 0;
                const u32 hi = 2 * e + 1 < count ? reinterpret_cast<const unsigned short*>(p)[2 * e + 1] : 0;
                w[e] = lo | hi << 16;
            }
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_mma(const a_t* __restrict__ A, const b_t* __restrict__ B, out_t* __restrict__ D,
         int M, int N, int K VG_EPILOGUE_PARAMS)
{
    VG_EPILOGUE(epi, M, N);
    extern __shared__ __align__(16) unsigned char raw[];
    const u32 smem = smem_addr(raw);
    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    long long t = blockIdx.x;
    const long long b = t / ((long long)tiles_m * tiles_n);
    t -= b * tiles_m * tiles_n;
    // Groups of eight rows of tiles share their columns of B in L2.
    const int group = (int)t / (8 * tiles_n);
    const int rows = min(8, tiles_m - group * 8);
    const int rem = (int)t - group * 8 * tiles_n;
    const int m0 = (group * 8 + rem % rows) * BM, n0 = rem / rows * BN;
    const a_t* a = A + batch_a(b) * M * K;
    const b_t* w = B + batch_b(b) * N * K;
    const bool vec_a = aligned<16>(a) && (VG_TRANS_A ? M : K) % 8 == 0;
    const bool vec_b = aligned<16>(w) && (VG_TRANS_B ? K : N) % 8 == 0;

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int wm = (warp & 1) * (BM / 2), wn = (warp >> 1) * (BN / 2);
    const int steps = (K + BK - 1) / BK;

    auto fetch = [&](int step) {
        if (step < steps) {
            const u32 slot = smem + step % STAGES * SLOT * 2;
            const long long k0 = (long long)step * BK;
            if (VG_TRANS_A) load<A_ROWS, A_COLS, A_PITCH>(slot, a, K, M, k0, m0, vec_a);
            else load<A_ROWS, A_COLS, A_PITCH>(slot, a, M, K, m0, k0, vec_a);
            if (VG_TRANS_B) load<B_ROWS, B_COLS, B_PITCH>(slot + A_ELEMS * 2, w, N, K, n0, k0, vec_b);
            else load<B_ROWS, B_COLS, B_PITCH>(slot + A_ELEMS * 2, w, K, N, k0, n0, vec_b);
        }
        cp_async_commit();
    };

    float acc[MT][NT][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(s);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();                       // slab `step` is there, slab `step - 1` is free
        fetch(step + STAGES - 1);
        const u32 sa = smem + step % STAGES * SLOT * 2, sb = sa + A_ELEMS * 2;
        const int l7 = lane & 7, l8 = (lane >> 3 & 1) * 8, l16 = (lane >> 4) * 8;
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            u32 fa[MT][4], fb[NT][2];
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                if (VG_TRANS_A) ldmatrix_x4_trans(fa[i], sa + ((kk + l7 + l16) * A_PITCH + wm + 16 * i + l8) * 2);
                else ldmatrix_x4(fa[i], sa + ((wm + 16 * i + l7 + l8) * A_PITCH + kk + l16) * 2);
            }
#pragma unroll
            for (int j = 0; j < NT; j += 2) {
                u32 r[4];
                if (VG_TRANS_B) ldmatrix_x4(r, sb + ((wn + 8 * j + l7 + l16) * B_PITCH + kk + l8) * 2);
                else ldmatrix_x4_trans(r, sb + ((kk + l7 + l8) * B_PITCH + wn + 8 * j + l16) * 2);
                fb[j][0] = r[0]; fb[j][1] = r[1];
                fb[j + 1][0] = r[2]; fb[j + 1][1] = r[3];
            }
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < NT; ++j) mma_m16n8k16<a_t>(acc[i][j], fa[i], fb[j]);
        }
    }
    cp_async_wait<0>();

#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int m = m0 + wm + 16 * i + 8 * h + (lane >> 2);
            if (m >= M) continue;
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const int n = n0 + wn + 8 * j + 2 * (lane & 3);
                if (n >= N) continue;
                float v[2] = {acc[i][j][2 * h], acc[i][j][2 * h + 1]};
                epi.apply(v, b, m, n);
                store_n<2>(D + (b * M + m) * N + n, v, N - n);
            }
        }
}
