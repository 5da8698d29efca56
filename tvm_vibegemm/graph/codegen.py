"""The code generator behind ``relax.ext.vibegemm``: offloaded functions to one runtime module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from ..database import open_default
from ..device import Device, device_for
from ..kernel.kernel import Kernel, lookup
from ..kernel.launch import Branch, Hosted, host_function
from ..kernel.module import link
from ..tuning.decision import load_kernel
from ..workload import Workload

SITE_ATTR = "vibegemm.site"


def vibegemm_codegen(functions: Sequence[Any], options: Any, constants: Any) -> list[Any]:
    """Build every offloaded function of a module.

    Parameters
    ----------
    functions
        Relax functions with ``Codegen = "vibegemm"``, each with its site as an attribute.
    options, constants
        What RunCodegen hands over; not used.

    Returns
    -------
    list of runtime Module
        One module with all host functions; each cubin stands in it once.
    """
    hosted: list[Hosted] = []
    device: Device | None = None
    for function in functions:
        site = json.loads(str(function.attrs[SITE_ATTR]))
        device = device_for(site["arch"], site["device"])
        hosted.append(_host(function, site, device))
    return [link(hosted, device)] if device is not None else []


def _host(function: Any, site: dict[str, Any], device: Device) -> Hosted:
    workload = _with_scales(Workload.parse(site["workload"]), site["scales"])
    branches = [
        Branch(_kernel(kernel_hash), tunables, m_max)
        for m_max, kernel_hash, tunables in site["choices"]
    ]
    result = function.ret_ty
    outputs = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    return host_function(
        str(function.attrs["global_symbol"]),
        workload,
        device,
        branches,
        [_tensor(param.ty) for param in function.params],
        [_tensor(output) for output in outputs],
    )


def _tensor(kind: Any) -> tuple[list[Any], str]:
    """Return shape and type of a tensor, constant extents as numbers."""
    shape = [int(x) if hasattr(x, "value") else x for x in kind.shape]
    return shape, str(kind.dtype)


def _with_scales(workload: Workload, scales: Sequence[float]) -> Workload:
    """Put the factors back that the key leaves out."""
    factors = iter(scales)
    epilogue = tuple(
        replace(op, value=next(factors)) if op.kind == "scale" else op for op in workload.epilogue
    )
    return replace(workload, epilogue=epilogue)


def _kernel(kernel_hash: str) -> Kernel:
    known = lookup(kernel_hash)
    if known is not None:
        return known  # the pass ran in this process: no database is opened
    with open_default() as database:
        return load_kernel(database, kernel_hash)
