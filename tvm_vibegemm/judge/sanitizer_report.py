"""Reads what compute-sanitizer printed: its text becomes findings, its summary becomes a count."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InputError

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
ALLOWED = Path(__file__).with_name("sanitizer_allowed.json")
REPRODUCERS = "tests/exploits/reproducers"
# Findings that say that something was not checked: no list can excuse them.
RUN_FAILED, NOT_CHECKED, NOT_PRINTED = "run-failed", "not-checked", "not-printed"
NEVER_ALLOWED = (RUN_FAILED, NOT_CHECKED, NOT_PRINTED)


@dataclass(frozen=True)
class Where:
    """Where a finding was made, each empty where the tool does not say.

    Parameters
    ----------
    kernel
        Entry, as the kernel's source names it.
    offset
        Of the instruction in its function, in hex.
    block, thread
        Coordinates of the first report, e.g. ``(0,0,0)``.
    """

    kernel: str = ""
    offset: str = ""
    block: str = ""
    thread: str = ""

    def __str__(self) -> str:
        """Return e.g. ``gemm+0x90 block (0,0,0) thread (3,0,0)``."""
        at = self.kernel + (f"+{self.offset}" if self.offset else "")
        named = (("", at), ("block ", self.block), ("thread ", self.thread))
        return " ".join(name + value for name, value in named if value)


@dataclass(frozen=True)
class Finding:
    """One thing that a tool found; equal ones at one instruction are counted together.

    Parameters
    ----------
    tool
        One of :data:`TOOLS`.
    kind
        Short name, e.g. ``invalid-global-write``, ``race``, ``run-failed``.
    message
        What the tool said of the first of them, in one line, entries by their source names.
    count
        Reports that were printed; for races, hazards.
    where
        Place of the first of them.
    workload
        Key of the workload, empty where several were run and it is not known which.
    """

    tool: str
    kind: str
    message: str
    count: int = 1
    where: Where = field(default_factory=Where)
    workload: str = ""


@dataclass(frozen=True)
class Report:
    """A whole output.

    Parameters
    ----------
    findings
        What the tool found.
    refused
        Why it cannot work on this machine, in its words, or None.
    complete
        True where its summary is there: without it, silence means nothing.
    """

    findings: tuple[Finding, ...]
    refused: str | None
    complete: bool


# The tool says these where it cannot do its work: on such a machine nothing has been checked.
_REFUSED = re.compile(
    r"device not supported|unable to find injection|no attachable process|is not supported"
    r"|insufficient|failed to (?:initialize|launch|connect|load)|error while (?:launching|loading)"
    r"|unrecogni[sz]ed option|target application terminated before first instrumented",
    re.IGNORECASE,
)
_LINE = re.compile(r"^\s*={9}(?: (.*))?$")
_SUMMARY = re.compile(r"^(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)\b(.*)")
# The first word of no finding.
_SILENT = re.compile(
    r"^(?:COMPUTE-SANITIZER\b|LEAK SUMMARY\b|Target application returned an error"
    r"|Error: process didn't terminate successfully|.*\bwere not printed\b)"
)
_KINDS: tuple[tuple[str, str], ...] = (
    (r"Internal Sanitizer Error", NOT_CHECKED),
    (r"Warning: (?!\(?Warp|Race|Potential)", NOT_CHECKED),
    (r"Race reported between", "race"),
    (r"Potential (RAW|WAR|WAW) hazard", "hazard-{0}"),
    (r"Potential invalid __(\w+)__ (\w+)", "potential-invalid-{0}-{1}"),
    (r"Deadlock detected|(?:Barrier|Syncwarp) called by threads", "deadlock"),
    (r"Invalid __(\w+)__ (\w+)", "invalid-{0}-{1}"),
    (r"Uninitialized __(\w+)__ memory (\w+)", "uninitialized-{0}-{1}"),
    (r"(?i)uninitialized", "uninitialized"),
    (r"Barrier error detected", "barrier-error"),
    (r"Malloc/Free error", "heap-error"),
    (r"Leaked", "leak"),
    (r"Program hit", "api-error"),
    (r"Error:|Error\b", NOT_CHECKED),
)
_PLACE = (
    re.compile(r"\bat (?:\[clone [^\]]*\] )?([\w$]+)(?:\([^)]*\))?\+(0x[0-9a-f]+)"),
    re.compile(r"\bat (?P<offset>0x[0-9a-f]+) in (?:\S+ )?(?P<kernel>[\w$]+)"),
)
_BLOCK = re.compile(r"\bin block (\([\d, ]+\))")
_THREAD = re.compile(r"(?:\bby thread|\bThread|starting at) (\([\d, ]+\))")
_HOST = ("Saved host", "Host Frame")
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")


def parse_report(text: str, tool: str, names: Mapping[str, str] | None = None) -> Report:
    """Read the text form of a report, lines of ``=========``.

    Parameters
    ----------
    text
        What the tool wrote.
    tool
        One of :data:`TOOLS`.
    names
        Name of an entry in the cubin → its name in the source.

    Returns
    -------
    Report
        Findings in the order of their first report. What is neither known nor known to be
        harmless is a finding too: nothing that the tool says is dropped.
    """
    for new, old in (names or {}).items():
        text = text.replace(new, old)
    blocks: list[list[str]] = []
    total: int | None = None
    refused: str | None = None
    current: list[str] | None = None  # what indented lines belong to
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        content = match.group(1) or ""
        head = content.strip()
        if not head:
            current = None
        elif current is not None and content.startswith("  "):
            current.append(head)
        elif summary := _SUMMARY.match(head):
            if "were not printed" not in summary.group(2):
                total = int(summary.group(1)) + (total or 0)
            current = None
        else:
            current = [head]
            if _REFUSED.search(head) and not head.startswith("Internal Sanitizer Error"):
                refused = refused or head
            elif not _SILENT.match(head):
                blocks.append(current)
    singles = [_finding(block, tool) for block in blocks]
    findings = _grouped(singles)
    unprinted = (total or 0) - sum(finding.kind != NOT_CHECKED for finding in singles)
    if unprinted > 0:
        more = f"{unprinted} more errors were counted than are printed"
        findings.append(Finding(tool, NOT_PRINTED, more, unprinted))
    return Report(tuple(findings), refused, total is not None)


def _finding(block: Sequence[str], tool: str) -> Finding:
    head, *rest = block
    kind = "other"
    for pattern, name in _KINDS:
        if match := re.search(pattern, head):
            kind = name.format(*(group.lower() for group in match.groups()))
            break
    whole = "\n".join(block)
    places = (pattern.search(whole) for pattern in _PLACE)
    place = next((match for match in places if match), None)
    kernel, offset = "", ""
    if place is not None:
        named = place.groupdict()
        kernel, offset = (named["kernel"], named["offset"]) if named else place.groups()
    block_at, thread = _BLOCK.search(whole), _THREAD.search(whole)
    hazards = _HAZARDS.search(whole)
    # Frames of the host say nothing of the kernel, and addresses differ in every run.
    device = itertools.takewhile(lambda line: not line.startswith(_HOST), rest)
    told = [line for line in device if not re.fullmatch(r"Address 0x\w+", line)]
    return Finding(
        tool,
        kind,
        "; ".join([head, *told])[:500],
        int(hazards.group(1)) if hazards else 1,
        Where(
            kernel,
            offset,
            block_at.group(1) if block_at else "",
            thread.group(1) if thread else "",
        ),
    )


def _grouped(findings: Sequence[Finding]) -> list[Finding]:
    first: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        # A race is two places: its message tells it apart.
        same = finding.message if finding.kind in ("race", "other") else ""
        key = (finding.kind, finding.where.kernel, finding.where.offset, same)
        known = first.get(key)
        count = finding.count + (known.count if known else 0)
        first[key] = replace(known or finding, count=count)
    return list(first.values())


# -- false findings ------------------------------------------------------------------------------


@cache
def load_allowed(path: Path = ALLOWED) -> tuple[dict[str, str], ...]:
    """Return the list of false findings, checked.

    Parameters
    ----------
    path
        A JSON list of ``{"tool", "kind", "pattern", "reproducer", "why"}``: a regular expression
        over the message that names no kernel, a file under :data:`REPRODUCERS` that shows the
        finding on a program that is right, and why it is.

    Raises
    ------
    InputError
        Naming the entry that is malformed.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(entries, list):
        raise InputError(f"{path}: not a list")
    return tuple(_checked(entry, f"{path}, entry {i}") for i, entry in enumerate(entries))


def _checked(entry: Any, name: str) -> dict[str, str]:
    keys = {"tool", "kind", "pattern", "reproducer", "why"}
    if not isinstance(entry, dict) or entry.keys() != keys:
        raise InputError(f"{name}: needs exactly {', '.join(sorted(keys))}")
    if not all(isinstance(value, str) and value.strip() for value in entry.values()):
        raise InputError(f"{name}: every field is a text that is not empty")
    if entry["tool"] not in TOOLS:
        raise InputError(f"{name}: unknown tool {entry['tool']!r}; known: {', '.join(TOOLS)}")
    if entry["kind"] in NEVER_ALLOWED:
        raise InputError(f"{name}: {entry['kind']} means unchecked, which nothing excuses")
    path = Path(entry["reproducer"])
    if path.is_absolute() or ".." in path.parts or not path.is_relative_to(REPRODUCERS):
        raise InputError(f"{name}: the reproducer stands in {REPRODUCERS}/")
    try:
        re.compile(entry["pattern"])
    except re.error as error:
        raise InputError(f"{name}: pattern: {error}") from error
    return entry


def missing_reproducers(root: Path, path: Path = ALLOWED) -> list[str]:
    """Return the reproducers of the list that are no files of the checkout at ``root``."""
    named = {entry["reproducer"] for entry in load_allowed(path)}
    return sorted(name for name in named if not (root / name).is_file())


def allowed(finding: Finding, path: Path = ALLOWED) -> Path | None:
    """Return the reproducer that shows a finding to be the tool's own fault, or None.

    Parameters
    ----------
    finding
        What a tool said.
    path
        The list, see :func:`load_allowed`.
    """
    for entry in load_allowed(path):
        same = (finding.tool, finding.kind) == (entry["tool"], entry["kind"])
        if same and re.search(entry["pattern"], finding.message):
            return Path(entry["reproducer"])
    return None
