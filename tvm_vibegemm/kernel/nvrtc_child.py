"""The child process that runs NVRTC: a request on standard input, a cubin on standard output.

It is a process of its own so that a compile that never ends, or eats all memory, can be killed.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

# NVRTC and ptxas need about 1 GiB for a large kernel; a compile bomb wants all there is.
MEMORY_LIMIT = 16 << 30


def compile_source(request: dict[str, Any]) -> dict[str, Any]:
    """Compile one translation unit.

    Parameters
    ----------
    request
        ``source``, ``name`` and ``options`` of the program.

    Returns
    -------
    dict
        ``ok``, ``log``, and ``cubin`` in hex where it is ok.
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
    return {"ok": True, "log": text, "cubin": cubin.hex()}


def main() -> None:
    """Answer the one request on standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(compile_source(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
