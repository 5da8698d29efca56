"""What a kernel must have shown before it enters a folder of schedules: a clean compute-sanitizer.

The judge's own checks see what a kernel computes and what it does to the memory around it; a race
that went well, or a read of shared memory that nobody wrote, only the sanitizer sees. Its reports
stand beside the records, one line a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..errors import InputError

FILE = "sanitizer.jsonl"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


class Sanitized:
    """Reports of compute-sanitizer by kernel.

    Parameters
    ----------
    folder
        One architecture's folder of schedules, whose reports are read.

    Raises
    ------
    InputError
        When its file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.rows: dict[str, dict[str, Any]] = {}
        if self.path.is_file():
            self.take(self.path)

    def take(self, path: Path) -> None:
        """Add the reports of a file, lines of ``vibegemm sanitize --json``.

        Raises
        ------
        InputError
            When it cannot be read or is no such file.
        """
        try:
            rows = [json.loads(x) for x in path.read_text(encoding="utf-8").splitlines() if x]
            for row in rows:
                ran = {tool["tool"] for tool in row["tools"]}
                row["complete"] = set(TOOLS) <= ran and all(t["launches"] for t in row["tools"])
                self.rows[str(row["kernel"])] = row
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"sanitizer report {path}: cannot be read ({error!s:.200})") from error

    def must_hold(self, kernel: str, name: str) -> None:
        """Refuse a kernel without a clean report of every tool.

        Raises
        ------
        InputError
            Naming the kernel and what is missing.
        """
        row = self.rows.get(kernel)
        if row is None:
            raise InputError(
                f"kernel {name} ({kernel[:16]}): no report of compute-sanitizer; run"
                " vibegemm sanitize --json and give its output with --sanitized"
            )
        if not row["complete"]:
            raise InputError(f"kernel {name} ({kernel[:16]}): not every tool of it was run")
        if row.get("clean") is not True:
            raise InputError(f"kernel {name} ({kernel[:16]}): compute-sanitizer found faults")

    def write(self, kernels: Collection[str]) -> None:
        """Write the reports of these kernels, in the order of their names."""
        kept = sorted(
            (row for kernel, row in self.rows.items() if kernel in kernels),
            key=lambda row: (str(row["name"]), str(row["kernel"])),
        )
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in kept)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text, encoding="utf-8")
