"""A model's result in float64: what the errors of compiled libraries are measured against."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..errors import InputError, last_line
from ..graph.onnx_check import widened
from ..judge.inputs import erf

Arrays = list[np.ndarray[Any, Any]]


def float64_truth(
    model: Any, inputs: dict[str, np.ndarray[Any, Any]], cache: Path | None = None
) -> Arrays:
    """Run a model in float64 by ONNX's reference evaluator (NumPy).

    Parameters
    ----------
    model
        With fixed shapes.
    inputs
        Arrays by name; floats of any width.
    cache
        A ``.npz`` file: read where it holds this model's and these inputs' result, else written.

    Returns
    -------
    list of numpy.ndarray
        The outputs.

    Raises
    ------
    InputError
        When the evaluator lacks an operator, or the file is another one or cannot be written.
    """
    key = _digest(model, inputs)
    if cache is not None and cache.is_file():
        try:
            with np.load(cache) as stored:
                if str(stored["key"]) == key:
                    return [stored[f"y{i}"] for i in range(len(stored.files) - 1)]
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise InputError(
                f"truth {cache}: holds no float64 result ({last_line(error)}); name another file"
            ) from error
    wide = {
        name: x.astype(np.float64) if x.dtype.kind not in "iub" else x for name, x in inputs.items()
    }
    try:
        outputs: Arrays = _evaluator(widened(model, double=True)).run(None, wide)
    except Exception as error:  # it raises its own
        raise InputError(f"model: no float64 result: {last_line(error)}") from error
    if cache is not None:
        try:
            named: dict[str, Any] = {f"y{i}": y for i, y in enumerate(outputs)}
            np.savez(cache, key=np.array(key), **named)
        except OSError as error:
            raise InputError(f"truth {cache}: cannot be written ({error.strerror})") from error
    return outputs


def _evaluator(model: Any) -> Any:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    # ONNX's own is math.erf element by element: minutes for one layer of a large encoder.
    class Erf(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any]]:
            return (erf(x),)

    return ReferenceEvaluator(model, new_ops=[Erf])


def _digest(model: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.sha256(model.SerializeToString(deterministic=True))
    for name, x in inputs.items():
        digest.update(name.encode() + x.tobytes())
    return digest.hexdigest()
