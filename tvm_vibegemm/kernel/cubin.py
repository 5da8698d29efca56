"""Looks into what the compiler made for what a source check can miss: state, printing, a heap.

A cubin is an ELF file; its section and symbol names say what the code can touch. The PTX that it
was assembled from shows what leaves no name: clocks, traps, and writes to constant tables.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SourceError

_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_SHN_UNDEF = 0
# Part of the cache's key: a cubin accepted by other rules is checked again.
CHECKS = 3
# Writable data of a module: initialised and zeroed. Constant banks (.nv.constant*) are fine.
_STATE = (".nv.global", ".nv.global.init", ".nv.uft", ".nv.compat.global", ".data", ".bss")
_CALLS = ("vprintf", "printf", "malloc", "free", "__assertfail", "cudaLaunchDevice", "cnpLaunch")

# Beginnings of the special registers that tell one launch from another, or a timed run from a
# checked one: clocks, counters, the number of a launch, what a driver or a profiler put there.
TELLTALE = "clock|globaltimer|nanotime|pm\\d|envreg|gridid|current_graph|atexit|devtool"
_TELLTALE = re.compile(rf"%(?:{TELLTALE})[\w$]*")
# The others, all of them: where a thread stands, on what, and with how much shared memory.
_PLACE = re.compile(
    r"%(?:n?tid|laneid|n?warpid|n?ctaid|n?smid|lanemask_(?:eq|le|lt|ge|gt)|is_explicit_cluster"
    r"|n?clusterid|cluster_n?cta(?:id|rank)|(?:total|aggr|dynamic)_smem_size"
    r"|reserved_smem_offset_\w+)"
)
_TEXT_OR_COMMENT = re.compile(r'"[^"]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_CONTROL = re.compile("[\0-\x08\x0b-\x1f]")  # a reader may take one for a line's end
_HEADER = re.compile(r"^\s*\.version [^\n;]*\n\.target [^\n;]*\n\.address_size [^\n;]*\n")
# An instruction's name and what is dotted to it; a directive has no name before its first dot.
_DOTTED = re.compile(r"(?<![\w$%])(?P<name>[\w$%]*)(?P<parts>(?:\.\w+(?:::\w+)*)+)")
_OPCODE = re.compile(r"[a-z][a-z0-9]*")
_REGISTERS = re.compile(r"\.reg(?:\.\w+)+ ?(?P<names>[^;(){}]*)")
_PARAMETER = re.compile(
    r"(?<![\w$%])\.param(?:\.\w+)*(?: \d+(?:\.\w+)*)? (?P<name>[\w$]+)(?: ?\[(?P<size>\d+)\])?"
)
_ENTRY = re.compile(r"\.entry [\w$]+ ?\((?P<parameters>[^)]*)\)")
_READ = re.compile(r"\bld\.param\b[^;\[]*\[ ?(?P<name>[^\]+ ]*) ?(?:\+ ?(?P<offset>[^\] ]*))? ?\]")
_PTX_RULES = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r'[#\\"]', "a preprocessor line, a backslash or an open text"),
        (r"(?<![\w$%.])(?:trap|brkpt|pmevent)(?![\w$])", "a trap or a debugger's instruction"),
        # The address of a constant table as a generic one: the way to write to it.
        (r"\bcvta\.(?!to\b)[\w.]*\bconst\b", "the generic address of a __constant__ table"),
        (r"[={,] ?generic ?\(", "the generic address of a __constant__ table in another one"),
        (r"\b(?:st|atom|red)\.[\w.:]*\bconst\b", "a write to a __constant__ table"),
    )
)
_MODULE = {"file", "loc", "section", "version", "target", "address_size"}


@dataclass(frozen=True)
class Elf:
    """Names of a cubin's sections, and its symbols as (name, section index)."""

    sections: tuple[str, ...]
    symbols: tuple[tuple[str, int], ...]


def read_elf(data: bytes) -> Elf:
    """Read section and symbol names of a 64-bit little-endian ELF file.

    Raises
    ------
    SourceError
        When the bytes are no such file.
    """
    try:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit ELF file")
        segments, offset = struct.unpack_from("<QQ", data, 32)
        segment_size, segment_count, entry_size, count, names_at = struct.unpack_from(
            "<HHHHH", data, 54
        )
        # Elf64_Shdr: name, type, flags, address, offset, size, link, info, alignment, entry size.
        rows = [
            struct.unpack_from("<IIQQQQIIQQ", data, offset + index * entry_size)
            for index in range(count)
        ]
        ends = [row[4] + row[5] for row in rows if row[1] != _SHT_NOBITS]
        if max([*ends, segments + segment_size * segment_count]) > len(data):
            raise ValueError("truncated")

        def text(table: int, start: int) -> str:
            begin = rows[table][4] + start
            return data[begin : data.index(b"\0", begin)].decode("ascii", "replace")

        sections = tuple(text(names_at, row[0]) for row in rows)
        symbols = []
        for row in rows:
            if row[1] != _SHT_SYMTAB:
                continue
            for position in range(row[4], row[4] + row[5], row[9]):
                name, _, _, index = struct.unpack_from("<IBBH", data, position)
                symbols.append((text(row[6], name), index))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise SourceError(f"cubin: cannot be read ({error})") from error
    return Elf(sections, tuple(symbols))


def check_cubin(data: bytes, entries: list[str], name: str) -> None:
    """Refuse a cubin that keeps state, prints, allocates, or lacks an entry.

    Parameters
    ----------
    data
        The cubin.
    entries
        Names that must be there.
    name
        The kernel's, for the message.

    Raises
    ------
    SourceError
        One line that says what was found.
    """
    elf = read_elf(data)
    for section in elf.sections:
        if section.startswith(_STATE):
            raise SourceError(
                f"kernel {name}: the cubin holds writable data ({section}): a kernel keeps no state"
                " between calls; use __constant__ const tables and the workspace"
            )
    for symbol, section_index in elf.symbols:
        if symbol in _CALLS:
            raise SourceError(f"kernel {name}: the cubin calls {symbol}, which is not allowed")
        # sm_120 has some bulk copies as routines of its own.
        inner = symbol.startswith(("$", ".", "__cuda_syscall_cp_async"))
        if symbol and section_index == _SHN_UNDEF and not inner:
            raise SourceError(f"kernel {name}: the cubin needs an outside symbol {symbol!r}")
    found = {section[len(".text.") :] for section in elf.sections if section.startswith(".text.")}
    for entry in entries:
        if entry not in found:
            raise SourceError(f"kernel {name}: the cubin lacks the entry {entry}")


def check_ptx(text: str, name: str) -> None:
    """Refuse PTX that keeps state, calls outside functions, traps, or tells launches apart.

    A trap is also what the compiler makes of code that would surely fault (a null pointer).

    Parameters
    ----------
    text
        PTX as NVRTC made it, inline assembly included: no macro hides anything here.
    name
        The kernel's, for the message.

    Raises
    ------
    SourceError
        One line that says what was found.
    """

    def fail(reason: str, start: int) -> SourceError:
        shown = code[start : start + 80].partition(";")[0].strip()
        return SourceError(f"kernel {name}: {reason} is not allowed in PTX: {shown}")

    if match := _CONTROL.search(text):
        raise SourceError(f"kernel {name}: the character {match[0]!r} is not allowed in PTX")
    code = _plain(text)
    for rule, reason in _PTX_RULES:
        if match := rule.search(code):
            raise fail(reason, match.start())
    for match in _DOTTED.finditer(code):
        parts = match["parts"].split(".")[1:]
        if fault := _directive(match["name"], parts):
            raise fail(fault, match.start())
    _check_registers(code, fail)
    _check_parameters(code, fail)


def _plain(text: str) -> str:
    """Return PTX in one spelling: no header, texts or comments, and no blanks where none matter."""

    def blank(match: re.Match[str]) -> str:
        # ptxas lets a text go on in the next line; nobody who is honest writes such a text.
        return '"' if match[0][0] == '"' and re.search(r"[\\\n]", match[0]) else " "

    code = _HEADER.sub("", _TEXT_OR_COMMENT.sub(blank, text), count=1)
    code = re.sub(r" ?(\.|::) ?", r"\1", " ".join(code.split()))
    return re.sub(r" ?([;{}:]) ?", r"\1", code)


def _directive(name: str, parts: list[str]) -> str | None:
    """Return what is wrong with a dotted word: module data, or something from outside."""
    if name:
        # In `.align 4 .global` the name is a number; opcodes are plain words.
        data = "global" in parts and not _OPCODE.fullmatch(name)
    else:
        data = bool({"global", "tex"} & set(parts)) and parts[0] != "param"
        if "extern" in parts and "shared" not in parts:
            return "a function or variable from outside"
        if parts[0] in _MODULE:
            return "a line of the module's own"
    return "global data (state, or a table: use __constant__)" if data else None


def _check_registers(code: str, fail: Callable[[str, int], SourceError]) -> None:
    """Refuse special registers that tell launches apart, even where one hides behind a variable."""
    if match := _TELLTALE.search(code):
        raise fail("a read of a clock, a counter or a launch's number", match.start())
    own: set[str] = set()
    for match in _REGISTERS.finditer(code):
        # `%r<9>` declares %r0 ... %r8.
        own |= {re.sub(r" ?<.*", "<", item.strip()) for item in match["names"].split(",")}
    for match in re.finditer(r"%[A-Za-z_$][\w$]*", code):
        names = {match[0], f"{match[0].rstrip('0123456789')}<"}
        if not own & names and not _PLACE.fullmatch(match[0]):
            raise fail("an unknown special register", match.start())


def _check_parameters(code: str, fail: Callable[[str, int], SourceError]) -> None:
    """Refuse reads beside parameters, where the driver's own values are, and ways to write to them.

    Parameters lie in constant memory; in a CUDA graph what is written there stays. Only a tensor
    map, an array of bytes, has an address that is of use.
    """
    sizes = {match["name"]: int(match["size"] or 8) for match in _PARAMETER.finditer(code)}
    for match in _READ.finditer(code):
        offset = match["offset"] or "0"
        if not offset.isdecimal() or int(offset) >= sizes.get(match["name"], 0):
            raise fail("a read beside a parameter", match.start())
    own = [x for entry in _ENTRY.finditer(code) for x in _PARAMETER.finditer(entry["parameters"])]
    scalars = {match["name"] for match in own if match["size"] is None}
    bare = _ENTRY.sub(lambda match: " " * len(match[0]), code)
    for match in re.finditer(r"(?<![\w$%\[])[A-Za-z_$][\w$]*", bare):
        if match[0] in scalars:
            raise fail("the address of a parameter", match.start())
    # No parameter is an array: none has an address that this could be of.
    if len(scalars) == len(own) and (found := re.search(r"\bcvta\.param\b", code)):
        raise fail("the address of a parameter", found.start())
