#include "vibegemm.cuh"

// One block of 256 threads computes a BM x BN tile of one product; a thread has TM x TN elements.
// BM, BN, BK are tunables of the plan: macros here. Nothing else is assumed about the workload.
#define TM (BM / 16)
#define TN (BN / 16)

extern "C" __global__ void __launch_bounds__(256)
example_simt(const vg::a_t* __restrict__ A, const vg::b_t* __restrict__ B,
             vg::out_t* __restrict__ D, int M, int N, int K VG_EPILOGUE_PARAMS)
{
    VG_EPILOGUE(epi, M, N);
    __shared__ float sa[BK][BM + 1];
    __shared__ float sb[BK][BN + 1];

    const int tiles_m = (M + BM - 1) / BM;
    const int tiles_n = (N + BN - 1) / BN;
    const int tile = blockIdx.x % (tiles_m * tiles_n);
    const long long b = blockIdx.x / (tiles_m * tiles_n);
    const int m0 = tile % tiles_m * BM;
    const int n0 = tile / tiles_m * BN;
    const vg::a_t* a = A + vg::batch_a(b) * M * K;   // 64-bit: batch_a returns long long
    const vg::b_t* w = B + vg::batch_b(b) * K * N;
    const int tm = threadIdx.x / 16 * TM;
    const int tn = threadIdx.x % 16 * TN;

    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += 256) {
            // Neighbouring threads read neighbouring addresses, whichever way A is stored.
            const int r = VG_TRANS_A ? i % BM : i / BK;
            const int c = VG_TRANS_A ? i / BM : i % BK;
            const int m = m0 + r, k = k0 + c;
            const bool inside = m < M && k < K;
            const long long at = VG_TRANS_A ? (long long)k * M + m : (long long)m * K + k;
            sa[c][r] = inside ? vg::to_float(a[at]) : 0.f;
        }
        for (int i = threadIdx.x; i < BN * BK; i += 256) {
            const int c = VG_TRANS_B ? i % BK : i / BN;
            const int r = VG_TRANS_B ? i / BK : i % BN;
            const int n = n0 + r, k = k0 + c;
            const bool inside = n < N && k < K;
            const long long at = VG_TRANS_B ? (long long)n * K + k : (long long)k * N + n;
            sb[c][r] = inside ? vg::to_float(w[at]) : 0.f;
        }
        __syncthreads();
        for (int k = 0; k < BK; ++k) {
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    acc[i][j] = fmaf(sa[k][tm + i], sb[k][tn + j], acc[i][j]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = m0 + tm + i, n = n0 + tn;
        if (m >= M) continue;
        float v[TN];
#pragma unroll
        for (int j = 0; j < TN; ++j) v[j] = acc[i][j];
        epi.apply(v, b, m, n);                       // bias, activation, residual ... or nothing
        vg::out_t* d = D + (b * M + m) * N + n;      // b is long long, so this is 64-bit
#pragma unroll
        for (int j = 0; j < TN; ++j)
            if (n + j < N) d[j] = vg::from_float<vg::out_t>(v[j]);
    }
}
