"""The generated epilogue, compiled as host code and compared with NumPy, step by step."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tvm_vibegemm.judge.inputs import apply_step
from tvm_vibegemm.kernel.preamble import epilogue_operands, preamble
from tvm_vibegemm.workload import BatchMap, EpilogueOp, Workload

SHIM = r"""
#include <cmath>
#include <cstdio>
#include <cstring>
#define VG_DEV inline
#define __restrict__
namespace vg {
typedef unsigned long long u64;
inline float to_float(float x) { return x; }
inline float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }
template <typename T, int W> struct alignas(sizeof(T) * W) Vec { T v[W]; };
template <int B> inline bool aligned(const void* p) { return ((u64)p & (B - 1)) == 0; }
}
"""
MAIN = r"""
int main(int argc, char** argv) {
    static float in[B * M * N], e0[B * M * N + 8], e1[B * M * N + 8], out[B * M * N];
    FILE* f = fopen(argv[1], "rb");
    const int size = B * M * N;
    if (fread(in, 4, size, f) + fread(e0, 4, size, f) + fread(e1, 4, size, f) == 0) return 1;
    run(in, out EXTRA);
    f = fopen(argv[2], "wb");
    fwrite(out, 4, B * M * N, f);
}
"""
B, M, N = 2, 5, 11
CHAINS = [
    ("bias",),
    ("relu",),
    ("gelu_erf",),
    ("gelu_tanh",),
    ("silu",),
    ("scale",),
    ("residual",),
    ("bias", "gelu_erf", "residual"),
    ("residual", "scale", "bias", "relu"),
    ("scale", "silu", "residual", "gelu_tanh"),
]


def steps(chain: tuple[str, ...]) -> tuple[EpilogueOp, ...]:
    made = []
    for kind in chain:
        dtype = "f32" if kind in ("bias", "residual") else None
        made.append(EpilogueOp(kind, dtype, -1.75 if kind == "scale" else None))
    return tuple(made)


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_epilogue_is_what_numpy_says(chain: tuple[str, ...], width: int, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the generated struct with")
    workload = Workload(M, N, 8, "f32", "f32", out="f32", batch=B, epilogue=steps(chain))
    text = preamble(workload, {}, "sm_90").replace('#include "vibegemm.cuh"', "")
    operands = epilogue_operands(workload)
    extra = "".join(f", e{i}" for i in range(len(operands)))
    if width:
        body = f"""
        for (int n = 0; n < N; n += {width}) {{
            float v[{width}];
            for (int i = 0; i < {width}; ++i) v[i] = n + i < N ? x[(b * M + m) * N + n + i] : 77.f;
            epi.apply(v, b, m, n);
            for (int i = 0; i < {width}; ++i) {{
                if (n + i < N) y[(b * M + m) * N + n + i] = v[i];
            }}
        }}"""
    else:
        body = """
        for (int n = 0; n < N; ++n)
            y[(b * M + m) * N + n] = epi(x[(b * M + m) * N + n], b, m, n);
        // Outside D nothing is read: these pointers would crash.
        if (epi(3.f, b, M, 0) != 3.f || epi(3.f, b, 0, N) != 3.f) y[0] = NAN;"""
    source = f"""{SHIM}
enum {{ B = {B}, M = {M}, N = {N} }};
{text}
void run(const float* x, float* y VG_EPILOGUE_PARAMS) {{
    VG_EPILOGUE(epi, M, N);
    for (long long b = 0; b < B; ++b) for (int m = 0; m < M; ++m) {{ {body} }}
}}
#define EXTRA {extra}
{MAIN}"""
    (tmp_path / "t.cc").write_text(source)
    command = [compiler, "-O1", "-std=c++17", "-w", "-o", tmp_path / "t", tmp_path / "t.cc"]
    subprocess.run([str(x) for x in command], check=True)
    random = np.random.default_rng(1)
    value = random.standard_normal((B, M, N), dtype=np.float32) * 3
    arrays = []
    for op in operands:
        shape = (N,) if op.kind == "bias" else (B, M, N)
        arrays.append(random.standard_normal(shape, dtype=np.float32))
    data = value.tobytes()
    for array in [*arrays, *[np.zeros((B, M, N), np.float32)] * (2 - len(arrays))]:
        data += array.tobytes().ljust(4 * B * M * N, b"\0")
    (tmp_path / "in").write_bytes(data)
    subprocess.run([str(tmp_path / x) for x in ("t", "in", "out")], check=True)
    got = np.frombuffer((tmp_path / "out").read_bytes(), np.float32).reshape(B, M, N)
    want, rest = value.astype(np.float64), iter(arrays)
    for op in workload.epilogue:
        operand = next(rest).astype(np.float64) if op.dtype else None
        want = apply_step(op, want, operand)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_no_epilogue_is_the_identity_and_takes_no_parameters() -> None:
    text = preamble(Workload(4, 4, 4), {}, "sm_80")
    assert "identity = true" in text
    assert "#define VG_EPILOGUE_PARAMS \n" in text


@pytest.mark.parametrize(
    ("mapping", "batch"),
    [(BatchMap(1, 6), 6), (BatchMap(1, 1), 6), (BatchMap(3, 2), 6), (BatchMap(1, 3), 6)],
)
def test_batch_map(mapping: BatchMap, batch: int) -> None:
    text = preamble(Workload(4, 4, 4, batch=batch, a_batch=mapping), {}, "sm_80")
    (line,) = [line for line in text.splitlines() if "batch_a" in line]
    body = line.split("return ")[1].split(";")[0].replace("/", "//")
    for b in range(batch):
        assert eval(body, {"b": b}) == b // mapping.div % mapping.mod


def test_constants_are_macros_and_scales_are_exact() -> None:
    op = EpilogueOp("scale", value=0.1)
    text = preamble(Workload(4, 4, 4, epilogue=(op,)), {"BM": 64, "STAGES": 3}, "sm_90")
    assert "#define BM 64\n" in text and "#define STAGES 3\n" in text
    literal = text.split("v *= ")[1].split("f;")[0]
    assert float.fromhex(literal) == float(np.float32(0.1))
