"""One measurement: what was run, where, in which run, how long it took, and the evidence."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

from ..device import normalize_arch
from ..errors import DatabaseError, DeviceError, InputError
from ..workload import Workload
from .identity import canonical_json, parse_json

ACCEPTED = "accepted"
SUBJECTS = ("kernel", "reference", "metaschedule", "cublas")
HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
MAX_TEXT = 4096
MAX_EVIDENCE = 1 << 20


@dataclass(frozen=True)
class Measurement:
    """One subject at one workload on one device, as judged in one run.

    Parameters
    ----------
    workload
        Canonical key of the workload.
    arch
        Database key of the architecture, e.g. ``sm_90`` (``sm_90a`` becomes that).
    device
        GPU model as the driver says it, e.g. ``NVIDIA H200``.
    subject
        What was run: ``kernel``, ``reference`` (TVM's own schedule), ``metaschedule``, ``cublas``.
    kernel
        Hash of the kernel where the subject is one, else None.
    tunables
        Values of the kernel's tunables.
    run
        Shared by all that was interleaved in one run: only times of one run are compared.
    verdict
        ``accepted``, or the reason why not.
    median_us, low_us, high_us
        Median time and the bounds of its interval, in microseconds; None where it was not timed.
    evidence
        JSON object: errors, driver, toolkit, judge version, date, command and the like.

    Raises
    ------
    DatabaseError
        When a field does not fit; the message names it.
    """

    workload: str
    arch: str
    device: str
    subject: str
    kernel: str | None
    tunables: dict[str, int]
    run: str
    verdict: str
    median_us: float | None
    low_us: float | None
    high_us: float | None
    evidence: dict[str, Any]

    def __post_init__(self) -> None:
        # Every field is brought to one form here, so that equal content gives equal ids: a time
        # of 12 and of 12.0, a tuple and a list, an object before and after the database.
        for name in ("workload", "arch", "device", "subject", "run", "verdict"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or len(value) > MAX_TEXT:
                raise DatabaseError(f"measurement: {name} is not a text of 1 to {MAX_TEXT} letters")
        try:
            self._set("workload", _key(self.workload))
            self._set("arch", _arch(self.arch))
        except (InputError, DeviceError) as error:
            raise DatabaseError(f"measurement: {error}") from error
        if self.subject not in SUBJECTS:
            raise DatabaseError(
                f"measurement: unknown subject {self.subject!r}; known: {', '.join(SUBJECTS)}"
            )
        if (self.subject == "kernel") != (self.kernel is not None):
            raise DatabaseError("measurement: a kernel hash goes with the subject 'kernel' only")
        if self.kernel is not None and not (
            isinstance(self.kernel, str) and HASH.fullmatch(self.kernel)
        ):
            raise DatabaseError(f"measurement: {self.kernel!r:.80} is not a kernel hash")
        for name in ("median_us", "low_us", "high_us"):
            self._set(name, _time(name, getattr(self, name)))
        if not isinstance(self.tunables, dict) or not all(
            isinstance(name, str) and isinstance(value, int)
            for name, value in self.tunables.items()
        ):
            raise DatabaseError("measurement: tunables are not names with whole numbers")
        self._set("tunables", {name: int(self.tunables[name]) for name in sorted(self.tunables)})
        if not isinstance(self.evidence, dict):
            raise DatabaseError("measurement: evidence is not a JSON object")
        try:
            text = canonical_json(self.evidence)
            self._set("evidence", parse_json(text))
            for name in (self.device, self.run, self.verdict, *self.tunables):
                name.encode()  # a lone surrogate has no bytes
        except (ValueError, TypeError) as error:
            raise DatabaseError(f"measurement: no JSON form ({error})") from error
        if len(text) > MAX_EVIDENCE:
            raise DatabaseError(f"measurement: evidence is over {MAX_EVIDENCE} letters")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """SHA-256, in hex, of the canonical JSON of all fields."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the measurement as one line of canonical JSON."""
        return canonical_json({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> Measurement:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        DatabaseError
            When the text is not JSON, or a field is missing, unknown or does not fit.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            raise DatabaseError(f"not JSON ({error})") from error
        if not isinstance(data, dict):
            raise DatabaseError("measurement: not a JSON object")
        names = {field.name for field in fields(cls)}
        if data.keys() != names:
            wrong = sorted(names ^ data.keys())[0]
            kind = "missing" if wrong in names else "unknown"
            raise DatabaseError(f"measurement: the field {wrong!r:.80} is {kind}")
        return cls(**data)


@lru_cache(maxsize=4096)
def _key(text: str) -> str:
    return Workload.parse(text).key


@lru_cache(maxsize=64)
def _arch(text: str) -> str:
    return normalize_arch(text)


def _time(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DatabaseError(f"measurement: {name} is not a number")
    try:
        time = float(value)
    except OverflowError:
        time = math.inf
    if not math.isfinite(time) or time < 0:
        raise DatabaseError(f"measurement: {name} = {time} is not a time in microseconds")
    return time
