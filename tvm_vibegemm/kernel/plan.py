"""The launch plan: how a kernel's source is built, when it is valid, and how it is launched.

A plan is what a language model writes beside the source, so every field is hostile until this
schema has read it. Expressions are texts in the language of :mod:`.expr`, over :data:`NAMES`.
"""

from __future__ import annotations

import graphlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..device import Device
from ..errors import PlanError
from ..hashing import digest
from ..workload import DTYPES, OPERAND_DTYPES, Workload
from . import expr

PLAN_VERSION = 1
NAMES = {
    "M": "rows of D",
    "N": "columns of D",
    "K": "summed dimension",
    "batch": "number of products",
    "a_batch": "matrices of A in memory (1 where A is shared by all products)",
    "b_batch": "matrices of B in memory",
    "num_sms": "multiprocessors of the device",
    "trans_a": "1 where A is stored K×M",
    "trans_b": "1 where B is stored N×K",
    "size_a": "bytes of an element of A",
    "size_b": "bytes of an element of B",
    "size_out": "bytes of an element of D",
}
MAX_LAUNCHES = 8
MAX_VARIANTS = 4096

Expr = Annotated[str | int, Field(union_mode="left_to_right")]
_IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
Name = Annotated[str, Field(pattern=_IDENTIFIER)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorMapParam(_Strict):
    """A ``CUtensorMap``, passed by value, over an operand or over part of the workspace.

    Over A, B, D: rank 2 as stored (innermost dimension first), or rank 3 with the operand's batch
    as outermost dimension when ``box`` has three entries. Over the workspace: ``cols`` × ``rows``
    elements of ``dtype`` at byte ``offset``.
    """

    tensor_map: Literal["A", "B", "D", "workspace"]
    box: list[Expr] = Field(min_length=2, max_length=3)
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    l2: Literal["none", "64B", "128B", "256B"] = "128B"
    as_tf32: bool = False
    offset: Expr = 0
    rows: Expr | None = None
    cols: Expr | None = None
    dtype: str | None = None

    @model_validator(mode="after")
    def _workspace(self) -> TensorMapParam:
        described = (self.rows, self.cols, self.dtype) != (None, None, None) or self.offset != 0
        if self.tensor_map == "workspace":
            if None in (self.rows, self.cols, self.dtype):
                raise ValueError("a tensor map over the workspace needs rows, cols and dtype")
            if self.dtype not in DTYPES:
                raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        elif described:
            raise ValueError("offset, rows, cols and dtype belong to workspace maps only")
        return self


class PointerParam(_Strict):
    """A device pointer to an operand, or into the workspace at byte ``offset``."""

    pointer: Literal["A", "B", "D", "workspace"]
    offset: Expr = 0

    @model_validator(mode="after")
    def _offset(self) -> PointerParam:
        if self.pointer != "workspace" and self.offset != 0:
            raise ValueError("offset belongs to workspace pointers only")
        return self


class Int32Param(_Strict):
    """A 32-bit integer argument."""

    int32: Expr


class Int64Param(_Strict):
    """A 64-bit integer argument."""

    int64: Expr


class EpilogueParam(_Strict):
    """Where ``VG_EPILOGUE_PARAMS`` stands in the entry's parameter list: its last place."""

    epilogue: Literal[True]


Param = TensorMapParam | PointerParam | Int32Param | Int64Param | EpilogueParam


class Launch(_Strict):
    """One kernel launch; the launches of a plan run in order on one stream."""

    entry: Name
    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]
    cluster: tuple[Expr, Expr, Expr] = (1, 1, 1)
    shared_bytes: Expr = 0
    params: list[Param] = Field(max_length=64)
    when: Expr = 1
    cooperative: bool = False

    @field_validator("params")
    @classmethod
    def _epilogue_last(cls, params: list[Param]) -> list[Param]:
        if any(isinstance(param, EpilogueParam) for param in params[:-1]):
            raise ValueError("the epilogue parameter stands last")
        return params


class Tunable(_Strict):
    """A compile-time constant with choices, explored without the model."""

    choices: list[Annotated[int, Field(ge=-(2**31), lt=2**31)]] = Field(min_length=1, max_length=64)
    default: int

    @model_validator(mode="after")
    def _default(self) -> Tunable:
        if self.default not in self.choices:
            raise ValueError(f"default {self.default} is not among the choices")
        return self


class Types(_Strict):
    """One combination of types that the source serves."""

    a: str
    b: str
    acc: str
    out: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _known(self) -> Types:
        for name in (self.a, self.b):
            if name not in OPERAND_DTYPES:
                raise ValueError(f"unknown operand type {name!r}")
        for name in (self.acc, *self.out):
            if name not in DTYPES:
                raise ValueError(f"unknown type {name!r}")
        return self


class Plan(_Strict):
    """A whole plan; see ``codegen/prompts`` for what each field means to its author."""

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]
    summary: str = Field(default="", max_length=2000)
    arch: list[Annotated[str, Field(pattern=r"^sm_\d{2,3}$")]] = Field(min_length=1)
    types: list[Types] = Field(min_length=1)
    layouts: list[Literal["nn", "nt", "tn", "tt"]] = Field(min_length=1)
    batched: bool = False
    epilogue: bool = True
    dynamic_m: bool = True
    requires: list[str] = Field(default_factory=list, max_length=64)
    tunables: dict[Name, Tunable] = Field(default_factory=dict, max_length=16)
    constants: dict[Name, Expr] = Field(default_factory=dict, max_length=64)
    launches: list[Launch] = Field(min_length=1, max_length=MAX_LAUNCHES)
    workspace_bytes: Expr = 0
    workspace_zero: bool = False
    ticket_order: bool = False
    properties: list[Literal["inf_becomes_nan", "nondeterministic"]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names(self) -> Plan:
        taken = set(NAMES)
        for name in itertools.chain(self.tunables, self.constants):
            if name in taken or name in expr.FUNCTIONS:
                raise ValueError(f"the name {name!r} is taken")
            if name.startswith(("VG_", "__")):
                raise ValueError(f"the name {name!r} is reserved for the prelude and the compiler")
            taken.add(name)
        known = set(NAMES) | set(self.tunables)
        known |= set(self.constants)
        for name, value in self.constants.items():
            _check_names(value, known, f"constant {name}")
            if isinstance(value, str) and "M" in expr.names(value):
                raise ValueError(f"constant {name} depends on M, which may be dynamic: pass it")
        _in_order(self.constants)
        for place, value in self._expressions():
            _check_names(value, known, place)
        if self.batched is False and any(
            len(param.box) == 3
            for launch in self.launches
            for param in launch.params
            if isinstance(param, TensorMapParam)
        ):
            raise ValueError("a rank 3 tensor map needs batched: true")
        if self.epilogue and not any(
            isinstance(param, EpilogueParam) for launch in self.launches for param in launch.params
        ):
            raise ValueError("epilogue: true needs a launch with the epilogue parameter")
        return self

    def _expressions(self) -> Iterator[tuple[str, Expr]]:
        for text in self.requires:
            yield "requires", text
        yield "workspace_bytes", self.workspace_bytes
        for launch in self.launches:
            where = f"launch {launch.entry}"
            for value in (*launch.grid, *launch.block, *launch.cluster):
                yield where, value
            yield where, launch.shared_bytes
            yield where, launch.when
            for param in launch.params:
                for value in param.model_dump(
                    include={"box", "offset", "rows", "cols", "int32", "int64"}
                ).values():
                    for item in value if isinstance(value, list) else [value]:
                        if item is not None:
                            yield where, item

    # -- reading and writing -------------------------------------------------------------------

    @classmethod
    def load(cls, text: str | bytes) -> Plan:
        """Read a plan from JSON.

        Raises
        ------
        PlanError
            One line with the first fault and its place.
        """
        try:
            return cls.model_validate(json.loads(text))
        except RecursionError as error:
            raise PlanError("plan: nested too deeply") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "plan"
            raise PlanError(f"plan: {place}: {first['msg']}") from error
        except (ValueError, TypeError) as error:
            raise PlanError(f"plan: not JSON ({error})") from error

    def canonical(self) -> str:
        """Return the plan as canonical JSON: sorted keys, no blanks, defaults left out."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        data["version"] = self.version
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    # -- variants --------------------------------------------------------------------------------

    def defaults(self) -> dict[str, int]:
        """Return the default value of every tunable."""
        return {name: tunable.default for name, tunable in self.tunables.items()}

    def variants(self) -> Iterator[dict[str, int]]:
        """Yield every combination of tunables (at most :data:`MAX_VARIANTS`)."""
        names = list(self.tunables)
        choices = [self.tunables[name].choices for name in names]
        for values in itertools.islice(itertools.product(*choices), MAX_VARIANTS):
            yield dict(zip(names, values, strict=True))

    def check_tunables(self, tunables: Mapping[str, int]) -> dict[str, int]:
        """Return ``tunables`` completed with defaults.

        Raises
        ------
        PlanError
            For a name or value that the plan does not have.
        """
        full = self.defaults()
        for name, value in tunables.items():
            if name not in self.tunables:
                raise PlanError(f"plan {self.name}: no tunable {name!r}")
            if value not in self.tunables[name].choices:
                raise PlanError(f"plan {self.name}: {name} = {value} is not among the choices")
            full[name] = value
        return full

    def env(
        self, workload: Workload, device: Device, tunables: Mapping[str, int], m: Any = None
    ) -> dict[str, Any]:
        """Return the value of every name for a workload.

        Parameters
        ----------
        workload, device, tunables
            What the plan is applied to; tunables that are left out take their defaults.
        m
            Value for M where the workload's is dynamic: a number, or a TIR variable.
        """
        assert workload.a_batch is not None and workload.b_batch is not None
        values: dict[str, Any] = {
            "M": workload.m if workload.m is not None else m,
            "N": workload.n,
            "K": workload.k,
            "batch": workload.batch,
            "a_batch": workload.a_batch.mod,
            "b_batch": workload.b_batch.mod,
            "num_sms": device.num_sms,
            "trans_a": int(workload.trans_a),
            "trans_b": int(workload.trans_b),
            "size_a": DTYPES[workload.a].bytes,
            "size_b": DTYPES[workload.b].bytes,
            "size_out": DTYPES[workload.out].bytes,
            **self.check_tunables(tunables),
        }
        for name in _in_order(self.constants):
            values[name] = int(expr.evaluate(self.constants[name], values))
        return values


def _in_order(constants: Mapping[str, Expr]) -> list[str]:
    """Return the constants so that each follows those it uses; JSON keeps no order of keys."""
    uses = {
        name: expr.names(value) & constants.keys() if isinstance(value, str) else set()
        for name, value in constants.items()
    }
    try:
        return list(graphlib.TopologicalSorter(uses).static_order())
    except graphlib.CycleError as error:
        raise ValueError(f"constants use each other: {' → '.join(error.args[1])}") from error


def _check_names(value: Expr, known: set[str], place: str) -> None:
    if isinstance(value, str):
        unknown = expr.names(value) - known
        if unknown:
            raise ValueError(f"{place}: unknown name {sorted(unknown)[0]!r} in {value!r}")


def kernel_hash(source: str, plan: Plan) -> str:
    """Return the name of a kernel: the SHA-256 of its source and canonical plan, in hex."""
    return digest(source, plan.canonical())
