"""Times callables side by side: CUDA graphs over rotating inputs, interleaved rounds.

Inputs rotate over more than twice the L2, so that a call finds them cold, as the next layer of a
model does; nothing is written to flush the cache, since the write-back would be charged to the
call. A captured graph leaves the host out of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from cuda.bindings import runtime

from ..errors import DeviceError


@dataclass(frozen=True)
class Time:
    """Median time of a call and its interval, in microseconds."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int


def _check(result: Any) -> Any:
    error, *values = result
    if int(error) != 0:
        raise DeviceError(f"CUDA: {error.name}")
    return values[0] if values else None


class Stream:
    """A CUDA stream that TVM launches on while the context is open."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.handle = 0

    def __enter__(self) -> Stream:
        """Create the stream and make it TVM's current one."""
        self.handle = self.device.create_raw_stream()
        self.device.set_raw_stream(self.handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give TVM its default stream back."""
        self.device.set_raw_stream(0)
        self.device.free_raw_stream(self.handle)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Any:
        """Return an executable graph of the calls, in order."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        stream = _stream(self.handle)
        kept = []  # outputs stay alive, so that the allocator does not hand them out twice
        _check(runtime.cudaStreamBeginCapture(stream, mode))
        try:
            for call in calls:
                kept.append(call())
        finally:
            graph = _check(runtime.cudaStreamEndCapture(stream))
        del kept
        return _check(runtime.cudaGraphInstantiate(graph, 0))


def _stream(handle: Any) -> Any:
    value = getattr(handle, "value", handle)
    return runtime.cudaStream_t(int(value or 0))


def measure(
    device: Any,
    subjects: dict[str, Sequence[Callable[[], Any]]],
    *,
    rounds: int = 25,
    warm_ms: float = 200.0,
) -> dict[str, Time]:
    """Time several subjects in interleaved rounds.

    Parameters
    ----------
    device
        TVM's CUDA device.
    subjects
        For each name the calls of one pass: one call for each set of inputs.
    rounds
        Passes of each subject, taken in turn.
    warm_ms
        Milliseconds of work before the first timed pass, so that clocks settle.

    Returns
    -------
    dict
        Median time of one call, with a 95 % interval of the median (order statistics).
    """
    with Stream(device) as stream:
        for calls in subjects.values():
            for call in calls:
                call()  # modules load, pools fill: none of that belongs into a graph
        device.sync(stream.handle)
        graphs = {name: stream.capture(calls) for name, calls in subjects.items()}
        handle = _stream(stream.handle)
        start, stop = (_check(runtime.cudaEventCreate()) for _ in range(2))

        def one_pass(name: str) -> float:
            _check(runtime.cudaEventRecord(start, handle))
            _check(runtime.cudaGraphLaunch(graphs[name], handle))
            _check(runtime.cudaEventRecord(stop, handle))
            _check(runtime.cudaEventSynchronize(stop))
            elapsed = _check(runtime.cudaEventElapsedTime(start, stop))
            return float(elapsed) * 1e3 / len(subjects[name])

        warmed = 0.0
        while warmed < warm_ms * 1e3:
            warmed += sum(one_pass(name) * len(subjects[name]) for name in graphs)
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            for name in graphs:
                samples[name].append(one_pass(name))
        for graph in graphs.values():
            _check(runtime.cudaGraphExecDestroy(graph))
    return {name: _summary(values) for name, values in samples.items()}


def _summary(values: list[float]) -> Time:
    ordered = np.sort(values)
    count = len(ordered)
    # Ranks of a distribution-free 95 % interval of the median (normal approximation).
    half = 0.98 * np.sqrt(count)
    low = max(int(np.floor(count / 2 - half)), 0)
    high = min(int(np.ceil(count / 2 + half)), count - 1)
    return Time(float(np.median(ordered)), float(ordered[low]), float(ordered[high]), count)


def gpu_facts(index: int = 0) -> dict[str, Any]:
    """Return driver and runtime versions and TVM's, for the evidence."""
    return {
        "driver": int(_check(runtime.cudaDriverGetVersion())),
        "cuda_runtime": int(_check(runtime.cudaRuntimeGetVersion())),
        "tvm": tvm.__version__,
        "device_index": index,
    }
