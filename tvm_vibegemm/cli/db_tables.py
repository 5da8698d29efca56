"""What ``vibegemm db`` prints for people: tables that fit a hundred columns."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..database import ACCEPTED, Measurement
from ..database.comparison import Best
from ..database.queries import KernelFacts, Line, Run, Statistics
from ..database.upkeep import Difference, Finding, Pruned, Side
from ..errors import InputError
from ..workload import Workload
from .output import console

_WIDE = 140  # columns at which the whole key has a place
_SOME = 20  # lines of a list that says "and more"
_HASH = 12


def microseconds(value: float | None) -> str:
    """Return a time with its unit: never more than eight letters below a minute."""
    if value is None:
        return "-"
    if value < 999.95:
        return f"{value:.1f} µs"
    return f"{value / 1e3:.2f} ms" if value < 1e5 else f"{value / 1e3:,.0f} ms"


def size(value: int | None) -> str:
    """Return a number of bytes with a binary unit."""
    if value is None:
        return "in memory"
    number = float(value)
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} bytes" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def _against(best: Best) -> str:
    return "invalid" if best.reference_us is None else microseconds(best.reference_us)


def _clean(text: str | Text) -> str | Text:
    """Return a text without control characters: what a database holds may not steer a terminal."""
    plain = text if isinstance(text, str) else text.plain
    if plain.isprintable():
        return text
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in plain)
    return clean if isinstance(text, str) else Text(clean, text.style)


class _Table(Table):
    """A table whose cells are cleaned."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_clean, cells), **options)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _say(out: Any, text: str | Text) -> None:
    """Print a text, neither broken nor coloured by rich's guesses."""
    out.print(_clean(text), soft_wrap=True, highlight=False)


def _ratio(best: Best) -> Text:
    style = "green" if best.wins else "red"
    return Text("-" if best.ratio is None else f"{best.ratio:,.2f}×", style)


def _table(*columns: tuple[str, str], title: str | None = None) -> Table:
    """Return a table of columns: a heading, and how its cells stand.

    ``l`` left, ``r`` right, ``s`` left and cut short where the console is narrow, ``f`` left and
    folded there.
    """
    table = _Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.title_style = table.header_style = "bold"
    for heading, kind in columns:
        if kind == "s":
            table.add_column(heading, overflow="ellipsis", min_width=4)
        elif kind == "f":
            table.add_column(heading, overflow="fold")
        else:
            justify: Any = "right" if kind == "r" else "left"
            table.add_column(heading, no_wrap=True, justify=justify)
    return table


# -- list ---------------------------------------------------------------------------------------


def _short(key: str) -> tuple[str, str, str]:
    """Return types with layout, sizes, and epilogue of a workload, as short as they are clear."""
    try:
        w = Workload.parse(key)
    except InputError:
        return ("?", key, "")
    types = w.a if w.a == w.b else f"{w.a}·{w.b}"
    types += "" if w.out == w.a else f"→{w.out}"
    types += "" if w.acc in ("f32", "s32") else f" ({w.acc})"
    sizes = f"{'*' if w.m is None else w.m}×{w.n}×{w.k}"
    if w.batch != 1:
        sizes = f"{w.batch}·{sizes}"
    steps = [op.kind if op.dtype in (None, w.a) else op.key for op in w.epilogue]
    return f"{types} {w.layout}", sizes, "+".join(steps)


def _workload_columns(wide: bool) -> list[tuple[str, str]]:
    return [("workload", "l")] if wide else [("M×N×K", "l"), ("then", "s")]


class _Headings:
    """The cells of workloads: whole keys where there is room, else sizes under a heading."""

    def __init__(self, table: Table, wide: bool) -> None:
        self.table, self.wide = table, wide
        self.last = ""

    def cells(self, key: str) -> list[str]:
        """Return the cells of a row, with a heading before it where the types change."""
        if self.wide:
            return [key]
        heading, *cells = _short(key)
        if heading != self.last:
            self.table.add_row(Text(heading, "bold cyan"))
            self.last = heading
        return cells


def print_lines(place: str, lines: Sequence[Line], total: int) -> None:
    """Print a listing: a line for each workload and architecture."""
    out = console()
    wide = out.width >= _WIDE
    archs = len({line.arch for line in lines}) > 1
    table = _table(
        *_workload_columns(wide),
        *([("arch", "l")] if archs else []),
        ("best kernel", "l"),
        ("time", "r"),
        ("TVM", "r"),
        ("ratio", "r"),
        ("n", "r"),
        ("newest", "l"),
        ("judge", "l"),
    )
    headings = _Headings(table, wide)
    for line in lines:
        best = line.best
        table.add_row(
            *headings.cells(line.workload),
            *([line.arch] if archs else []),
            "-" if best is None else best.name,
            "-" if best is None else microseconds(best.median_us),
            microseconds(line.reference_us) if best is None else _against(best),
            "-" if best is None else _ratio(best),
            f"{line.measurements:,}",
            line.date or "-",
            (best.judge if best is not None else line.judge) or "-",
        )
    if lines:
        out.print(table)
    wins = sum(line.best is not None and line.best.wins for line in lines)
    shown = "" if len(lines) == total else f" of {total:,} (--limit 0 shows all)"
    where = f" on {lines[0].arch}" if lines and not archs else ""
    faster = f"; a kernel beats TVM's schedule at {wins:,} of them" if lines else ""
    _say(out, f"{place}: {_many(len(lines), 'workload')}{shown}{where}{faster}")


# -- show ---------------------------------------------------------------------------------------


def print_workload(key: str, runs: Sequence[Run], names: Mapping[str, str]) -> None:
    """Print all that was measured at a workload."""
    out = console()
    w = Workload.parse(key)
    _say(out, Text(key, "bold"))
    if w.m is None:
        _say(out, "M is dynamic: measured at fixed M only.")
    else:
        flops, least = w.flops(), w.min_bytes()
        intensity = f", {flops / least:,.1f} flop per byte" if least else ""
        _say(out, f"{flops / 1e9:,.2f} Gflop over at least {size(least)}{intensity}")
    if not runs:
        _say(out, "Nothing was measured at it.")
    for run in runs:
        out.print()
        _say(out, _run_line(run))
        out.print(_run_table(w, run, names))


def _run_line(run: Run) -> Text:
    """Return where and how a run was made, the facts that differ within it left out."""
    text = Text(f"{run.device} ({run.arch})", "bold")
    for name, label in (
        ("date", ""),
        ("judge", "judge "),
        ("tvm", "TVM "),
        ("driver_version", "driver "),
    ):
        values = {str(m.evidence[name]) for m in run.measurements if name in m.evidence}
        if len(values) == 1:
            text.append(f" · {label}{values.pop()}", "not bold")
    return text.append(f" · run {run.run[:8]}", "not bold")


def _run_table(w: Workload, run: Run, names: Mapping[str, str]) -> Table:
    table = _table(
        ("what", "l"),
        ("median", "r"),
        ("±", "r"),
        ("ratio", "r"),
        ("TFLOP/s", "r"),
        ("error", "r"),
        ("verdict and tunables", "f"),
    )
    reference = run.reference_us
    flops = None if w.m is None else w.flops()
    order = {"kernel": 0, "metaschedule": 1, "reference": 2, "cublas": 3}
    for m in sorted(run.measurements, key=lambda m: (order[m.subject], m.median_us or 1e30)):
        time = m.median_us or None
        spread = None
        if time and m.low_us is not None and m.high_us is not None:
            spread = (m.high_us - m.low_us) / 2 / time
        ratio = reference / time if reference is not None and time else None
        tunables = " ".join(f"{name}={value}" for name, value in m.tunables.items())
        good = m.verdict == ACCEPTED
        table.add_row(
            _subject(m, names),
            microseconds(m.median_us),
            "-" if spread is None else f"{spread:.1%}",
            "-" if ratio is None else f"{ratio:,.2f}×",
            "-" if not time or flops is None else f"{flops / time / 1e6:,.1f}",
            _error(m),
            Text("" if good else f"{m.verdict} ", "red").append(tunables, "dim"),
        )
    return table


def _subject(m: Measurement, names: Mapping[str, str]) -> str:
    if m.kernel is not None:
        return f"{names.get(m.kernel, '?')} {m.kernel[:8]}"
    spelling = m.evidence.get("spelling")
    title = {"reference": "TVM's schedule", "metaschedule": "MetaSchedule", "cublas": "cuBLAS"}
    return title[m.subject] + (f" ({spelling})" if isinstance(spelling, str) else "")


def _error(m: Measurement) -> str:
    """Return the largest root-mean-square error, as a part of what its precision class allows."""
    figures = m.evidence.get("numerics")
    parts = []
    for found in figures.values() if isinstance(figures, dict) else ():
        if isinstance(found, dict):
            error, allowed = found.get("rms"), found.get("allowed_rms")
            if isinstance(error, int | float) and isinstance(allowed, int | float) and allowed > 0:
                parts.append(error / allowed)
    return f"{max(parts):,.0%}" if parts else "-"


def print_kernel(facts: KernelFacts, source: bool) -> None:
    """Print one kernel: its plan in short, and where it wins."""
    out = console()
    row = facts.row
    plan = json.loads(row.plan_json)
    _say(out, Text(row.name, "bold"))
    table = _table(("", "l"), ("", "f"))
    table.show_header = False
    for name, value in (
        ("hash", row.hash),
        ("for", ", ".join(row.arch)),
        ("idea", str(plan.get("summary", ""))),
        ("origin", f"{row.origin}, added {facts.added}"),
        ("source", f"{row.source.count(chr(10)):,} lines, {size(len(row.source.encode()))}"),
        *_plan_lines(plan),
        ("verdicts", _counts(facts.verdicts) or "never measured"),
        ("compared", _places(facts)),
    ):
        if value:
            table.add_row(Text(name, "dim"), value)
    out.print(table)
    if facts.wins:
        out.print()
        out.print(_wins(facts, out.width >= _WIDE))
    if source:
        out.print()
        _say(out, row.source)


def _places(facts: KernelFacts) -> str:
    text = f"at {_many(facts.compared, 'workload')}; the best kernel at {len(facts.wins):,}"
    ratios = [best.ratio for _, best in facts.wins if best.ratio]
    if ratios:
        text += f", where it is {statistics.geometric_mean(ratios):,.2f}× as fast as TVM's"
        text += " schedule (geometric mean)"
    return text


def _plan_lines(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the plan in a few words; a field of another form than a plan's is left out."""

    def listed(name: str) -> list[Any]:
        value = plan.get(name)
        return value if isinstance(value, list) else []

    types = []
    for item in listed("types"):
        if isinstance(item, dict):
            out = item.get("out")
            outs = "|".join(map(str, out)) if isinstance(out, list) else str(out)
            types.append(f"{item.get('a')}·{item.get('b')}+{item.get('acc')}→{outs}")
    lines = [
        ("types", ", ".join(types)),
        ("layouts", " ".join(map(str, listed("layouts")))),
        ("requires", ", ".join(map(str, listed("requires")))),
    ]
    for launch in listed("launches"):
        if isinstance(launch, dict):
            block = launch.get("block")
            sides = "×".join(map(str, block)) if isinstance(block, list) else "?"
            lines.append(("launch", f"{launch.get('entry')}, blocks of {sides} threads"))
    tunables = plan.get("tunables")
    if isinstance(tunables, dict):
        texts, variants = [], 1
        for name, what in tunables.items():
            choices = what.get("choices", []) if isinstance(what, dict) else []
            variants *= max(1, len(choices))
            texts.append(f"{name} {'|'.join(map(str, choices))}")
        lines.append(("tunables", f"{', '.join(texts)} ({variants:,} variants)"))
    return lines


def _wins(facts: KernelFacts, wide: bool) -> Table:
    devices = len({place[1:] for place, _ in facts.wins}) > 1
    table = _table(
        *_workload_columns(wide),
        *([("device", "l")] if devices else []),
        ("time", "r"),
        ("TVM", "r"),
        ("ratio", "r"),
        ("date", "l"),
        ("judge", "l"),
        title="Wins at",
    )
    headings = _Headings(table, wide)
    for (key, arch, device), best in facts.wins:
        table.add_row(
            *headings.cells(key),
            *([f"{device} ({arch})"] if devices else []),
            microseconds(best.median_us),
            _against(best),
            _ratio(best),
            best.date or "-",
            best.judge or "-",
        )
    return table


# -- the rest -----------------------------------------------------------------------------------


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in found.items())


def print_statistics(place: str, found: Statistics) -> None:
    """Print the counts."""
    out = console()
    _say(out, Text(place, "bold"))
    free = f", {size(found.free_bytes)} of it free" if found.free_bytes else ""
    _say(
        out,
        f"{_many(found.kernels, 'kernel')}, {_many(found.workloads, 'workload')},"
        f" {_many(found.measurements, 'measurement')}; {size(found.bytes)}{free}",
    )
    table = _table(("", "l"), ("", "f"), ("", "r"), ("", "r"))
    table.show_header = False
    for title, counts, total in (
        *((name, counts, found.measurements) for name, counts in found.by.items()),
        ("kernels from", found.origins, found.kernels),
    ):
        for number, (name, count) in enumerate(counts.items()):
            head = Text(title if number == 0 else "", "dim")
            table.add_row(head, name, f"{count:,}", f"{count / total:.0%}")
    out.print(table)


def print_findings(place: str, findings: Sequence[Finding], counts: Mapping[str, int]) -> None:
    """Print what is wrong, or that nothing is."""
    out = console()
    checked = ", ".join(_many(count, name) for name, count in counts.items())
    if not findings:
        _say(out, f"{place}: sound ({checked})")
        return
    _say(out, f"{place}: {_many(len(findings), 'finding')} in {checked}")
    for finding in findings[:_SOME]:
        subject = finding.subject
        if finding.kind in ("kernel", "measurement", "orphan") and len(subject) == 64:
            subject = subject[:_HASH]
        _say(out, f"  {finding.kind} {subject}: {finding.detail}")
    _more(out, len(findings))


def print_pruned(place: str, what: Pruned, done: bool) -> None:
    """Print what was taken out, or would be."""
    out = console()
    counts = (
        f"{_many(len(what.kernels), 'kernel')} and {_many(len(what.measurements), 'measurement')}"
        f" ({_many(len(what.workloads), 'workload')} left with none)"
    )
    _say(out, f"{place}: {'took out' if done else 'would take out'} {counts}")
    _kernels(out, what.kernels)
    if not done and (what.kernels or what.measurements):
        _say(out, "Nothing was changed; --yes does it.")


def print_difference(a: str, b: str, found: Difference) -> None:
    """Print what only one of two databases has."""
    out = console()
    kernels = _many(found.same_kernels, "kernel")
    measurements = _many(found.same_measurements, "measurement")
    _say(
        out,
        f"Both have {kernels} and {measurements}"
        + (", and nothing else: they are equal." if found.equal else "."),
    )
    for place, side in ((a, found.only_a), (b, found.only_b)):
        if side.kernels or side.measurements:
            _print_side(out, place, side)


def _print_side(out: Any, place: str, side: Side) -> None:
    counts = (
        f"{_many(len(side.kernels), 'kernel')} and {_many(len(side.measurements), 'measurement')}"
    )
    out.print()
    _say(out, Text(f"Only {place}: {counts}", "bold"))
    _kernels(out, side.kernels)
    places = Counter((workload, arch) for workload, arch, *_ in side.measurements.values())
    table = _table(("", "r"), ("", "l"), ("", "f"))
    table.show_header = False
    for (workload, arch), count in list(places.items())[:_SOME]:
        table.add_row(f"  {count:,} ×", arch, workload)
    if places:
        out.print(table)
        _more(out, len(places))


def _kernels(out: Any, kernels: Mapping[str, str]) -> None:
    for hash, name in list(kernels.items())[:_SOME]:
        _say(out, f"  {hash[:_HASH]} {name}")
    _more(out, len(kernels))


def _more(out: Any, count: int) -> None:
    if count > _SOME:
        _say(out, f"  … and {count - _SOME:,} more; --json names all")
