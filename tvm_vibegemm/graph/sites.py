"""The private functions of the offloaded sites: named, shared where equal, with their workspace."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import tvm_ffi
from tvm import ir
from tvm.relax.expr import _update_type

from ..database import Database
from ..device import Device
from ..kernel.launch import Branch, workspace_bytes
from ..tuning.decision import Decision, load_kernel
from . import tensors
from .composite import CODEGEN, build_function
from .grow import Chain


def site_text(chain: Chain, decision: Decision, device: Device) -> str:
    """Return the ``vibegemm.site`` attribute: all that the code generator goes by, as JSON.

    It names nothing of the model: workload key, scale factors, kernels and device only.
    """
    return json.dumps(
        {
            "workload": chain.workload.key,
            "scales": [op.value for op in chain.workload.epilogue if op.kind == "scale"],
            "choices": [[c.m_max, c.kernel, dict(c.tunables)] for c in decision.choices],
            "arch": device.arch,
            "device": device.name,
        },
        sort_keys=True,
    )


def site_workspace(chain: Chain, decision: Decision, device: Device, database: Database) -> Any:
    """Return the bytes of workspace of a site: a number, or an expression where M is dynamic.

    The kernels become known to the code generator of this process.
    """
    branches = [
        Branch(load_kernel(database, choice.kernel), choice.tunables, choice.m_max)
        for choice in decision.choices
    ]
    workload = chain.workload
    m: Any = workload.m
    if m is None:
        rows = tensors.product(tensors.dims(chain.result) or ())
        m = rows // (workload.n * workload.batch) if workload.n * workload.batch else 0
    return workspace_bytes(workload, device, branches, m)


class SiteFunctions:
    """Adds functions to a module, one for all sites that are the same.

    Parameters
    ----------
    mod : tvm.IRModule
        Grows.
    device, database
        What the kernels are for, and where they are.
    """

    def __init__(self, mod: Any, device: Device, database: Database) -> None:
        self.mod, self.device, self.database = mod, device, database
        self._built: dict[str, list[Any]] = {}

    def get(self, chain: Chain, decision: Decision) -> Any:
        """Return the GlobalVar of the function for a chain."""
        site = site_text(chain, decision, self.device)
        workspace = site_workspace(chain, decision, self.device, self.database)
        same = self._built.setdefault(site, [])
        function = build_function(chain, "", site, workspace)
        for gvar in same:
            other = self.mod[gvar].with_attr("global_symbol", "")
            if tvm_ffi.structural_equal(function, other, map_free_vars=True):
                return gvar
        gvar = ir.GlobalVar(self._name(site))
        _update_type(gvar, function.ty)
        self.mod.update_func(gvar, function.with_attr("global_symbol", str(gvar.name_hint)))
        same.append(gvar)
        return gvar

    def _name(self, site: str) -> str:
        # Named by what it is, so that libraries built apart do not clash over different things.
        stem = f"{CODEGEN}_{hashlib.sha256(site.encode()).hexdigest()[:12]}"
        taken = {str(gvar.name_hint) for gvar in self.mod.functions}
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        return name
