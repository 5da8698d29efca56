"""The text that stands before a kernel's source: its constants, types, batch maps and epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..workload import DTYPES, BatchMap, EpilogueOp, Workload

CUDA_TYPES = {
    "f32": "float",
    "tf32": "float",
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "s8": "signed char",
    "s32": "int",
    "f8e4m3": "__nv_fp8_e4m3",
    "f8e5m2": "__nv_fp8_e5m2",
}
# A factor that nobody gave (a workload read from its key): any will do for building and timing.
DEFAULT_SCALE = 0.125


def epilogue_operands(workload: Workload) -> list[EpilogueOp]:
    """Return the epilogue's steps that read an operand, in the order of the kernel's parameters."""
    return [op for op in workload.epilogue if op.dtype is not None]


def preamble(workload: Workload, constants: Mapping[str, int], arch: str) -> str:
    """Return what NVRTC reads before the kernel's own source.

    Parameters
    ----------
    workload
        Types, layouts, batch maps and epilogue; its M, N and K are not used.
    constants
        Value of each tunable and constant of the plan.
    arch
        E.g. ``sm_90``.

    Returns
    -------
    str
        Macros, the prelude's include, ``vg::Epilogue`` and its parameter macros.
    """
    flags = {
        "VG_TRANS_A": workload.trans_a,
        "VG_TRANS_B": workload.trans_b,
        "VG_BATCHED": workload.batch != 1,
    }
    for side, dtype in (("A", workload.a), ("B", workload.b), ("OUT", workload.out)):
        flags |= {f"VG_{side}_{name.upper()}": name == dtype for name in CUDA_TYPES}
    lines = [f"#define {name} {int(value)}" for name, value in flags.items()]
    lines += [f"#define VG_ARCH {arch.removeprefix('sm_')}", '#include "vibegemm.cuh"']
    # After the prelude: a constant named like something in it shadows nothing there.
    lines += [f"#define {name} {value}" for name, value in sorted(constants.items())]
    lines += ["namespace vg {"]
    roles = (("a_t", workload.a), ("b_t", workload.b), ("acc_t", workload.acc))
    lines += [f"typedef {CUDA_TYPES[dtype]} {name};" for name, dtype in roles]
    lines += [f"typedef {CUDA_TYPES[workload.out]} out_t;"]
    assert workload.a_batch is not None and workload.b_batch is not None
    for side, batch_map in (("a", workload.a_batch), ("b", workload.b_batch)):
        body = _batch_index(batch_map, workload.batch)
        lines.append(f"VG_DEV long long batch_{side}(long long b) {{ return {body}; }}")
    lines += [_epilogue(workload), "}  // namespace vg"]
    operands = epilogue_operands(workload)
    params = "".join(
        f", const {CUDA_TYPES[op.dtype or 'f32']}* __restrict__ vg_e{i}"
        for i, op in enumerate(operands)
    )
    values = "".join(f", vg_e{i}" for i in range(len(operands)))
    lines += [
        f"#define VG_EPILOGUE_PARAMS {params}",
        "#define VG_EPILOGUE(name, rows, cols) "
        f"const vg::Epilogue name = {{(rows), (cols){values}}}",
    ]
    return "\n".join(lines) + "\n"


def _batch_index(batch_map: BatchMap, batch: int) -> str:
    if batch_map.mod == 1:
        return "0"
    index = f"b / {batch_map.div}" if batch_map.div != 1 else "b"
    # The last group wraps only where another operand repeats it.
    return f"({index}) % {batch_map.mod}" if batch_map.div * batch_map.mod != batch else index


# Activations for outputs of at most 16 bits, whose rounding is thousands of times coarser than the
# errors here: half the instructions of erff, tanhf and a division, which not every kernel can hide.
_SHORT_ACTIVATIONS = """\
VG_DEV float rcp_approx(float x) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
VG_DEV float ex2_approx(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
// v Phi(v) = max(v, 0) - |v| erfc(|v| / sqrt 2) / 2, erfc by Abramowitz and Stegun 7.1.26 (error of
// erf under 1.5e-7). Past 16 the second term is 0; the cut makes gelu(inf) inf, and -inf gives NaN
// as the formula in Relax does.
VG_DEV float gelu_erf_short(float v) {
    const float x = fmaxf(-v, fminf(v, 16.f));
    const float t = rcp_approx(fmaf(x, 0.23164188f, 1.f));
    float p = fmaf(t, 0.53070271f, -0.72657601f);
    p = fmaf(t, p, 0.71070687f);
    p = fmaf(t, p, -0.14224837f);
    p = fmaf(t, p, 0.12741480f);
    const float e = ex2_approx(x * x * -0.72134752f);
    return fmaf(-x, p * t * e, v < 0.f ? 0.f : v);
}
// v sigmoid(u): exp(-u) that overflows gives 0, as it should.
VG_DEV float times_sigmoid_short(float v, float u) {
    return v * rcp_approx(1.f + ex2_approx(u * -1.44269504f));
}"""


def _step(op: EpilogueOp, operand: str, short: bool) -> str:
    """Return the statement that applies a step to ``v``; ``operand`` is its operand's value."""
    match op.kind:
        case "relu":
            return "v = v < 0.f ? 0.f : v;"  # keeps NaN, as max(x, 0) of the reference does
        case "gelu_erf" if short:
            return "v = gelu_erf_short(v);"
        case "gelu_tanh" if short:  # 1 + tanh(u) = 2 sigmoid(2u)
            return "v = times_sigmoid_short(v, 1.5957691216f * (v + 0.044715f * v * v * v));"
        case "silu" if short:
            return "v = times_sigmoid_short(v, v);"
        case "gelu_erf":
            return "v = 0.5f * v * (1.f + erff(v * 0.70710678118654752f));"
        case "gelu_tanh":
            inner = "0.79788456080286536f * (v + 0.044715f * v * v * v)"
            return f"v = 0.5f * v * (1.f + tanhf({inner}));"
        case "silu":
            return "v = v / (1.f + expf(-v));"
        case "scale":
            return f"v *= {_float(DEFAULT_SCALE if op.value is None else op.value)};"
    return f"v += {operand};"  # bias and residual


def _float(value: float) -> str:
    """Return an exact C literal of the nearest float32."""
    single = float(np.float32(value))
    if math.isnan(single) or math.isinf(single):
        bits = int(np.float32(value).view(np.uint32))
        return f"__int_as_float({bits:#010x})"
    return f"{single.hex()}f"


def _epilogue(workload: Workload) -> str:
    operands = epilogue_operands(workload)
    members = [f"    const {CUDA_TYPES[op.dtype or 'f32']}* e{i};" for i, op in enumerate(operands)]
    scalar: list[str] = []
    vector: list[str] = []
    loads: list[str] = []
    used = 0
    short = DTYPES[workload.out].bytes < 4
    activations = any(op.kind in ("gelu_erf", "gelu_tanh", "silu") for op in workload.epilogue)
    for op in workload.epilogue:
        at = "n" if op.kind == "bias" else "at"
        scalar.append(f"        {_step(op, f'to_float(e{used}[{at}])', short)}")
        vector.append(f"            {_step(op, f'extra{used}[i]', short)}")
        if op.dtype is not None:
            load = f"load_extra<W, WHOLE>(extra{used}, e{used} + {at}, inside);"
            loads.append(f"        float extra{used}[W]; {load}")
            used += 1
    identity = "true" if not workload.epilogue else "false"
    at = "const long long at = (b * M + m) * N + n; (void)at;"
    return "\n".join(
        [
            "// What follows the product: generated from the graph.",
            *([_SHORT_ACTIVATIONS] if short and activations else []),
            "template <int W, bool WHOLE, typename T>",
            "VG_DEV void load_extra(float (&x)[W], const T* p, int inside) {",
            "    constexpr int BYTES = W * sizeof(T);",
            "    constexpr bool ONE = (W & (W - 1)) == 0 && BYTES <= 16;",
            "    if (ONE && (WHOLE || (inside >= W && aligned<BYTES>(p)))) {",
            "        const Vec<T, W> piece = *reinterpret_cast<const Vec<T, W>*>(p);",
            "#pragma unroll",
            "        for (int i = 0; i < W; ++i) x[i] = to_float(piece.v[i]);",
            "    } else {",
            "#pragma unroll",
            "        for (int i = 0; i < W; ++i) x[i] = i < inside ? to_float(p[i]) : 0.f;",
            "    }",
            "}",
            "struct Epilogue {",
            "    long long M, N;",
            *members,
            "    // An enum: a static member would be data of the module.",
            f"    enum : bool {{ identity = {identity} }};",
            "    // Final value of one accumulator of D[b, m, n]; reads nothing outside D.",
            "    VG_DEV float operator()(float v, long long b, int m, int n) const {",
            "        if (m >= M || n >= N) return v;",
            f"        {at}",
            *scalar,
            "        return v;",
            "    }",
            "    // The same for W adjacent columns n ... n+W-1 of row m, in place.",
            "    // WHOLE: the caller knows that all W columns are inside D and that N and n are",
            "    // multiples of W; nothing is tested, so loads of many calls can overlap.",
            "    template <int W, bool WHOLE = false>",
            "    VG_DEV void apply(float (&x)[W], long long b, int m, int n) const {",
            "        if (identity || (!WHOLE && (m >= M || n >= N))) return;",
            f"        {at}",
            "        const int inside = (int)(N - n < W ? N - n : W); (void)inside;",
            *loads,
            "#pragma unroll",
            "        for (int i = 0; i < W; ++i) {",
            "            float& v = x[i];",
            *vector,
            "        }",
            "    }",
            "};",
        ]
    )
