// The judge's own kernels: inputs, the float64 product, comparison, guards. Written to be plain, not
// fast, and never given to a kernel under test. All indices are 64-bit; all loops stride the grid.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

typedef unsigned long long u64;
typedef long long i64;

enum Type { F32, F16, BF16, S8, S32, E4M3, E5M2 };
enum Kind { INTEGERS, SPARSE, UNIFORM, NORMAL, WIDE };
enum Step { BIAS, RESIDUAL, RELU, SCALE, GELU_ERF, GELU_TANH, SILU };

#define EACH(i, n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

__device__ double load(const void* p, i64 i, int type) {
    switch (type) {
        case F32: return ((const float*)p)[i];
        case F16: return __half2float(((const __half*)p)[i]);
        case BF16: return __bfloat162float(((const __nv_bfloat16*)p)[i]);
        case S8: return ((const signed char*)p)[i];
        case S32: return ((const int*)p)[i];
        case E4M3: return (float)((const __nv_fp8_e4m3*)p)[i];
        case E5M2: return (float)((const __nv_fp8_e5m2*)p)[i];
    }
    return 0;
}

// One rounding to nearest even; 8-bit types saturate.
__device__ void put(void* p, i64 i, int type, double x) {
    switch (type) {
        case F32: ((float*)p)[i] = (float)x; break;
        case F16: ((__half*)p)[i] = __double2half(x); break;
        case BF16: ((__nv_bfloat16*)p)[i] = __double2bfloat16(x); break;
        case S8: ((signed char*)p)[i] = (signed char)fmin(fmax(rint(x), -128.0), 127.0); break;
        case S32: ((int*)p)[i] = (int)x; break;
        case E4M3: ((__nv_fp8_storage_t*)p)[i] = __nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E4M3); break;
        case E5M2: ((__nv_fp8_storage_t*)p)[i] = __nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E5M2); break;
    }
}

__device__ double rounded(double x, int type) {
    double cell;
    put(&cell, 0, type, x);
    return load(&cell, 0, type);
}

__device__ int width(int type) { return type == F32 || type == S32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }

// ---------------------------------------------------------------- inputs
// Counter-based: the value of element i depends on seed and i alone (finaliser of splitmix64), so
// that any element can be made again anywhere.
__device__ u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
__device__ double unit(u64 bits) { return (double)(bits >> 40) * 0x1p-24; }
__device__ double gauss(u64 bits) {
    const double u = ((double)(bits >> 32) + 1) * 0x1p-32, v = (double)(bits & 0xffffffffu) * 0x1p-32;
    return sqrt(-2 * log(u)) * cospi(2 * v);
}

__device__ double value(int kind, double top, u64 seed, i64 i, i64 k, i64 other, i64 K) {
    const u64 bits = mix(seed + mix((u64)i));
    switch (kind) {
        case INTEGERS: return (double)(i64)(bits % (u64)(2 * (i64)top + 1)) - top;
        case SPARSE: {
            // At most four k of each column (or row) hold +-1: two neighbours, which share whatever
            // partial sum there is, one of the last 32 k, so that none is left out, and any one.
            const i64 first = other % K, second = (first ^ 1) < K ? first ^ 1 : K - 1;
            const bool here = k == first || k == second || k == K - 1 - other % (K < 32 ? K : 32)
                || k == (i64)(mix(seed + 7919 * (u64)other) % (u64)K);
            return !here ? 0 : bits & 1 ? 1 : -1;
        }
        case UNIFORM: return unit(bits);
        case NORMAL: return top * gauss(bits);
    }
    return gauss(bits) * exp2((double)(i64)(mix(bits) % (u64)(2 * (i64)top + 1)) - top);
}

// matrices x rows x cols values; `k_rows`: k runs along the rows' index.
extern "C" __global__ void fill(void* p, int type, i64 matrices, i64 rows, i64 cols, int k_rows,
                                int kind, double top, u64 seed) {
    EACH(i, matrices * rows * cols) {
        const i64 c = i % cols, r = i / cols % rows, b = i / cols / rows;
        const i64 k = k_rows ? r : c, other = b * (k_rows ? cols : rows) + (k_rows ? c : r);
        put(p, i, type, value(kind, top, seed, i, k, other, k_rows ? rows : cols));
    }
}

// A new value for every element with k = `at`: all of the result changes, most of the operand stays.
extern "C" __global__ void change(void* p, int type, i64 matrices, i64 rows, i64 cols, int k_rows,
                                  int kind, double top, u64 seed, i64 at) {
    const i64 others = k_rows ? cols : rows;
    EACH(j, matrices * others) {
        const i64 b = j / others, o = j % others;
        const i64 i = (b * rows + (k_rows ? at : o)) * cols + (k_rows ? o : at);
        put(p, i, type, value(kind, top, seed, i, at, j, k_rows ? rows : cols));
    }
}

extern "C" __global__ void poke(void* p, int type, i64 i, double x) {
    if (blockIdx.x == 0 && threadIdx.x == 0) put(p, i, type, x);
}

// ---------------------------------------------------------------- memory
extern "C" __global__ void fill_words(unsigned* p, i64 words, unsigned pattern) { EACH(i, words) p[i] = pattern; }

// Bytes that are not as the repeated word says; p is a multiple of 4.
extern "C" __global__ void count_changed(const unsigned char* p, i64 bytes, unsigned pattern, u64* found) {
    u64 mine = 0;
    EACH(i, bytes) mine += p[i] != (unsigned char)(pattern >> (8 * (i & 3)));
    if (mine) atomicAdd(found, mine);
}

extern "C" __global__ void count_different(const unsigned char* a, const unsigned char* b, i64 bytes, u64* found) {
    u64 mine = 0;
    EACH(i, bytes) mine += a[i] != b[i];
    if (mine) atomicAdd(found, mine);
}

// Reads memory so that nothing else, and nothing dirty, is left in the L2.
extern "C" __global__ void read_all(const uint4* p, i64 n, u64* sink) {
    unsigned seen = 0;
    EACH(i, n) {
        const uint4 x = __ldcg(p + i);
        seen |= x.x & x.y & x.z & x.w;
    }
    if (seen == 0x12345678u) atomicAdd(sink, 1ull);
}

// ---------------------------------------------------------------- the true result
struct Operation { int kind, type; double factor; const void* operand; };
struct Problem {
    const void *a, *b;
    int a_type, b_type, trans_a, trans_b;
    i64 M, N, K, batch, a_div, a_mod, b_div, b_mod;
    int steps, as_tf32;
    Operation step[16];
};

// What follows the product, in float64; `size` follows as the sum of magnitudes that the
// error of an honest kernel is a small multiple of. 1.13 bounds the slope of every activation.
__device__ void finish(const Problem& q, i64 b, i64 m, i64 n, double& v, double& size) {
    for (int s = 0; s < q.steps; ++s) {
        const Operation& o = q.step[s];
        double x = 0;
        switch (o.kind) {
            case BIAS: x = load(o.operand, n, o.type); break;
            case RESIDUAL: x = load(o.operand, (b * q.M + m) * q.N + n, o.type); break;
            case RELU: v = v < 0 ? 0 : v; break;
            case SCALE: v *= o.factor; size *= fabs(o.factor); break;
            case GELU_ERF: v = 0.5 * v * erfc(-v * 0.70710678118654752440); size *= 1.13; break;
            case GELU_TANH:
                v = v / (1 + exp(-1.5957691216057307 * (v + 0.044715 * v * v * v)));
                size *= 1.13;
                break;
            case SILU: v = v / (1 + exp(-v)); size *= 1.13; break;
        }
        v += x;
        size += fabs(x);
    }
}

__device__ i64 which(i64 b, i64 div, i64 mod) { return b / div % mod; }
__device__ double at_a(const Problem& q, i64 b, i64 m, i64 k) {
    const i64 base = which(b, q.a_div, q.a_mod) * q.M * q.K;
    return load(q.a, base + (q.trans_a ? k * q.M + m : m * q.K + k), q.a_type);
}
__device__ double at_b(const Problem& q, i64 b, i64 k, i64 n) {
    const i64 base = which(b, q.b_div, q.b_mod) * q.K * q.N;
    return load(q.b, base + (q.trans_b ? n * q.K + k : k * q.N + n), q.b_type);
}

// 256 threads make a tile of 64 x 64; want: float64 result, size: float magnitudes, both as D lies.
extern "C" __global__ void __launch_bounds__(256) product(const Problem* problem, double* want, float* size) {
    const Problem& q = *problem;
    __shared__ double sa[16][65], sb[16][65];
    const i64 tm = (q.M + 63) / 64, tn = (q.N + 63) / 64;
    const int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    for (i64 t = blockIdx.x; t < tm * tn * q.batch; t += gridDim.x) {
        const i64 b = t / (tm * tn), m0 = t % (tm * tn) / tn * 64, n0 = t % tn * 64;
        double sum[4][4] = {}, mag[4][4] = {};
        for (i64 k0 = 0; k0 < q.K; k0 += 16) {
#pragma unroll
            for (int e = threadIdx.x; e < 1024; e += 256) {
                // Neighbouring threads read neighbouring addresses, in either layout.
                const int ka = q.trans_a ? e >> 6 : e & 15, ma = q.trans_a ? e & 63 : e >> 4;
                const int kb = q.trans_b ? e & 15 : e >> 6, nb = q.trans_b ? e >> 4 : e & 63;
                sa[ka][ma] = k0 + ka < q.K && m0 + ma < q.M ? at_a(q, b, m0 + ma, k0 + ka) : 0;
                sb[kb][nb] = k0 + kb < q.K && n0 + nb < q.N ? at_b(q, b, k0 + kb, n0 + nb) : 0;
            }
            __syncthreads();
            const int depth = q.K - k0 < 16 ? (int)(q.K - k0) : 16;  // inf * 0 past K would be NaN
            for (int k = 0; k < depth; ++k)
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const double x = sa[k][ty + 16 * i], y = sb[k][tx + 16 * j];
                        sum[i][j] += x * y;
                        mag[i][j] += fabs(x * y);
                    }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const i64 m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
                if (m >= q.M || n >= q.N) continue;
                finish(q, b, m, n, sum[i][j], mag[i][j]);
                want[(b * q.M + m) * q.N + n] = sum[i][j];
                size[(b * q.M + m) * q.N + n] = (float)mag[i][j];
            }
    }
}

// ---------------------------------------------------------------- comparison
struct Limits { double unit_out, smallest, per_size, largest, saturates; };
struct Stats {
    double error2, want2, honest2, sampled2, honest_want2;
    u64 max_error, max_ratio, max_share;          // bits of doubles: absolute, of the bound, of size
    u64 wrong, inexact, poisoned, not_finite, finite, inf_as_nan, compared;
    u64 listed[32];                               // the first that were found wrong, in any order
    unsigned map[32 * 32];                        // wrong elements by place in D (all of the batch)
};

__device__ bool same_bits(const void* p, i64 i, int bytes, unsigned pattern) {
    const unsigned char* at = (const unsigned char*)p + i * bytes;
    for (int j = 0; j < bytes; ++j)
        if (at[j] != (unsigned char)(pattern >> (8 * ((i * bytes + j) & 3)))) return false;
    return true;
}

// Non-negative doubles are ordered as their bits are.
__device__ void largest_of(u64& so_far, double x) {
    const u64 bits = (u64)__double_as_longlong(isfinite(x) ? x : 1e300);
    if (bits > so_far) so_far = bits;
}

// Judges element i = (b M + m) N + n of `got`; true where it is wrong.
__device__ bool judge(const void* got, int type, i64 i, double want, double size, const Limits& l,
                      Stats& mine, unsigned poison) {
    if (l.saturates) want = fmin(fmax(want, -l.largest), l.largest);
    const double is = load(got, i, type), best = rounded(want, type);
    if (same_bits(got, i, width(type), poison) && best != is) ++mine.poisoned;
    if (!l.saturates && (!isfinite(best) || fabs(want) > 0.998 * l.largest)) {
        // Past what the type holds, or so near that honest rounding may go either way.
        if (isfinite(is) && !isfinite(best) && fabs(want) > 1.002 * l.largest) { ++mine.finite; return true; }
        if (isfinite(is) && isnan(want)) { ++mine.finite; return true; }
        if (isinf(best) && isnan(is)) ++mine.inf_as_nan;
        return false;
    }
    if (!isfinite(is)) { ++mine.not_finite; return true; }
    const double error = fabs(is - want);
    const double bound = 1.01 * l.unit_out * fabs(want) + l.smallest + l.per_size * size;
    mine.error2 += error * error;
    mine.want2 += want * want;
    ++mine.compared;
    mine.inexact += is != best;
    largest_of(mine.max_error, error);
    largest_of(mine.max_ratio, error == 0 ? 0 : error / bound);
    largest_of(mine.max_share, error == 0 ? 0 : error / size);
    if (error > bound) { ++mine.wrong; return true; }
    return false;
}

__device__ void place(Stats* all, i64 i, i64 M, i64 N) {
    const i64 m = i / N % M, n = i % N;
    atomicAdd(&all->map[(m * 32 / M) * 32 + n * 32 / N], 1u);
}

__device__ void gather(Stats* all, const Stats& mine) {
    atomicAdd(&all->error2, mine.error2);
    atomicAdd(&all->want2, mine.want2);
    atomicMax(&all->max_error, mine.max_error);
    atomicMax(&all->max_ratio, mine.max_ratio);
    atomicMax(&all->max_share, mine.max_share);
    if (mine.wrong) atomicAdd(&all->wrong, mine.wrong);
    if (mine.inexact) atomicAdd(&all->inexact, mine.inexact);
    if (mine.poisoned) atomicAdd(&all->poisoned, mine.poisoned);
    if (mine.not_finite) atomicAdd(&all->not_finite, mine.not_finite);
    if (mine.finite) atomicAdd(&all->finite, mine.finite);
    if (mine.inf_as_nan) atomicAdd(&all->inf_as_nan, mine.inf_as_nan);
    atomicAdd(&all->compared, mine.compared);
}

// Every element; with `exact`, one that is not the rounded truth bit for bit counts as wrong.
extern "C" __global__ void compare(const void* got, int type, const double* want, const float* size,
                                   i64 batch, i64 M, i64 N, Limits l, int exact, unsigned poison, Stats* all) {
    Stats mine = {};
    EACH(i, batch * M * N) {
        const u64 before = mine.inexact;
        bool bad = judge(got, type, i, want[i], size[i], l, mine, poison);
        if (exact && mine.inexact != before && !bad) { ++mine.wrong; bad = true; }
        if (bad) {
            place(all, i, M, N);
            const u64 slot = mine.wrong + mine.not_finite + mine.finite;
            if (slot <= 4) {  // a thread lists its first few
                const u64 at = atomicAdd(&all->listed[31], 1ull);
                if (at < 31) all->listed[at] = (u64)i;
            }
        }
    }
    gather(all, mine);
}

// `count` elements at places drawn from the seed, each made anew: one warp an element.
extern "C" __global__ void sample(const Problem* problem, const void* got, int type, u64 seed, i64 count,
                                  Limits l, Stats* all) {
    const Problem& q = *problem;
    const int lane = threadIdx.x & 31;
    const i64 warps = (i64)gridDim.x * blockDim.x / 32;
    Stats mine = {};
    for (i64 w = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; w < count; w += warps) {
        const i64 i = (i64)(mix(seed + w) % (u64)(q.batch * q.M * q.N));
        const i64 n = i % q.N, m = i / q.N % q.M, b = i / q.N / q.M;
        double sum = 0, mag = 0;
        for (i64 k = lane; k < q.K; k += 32) {
            const double p = at_a(q, b, m, k) * at_b(q, b, k, n);
            sum += p;
            mag += fabs(p);
        }
        for (int d = 16; d; d /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
            mag += __shfl_xor_sync(0xffffffffu, mag, d);
        }
        if (lane == 0) {
            finish(q, b, m, n, sum, mag);
            judge(got, type, i, sum, mag, l, mine, 0);
        }
    }
    if (lane == 0) gather(all, mine);
}

// ---------------------------------------------------------------- an honest kernel of each class
__device__ unsigned two(double lo, double hi, int type) {
    if (type == F16) {
        const __half2 h = __halves2half2(__double2half(lo), __double2half(hi));
        return *(const unsigned*)&h;
    }
    const __nv_bfloat162 h = __halves2bfloat162(__double2bfloat16(lo), __double2bfloat16(hi));
    return *(const unsigned*)&h;
}
__device__ unsigned tf32(double x) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"((float)x));
    return r;
}

// The squared error of an honest kernel on tiles of 16 x 8 drawn from the seed, one warp a tile, and
// of `got` on the same elements:
// tensor-core products with a float32 accumulator (16-bit types, TF32), fmaf in order for float32
// and 8-bit types, one rounding at the end.
extern "C" __global__ void honest(const Problem* problem, const void* got, const double* want, int type,
                                  u64 seed, i64 tiles, double largest, Stats* all) {
    const Problem& q = *problem;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const i64 warps = (i64)gridDim.x * blockDim.x / 32, tm = (q.M + 15) / 16, tn = (q.N + 7) / 8;
    double error2 = 0, sampled2 = 0, want2 = 0;
    for (i64 w = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; w < tiles; w += warps) {
        const i64 tile = (i64)(mix(seed + w) % (u64)(tm * tn * q.batch));
        const i64 b = tile / (tm * tn), m0 = tile % (tm * tn) / tn * 16, n0 = tile % tn * 8;
        auto a = [&](i64 m, i64 k) { return m < q.M && k < q.K ? at_a(q, b, m, k) : 0.0; };
        auto c = [&](i64 k, i64 n) { return n < q.N && k < q.K ? at_b(q, b, k, n) : 0.0; };
        float d[4] = {};
        if (q.as_tf32) {
            for (i64 k = 0; k < q.K; k += 8)
                asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                    : "r"(tf32(a(m0 + g, k + t))), "r"(tf32(a(m0 + g + 8, k + t))), "r"(tf32(a(m0 + g, k + t + 4))),
                      "r"(tf32(a(m0 + g + 8, k + t + 4))), "r"(tf32(c(k + t, n0 + g))), "r"(tf32(c(k + t + 4, n0 + g))));
        } else if (q.a_type == F16 || q.a_type == BF16) {
            for (i64 k = 0; k < q.K; k += 16) {
                unsigned x[4], y[2];
                for (int i = 0; i < 4; ++i) {
                    const i64 m = m0 + g + 8 * (i & 1), at = k + 2 * t + 8 * (i >> 1);
                    x[i] = two(a(m, at), a(m, at + 1), q.a_type);
                }
                for (int i = 0; i < 2; ++i) y[i] = two(c(k + 2 * t + 8 * i, n0 + g), c(k + 2 * t + 8 * i + 1, n0 + g), q.a_type);
#define MMA(ty) asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ty "." ty ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]))
                if (q.a_type == F16) MMA("f16");
                else MMA("bf16");
            }
        } else {
            for (i64 k = 0; k < q.K; ++k)
                for (int i = 0; i < 4; ++i)
                    d[i] = fmaf((float)a(m0 + g + 8 * (i >> 1), k), (float)c(k, n0 + 2 * t + (i & 1)), d[i]);
        }
        for (int i = 0; i < 4; ++i) {
            const i64 m = m0 + g + 8 * (i >> 1), n = n0 + 2 * t + (i & 1);
            if (m >= q.M || n >= q.N) continue;
            const double truth = want[(b * q.M + m) * q.N + n];
            double v = d[i], unused = 0;
            finish(q, b, m, n, v, unused);
            const double is = rounded((float)v, type), its = load(got, (b * q.M + m) * q.N + n, type);
            if (!isfinite(is) || !isfinite(its) || !isfinite(truth) || fabs(truth) > 0.998 * largest) continue;
            error2 += (is - truth) * (is - truth);
            sampled2 += (its - truth) * (its - truth);
            want2 += truth * truth;
        }
    }
    atomicAdd(&all->honest2, error2);
    atomicAdd(&all->sampled2, sampled2);
    atomicAdd(&all->honest_want2, want2);
}
