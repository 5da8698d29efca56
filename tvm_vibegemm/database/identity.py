"""Content hashes: what names a kernel and a measurement in the database and in its text form.

The database may not know what a plan means, so it names a kernel by texts alone. Because the text
of a plan is kept canonical (sorted keys, no blanks, defaults left out), the name is the same as
the one :func:`tvm_vibegemm.kernel.plan.kernel_hash` gives to the parsed plan; a test holds the
two formulas together.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..errors import DatabaseError
from ..hashing import digest


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def parse_json(text: str | bytes) -> Any:
    """Read strict JSON: no NaN or infinities, UTF-8, sanely nested.

    Raises
    ------
    ValueError
        When the text is not that; also in place of RecursionError.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no blanks, no escapes but needed ones.

    Raises
    ------
    ValueError, TypeError
        When the value has no JSON form (NaN, a foreign type, a lone surrogate).
    """
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    text.encode()  # a lone surrogate has no bytes, hence no hash: found here, not at the disk
    return text


def canonical_plan(plan_json: str | bytes) -> str:
    """Return the canonical text of a plan's JSON; its content is left as it is.

    Raises
    ------
    DatabaseError
        When the text is not one JSON object.
    """
    try:
        plan = parse_json(plan_json)
        text = canonical_json(plan)
    except (ValueError, TypeError) as error:
        raise DatabaseError(f"plan: not JSON ({error})") from error
    if not isinstance(plan, dict):
        raise DatabaseError("plan: not a JSON object")
    return text


def kernel_text_hash(source: str, plan_json: str) -> str:
    """Return the name of a kernel: SHA-256, in hex, of its source and its canonical plan.

    Parameters
    ----------
    source
        CUDA-C text.
    plan_json
        The plan with defaults left out; blanks and the order of keys do not matter.

    Raises
    ------
    DatabaseError
        When the plan is not JSON or a text has no UTF-8 form.

    Examples
    --------
    >>> kernel_text_hash("", "{}") == kernel_text_hash("", " { } ")
    True
    """
    plan = canonical_plan(plan_json)
    try:
        return digest(source, plan)
    except UnicodeEncodeError as error:
        raise DatabaseError(f"kernel source: not UTF-8 text ({error})") from error
