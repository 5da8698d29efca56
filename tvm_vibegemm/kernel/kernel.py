"""A kernel: the source and the plan that a language model wrote, named by their hash."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import InputError, PlanError
from .plan import Plan, kernel_hash


@dataclass(frozen=True)
class Kernel:
    """A kernel as data.

    Parameters
    ----------
    source
        CUDA-C device code.
    plan
        How it is built and launched.
    """

    source: str
    plan: Plan

    @cached_property
    def hash(self) -> str:
        """SHA-256 of source and canonical plan: the kernel's name in the database."""
        return kernel_hash(self.source, self.plan)

    @property
    def name(self) -> str:
        """The plan's name, for people."""
        return self.plan.name

    @classmethod
    def load(cls, path: Path) -> Kernel:
        """Read ``X.cu`` and the plan beside it, ``X.json``.

        Raises
        ------
        InputError, PlanError
            When a file cannot be read or the plan is malformed.
        """
        try:
            source = path.read_text(encoding="utf-8")
            plan = path.with_suffix(".json").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"kernel {path}: cannot be read ({error})") from error
        try:
            return cls(source, Plan.load(plan))
        except PlanError as error:
            raise PlanError(f"{path.with_suffix('.json')}: {error}") from error

    def save(self, folder: Path) -> Path:
        """Write ``<name>.cu`` and ``<name>.json`` into a folder; return the path of the source."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.cu"
        path.write_text(self.source, encoding="utf-8")
        plan = json.dumps(json.loads(self.plan.canonical()), indent=1, sort_keys=True)
        path.with_suffix(".json").write_text(plan + "\n", encoding="utf-8")
        return path


_known: dict[str, Kernel] = {}


def register(kernel: Kernel) -> str:
    """Make a kernel known to this process's code generator; return its hash."""
    _known[kernel.hash] = kernel
    return kernel.hash


def lookup(kernel_hash: str) -> Kernel | None:
    """Return a registered kernel, or None."""
    return _known.get(kernel_hash)
