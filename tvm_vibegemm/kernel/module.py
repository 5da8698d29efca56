"""Puts host functions and cubins together into one TVM runtime module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi

from ..device import Device
from ..toolchain import ensure_driver
from .launch import Code, Hosted


def cuda_target(device: Device, spelling: str | None = None) -> tvm.target.Target:
    """Return TVM's target for a device: CUDA with an LLVM host.

    Parameters
    ----------
    device
        What is compiled for.
    spelling
        Architecture as TVM shall read it (``sm_90`` or ``sm_90a``); by default the plain one,
        which TVM's schedule rules know.
    """
    return tvm.target.Target(
        {
            "kind": "cuda",
            "arch": spelling or device.arch,
            "max_threads_per_block": 1024,
            "max_num_threads": 1024,
            "thread_warp_size": 32,
            # What a block may have without asking; TVM's schedules ask for no more.
            "max_shared_memory_per_block": 49152,
        },
        host="llvm",
    )


def cubin_module(code: Code) -> Any:
    """Return a TVM ``cuda`` module of one cubin; nothing is compiled when it is loaded."""
    ensure_driver()
    info = {"tvm_version": tvm.__version__, "func_info": code.entries}
    table = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps(info))
    create = tvm_ffi.get_global_func("ffi.Module.create.cuda")
    return create(code.binary.cubin, "cubin", table, {"cuda": code.binary.source})


def link(hosted: Sequence[Hosted], device: Device) -> Any:
    """Build the host functions and import each cubin once, however many sites use it.

    Parameters
    ----------
    hosted
        Host functions, each with its global symbol.
    device
        What they run on.

    Returns
    -------
    tvm runtime Module
        Destination-passing functions by global symbol.
    """
    functions = {str(h.function.attrs["global_symbol"]): h.function for h in hosted}
    # For the CUDA target: for plain llvm the generated checks would ask for CPU tensors.
    module = tvm.tirx.build(tvm.IRModule(functions), target=cuda_target(device))
    codes = {code.binary.key: code for h in hosted for code in h.codes}
    for code in codes.values():
        module.import_module(cubin_module(code))
    return module
