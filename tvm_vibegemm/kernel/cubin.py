"""Looks into what the compiler made for what a source check can miss: state, printing, a heap.

A cubin is an ELF file; its section and symbol names say what the code can touch. The PTX that it
was assembled from shows what leaves no name: clocks, and writes to constant tables.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from ..errors import SourceError

_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_SHN_UNDEF = 0
# Part of the cache's key: a cubin accepted by other rules is checked again.
CHECKS = 2
# Writable data of a module: initialised and zeroed. Constant banks (.nv.constant*) are fine.
_STATE = (".nv.global", ".nv.global.init", ".nv.uft", ".nv.compat.global", ".data", ".bss")
_CALLS = ("vprintf", "printf", "malloc", "free", "__assertfail", "cudaLaunchDevice", "cnpLaunch")

# Texts first: a `//` in one begins no comment.
_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LINKAGE = r"(?:\.(?:visible|weak|common|extern)\s+)*"
_START = r"(?:^|[;{}\n])\s*(?:@\S+\s+)?"  # of a statement, behind its guard
_PTX_RULES = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (rf"{_START}{_LINKAGE}\.global\b.*", "global data (state, or a table: use __constant__)"),
        (rf"{_START}\.extern\s+\.func\b[^;]*", "a function from outside"),
        (r"%(?:clock|globaltimer|nanotime|pm\d)\w*", "a read of a clock or counter"),
        (rf"{_START}(?:pmevent|brkpt)\b.*", "a debugger's instruction"),
        # The address of a constant table as a generic one: the way to write to it.
        (rf"{_START}cvta\.const\b.*", "the generic address of a __constant__ table"),
        (rf"{_START}st\.(?:\w+\.)*const\b.*", "a write to a __constant__ table"),
        (rf"{_START}(?:#|\.file\b).*", "a preprocessor line"),
    )
)


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
    """Refuse PTX that keeps state, calls outside functions, or reads a clock.

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
    code = _COMMENT.sub(" ", text)
    for rule, reason in _PTX_RULES:
        if match := rule.search(code):
            shown = " ".join(match.group().lstrip(";{}").split())[:80]
            raise SourceError(f"kernel {name}: {reason} is not allowed: {shown}")
