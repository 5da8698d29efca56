"""Handlers for the worker's tests: honest, broken and hostile ones."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_vibegemm.errors import PlanError
from tvm_vibegemm.judge.protocol import MAX_BYTES, FatalDeviceError
from tvm_vibegemm.judge.verdict import Reason

Progress = Callable[[str], None]


def handle(job: dict[str, Any], device: int, progress: Progress) -> Any:
    """Do what ``job["do"]`` names."""
    return _DEEDS[job["do"]](job, device, progress)


def _reply_fd() -> int:
    return next(int(a.partition("=")[2]) for a in sys.argv if a.startswith("--reply-fd="))


def _echo(job: dict[str, Any], device: int, progress: Progress) -> Any:
    return {"pid": os.getpid(), "device": device, "value": job.get("value")}


def _hang(job: dict[str, Any], device: int, progress: Progress) -> Any:
    progress("hanging")
    time.sleep(600)


def _hang_with_gil(job: dict[str, Any], device: int, progress: Progress) -> Any:
    if "note" in job:
        Path(job["note"]).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)  # no thread of this process runs any more


def _hang_unguarded(job: dict[str, Any], device: int, progress: Progress) -> Any:
    """Kill the process that guards the group: the kernel's own signal must do."""
    for number in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(number), signal.SIGKILL)
    _hang_with_gil(job, device, progress)


def _segfault(job: dict[str, Any], device: int, progress: Progress) -> Any:
    print("about to fall", file=sys.stderr, flush=True)
    ctypes.string_at(0)


def _exit(job: dict[str, Any], device: int, progress: Progress) -> Any:
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)


def _system_exit(job: dict[str, Any], device: int, progress: Progress) -> Any:
    sys.exit(4)


def _raise(job: dict[str, Any], device: int, progress: Progress) -> Any:
    raise ValueError("first line\nsecond line")


def _raise_ours(job: dict[str, Any], device: int, progress: Progress) -> Any:
    raise PlanError("the plan's grid is empty")


def _raise_long(job: dict[str, Any], device: int, progress: Progress) -> Any:
    raise ValueError("x" * (MAX_BYTES + 10))


def _fatal(job: dict[str, Any], device: int, progress: Progress) -> Any:
    raise FatalDeviceError("CUDA_ERROR_ILLEGAL_ADDRESS after the launch")


def _fatal_launch(job: dict[str, Any], device: int, progress: Progress) -> Any:
    raise FatalDeviceError("CUDA_ERROR_LAUNCH_FAILED", Reason.LAUNCH_FAILED)


def _flood(job: dict[str, Any], device: int, progress: Progress) -> Any:
    while True:  # one endless line
        os.write(_reply_fd(), b"x" * 65536)


def _progress_flood(job: dict[str, Any], device: int, progress: Progress) -> Any:
    while True:
        progress("still here")


def _stderr_flood(job: dict[str, Any], device: int, progress: Progress) -> Any:
    for number in range(20000):
        print(f"noise {number} " + "y" * 80, file=sys.stderr)
    return "done"


def _huge(job: dict[str, Any], device: int, progress: Progress) -> Any:
    return "x" * MAX_BYTES


def _large(job: dict[str, Any], device: int, progress: Progress) -> Any:
    return ["x" * (MAX_BYTES - 1000), len(job["value"])]


def _nan(job: dict[str, Any], device: int, progress: Progress) -> Any:
    return {"error": math.nan}


def _raw(job: dict[str, Any], device: int, progress: Progress) -> Any:
    os.write(_reply_fd(), job["text"].encode())
    if job.get("then") == "return":
        return "after"
    time.sleep(600)


def _partial(job: dict[str, Any], device: int, progress: Progress) -> Any:
    while True:  # bytes keep coming, a line never does
        os.write(_reply_fd(), b" ")
        time.sleep(0.01)


def _close_reply(job: dict[str, Any], device: int, progress: Progress) -> Any:
    os.close(_reply_fd())
    time.sleep(600)


def _grandchildren(job: dict[str, Any], device: int, progress: Progress) -> Any:
    """Start one process in the group, one in a session of its own, one by a fork."""
    code = "import time; time.sleep(600)"
    inside = subprocess.Popen([sys.executable, "-c", code])
    outside = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    forked = os.fork()
    if not forked:
        time.sleep(600)
    Path(job["note"]).write_text(f"{os.getpid()} {inside.pid} {outside.pid} {forked}")
    if job.get("then") == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)


def _environment(job: dict[str, Any], device: int, progress: Progress) -> Any:
    # What the process was given, which os.environ would show only as Python sees it.
    return Path("/proc/self/environ").read_text().split("\0")


def _print(job: dict[str, Any], device: int, progress: Progress) -> Any:
    print('{"id": "1", "result": "false"}', flush=True)
    os.write(1, b"raw stdout\n")
    print("on stderr", file=sys.stderr, flush=True)
    read = sys.stdin.read()  # must neither block nor eat the next request
    return {"read": read}


def _steps(job: dict[str, Any], device: int, progress: Progress) -> Any:
    progress("one\ntwo")
    progress("three")


def _late_thread(job: dict[str, Any], device: int, progress: Progress) -> Any:
    def speak() -> None:
        time.sleep(0.1)
        progress("too late")

    threading.Thread(target=speak).start()
    return os.getpid()


def _die_later(job: dict[str, Any], device: int, progress: Progress) -> Any:
    threading.Timer(0.1, os._exit, (7,)).start()
    return os.getpid()


def _sleep(job: dict[str, Any], device: int, progress: Progress) -> Any:
    start = time.monotonic()  # one clock for all processes
    progress("sleeping")
    time.sleep(job["seconds"])
    return [device, start, time.monotonic()]


def _modules(job: dict[str, Any], device: int, progress: Progress) -> Any:
    return sorted({name.partition(".")[0] for name in sys.modules})


def _limits(job: dict[str, Any], device: int, progress: Progress) -> Any:
    import resource

    return {
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "leader": os.getsid(0) == os.getpgrp() == os.getpid(),
    }


_DEEDS = {
    name[1:]: deed
    for name, deed in list(globals().items())
    if name.startswith("_") and callable(deed) and name not in ("_reply_fd",)
}
