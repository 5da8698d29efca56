"""Two compiled libraries of one model side by side: errors against ONNX Runtime, latency."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..errors import InputError
from ..graph.onnx_check import arrays, errors, random_inputs, widened_truth
from ..graph.onnx_load import load_model
from ..judge.timing import gpu_facts
from ..toolchain import local_device

_WARM_S = 1.0


def compare(
    model_path: Path,
    shapes: dict[str, tuple[int, ...]],
    libraries: dict[str, Path],
    rounds: int = 30,
) -> dict[str, Any]:
    """Compare libraries of one model.

    Parameters
    ----------
    model_path, shapes
        The model as it was compiled.
    libraries
        Exported library by name.
    rounds
        Interleaved timed calls of each.

    Returns
    -------
    dict
        Device, date, and for each library ``max_abs`` and ``max_rel`` (error against ONNX Runtime
        in float32 on the same weights and inputs) and ``median_ms``, ``low_ms``, ``high_ms``
        (quartiles) of a call with the host's share.
    """
    model = load_model(model_path, shapes)
    inputs = random_inputs(model)
    want = widened_truth(model, inputs)
    device = tvm.cuda(0)
    arguments = [tvm.runtime.tensor(x, device) for x in inputs.values()]
    machines: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    for name, path in libraries.items():
        if not path.is_file():
            raise InputError(f"library {path}: no such file")
        started = time.perf_counter()
        machines[name] = relax.VirtualMachine(tvm.runtime.load_module(str(path)), device)
        got = arrays(machines[name]["main"](*arguments))
        seconds = time.perf_counter() - started
        results[name] = {**errors(got, want), "load_and_first_call_s": round(seconds, 2)}
    samples: dict[str, list[float]] = {name: [] for name in machines}
    warm_until = time.perf_counter() + _WARM_S
    number = 0
    while number < rounds or time.perf_counter() < warm_until:
        warm = time.perf_counter() < warm_until
        for name, machine in machines.items():
            device.sync()
            started = time.perf_counter()
            machine["main"](*arguments)
            device.sync()
            if not warm:
                samples[name].append((time.perf_counter() - started) * 1e3)
        number += not warm
    for name, values in samples.items():
        low, median, high = np.percentile(values, [25, 50, 75])
        results[name] |= {
            "median_ms": round(float(median), 4),
            "low_ms": round(float(low), 4),
            "high_ms": round(float(high), 4),
        }
    found = local_device()
    return {
        "model": model_path.name,
        "device": found[1] if found else None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rounds": rounds,
        **gpu_facts(),
        "libraries": results,
    }
