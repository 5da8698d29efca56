"""Checks a kernel's source against the contract, before any compiler sees it.

These checks read tokens, so they are quick and name a line. What a macro can still hide (state,
printing, a heap, a clock) is looked for again in what the compiler made of it, by :mod:`.cubin`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping

from ..errors import SourceError
from .cubin import TELLTALE
from .plan import Plan

MAX_BYTES = 256 * 1024
INCLUDES = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "vibegemm.cuh")
_DIRECTIVES = {
    *("include", "define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif"),
    *("pragma", "error"),
}
# Never allowed, wherever the word stands.
_WORDS = {
    "state that outlives a launch": ("__managed__", "__nv_managed__", "thread_local"),
    "a heap on the device": ("new",),
    "host code": ("__host__",),
    "looking at files": ("__has_include", "__has_include_next", "__has_embed", "_Pragma"),
    "the build's date or path": ("__DATE__", "__TIME__", "__TIMESTAMP__", "__FILE__"),
}
# Not allowed as calls; as other names (a barrier called `free`) they do no harm.
_CALLS = {
    "a heap on the device": ("malloc", "free", "calloc", "realloc", "alloca", "cudaMalloc"),
    "printing": ("printf", "vprintf", "puts", "assert", "__assert_fail", "__assertfail"),
    "host code": ("main", "system", "fopen", "getenv", "dlopen"),
    "a launch from the device": ("cudaLaunchKernel", "cudaLaunchDevice", "cudaFree"),
    "reading a clock": ("clock", "clock64", "globaltimer", "__clock", "__clock64"),
    "stopping the device": ("__trap", "__brkpt", "__builtin_trap", "__prof_trigger", "abort"),
}
_WORD_REASONS = {word: reason for reason, words in _WORDS.items() for word in words}
_CALL_REASONS = {word: reason for reason, words in _CALLS.items() for word in words}
# Inline PTX: clocks and counters, the debugger's instructions, a constant's generic address,
# variables of the module, files.
_PTX = re.compile(
    rf"%(?:{TELLTALE})\w*|\b(?:pmevent|brkpt|trap)\b|#|\bcvta\s*\.\s*const\b|\bgeneric\s*\("
    r"|(?:^|[;{}:\n])\s*(?:\.(?:visible|weak|common|extern)\s+)*"
    r"\.(?:global|file|loc|extern|func|entry|version|target|section)\b(?!\.)"
)
_BLANK = re.compile(r"\\[nt]|/\*.*?\*/", re.DOTALL)
_ESCAPE = re.compile(r"\\(?![nt\\\"'])[^\n]?")
_VARIABLE = re.compile(
    r"(?:^|[;}{])\s*(?:(?:static|volatile|extern|inline|const|constexpr)\s+)*__device__\s+"
    r"(?P<rest>[^;(){}=]*)(?P<end>[;=]|\{)"
)
_ALIGNED = re.compile(
    r"\b(?:alignas|__align__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
_STATIC = re.compile(r"\bstatic\b(?P<rest>[^;(){}=]*)(?:[;=]|\{)")
_NOT_STATE = re.compile(
    r"\b(?:const|constexpr|__constant__|__shared__|__device__|struct|class|enum|union)\b"
)
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")
      | (?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?[0-9](?:[eEpP][+-]|'?[\w.])*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
Fail = Callable[[int, str], SourceError]


def _tokens(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, text, offset) of each token of a text without spliced lines."""
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
    size = len(source.encode("utf-8", errors="replace"))
    if size > MAX_BYTES:
        raise SourceError(f"kernel {plan.name}: {size} bytes of source; at most {MAX_BYTES}")
    # The compiler joins continued lines before it looks for comments and directives; reading them
    # in another order would let one hide the other. `starts` keeps the lines' true numbers.
    pieces = re.split(r"\\\r?\n", source)
    starts, lines, offset, line = [], [], 0, 1
    for piece in pieces:
        starts.append(offset)
        lines.append(line)
        offset += len(piece)
        line += piece.count("\n") + 1
    spliced = "".join(pieces)

    def fail(position: int, what: str) -> SourceError:
        index = bisect_right(starts, position) - 1
        number = lines[index] + spliced.count("\n", starts[index], position)
        return SourceError(f"kernel {plan.name}, line {number}: {what}")

    _check_characters(spliced, fail)
    code = _check_tokens(spliced, fail)
    _check_directives(code, fail)
    bare = re.sub(r"(?m)^[ \t]*#.*$", lambda match: " " * len(match.group()), code)
    _check_declarations(bare, fail)
    for launch in plan.launches:
        entry = rf'extern\s+"C"\s+__global__\b[^;{{}}]*?\b{re.escape(launch.entry)}\s*\('
        if not re.search(entry, bare):
            raise SourceError(
                f"kernel {plan.name}: the plan launches {launch.entry!r}, but the source has no"
                ' extern "C" __global__ function of that name'
            )


def _check_characters(source: str, fail: Fail) -> None:
    if match := re.search("[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]|\r(?!\n)", source):
        raise fail(match.start(), f"the character {match.group()!r} is not allowed")
    if match := re.search(r"\\[ \t\r]+(?=\n)", source):
        raise fail(match.start(), "blanks after a line's closing backslash are not allowed")
    for trick in ("??=", "??/", "%:"):
        if trick in source:
            raise fail(source.index(trick), f"the spelling {trick!r} is not allowed")


def _check_tokens(source: str, fail: Fail) -> str:
    """Return the source with comments and texts blanked; offsets stay true."""
    bare = list(source)
    joined = ""  # adjacent texts are one text to the compiler
    for kind, text, start in _tokens(source):
        end = start + len(text)
        if kind in ("text", "raw"):
            opening = "(" if kind == "raw" else '"'
            joined += text[text.index(opening) + 1 : -1]
            if not _in_include(source, start):
                if kind == "text" and (match := _ESCAPE.search(text)):
                    raise fail(start + match.start(), f"the escape {match.group()} is not allowed")
                if match := _PTX.search(_BLANK.sub("\n", joined)):
                    found = match.group().strip()
                    raise fail(start, f"{found!r} in a text (inline PTX) is not allowed")
                if text != '"C"':
                    bare[start:end] = ['"', *(c if c == "\n" else " " for c in text[2:]), '"']
            continue
        if kind == "comment" or text.isspace():
            bare[start:end] = [c if c == "\n" else " " for c in text]
            continue
        joined = ""
        if kind == "char":
            bare[start:end] = ["0", *(" " for _ in text[1:])]
        elif kind == "name":
            after = _AFTER_CALL.match(source, end)
            if text in _WORD_REASONS or (text in _CALL_REASONS and after):
                reason = _WORD_REASONS.get(text) or _CALL_REASONS[text]
                raise fail(start, f"{text!r}: {reason} is not allowed")
            if text == "delete" and not re.search(r"=\s*$", source[max(0, start - 80) : start]):
                raise fail(start, "'delete': a heap on the device is not allowed")
        elif text in "\"'" or not text.isascii() or (text == "\\"):
            raise fail(start, f"the character {text!r} is not allowed outside comments and texts")
    return "".join(bare)


_AFTER_CALL = re.compile(r"\s*\(")


def _in_include(source: str, start: int) -> bool:
    line = source[source.rfind("\n", 0, start) + 1 : start]
    return re.match(r"\s*#\s*include\b", line) is not None


def _check_directives(code: str, fail: Fail) -> None:
    for match in re.finditer(r"(?m)^([^\n#]*)#[ \t]*(\w*)(.*)$", code):
        name, rest = match.group(2), match.group(3).strip()
        if match.group(1).strip():
            raise fail(match.start() + len(match.group(1)), "a '#' inside a line is not allowed")
        if name not in _DIRECTIVES:
            raise fail(match.start(), f"the directive #{name} is not allowed")
        if name == "pragma" and not re.match(r"(?:unroll|once|nounroll|nv_diag\w+)\b", rest):
            raise fail(match.start(), "only #pragma unroll is allowed")
        if name == "include":
            file = re.fullmatch(r'[<"]([^<>"]*)[>"]', rest)
            if file is None or file.group(1) not in INCLUDES:
                raise fail(match.start(), f"#include {rest[:80]}: only {', '.join(INCLUDES)}")
        elif "#" in rest and not re.match(r"define\s+\w+\(", f"{name} {rest}"):
            raise fail(match.start(), "'#' is allowed in macros with parameters only")


def _check_declarations(code: str, fail: Fail) -> None:
    code = _ALIGNED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)
    for match in _VARIABLE.finditer(code):
        rest = match.group("rest")
        if match.group("end") != "{" or re.search(r"\w\s+\w", rest):
            raise fail(match.start("rest"), "a __device__ variable is state; use __constant__")
    for match in _STATIC.finditer(code):
        if not _NOT_STATE.search(match.group("rest")):
            raise fail(match.start(), "a static variable is state between calls")
    if launch := re.search(r"<<\s*<", code):
        raise fail(launch.start(), "a launch from device code is not allowed")
