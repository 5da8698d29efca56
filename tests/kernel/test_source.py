"""The source contract: what passes, what does not, and that tricks do not help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_vibegemm.errors import SourceError
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.kernel.source import MAX_BYTES, check_source, rename
from tvm_vibegemm.resources import codegen_dir, schedules_dir

ENTRY = 'extern "C" __global__ void gemm(int* p) { p[0] = 1; }\n'

GOOD = {
    "plain": ENTRY,
    "includes": '#include <mma.h>\n#include "vibegemm.cuh"\n# include <cuda_fp16.h> // half\n'
    + ENTRY,
    "bounds": 'extern "C" __global__ void __launch_bounds__(128, 2) gemm(int* p) { *p = 1; }',
    "continued macro": "#define ADD(a, b) \\\n    ((a) + \\\n     (b))\n#define S(x) #x\n" + ENTRY,
    "table": "__constant__ int table[2] = {1, 2};\n" + ENTRY,
    "forward declaration": "__device__ int f(int x);\n__device__ int f(int x) { return x; }\n"
    + ENTRY,
    "struct": "struct A { __device__ int get() { return 1; } static const int n = 4; };\n" + ENTRY,
    "deleted": "struct A { A(const A&) = delete; };\n" + ENTRY,
    "static function": "static __device__ __forceinline__ int f() { return 1; }\n" + ENTRY,
    "comment": "// printf, malloc and __host__; gemm<<<1, 2>>>\n/* #include <x> */\n" + ENTRY,
    "unroll": "#pragma unroll\n" + ENTRY,
    "non-ascii comment": "// M×N\n" + ENTRY,
    "ptx": '__device__ void r(int* p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;\\n"'
    ' :: "l"(p)); }\n__device__ int s() { int r; asm("mov.u32 %0, %%smid;" : "=r"(r)); return r; }'
    "\n" + ENTRY,
    "names": "__device__ int f(int free, int clock) { return free + clock; }\n" + ENTRY,
    "sleep": "__device__ void f() { __nanosleep(20); }\n" + ENTRY,
    "places": '__device__ int f() { int r; asm("mov.u32 %0, %%warpid;" : "=r"(r)); return r; }\n'
    + ENTRY,
    "crlf": ENTRY.replace("\n", "\r\n"),
}

BAD = {
    "other include": ("\n#include <stdio.h>\n", 2),
    "absolute": ('#include "/etc/passwd"\n', 1),
    "dots": ('#include "../vibegemm.cuh"\n', 1),
    "macro include": ("#define H <mma.h>\n#include H\n", 2),
    "include_next": ("#include_next <mma.h>\n", 1),
    "import": ("#import <mma.h>\n", 1),
    "embed": ('#embed "/etc/passwd"\n', 1),
    "line": ('#line 5 "x"\n', 1),
    "comment before": ("/* \n */ #include <stdio.h>\n", 2),
    "comment inside": ("#/**/include/**/<stdio.h>\n", 1),
    "continued name": ("#inc\\\nlude <stdio.h>\n", 1),
    "continued include": ("#include \\\n <stdio.h>\n", 1),
    "spliced comment": ('/\\\n/ " /*\n#include <stdio.h>\n// */\n', 3),
    "spliced text": ('int a; // \\\n "\n#include <stdio.h>\n// "\n', 3),
    "blank after backslash": ("#define A \\ \n1\n", 1),
    "trigraph": ("??=include <stdio.h>\n", 1),
    "digraph": ("%:include <stdio.h>\n", 1),
    "form feed": ("#\finclude <stdio.h>\n", 1),
    "carriage return": ("int a;\r#include <stdio.h>\n", 1),
    "nul": ("int a;\0\n", 1),
    "has_include": ("#if __has_include(<x>)\n#endif\n", 1),
    "pragma": ("\n#pragma comment\n", 2),
    "pragma operator": ('_Pragma("x")\n', 1),
    "host": ("__host__ void f();\n", 1),
    "main": ("int main() { return 0; }\n", 1),
    "launch": ("__device__ void f() { g<<<1, 1>>>(); }\n", 1),
    "device variable": ("\n\n__device__ int state;\n", 3),
    "device array": ("__device__ unsigned state[4] = {1};\n", 1),
    "aligned variable": ("__device__ __align__(16) int state;\n", 1),
    "static variable": ("static int state;\n", 1),
    "static local": ("__device__ int f() { static int n = 0; return n++; }\n", 1),
    "managed": ("__managed__ int state;\n", 1),
    "printf": ('\n__device__ void f() { printf("x"); }\n', 2),
    "assert": ("__device__ void f() { assert(0); }\n", 1),
    "malloc": ("__device__ void* f() { return malloc(4); }\n", 1),
    "new": ("__device__ int* f() { return new int; }\n", 1),
    "clock": ("__device__ long long f() { return clock64(); }\n", 1),
    "ptx clock": ('__device__ void f() { asm("mov.u32 %0, %%clock;"); }\n', 1),
    "ptx clock in pieces": ('__device__ void f() { asm("mov.u32 %0, %%cl" /**/\n "ock;"); }\n', 2),
    "ptx launch": ('__device__ void f() { asm("mov.u64 %0, %%gridid;"); }\n', 1),
    "ptx environment": ('__device__ void f() { asm("mov.u32 %0, %%envreg7;"); }\n', 1),
    "ptx trap": ('__device__ void f() { asm("{\\n\\ttrap;}"); }\n', 1),
    "trap": ("\n__device__ void f() { __trap(); }\n", 2),
    "ptx constant": ('__device__ void f() { asm("cvta/**/.const.u64 %0, %1;"); }\n', 1),
    "ptx variable after a label": ('__device__ void f() { asm("{L: .global .u32 s; }"); }\n', 1),
    "ptx variable": ('__device__ void f() { asm("{ .global .u32 s; }"); }\n', 1),
    "ptx raw": ('__device__ void f() { asm(R"(.visible .global .u32 s;)"); }\n', 1),
    "ptx escape": ('__device__ void f() { asm("\\x23include"); }\n', 1),
    "ptx preprocessor": ('__device__ void f() { asm("#include <x>"); }\n', 1),
    "hash in a line": ("int a; # include <x>\n", 1),
    "hash macro": ("#define H #\n", 1),
    "unicode name": ("__device__ void pr\\u0069ntf();\n", 1),
    "non-ascii code": ("int ａ;\n", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good(name: str, make_plan: Callable[..., Plan]) -> None:
    check_source(GOOD[name], make_plan())


@pytest.mark.parametrize("name", BAD)
def test_bad_names_the_line(name: str, make_plan: Callable[..., Plan]) -> None:
    text, line = BAD[name]
    with pytest.raises(SourceError, match=rf"kernel plain, line {line}: ") as caught:
        check_source(text + ENTRY, make_plan())
    assert "\n" not in str(caught.value)


def test_missing_entry(make_plan: Callable[..., Plan]) -> None:
    for text in ("", "__global__ void gemm(int* p) {}", "// " + ENTRY):
        with pytest.raises(SourceError, match=r"no extern \"C\" __global__"):
            check_source(text, make_plan())


def test_too_long(make_plan: Callable[..., Plan]) -> None:
    with pytest.raises(SourceError, match="at most"):
        check_source(ENTRY + "//" + "x" * MAX_BYTES, make_plan())


SHIPPED = [
    codegen_dir() / "prompts" / "example.cu",
    *sorted(schedules_dir().rglob("*.cu")),
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_kernels_pass(path: Path) -> None:
    kernel = Kernel.load(path)
    check_source(kernel.source, kernel.plan)


def test_rename_leaves_comments_texts_and_longer_names() -> None:
    text = '// gemm\nvoid gemm(int gemm_n) { f("gemm", R"(gemm)", \'g\', gemm); /* gemm */ }'
    assert rename(text, {"gemm": "vg_1"}) == text.replace("void gemm", "void vg_1").replace(
        ", gemm)", ", vg_1)"
    )
