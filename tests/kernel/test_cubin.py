"""What the compiler made of sources that cheat: each is refused, whatever hid it from readers."""

from __future__ import annotations

import re

import pytest

from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import BuildError, SourceError
from tvm_vibegemm.kernel import build as build_module
from tvm_vibegemm.kernel.build import Binary
from tvm_vibegemm.kernel.cubin import check_cubin, check_ptx, read_elf

HEAD = "#define CAT(a, b) a##b\n#define STR(x) #x\n"
CHEATS = {
    "static": ("__device__ CAT(un, signed) s;", "p[0] = s++;", "global data"),
    "local": ("", "CAT(sta, tic) int s; p[0] = s++;", "global data"),
    "ptx variable": ("", 'asm volatile("{" STR(.global .u32 s;) "st.global.u32 [s], 1; }");',
                     "global data"),
    "printf": ("", 'CAT(pri, ntf)("x%d", p[0]);', "global data|vprintf|outside"),
    "malloc": ("", "p[0] = *(int*)CAT(mal, loc)(4);", "outside"),
    "clock": ("", 'asm volatile("mov.u32 %0, " STR(%clock) ";" : "=r"(p[0]));', "clock"),
    "timer": ("", 'long long t; asm volatile("mov.u64 %0, " STR(%globaltimer) ";" : "=l"(t));'
              " p[0] = t;", "clock"),
    "hidden": ("", 'asm volatile(".pragma \\"//\\"; mov.u32 %0, " STR(%clock) ";" : "=r"(p[0]));',
               "clock|does not compile"),
    "constant": ("__constant__ int t[4] = {1};", "*(int**)p = t;", "__constant__"),
    "outside": ("__device__ int f(int);", "p[0] = f(1);", "does not compile"),
}  # fmt: skip


def compiled(declarations: str, body: str) -> Binary:
    text = f'{HEAD}{declarations}\nextern "C" __global__ void g(int* p) {{ {body} }}\n'
    return build_module._compile("cheat", text, {"g": "g"}, device_for("sm_90"), False)


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_is_refused(name: str) -> None:
    declarations, body, message = CHEATS[name]
    with pytest.raises((SourceError, BuildError), match=re.compile(f"kernel cheat: .*({message})")):
        compiled(declarations, body)


def test_honest_code_passes_and_a_missing_entry_does_not() -> None:
    binary = compiled(
        "__constant__ int t[4] = {1, 2, 3, 4};\n"
        "__noinline__ __device__ int f(int x) { return x > 0 ? x * f(x - 1) : 1; }\n"
        "extern __shared__ int dynamic[];",
        "__shared__ int s[8]; s[threadIdx.x] = dynamic[threadIdx.x]; __syncthreads();"
        " p[0] = f(t[threadIdx.x]) + s[p[1]];",
    )
    assert ".text.g" in read_elf(binary.cubin).sections
    assert binary.report["g"].registers > 0
    assert binary.report["g"].shared_bytes == 32
    with pytest.raises(SourceError, match="lacks the entry other"):
        check_cubin(binary.cubin, ["other"], "k")


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 90])
def test_no_elf(data: bytes) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        check_cubin(data, [], "k")


def test_truncated_cubin_is_a_source_error() -> None:
    cubin = compiled("", "p[0] = 1;").cubin
    for length in range(0, len(cubin), 97):
        with pytest.raises(SourceError):
            check_cubin(cubin[:length], ["g"], "k")


def test_ptx_comments_hide_nothing() -> None:
    check_ptx("// %clock\n\t/* .global .u32 s; */ ld.global.u32 r, [x];\n", "k")
    for text in ('.pragma "//"; mov.u32 r, %clock;', ".visible .global .u32 s;", "\n#include"):
        with pytest.raises(SourceError):
            check_ptx(text, "k")
