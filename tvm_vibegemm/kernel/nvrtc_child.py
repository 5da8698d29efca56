"""The child process that runs NVRTC: a request on standard input, a cubin on standard output.

It is a process of its own so that a compile that never ends, or eats all memory, can be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

# NVRTC and ptxas need about 1 GiB for a large kernel; a compile bomb wants all there is.
MEMORY_LIMIT = 8 << 30
_PR_SET_PDEATHSIG = 1


def compile_source(request: dict[str, Any]) -> dict[str, Any]:
    """Compile one translation unit.

    Parameters
    ----------
    request
        ``source``, ``name`` and ``options`` of the program, and ``seconds`` of processor time.

    Returns
    -------
    dict
        ``ok``, ``log``, and where it is ok ``cubin`` in hex and ``ptx``.
    """
    from cuda.bindings import nvrtc

    def checked(result: Any) -> Any:
        error, *values = result
        if int(error) != 0:
            raise RuntimeError(f"NVRTC: {error.name}")
        return values[0] if values else None

    source, name = request["source"].encode(), request["name"].encode()
    program = checked(nvrtc.nvrtcCreateProgram(source, name, 0, [], []))
    options = [option.encode() for option in request["options"]]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
    checked(nvrtc.nvrtcGetProgramLog(program, log))
    text = log.decode(errors="replace").rstrip("\0 \n")
    if int(status) != 0:
        return {"ok": False, "log": text or status.name}
    cubin = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    ptx = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    checked(nvrtc.nvrtcGetPTX(program, ptx))
    answer = {"ok": True, "log": text, "cubin": cubin.hex()}
    return {**answer, "ptx": ptx.decode(errors="replace").rstrip("\0")}


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent is gone: nobody wants the cubin then.

    The signal comes when the *thread* that started us ends. That thread waits for us, however
    short its life is otherwise, so it ends first only with its whole process.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # no prctl: the limit of time has to do
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit(1)


def main() -> None:
    """Answer the one request on standard input."""
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin)
    # The parent's clock ends a compile; this one ends it where nobody else does.
    seconds = int(request["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    json.dump(compile_source(request), sys.stdout)


if __name__ == "__main__":
    main()
