"""The child process that runs NVRTC: a request on standard input, a cubin on standard output.

It is a process of its own so that a compile that never ends, or eats all memory, can be killed.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

# NVRTC and ptxas need about 1 GiB for a large kernel; a compile bomb wants all there is.
MEMORY_LIMIT = 8 << 30


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


def main() -> None:
    """Answer the one request on standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin)
    # The parent's clock ends a compile; this one ends it where the parent was killed.
    seconds = int(request["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    json.dump(compile_source(request), sys.stdout)


if __name__ == "__main__":
    main()
