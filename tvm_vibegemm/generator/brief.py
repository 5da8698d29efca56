"""A brief: what one kernel family has to serve, as data (``codegen/briefs/NAME.json``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..device import normalize_arch
from ..errors import InputError, VibeGEMMError
from ..kernel.plan import Types
from ..resources import codegen_dir
from ..workload import EpilogueOp, Workload


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Timed(_Strict):
    """A workload whose time counts, with the times of others where they are known.

    Parameters
    ----------
    workload
        Canonical key.
    rivals
        Microseconds by the rival's name.
    """

    workload: str
    rivals: dict[str, float] = Field(default_factory=dict)


class Exemplar(_Strict):
    """An earlier reply that is the starting point.

    Parameters
    ----------
    transcript
        Its recorded conversation; the brief's prompt becomes that conversation's next turn.
    facts
        What was measured of it.
    changes
        What it lacks under today's contract.
    """

    transcript: str
    facts: list[str] = Field(default_factory=list)
    changes: list[str] = Field(default_factory=list)


class Brief(_Strict):
    """What one kernel family has to serve.

    Parameters
    ----------
    name
        The plan's name too.
    task
        One paragraph for the author of the kernel.
    arch
        Architectures that it must build for; timed on the first.
    types, layouts, batched, epilogue, dynamic_m
        As the plan has to declare them.
    optional
        Layouts, and ``batched``, that the plan may leave out.
    requires
        The most that the plan may require of a workload.
    timed
        Workloads whose time counts.
    also_checked
        Further workloads that it is verified at.
    hints
        Leads, not rules.
    properties
        What the plan has to declare about its numerics.
    exemplar
        The starting point, or None.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]
    task: str
    arch: list[str] = Field(min_length=1)
    types: list[Types] = Field(min_length=1)
    layouts: list[Literal["nn", "nt", "tn", "tt"]] = Field(min_length=1)
    batched: bool = True
    epilogue: bool = True
    dynamic_m: bool = True
    optional: list[Literal["nn", "nt", "tn", "tt", "batched"]] = Field(default_factory=list)
    requires: list[str] = Field(default_factory=list)
    timed: list[Timed] = Field(min_length=1)
    also_checked: list[str] = Field(default_factory=list)
    hints: list[str] = Field(default_factory=list)
    properties: list[str] = Field(default_factory=list)
    exemplar: Exemplar | None = None

    @model_validator(mode="after")
    def _checked(self) -> Brief:
        try:
            for arch in self.arch:
                normalize_arch(arch)
            for workload in self.workloads():
                if workload.layout not in self.layouts:
                    raise ValueError(f"{workload.key}: layout {workload.layout} is not listed")
        except VibeGEMMError as error:
            raise ValueError(str(error)) from error
        return self

    @classmethod
    def load(cls, name: str | Path) -> Brief:
        """Read a brief by its shipped name or from a JSON file.

        Raises
        ------
        InputError
            When there is none, or it is malformed.
        """
        path = Path(name)
        if not path.suffix and re.fullmatch(r"[a-z0-9_]+", str(name)):
            path = codegen_dir() / "briefs" / f"{name}.json"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"brief {str(name)!r}: {error}; shipped: {', '.join(cls.names())}"
            ) from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "brief"
            raise InputError(f"brief {path}: {place}: {first['msg']}") from error

    @staticmethod
    def names() -> list[str]:
        """Return the names of the shipped briefs, sorted."""
        return sorted(path.stem for path in (codegen_dir() / "briefs").glob("*.json"))

    def workloads(self) -> list[Workload]:
        """Return the workloads to be timed and those to be checked only, in order."""
        keys = [*(timed.workload for timed in self.timed), *self.also_checked]
        return [Workload.parse(key) for key in keys]

    def must(self, layout: str) -> bool:
        """Return True where a plan has to serve this layout."""
        return layout not in self.optional

    def builds(self) -> Iterator[tuple[str, Workload]]:
        """Yield (architecture, workload) for everything that a build has to pass.

        On the first architecture each types × output × layout, on the others each types × layout;
        batch and epilogue forms alternate, so that each form is seen. N and K are multiples of 64,
        so that any ``requires`` about alignment holds, and M is dynamic where the brief wants it.
        """
        for place, arch in enumerate(self.arch):
            number = 0
            for types in self.types:
                for out in types.out if place == 0 else types.out[:1]:
                    for layout in self.layouts:
                        with_epilogue = self.epilogue and number % 2 == 0
                        batch = 6 if self.batched and number % 4 in (1, 2) else 1
                        yield (
                            normalize_arch(arch),
                            self._form(types, out, layout, batch, with_epilogue),
                        )
                        number += 1

    def _form(self, types: Types, out: str, layout: str, batch: int, full: bool) -> Workload:
        epilogue = (EpilogueOp("bias", out), EpilogueOp("gelu_erf"), EpilogueOp("residual", out))
        return Workload(
            m=None if self.dynamic_m else 256,
            n=512,
            k=1024,
            a=types.a,
            b=types.b,
            acc=types.acc,
            out=out,
            trans_a=layout[0] == "t",
            trans_b=layout[1] == "t",
            batch=batch,
            epilogue=epilogue if full else (),
        )
