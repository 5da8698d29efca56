// fp32-class GEMM through 3xTF32 on wgmma (sm_90a).  D = epilogue(A[M,K] * B), B stored K x N or N x K.
//
// D^T = B^T * A^T is computed, so that no transpose is needed anywhere:
//   wgmma "M" side = columns n of B, taken from registers (read from a [k][n] tile in shared memory, split there)
//   wgmma "N" side = rows m of A, taken from shared memory, K-major, as two planes (hi, lo)
// CTA tile: 128 rows of A by 256 columns of B, K in chunks of 32, 3 stages.
// Warps 0-7: two consumer warpgroups, each 128 columns n (two 64-row wgmma blocks) by 128 rows m.
// Warps 8-11: producers: cp.async for B, ld.global + split + st.shared for A.
// Every 32 of K the tensor-core sum (whose adds truncate) is added to fp32 registers with round-to-nearest.
#include "vibegemm.cuh"

typedef unsigned int u32;
typedef unsigned long long u64;

#define BM 128
#define BN 256
#define BK 32
#define STAGES 3
#define A_LO 16384u
#define B_OFF 32768u
#define STAGE_BYTES 65536u
#define GROUP_M 16

// T = a (64x8, registers) * b (8x64, shared, K-major)
__device__ __forceinline__ void wgmma_first(float (&T)[32], const u32 (&a)[4], u64 desc) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, p, 1, 1;\n}\n"
      : "=f"(T[0]),"=f"(T[1]),"=f"(T[2]),"=f"(T[3]),"=f"(T[4]),"=f"(T[5]),"=f"(T[6]),"=f"(T[7]),"=f"(T[8]),"=f"(T[9]),"=f"(T[10]),"=f"(T[11]),"=f"(T[12]),"=f"(T[13]),"=f"(T[14]),"=f"(T[15]),"=f"(T[16]),"=f"(T[17]),"=f"(T[18]),"=f"(T[19]),"=f"(T[20]),"=f"(T[21]),"=f"(T[22]),"=f"(T[23]),"=f"(T[24]),"=f"(T[25]),"=f"(T[26]),"=f"(T[27]),"=f"(T[28]),"=f"(T[29]),"=f"(T[30]),"=f"(T[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));
}
// T += a (64x8, registers) * b (8x64, shared, K-major)
__device__ __forceinline__ void wgmma_acc(float (&T)[32], const u32 (&a)[4], u64 desc) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, p, 1, 1;\n}\n"
      : "+f"(T[0]),"+f"(T[1]),"+f"(T[2]),"+f"(T[3]),"+f"(T[4]),"+f"(T[5]),"+f"(T[6]),"+f"(T[7]),"+f"(T[8]),"+f"(T[9]),"+f"(T[10]),"+f"(T[11]),"+f"(T[12]),"+f"(T[13]),"+f"(T[14]),"+f"(T[15]),"+f"(T[16]),"+f"(T[17]),"+f"(T[18]),"+f"(T[19]),"+f"(T[20]),"+f"(T[21]),"+f"(T[22]),"+f"(T[23]),"+f"(T[24]),"+f"(T[25]),"+f"(T[26]),"+f"(T[27]),"+f"(T[28]),"+f"(T[29]),"+f"(T[30]),"+f"(T[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));
}
__device__ __forceinline__ void wgmma_wait_all(float (&T)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;\n" : "+f"(T[0]),"+f"(T[1]),"+f"(T[2]),"+f"(T[3]),"+f"(T[4]),"+f"(T[5]),"+f"(T[6]),"+f"(T[7]),"+f"(T[8]),"+f"(T[9]),"+f"(T[10]),"+f"(T[11]),"+f"(T[12]),"+f"(T[13]),"+f"(T[14]),"+f"(T[15]),"+f"(T[16]),"+f"(T[17]),"+f"(T[18]),"+f"(T[19]),"+f"(T[20]),"+f"(T[21]),"+f"(T[22]),"+f"(T[23]),"+f"(T[24]),"+f"(T[25]),"+f"(T[26]),"+f"(T[27]),"+f"(T[28]),"+f"(T[29]),"+f"(T[30]),"+f"(T[31]) :: "memory");
}

__device__ __forceinline__ u64 desc(u32 low) { return ((u64)0x40000040u << 32) | low; }
__device__ __forceinline__ void mbar_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive(u32 bar) {
  asm volatile("{\n.reg .b64 st;\nmbarrier.arrive.shared::cta.b64 st, [%0];\n}\n" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_wait(u32 bar, u32 parity) {
  u32 ok;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  } while (!ok);
}
// Wait for this warpgroup's turn at the tensor cores. The loop never repeats: `dep` is the result of an fp32 add, and
// those give only one NaN pattern, another one. It begins a basic block, so that the assembler keeps the arithmetic
// written before this wait before it, instead of moving it into the time of the turn.
__device__ __forceinline__ void turn_sync(int id, u32 dep) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "TURN:\n"
      "bar.sync %0, 256;\n"
      "setp.eq.u32 p, %1, 0x7fc12345;\n"
      "@p bra TURN;\n}\n" ::"r"(id), "r"(dep) : "memory");
}
__device__ __forceinline__ void turn_arrive(int id) { asm volatile("bar.arrive %0, 256;\n" ::"r"(id) : "memory"); }

// hi = x rounded to tf32 (nearest, ties away); lo = the exact rest, of which the tensor core uses the leading 11 bits
__device__ __forceinline__ void split(u32 x, u32& hi, u32& lo) {
  hi = (x + 0x1000u) & 0xffffe000u;
  lo = __float_as_uint(__uint_as_float(x) - __uint_as_float(hi));
}
__device__ __forceinline__ void lds64(u32 addr, u32& x, u32& y) {
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];\n" : "=r"(x), "=r"(y) : "r"(addr) : "memory");
}
__device__ __forceinline__ void sts128(u32 addr, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

struct Tile { int m0, n0; };
__device__ __forceinline__ Tile tile_at(int t, int tiles_m, int tiles_n) {
  int gs = GROUP_M * tiles_n;
  int g = t / gs, rem = t - g * gs;
  int gm = min(GROUP_M, tiles_m - g * GROUP_M);
  int tn = rem / gm;
  Tile o;
  o.m0 = (g * GROUP_M + rem - tn * gm) * BM;
  o.n0 = tn * BN;
  return o;
}

// four consecutive k of one row of A (zeros from K on; rows past the end repeat the last one and are never stored)
template <bool VEC>
__device__ __forceinline__ void load_a(u32 (&v)[4], const float* A, int row, int k, int M, int K) {
  const float* p = A + (size_t)min(row, M - 1) * (size_t)K + k;
  v[0] = v[1] = v[2] = v[3] = 0u;
  if (VEC) {
    if (k < K)
      asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (k + i < K) asm volatile("ld.global.nc.b32 %0, [%1];\n" : "=r"(v[i]) : "l"(p + i));
  }
}
__device__ __forceinline__ void store_a(u32 dst, const u32 (&v)[4]) {
  u32 h[4], l[4];
#pragma unroll
  for (int i = 0; i < 4; i++) split(v[i], h[i], l[i]);
  sts128(dst, h[0], h[1], h[2], h[3]);
  sts128(dst + A_LO, l[0], l[1], l[2], l[3]);
}

template <bool VEC>
__device__ __forceinline__ void produce(const float* __restrict__ A, const float* __restrict__ B, int M, int N, int K,
                                        u32 smem, u32 bars, int tiles_m, int tiles_n, int KT) {
  const int tid = threadIdx.x - 256;
  const int lane = tid & 31, w = tid >> 5;
  const int c = tid & 7, r = tid >> 3;               // A: 16-byte column, row (+16 j)
  const int rb = (lane >> 3) + 4 * (w & 1);          // B: row within 8
  const int nbb = (w >> 1) * 4;                      // B: first 32-column block
  const u32 a_off = r * 128 + ((c ^ (r & 7)) << 4);
  const u32 b_off = B_OFF + nbb * 4096 + rb * 128 + ((c ^ rb) << 4);
  int s = 0;
  u32 ph = 0;
  for (int t = blockIdx.x; t < tiles_m * tiles_n; t += gridDim.x) {
    const Tile tl = tile_at(t, tiles_m, tiles_n);
    int row = tl.m0 + r;
    int col = tl.n0 + nbb * 32 + 4 * c;
    u32 v[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) load_a<VEC>(v[j], A, row + 16 * j, 4 * c, M, K);
#pragma unroll 1
    for (int kc = 0; kc < KT; kc++) {
      const u32 st = smem + s * STAGE_BYTES;
      const u32 full = bars + 8 * s;
      asm volatile("" : "+r"(row), "+r"(col));  // addresses are computed anew, not kept in registers
      mbar_wait(bars + 8 * (STAGES + s), ph ^ 1);
      // B chunk, raw, asynchronously: [8 blocks of 32 n][32 k][128 bytes, 16-byte columns xored with k & 7]
#if VG_TRANS_B
      // Stored N x K: four bytes at a time into the same place; a warp takes 8 k of 4 n, so that global
      // reads fill whole sectors and the shared writes fall into 32 different banks.
#pragma unroll 4
      for (int i = 0; i < 64; i++) {
        const int unit = w * 64 + i;                       // 8 blocks of 32 n, 4 groups of 8 k, 8 of 4 n
        const int nb = unit >> 5, kq = (unit >> 3) & 3, c16 = unit & 7, kr = lane & 7, ni = lane >> 3;
        const int k = kc * BK + kq * 8 + kr, n = tl.n0 + nb * 32 + c16 * 4 + ni;
        const bool ok = k < K && n < N;
        const float* p = B + (ok ? (size_t)n * (size_t)K + k : 0);
        const u32 dst = st + B_OFF + nb * 4096 + (kq * 8 + kr) * 128 + ((c16 ^ kr) << 4) + ni * 4;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(dst), "l"(p), "r"(ok ? 4 : 0) : "memory");
      }
#else
#pragma unroll 1
      for (int kq = 0; kq < 4; kq++) {
        const int k = kc * BK + kq * 8 + rb;
        const float* rowp = B + (size_t)min(k, K - 1) * (size_t)N;
#pragma unroll
        for (int nb = 0; nb < 4; nb++) {
          const u32 dst = st + b_off + nb * 4096 + kq * 1024;
          if (VEC) {
            const float* p = rowp + min(col + nb * 32, N - 4);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(p), "r"(k < K ? 16 : 0) : "memory");
          } else {
#pragma unroll 1
            for (int i = 0; i < 4; i++) {
              const int n = col + nb * 32 + i;
              const bool ok = k < K && n < N;
              const float* p = ok ? rowp + n : B;
              asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(dst + 4 * i), "l"(p), "r"(ok ? 4 : 0) : "memory");
            }
          }
        }
      }
#endif
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(full) : "memory");
      // A chunk: hi and lo planes, [128 m][128 bytes, 16-byte columns xored with m & 7]
#pragma unroll
      for (int j = 0; j < 4; j++) store_a(st + a_off + j * 2048, v[j]);
#pragma unroll
      for (int j = 0; j < 4; j++) load_a<VEC>(v[j], A, row + 16 * (j + 4), kc * BK + 4 * c, M, K);
#pragma unroll
      for (int j = 0; j < 4; j++) store_a(st + a_off + (j + 4) * 2048, v[j]);
      asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
      mbar_arrive(full);
      if (kc + 1 < KT) {
#pragma unroll
        for (int j = 0; j < 4; j++) load_a<VEC>(v[j], A, row + 16 * j, (kc + 1) * BK + 4 * c, M, K);
      }
      if (++s == STAGES) { s = 0; ph ^= 1; }
    }
  }
}

// the 64x32 register operand of block mb: 4 k-steps of 4 values
__device__ __forceinline__ void load_b(u32 (&raw)[4][4], u32 p0, u32 p1) {
#pragma unroll
  for (int ks = 0; ks < 4; ks++) {
    lds64(p0 + ks * 1024, raw[ks][0], raw[ks][1]);
    lds64(p1 + ks * 1024, raw[ks][2], raw[ks][3]);
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_3xtf32(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ D, int M, int N, int K
            VG_EPILOGUE_PARAMS) {
  VG_EPILOGUE(epi, M, N);
  extern __shared__ unsigned char smem_raw[];
  const u32 smem = ((u32)__cvta_generic_to_shared(smem_raw) + 1023u) & ~1023u;
  const u32 bars = smem + STAGES * STAGE_BYTES;  // full[STAGES], then empty[STAGES]
  const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
  const int KT = (K + BK - 1) / BK;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbar_init(bars + 8 * i, 256);            // 128 cp.async arrivals + 128 plain ones
      mbar_init(bars + 8 * (STAGES + i), 8);   // one per consumer warp
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();

  const int wg = __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);
  if (wg == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n");
    // Sixteen-byte copies need rows, and bases, that start on sixteen bytes.
    if (((VG_TRANS_B ? K : N | K) & 3) == 0) produce<true>(A, B, M, N, K, smem, bars, tiles_m, tiles_n, KT);
    else produce<false>(A, B, M, N, K, smem, bars, tiles_m, tiles_n, KT);
    // all copies into this CTA's shared memory have been waited for by the consumers
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;\n");
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;  // warp 0..7 owns 32-column block `warp`
    const int g = lane >> 2, t4 = lane & 3;
    const int chunk = (g >> 1) | ((g & 1) << 2);  // 16-byte column of this thread's 4 consecutive n
    const int sw = (g >> 1) & 1;                  // which 8-byte half belongs to block 0
    const u32 boff0 = B_OFF + warp * 4096 + t4 * 128 + ((chunk ^ t4) << 4) + 8 * sw;
    const u32 boff1 = B_OFF + warp * 4096 + (t4 + 4) * 128 + ((chunk ^ t4 ^ 4) << 4) + 8 * sw;
    const int my_turn = 1 + wg, other_turn = 2 - wg;
    if (wg == 1) turn_arrive(1);

    int s = 0;
    u32 ph = 0;
    for (int t = blockIdx.x; t < tiles_m * tiles_n; t += gridDim.x) {
      float acc[2][2][32];
#pragma unroll
      for (int i = 0; i < 32; i++) acc[0][0][i] = acc[0][1][i] = acc[1][0][i] = acc[1][1][i] = 0.f;

      u32 raw[4][4];
      mbar_wait(bars + 8 * s, ph);
      load_b(raw, smem + s * STAGE_BYTES + boff0, smem + s * STAGE_BYTES + boff1);

#pragma unroll 1
      for (int kc = 0; kc < KT; kc++) {
        const u32 st = smem + s * STAGE_BYTES;
        const u32 empty = bars + 8 * (STAGES + s);
        const u32 dlo = (st >> 4) | 0x10000u;
        if (++s == STAGES) { s = 0; ph ^= 1; }
#pragma unroll
        for (int mb = 0; mb < 2; mb++) {
          u32 hi[4][4], lo[4][4];
#pragma unroll
          for (int i = 0; i < 16; i++) split(raw[i >> 2][i & 3], hi[i >> 2][i & 3], lo[i >> 2][i & 3]);
#pragma unroll
          for (int i = 0; i < 16; i++)
            asm volatile("" : "+r"(hi[i >> 2][i & 3]), "+r"(lo[i >> 2][i & 3]));
#pragma unroll
          for (int nh = 0; nh < 2; nh++) {
            float T[32];
            // K-major, 128-byte swizzle, 1024 bytes from one group of 8 rows to the next
            const u32 dh = dlo + nh * 512, dl = dh + (A_LO >> 4);
            turn_sync(my_turn, nh == 0 ? lo[3][3] : __float_as_uint(acc[mb][0][31]));
            asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
            wgmma_first(T, lo[0], desc(dh));
#pragma unroll
            for (int ks = 1; ks < 4; ks++) wgmma_acc(T, lo[ks], desc(dh + 2 * ks));
#pragma unroll
            for (int ks = 0; ks < 4; ks++) wgmma_acc(T, hi[ks], desc(dl + 2 * ks));
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
              wgmma_acc(T, hi[ks], desc(dh + 2 * ks));
              if (ks == 1) turn_arrive(other_turn);  // a little early, so that the tensor cores never drain
            }
            asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
            if (mb == 1 && nh == 1 && kc + 1 < KT) mbar_wait(bars + 8 * s, ph);
            wgmma_wait_all(T);
            if (nh == 1) {
              // the operand registers stay untouched until here
#pragma unroll
              for (int i = 0; i < 16; i++)
                asm volatile("" : "+r"(hi[i >> 2][i & 3]), "+r"(lo[i >> 2][i & 3]));
              if (mb == 0) load_b(raw, st + (boff0 ^ 8), st + (boff1 ^ 8));
              else if (kc + 1 < KT) load_b(raw, smem + s * STAGE_BYTES + boff0, smem + s * STAGE_BYTES + boff1);
            }
#pragma unroll
            for (int i = 0; i < 32; i++) acc[mb][nh][i] += T[i];
#pragma unroll
            for (int i = 0; i < 32; i++) asm volatile("" : "+f"(acc[mb][nh][i]));
          }
        }
        __syncwarp();
        if (lane == 0) mbar_arrive(empty);
      }

      // D: this thread has 4 consecutive n for 32 rows m
      const Tile tl = tile_at(t, tiles_m, tiles_n);
      const int n = tl.n0 + warp * 32 + 4 * chunk;
      const int m = tl.m0 + 2 * t4;
      float* p = D + (size_t)m * (size_t)N + n;
#pragma unroll
      for (int nh = 0; nh < 2; nh++)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float a0 = acc[0][nh][4 * i + e], a1 = acc[0][nh][4 * i + 2 + e];
            const float b0 = acc[1][nh][4 * i + e], b1 = acc[1][nh][4 * i + 2 + e];
            float v[4] = {sw ? b0 : a0, sw ? b1 : a1, sw ? a0 : b0, sw ? a1 : b1};
            const int dm = nh * 64 + 8 * i + e;
            if (m + dm < M && n < N) {
              epi.apply(v, 0, m + dm, n);
              vg::store_n<4>(p + (size_t)dm * (size_t)N, v, N - n);
            }
          }
    }
    if (wg == 0) turn_sync(1, 0u);  // consume the last hand-over
  }
}
