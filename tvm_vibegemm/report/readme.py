"""Fills the README's measured section: ``python -m tvm_vibegemm.report.readme``.

Two files are read: ``records.jsonl`` (the judge's measurements) and ``models.jsonl`` (lines that
``vibegemm compare`` wrote), so no figure is typed by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..database import Measurement
from ..errors import InputError
from ..judge.session import JUDGE_VERSION
from ..resources import schedules_dir

BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
_SHOWN = (
    "vg1:f16.f16.f32.f16:nn:x1:m4096:n4096:k4096:-",
    "vg1:bf16.bf16.f32.bf16:nn:x1:m2048:n2048:k2048:-",
    "vg1:f16.f16.f32.f16:nn:x1:m1024:n1024:k1024:-",
    "vg1:f16.f16.f32.f16:nt:x1:m4096:n3072:k768:bias(f16)+gelu_erf",
    "vg1:f16.f16.f32.f16:nn:x384:m128:n128:k64:scale",
    "vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:-",
    "vg1:f16.f16.f32.f16:nt:x1:m16:n28672:k4096:-",
    "vg1:f16.f16.f32.f16:nn:x1:m8205:n2949:k5921:-",
    "vg1:f32.f32.f32.f32:nn:x1:m4096:n4096:k4096:-",
    "vg1:f32.f32.f32.f32:nt:x1:m160:n6625:k120:bias(f32)",
)


def product_table(measurements: list[Measurement]) -> list[str]:
    """Return a Markdown table of chosen workloads: reference, best kernel, ratio."""
    lines = [
        "| workload | TVM's schedule | kernel | ratio |",
        "|---|---|---|---|",
    ]
    for key in _SHOWN:
        here = [m for m in measurements if m.workload == key and m.verdict == "accepted"]
        # What the present judge measured stands for what an older one did.
        here = [m for m in here if m.evidence.get("judge") == JUDGE_VERSION] or here
        best: tuple[float, float, float] | None = None
        for run in {m.run for m in here}:
            times: dict[str, list[float]] = {"reference": [], "kernel": []}
            for m in here:
                if m.run == run and m.median_us is not None and m.subject in times:
                    times[m.subject].append(m.median_us)
            if all(times.values()):
                reference, kernel = min(times["reference"]), min(times["kernel"])
                if best is None or reference / kernel > best[2]:
                    best = (reference, kernel, reference / kernel)
        if best is not None:
            lines.append(f"| `{key}` | {best[0]:.1f} µs | {best[1]:.1f} µs | {best[2]:.2f} |")
    return lines


def model_table(results: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table of whole models: latency and error of both libraries."""
    lines = [
        "| model | plain TVM | with kernels | ratio | error plain | error with kernels |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        for suffix, words in (("", ""), ("_graph", ", CUDA graphs")):
            names = (f"plain{suffix}", f"vibegemm{suffix}")
            if not set(names) <= result["libraries"].keys():
                continue
            plain, ours = (result["libraries"][name] for name in names)
            lines.append(
                f"| {Path(result['model']).stem}{words} | {plain['median_ms']:.2f} ms"
                f" | {ours['median_ms']:.2f} ms | {plain['median_ms'] / ours['median_ms']:.2f}"
                f" | {plain['max_rel']:.2g} | {ours['max_rel']:.2g} |"
            )
    return lines


def section(folder: Path) -> str:
    """Return the measured section, markers included, from a folder of one architecture."""
    records = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    measurements = [Measurement.from_json(line) for line in records if line.strip()]
    path = folder / "models.jsonl"
    models = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    devices = sorted({m.device for m in measurements})
    dates = sorted({str(m.evidence.get("date")) for m in measurements})
    lines = [
        BEGIN,
        f"{', '.join(devices)}, {dates[0]} to {dates[-1]}; interleaved runs, inputs rotated, CUDA",
        "graphs. Ratios are TVM's time over the kernel's; below 1 the site keeps TVM's schedule.",
        "",
        *product_table(measurements),
        "",
    ]
    if models:
        lines += [
            "Whole models, host included, libraries built without a GPU; the largest error against",
            "ONNX Runtime in float32 on the same weights, over the output's root-mean-square:",
            "",
            *model_table(models),
        ]
    return "\n".join([*lines, END])


def fill(readme: Path, folder: Path) -> str:
    """Return the README's text with its measured section brought up to date.

    Raises
    ------
    InputError
        When the file has no such section.
    """
    text = readme.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise InputError(f"{readme}: has no section between {BEGIN} and {END}")
    return before + section(folder) + after


def main() -> None:
    """Rewrite ``README.md`` of the current folder (or the file that is named)."""
    readme = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    readme.write_text(fill(readme, schedules_dir() / "sm_90"), encoding="utf-8")


if __name__ == "__main__":
    main()
