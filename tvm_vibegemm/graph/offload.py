"""The pass: every matrix product that has a proven kernel becomes a call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax

from .. import errors
from ..database import Database, open_default
from ..device import Device
from ..tuning.decision import FALLBACK, SELECT, Decision, decide
from ..workload import Workload
from . import tensors
from .composite import CODEGEN, build_call
from .grow import Chain, match
from .reasons import Decline
from .recompose import recompose
from .report import SiteReport, read_report, write_report
from .rewrite import Rewrite, rewrite_function
from .scope import Scope, is_foreign
from .sites import SiteFunctions
from .target import resolve_device

Generate = Callable[[Workload, Device], Any]

for _name, _error in vars(errors).items():
    # So that an error crosses TVM's C++ pass machinery as what it is.
    if isinstance(_error, type) and issubclass(_error, errors.VibeGEMMError):
        tvm_ffi.register_error(_name, _error)


def VibeGEMMOffload(
    *,
    target: Any = None,
    database: Database | str | Path | None = None,
    select: str = "measured",
    fallback: str = "metaschedule",
    generate: Generate | None = None,
) -> Any:
    """Return the pass that offloads matrix products to generated kernels.

    Decomposed gelu and silu are put back together first. Then each ``R.matmul``, with what follows
    it as far as an epilogue can do it, is looked up in the database. Where a kernel wins, a
    private function with ``Codegen="vibegemm"`` takes its place, for
    ``relax.transform.RunCodegen``; everywhere else the graph stays as it was. The module attribute
    ``vibegemm.report`` says what became of each product (see :func:`.report.read_report`).

    Parameters
    ----------
    target
        What to compile for: a TVM target, or an arch such as ``"sm_90"``. By default the current
        target, else the module's vdevice, else the local GPU.
    database
        Where the measurements are: a path or SQLite URL, by default the user's database; the
        shipped schedules are merged into it. An open :class:`Database` is taken as it is.
    select
        ``"measured"`` takes what won at that very workload, ``"valid"`` the best predicted kernel
        that is valid there.
    fallback
        What a product without a winning kernel is to get, ``"metaschedule"`` or ``"reference"``;
        without MetaSchedule records, which are not made yet, both mean TVM's reference schedule.
    generate
        Called once with each workload that has no accepted kernel, and the device, before the
        decision is made; it may add measurements to the database.

    Returns
    -------
    tvm.transform.Pass
        A module pass.

    Raises
    ------
    InputError
        For an unknown ``select`` or ``fallback``.
    DeviceError
        When the pass runs: the target is not CUDA, its arch is unknown, or there is none.
    """
    for option, value, known in (("select", select, SELECT), ("fallback", fallback, FALLBACK)):
        if value not in known:
            raise errors.InputError(
                f"VibeGEMMOffload: {option}={value!r} is unknown; known: {', '.join(known)}"
            )

    def transform(mod: Any, context: Any) -> Any:
        device = resolve_device(target, mod)
        with _opened(database) as opened:
            offload = _Offload(recompose(mod), device, opened, select, fallback, generate)
            return offload.run()

    return tvm.transform.module_pass(transform, opt_level=0, name="VibeGEMMOffload")


@contextmanager
def _opened(database: Database | str | Path | None) -> Iterator[Any]:
    if database is None or isinstance(database, str | Path):
        with open_default(database) as opened:
            yield opened
    else:
        yield database  # the caller's to close


@dataclass
class _Found:
    """One product of the module, in the order of the report."""

    outcome: Chain | Decline
    function: str | None = None  # name of the function that holds it
    decision: Decision | None = None
    symbol: str | None = None


@dataclass
class _Offload:
    """One run of the pass over one module."""

    mod: Any
    device: Device
    database: Any
    select: str
    fallback: str
    generate: Generate | None
    found: list[_Found] = field(default_factory=list)
    scopes: dict[str, Scope] = field(default_factory=dict)

    def run(self) -> Any:
        """Match, decide, rewrite, report."""
        before = [site for site in read_report(self.mod) if site.decision == "kernel"]
        self._match_all()
        self._decide_all()
        self.mod = self.mod.clone()
        functions = SiteFunctions(self.mod, self.device, self.database)
        for gvar in self._functions():
            self._rewrite(gvar, functions)
        return write_report(self.mod, [*before, *self._report(len(before))])

    def _functions(self) -> list[Any]:
        gvars = [gvar for gvar, f in self.mod.functions.items() if isinstance(f, relax.Function)]
        return sorted(gvars, key=lambda gvar: str(gvar.name_hint))

    # -- matching --------------------------------------------------------------------------------

    def _match_all(self) -> None:
        for gvar in self._functions():
            function = self.mod[gvar]
            if is_foreign(function):
                if not _is_own(function):
                    self._decline_foreign(function)
                continue
            scope = Scope(function)
            self.scopes[str(gvar.name_hint)] = scope
            for site in scope.sites:
                outcome = match(scope, site)
                if outcome is not None:
                    self.found.append(_Found(outcome, str(gvar.name_hint)))
                elif _is_lowered(site.binding.value):
                    self.found.append(_Found(Decline.LOWERED))
            for nested in scope.nested:
                if tensors.op_name(nested) == "relax.matmul":
                    self.found.append(_Found(Decline.NESTED))
            for inner in scope.foreign:
                self._decline_foreign(inner)

    def _decline_foreign(self, function: Any) -> None:
        def visit(expr: Any) -> None:
            if tensors.op_name(expr) == "relax.matmul":
                self.found.append(_Found(Decline.OTHER_CODEGEN))

        relax.analysis.post_order_visit(function, visit)

    # -- deciding --------------------------------------------------------------------------------

    def _decide_all(self) -> None:
        decisions: dict[str, Decision] = {}
        for item in self.found:
            if not isinstance(item.outcome, Chain):
                continue
            workload = item.outcome.workload
            if workload.key not in decisions:
                if self.generate is not None and not self._has_kernel(workload):
                    self.generate(workload, self.device)
                decisions[workload.key] = decide(
                    workload,
                    self.device,
                    self.database,
                    select=self.select,
                    fallback=self.fallback,
                )
            item.decision = decisions[workload.key]

    def _has_kernel(self, workload: Workload) -> bool:
        arch = self.device.arch
        sizes = self.database.measured_m(workload.key, arch) if workload.m is None else [workload.m]
        return any(
            measurement.subject == "kernel"
            for m in sizes
            for measurements in self.database.accepted(workload.at(m).key, arch).values()
            for measurement in measurements
        )

    # -- rewriting -------------------------------------------------------------------------------

    def _rewrite(self, gvar: Any, functions: SiteFunctions) -> None:
        scope = self.scopes.get(str(gvar.name_hint))
        rewrite = Rewrite()
        for item in self.found:
            if item.function != str(gvar.name_hint):
                continue
            chain, decision = item.outcome, item.decision
            if not isinstance(chain, Chain) or decision is None or decision.decision != "kernel":
                continue
            callee = functions.get(chain, decision)
            item.symbol = str(callee.name_hint)
            rewrite.drop.update(tensors.key(site.binding.var) for site in chain.sites[:-1])
            rewrite.replace[tensors.key(chain.result)] = build_call(chain, callee)
        if scope is None or not rewrite.replace:
            return
        self._drop_permutes(gvar, scope, rewrite)
        self.mod.update_func(gvar, rewrite_function(self.mod[gvar], rewrite))

    def _drop_permutes(self, gvar: Any, scope: Scope, rewrite: Rewrite) -> None:
        """Drop the transposes that only offloaded products read."""
        gone: dict[int, int] = {}
        for item in self.found:
            chain = item.outcome
            if not isinstance(chain, Chain) or item.symbol is None:
                continue
            if item.function != str(gvar.name_hint):
                continue
            for operand in (chain.a, chain.b):
                for var in reversed(operand.permutes):
                    gone[tensors.key(var)] = gone.get(tensors.key(var), 0) + 1
                    if gone[tensors.key(var)] < scope.uses(var):
                        break
                    rewrite.drop.add(tensors.key(var))

    # -- reporting -------------------------------------------------------------------------------

    def _report(self, start: int) -> Iterator[SiteReport]:
        for number, item in enumerate(self.found, start):
            name = f"matmul_{number}"
            outcome, decision = item.outcome, item.decision
            if isinstance(outcome, Decline):
                yield SiteReport("matmul", name, None, "declined", outcome.value)
                continue
            assert decision is not None
            yield SiteReport(
                op="matmul",
                name=name,
                workload=outcome.workload.key,
                decision=decision.decision,
                reason=decision.reason,
                expected_us=decision.expected_us,
                symbol=item.symbol,
                chain_end=outcome.end.value,
            )


def _is_own(function: Any) -> bool:
    return (function.attrs or {}).get("Codegen") == CODEGEN


def _is_lowered(value: Any) -> bool:
    """Return True for a call of a TIR function that LegalizeOps made of a matmul."""
    if tensors.op_name(value) != "relax.call_tir" or not value.args:
        return False
    callee = value.args[0]
    return isinstance(callee, ir.GlobalVar) and "matmul" in str(callee.name_hint).split("_")
