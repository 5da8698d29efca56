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
    "trap": ("", 'asm volatile(STR(tr) STR(ap;));', "trap"),
    "sure fault": ("", "if (p[1]) *(int*)nullptr = 1;", "trap"),
    "launch": ("", 'long long t; asm volatile("mov.u64 %0, " STR(%gridid) ";" : "=l"(t));'
               " p[0] = t;", "launch's number"),
    "declared": ("", 'asm volatile("{.reg .u32 %gridid;} mov.u32 %0, " STR(%gridid) ";"'
                 ' : "=r"(p[0]));', "launch's number"),
    "table of addresses": ("__constant__ int t[4] = {1}; __constant__ int* u = t;", "*u = p[0];",
                           "__constant__"),
    "beside parameters": ("", 'asm volatile("ld.param.u32 %0, [g_param_0+8];" : "=r"(p[0]));',
                          "beside a parameter"),
    "before parameters": ("", 'asm volatile("ld.param.u32 %0, [g_param_0+-8];" : "=r"(p[0]));',
                          "beside a parameter"),
    "by register": ("", 'asm volatile("{.reg .u64 t; mov.u64 t, 8; ld.param.u32 %0, [t];}"'
                    ' : "=r"(p[0]));', "beside a parameter|does not compile"),
    "parameter's address": ("", 'long long t; asm volatile("{.reg .u64 t; mov.u64 t, g_param_0;'
                            ' cvta.param.u64 %0, t;}" : "=l"(t)); *(int*)t = 1;',
                            "address of a parameter"),
    "address of nothing": ("", 'long long t; asm volatile("cvta.param.u64 %0, 0;" : "=l"(t));'
                           " *(int*)t = 1;", "address of a parameter|does not compile"),
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


def test_code_of_every_kind_passes() -> None:
    compiled(
        "struct S { int x[40]; };\n__noinline__ __device__ int f(S s, int i) { return s.x[i]; }",
        "S s; for (int i = 0; i < 40; ++i) s.x[i] = p[i]; p[0] = f(s, p[1]);"
        " if (p[2] > 7) __builtin_unreachable();"
        ' asm volatile("{ .reg .pred %q; .reg .u32 %mine, x<4>; mov.u32 %mine, %smid;\\n"'
        ' " setp.ne.u32 %q, %mine, 0;\\n@ %q st\\n.global.u32 [%0], %mine;'
        ' DONE: mov.u32 x1, %dynamic_smem_size; st.global.u32 [%0], x1; }" :: "l"(p));',
    )


@pytest.mark.parametrize(
    "text",
    [
        "// %clock\n\t/* .global .u32 s; trap; */ ld.global.u32 r, [x];\n",
        '.pragma "nounroll"; ld\n.global\n.u32 r, [x];',
        ".visible .entry k(.param .u64 .ptr .global .align 1 k_param_0) { ret; }",
        "cp.async.bulk.tensor.2d.shared :: cluster.global.tile [x], [y, {a, b}], [z];",
        "fence.proxy.async.global; @p red.release.gpu.global.add.u32 [x], 1;",
        ".extern .shared .align 16 .b8 trap_ed[]; cvta.to.const.u64 r, s;",
        "mov.u32 r, %cluster_ctarank; mov.u32 r, %nctaid.x; mov.u32 r, %lanemask_lt;",
        ".reg .b32 %r<9>, %own; mov.b32 %r8, %own;",
    ],
)
def test_ptx_passes(text: str) -> None:
    check_ptx(".version 8.0\n.target sm_90a\n.address_size 64\n" + text, "k")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('.pragma "//"; mov.u32 r, %clock;', "clock"),
        ('.pragma "a\n//"; trap;', "open text"),
        ('.pragma "a', "open text"),
        ("\n#include", "preprocessor"),
        ("// x\r trap;", "character"),
        ("// x \\\n trap;", "trap"),
        (".visible .global .u32 s;", "global data"),
        (".visible\n/* */.global .u32 s;", "global data"),
        (".align 4 .global .u32 s;", "global data"),
        ("{L: .global .u32 s;}", "global data"),
        (".address_size 64 .global .u32 s;", "module's own"),
        (".target sm_90a .global .u32 s;", "module's own"),
        ("@!p trap;", "trap"),
        ("{L:brkpt;}", "debugger"),
        ("pmevent.mask 1;", "debugger"),
        ("@ p cvta /* */ . const.u64 a, b;", "__constant__"),
        (".const .u64 q = generic(t);", "__constant__"),
        (".const .u64 q[2] = { 0, generic (t) };", "__constant__"),
        ("st.volatile.const.u32 [t], r;", "__constant__"),
        (".extern .const .u32 t;", "outside"),
        ("mov.u32 r, %envreg3;", "launch's number"),
        ("mov.u64 r, %current_graph_exec;", "launch's number"),
        ("mov.u32 r, %clock_hi;", "clock"),
        (".reg .u32 %pm0; mov.u32 r, %pm0;", "counter"),
        ("mov.u32 r, %not_yet_known;", "unknown special"),
        (".reg .b32 %r<9>; mov.b32 r, %s1;", "unknown special"),
    ],
)
def test_ptx_is_refused_in_every_spelling(text: str, says: str) -> None:
    with pytest.raises(SourceError, match=rf"^kernel k: .*{says}"):
        check_ptx(text, "k")
