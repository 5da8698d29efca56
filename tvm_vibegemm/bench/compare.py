"""Compiled libraries of one model side by side: errors, and latency in interleaved calls."""

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
from .truth import float64_truth

_WARM_S = 1.0


def compare(
    model_path: Path,
    shapes: dict[str, tuple[int, ...]],
    libraries: dict[str, Path],
    rounds: int = 30,
    truth: Path | None = None,
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
    truth
        A ``.npz`` file that keeps the float64 result, see :func:`.truth.float64_truth`.

    Returns
    -------
    dict
        Device, date, and for each library ``max_abs`` and ``max_rel`` (largest error against ONNX
        Runtime in float32 on the same weights and inputs, and over the output's
        root-mean-square), ``max_abs_f64`` and ``max_rel_f64`` (the same against float64), and
        ``median_ms``, ``low_ms``, ``high_ms`` (quartiles) of a call with the host's share.
    """
    model = load_model(model_path, shapes)
    inputs = random_inputs(model)
    want, exact = widened_truth(model, inputs), float64_truth(model, inputs, truth)
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
        double = {f"{key}_f64": value for key, value in errors(got, exact).items()}
        results[name] = {**errors(got, want), **double, "load_and_first_call_s": round(seconds, 2)}
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
