"""Checks a kernel's source against the contract, before any compiler sees it.

These checks read tokens, so they are quick and name a line. What a macro could still hide (state,
printing, a heap) is looked for again in the built cubin, by :mod:`.cubin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..errors import SourceError
from .plan import Plan

MAX_BYTES = 256 * 1024
INCLUDES = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "vibegemm.cuh")
_DIRECTIVES = {
    *("include", "define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif"),
    *("pragma", "error"),
}
_FORBIDDEN = {
    "state that outlives a launch": ("__managed__", "__nv_managed__", "thread_local"),
    "a heap on the device": ("malloc", "free", "new", "delete", "calloc", "realloc", "alloca"),
    "printing": ("printf", "vprintf", "puts", "assert", "__assert_fail", "__assertfail"),
    "host code": ("__host__", "main", "system", "fopen", "getenv", "dlopen"),
    "a launch from the device": ("cudaLaunchKernel", "cudaLaunchDevice", "cudaMalloc", "cudaFree"),
    "reading a clock": ("clock", "clock64", "globaltimer", "__clock", "__clock64"),
    "looking at files": ("__has_include", "__has_include_next", "__has_embed", "_Pragma"),
    "a text with the build's date or path": ("__DATE__", "__TIME__", "__TIMESTAMP__", "__FILE__"),
}
_REASONS = {name: reason for reason, names in _FORBIDDEN.items() for name in names}
_PTX = re.compile(
    r"%(?:clock|clock_hi|clock64|globaltimer\w*)\b|\.global\s*\.(?:align|[bsuf]\d)|\.file\b|\.extern\b"
    r"|\bpmevent\b|\bbrkpt\b|%envreg|%nanotime"
)
_VARIABLE = re.compile(
    r"(?:^|[;}{])\s*(?:(?:static|volatile|extern|inline|const|constexpr|alignas\s*\([^)]*\)"
    r"|__align__\s*\([^)]*\))\s+)*__device__\s+(?P<rest>[^;(){}=]*)(?P<end>[;=]|\{)"
)
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")
      | (?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      | (?P<char>'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?[0-9](?:[eEpP][+-]|'?[\w.])*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _tokens(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, text, offset) of each token."""
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or "other"
        yield ("raw" if kind == "tag" else kind), match.group(), match.start()


def rename(source: str, entries: Mapping[str, str]) -> str:
    """Return the source with the entries' identifiers replaced, outside comments and texts."""
    return "".join(
        entries.get(text, text) if kind == "name" else text for kind, text, _ in _tokens(source)
    )


def check_source(source: str, plan: Plan) -> None:
    """Check a source against the contract.

    Parameters
    ----------
    source
        CUDA-C device code.
    plan
        Names the entries that must be there.

    Raises
    ------
    SourceError
        One line: the kernel, the line in its source, and what is not allowed.
    """

    def fail(offset: int, what: str) -> SourceError:
        line = source.count("\n", 0, offset) + 1
        return SourceError(f"kernel {plan.name}, line {line}: {what}")

    size = len(source.encode("utf-8", errors="replace"))
    if size > MAX_BYTES:
        raise SourceError(f"kernel {plan.name}: {size} bytes of source; at most {MAX_BYTES}")
    if match := re.search("[\0\ud800-\udfff]", source):
        raise fail(match.start(), "a NUL or a lone surrogate is not text")
    for trick in ("??=", "??/", "%:"):
        if trick in source:
            raise fail(source.index(trick), f"the spelling {trick!r} is not allowed")

    # Same length as the source, so that offsets stay true: comments and texts become blanks.
    bare = list(source)
    for kind, text, start in _tokens(source):
        end = start + len(text)
        if kind in ("text", "raw") and (match := _PTX.search(text)):
            raise fail(start + match.start(), f"{match.group()!r} in inline PTX is not allowed")
        if kind in ("comment", "raw", "char"):
            bare[start:end] = [c if c == "\n" else " " for c in text]
        elif kind == "text" and text != '"C"' and not _in_include(source, start):
            bare[start:end] = ['"', *(" " * (len(text) - 2)), '"']
        elif kind == "name" and text in _REASONS:
            raise fail(start, f"{text!r}: {_REASONS[text]} is not allowed")
    code = "".join(bare)
    _check_directives(code, fail)
    without_macros = re.sub(r"(?m)^[ \t]*#(?:[^\n\\]|\\.|\\\n)*$", _blank, code)
    for match in _VARIABLE.finditer(without_macros):
        rest = match.group("rest")
        if match.group("end") != "{" or re.search(r"\w\s+\w", rest):
            raise fail(match.start("rest"), "a __device__ variable is state; use __constant__")
    if match := re.search(r"<<\s*<", code):
        raise fail(match.start(), "a launch from device code is not allowed")
    for launch in plan.launches:
        entry = rf'extern\s+"C"\s+__global__\b[^;{{}}]*?\b{re.escape(launch.entry)}\s*\('
        if not re.search(entry, without_macros):
            raise SourceError(
                f"kernel {plan.name}: the plan launches {launch.entry!r}, but the source has no"
                ' extern "C" __global__ function of that name'
            )


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _in_include(source: str, start: int) -> bool:
    line = source[source.rfind("\n", 0, start) + 1 : start]
    return re.match(r"\s*#\s*include\b", line) is not None


def _check_directives(code: str, fail: object) -> None:
    assert callable(fail)
    for match in re.finditer(r"(?m)^[ \t]*#[ \t]*(\w*)((?:[^\n\\]|\\.|\\\n)*)$", code):
        name, rest = match.group(1), match.group(2).strip()
        if name not in _DIRECTIVES:
            raise fail(match.start(), f"the directive #{name} is not allowed")
        if name == "pragma" and not re.match(r"(?:unroll|once|nounroll)\b", rest):
            raise fail(match.start(), "only #pragma unroll is allowed")
        if name == "include":
            file = re.fullmatch(r'[<"]([^<>"]*)[>"]', rest)
            if file is None or file.group(1) not in INCLUDES:
                raise fail(match.start(), f"#include {rest[:80]}: only {', '.join(INCLUDES)}")
    # A directive can be spliced together out of continued lines: none may continue its name.
    for match in re.finditer(r"(?m)#[ \t]*\\\n", code):
        raise fail(match.start(), "a directive's name must stand on the line of its #")
