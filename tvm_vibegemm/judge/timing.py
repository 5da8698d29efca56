"""Times kernels side by side: CUDA graphs over rotating inputs, interleaved rounds.

Inputs rotate over more than twice the L2, so that a call finds them cold, as the next layer of a
model does. Before each pass some of every input is changed, and then memory is read until nothing
dirty is left in the L2: a flush that writes would have its write-back charged to the kernel. A
captured graph leaves the host out of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from cuda.bindings import runtime

from .protocol import FatalDeviceError


@dataclass(frozen=True)
class Time:
    """Median time of a call and its interval, in microseconds.

    Parameters
    ----------
    median_us
        Median over the passes.
    low_us, high_us
        95 % interval of the median, free of assumptions on the distribution.
    rounds
        Number of passes.
    """

    median_us: float
    low_us: float
    high_us: float
    rounds: int


def check(result: Any) -> Any:
    """Return what a call of cuda-bindings gave.

    Raises
    ------
    FatalDeviceError
        When it failed: after an error of the device nothing in this process works any more.
    """
    error, *values = result
    if int(error) != 0:
        raise FatalDeviceError(f"CUDA: {error.name}")
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

    def launch(self, graph: Any) -> None:
        """Launch an executable graph on this stream."""
        check(runtime.cudaGraphLaunch(graph, _stream(self.handle)))

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Any:
        """Return an executable graph of the calls, in order."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        stream = _stream(self.handle)
        kept = []  # outputs stay alive, so that the allocator does not hand them out twice
        check(runtime.cudaStreamBeginCapture(stream, mode))
        try:
            for call in calls:
                kept.append(call())
        finally:
            graph = check(runtime.cudaStreamEndCapture(stream))
        del kept
        return check(runtime.cudaGraphInstantiate(graph, 0))


def _stream(handle: Any) -> Any:
    value = getattr(handle, "value", handle)
    return runtime.cudaStream_t(int(value or 0))


class Timer:
    """Times several subjects in interleaved passes.

    Parameters
    ----------
    device
        TVM's CUDA device.
    subjects
        For each name the calls of one pass: one call for each set of inputs.
    """

    def __init__(self, device: Any, subjects: Mapping[str, Sequence[Callable[[], Any]]]) -> None:
        self._device, self._subjects = device, subjects
        self._graphs: dict[str, Any] = {}
        self._start, self._stop = (check(runtime.cudaEventCreate()) for _ in range(2))

    def run(
        self,
        rounds: int,
        before: Callable[[str], None],
        after: Callable[[str], None],
        *,
        warm_ms: float = 60.0,
        budget_s: float = 4.0,
    ) -> dict[str, Time]:
        """Warm up until the clock settles, then time.

        Parameters
        ----------
        rounds
            Passes of each subject, taken in turn, each round beginning with another subject.
        before, after
            Called with the subject's name around each timed pass, outside of the timed part.
        warm_ms
            Least milliseconds of work before the first timed pass.
        budget_s
            Seconds of timed work after which no further round begins (but five are made).

        Returns
        -------
        dict
            Times by name.
        """
        names = list(self._subjects)
        with Stream(self._device) as stream:
            for calls in self._subjects.values():
                for call in calls:
                    call()  # modules load, pools fill: none of that belongs into a graph
            self._device.sync(stream.handle)
            self._graphs = {n: stream.capture(calls) for n, calls in self._subjects.items()}
            handle = _stream(stream.handle)
            try:
                self._settle(handle, names, warm_ms * 1e3)
                samples: dict[str, list[float]] = {name: [] for name in names}
                spent = 0.0
                for number in range(rounds):
                    if number >= 5 and spent > budget_s * 1e6:
                        break
                    turn = number % len(names)
                    for name in names[turn:] + names[:turn]:
                        before(name)
                        samples[name].append(self._pass(handle, name))
                        spent += samples[name][-1] * len(self._subjects[name])
                        after(name)
            finally:
                for graph in self._graphs.values():
                    check(runtime.cudaGraphExecDestroy(graph))
        return {name: summary(values) for name, values in samples.items()}

    def _settle(self, handle: Any, names: Sequence[str], least_us: float) -> None:
        """Run the subjects until a whole round takes what the one before it took, within 1 %."""
        spent, last = 0.0, float("inf")
        while spent < 20 * least_us:
            took = sum(self._pass(handle, name) * len(self._subjects[name]) for name in names)
            spent += took
            if spent > least_us and abs(took - last) < 0.01 * last:
                return
            last = took

    def _pass(self, handle: Any, name: str) -> float:
        check(runtime.cudaEventRecord(self._start, handle))
        check(runtime.cudaGraphLaunch(self._graphs[name], handle))
        check(runtime.cudaEventRecord(self._stop, handle))
        check(runtime.cudaEventSynchronize(self._stop))
        elapsed = check(runtime.cudaEventElapsedTime(self._start, self._stop))
        return float(elapsed) * 1e3 / len(self._subjects[name])


def summary(values: Sequence[float]) -> Time:
    """Return the median of samples in microseconds with its 95 % interval.

    Ranks of a distribution-free interval of the median, by the normal approximation of the
    binomial distribution (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2).
    """
    ordered = np.sort(np.asarray(values, np.float64))
    count = len(ordered)
    half = 0.98 * np.sqrt(count)
    low = max(int(np.floor(count / 2 - half)), 0)
    high = min(int(np.ceil(count / 2 + half)), count - 1)
    return Time(float(np.median(ordered)), float(ordered[low]), float(ordered[high]), count)


def reset_persisting_l2() -> None:
    """Give lines that a kernel marked as persisting back to everyone."""
    check(runtime.cudaCtxResetPersistingL2Cache())


def gpu_facts(index: int = 0) -> dict[str, Any]:
    """Return versions, and clocks, power and temperature where the driver's tool is there."""
    from ..toolchain import nvrtc_version

    return {
        "driver": int(check(runtime.cudaDriverGetVersion())),
        "cuda_runtime": int(check(runtime.cudaRuntimeGetVersion())),
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "tvm": tvm.__version__,
        "device_index": index,
        **_sensors(index),
    }


def _sensors(index: int) -> dict[str, Any]:
    import subprocess

    query = "driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = [
        "nvidia-smi",
        f"--id={index}",
        f"--query-gpu={query}",
        "--format=csv,noheader,nounits",
    ]
    try:
        line = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout
        driver, sm, memory, power, temperature = (x.strip() for x in line.split(","))
        return {
            "driver_version": driver,
            "sm_mhz": float(sm),
            "memory_mhz": float(memory),
            "power_w": float(power),
            "temperature_c": float(temperature),
        }
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
