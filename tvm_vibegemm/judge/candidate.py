"""What is judged: a kernel with its tunables, or TVM's reference, as a callable on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..device import Device
from ..errors import BuildError, PlanError, ResourceError, VibeGEMMError
from ..hashing import digest
from ..kernel.build import report_dict
from ..kernel.kernel import Kernel
from ..kernel.launch import Branch, Hosted, host_function, workspace_bytes
from ..kernel.module import link
from ..kernel.plan import Plan
from ..kernel.source import check_source
from ..kernel.validity import ResourceReason, why_not
from ..rivals.reference import build_reference, operand_shapes, spellings
from ..workload import Workload
from .correctness import Subject
from .trusted import prepare_trusted


@dataclass(frozen=True)
class Candidate:
    """A kernel with its tunables."""

    kernel: Kernel
    tunables: Mapping[str, int]

    def as_job(self) -> dict[str, Any]:
        """Return the candidate as data, for a worker."""
        plan = self.kernel.plan.canonical()
        return {"source": self.kernel.source, "plan": plan, "tunables": dict(self.tunables)}

    @classmethod
    def from_job(cls, data: Mapping[str, Any]) -> Candidate:
        """Read what :meth:`as_job` gave."""
        plan = Plan.load(data["plan"])
        return cls(Kernel(data["source"], plan), plan.check_tunables(data["tunables"]))


def host(workload: Workload, device: Device, candidate: Candidate, name: str) -> Hosted:
    """Build a candidate's cubins and its host function.

    Raises
    ------
    SourceError, PlanError, ResourceError, BuildError
        See :func:`.verdict.reason_of`.
    """
    check_source(candidate.kernel.source, candidate.kernel.plan)
    reason = why_not(candidate.kernel.plan, workload, device, candidate.tunables)
    if isinstance(reason, ResourceReason):
        raise ResourceError(str(reason))
    if reason is not None:
        raise PlanError(reason)
    branch = Branch(candidate.kernel, candidate.tunables)
    *inputs, output = operand_shapes(workload)
    outputs: list[tuple[Sequence[int], str]] = [output]
    size = workspace_bytes(workload, device, [branch])
    if size:
        outputs.append(((size,), "uint8"))
    return host_function(name, workload, device, [branch], inputs, outputs)


def kernel_subject(workload: Workload, device: Device, candidate: Candidate) -> Subject:
    """Return a candidate ready to run; the errors are those of :func:`host`."""
    name = f"judged_{digest(candidate.kernel.hash, str(candidate.tunables), workload.key)[:16]}"
    hosted = host(workload, device, candidate, name)
    function = link([hosted], device)[name]
    size = int(workspace_bytes(workload, device, [Branch(candidate.kernel, candidate.tunables)]))

    def call(inputs: list[Any], output: Any, space: Any) -> Any:
        if size:
            function(*inputs, output, space)
        else:
            function(*inputs, output)
        return output

    facts = {"ptxas": report_dict(hosted.codes[0].binary)} if hosted.codes else {}
    label = f"{candidate.kernel.name} {dict(candidate.tunables)}"
    return Subject(label, call, size, evidence=facts)


def reference_path(folder: Path, workload: Workload, spelling: str) -> Path:
    """Return where the prepared library of a reference stands."""
    return folder / f"reference-{spelling}-{digest(workload.key)[:20]}.so"


def reference_call(
    workload: Workload, device: Device, spelling: str, folder: Path, dev: Any
) -> Callable[[list[Any]], Any]:
    """Return TVM's reference as ``call(inputs) -> output``, built where it is not prepared.

    Raises
    ------
    BuildError
        When TVM cannot build it.
    """
    path = reference_path(folder, workload, spelling)
    failed = path.with_suffix(".error")
    if failed.exists():
        raise BuildError(failed.read_text())
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build_reference(workload, device, spelling, path)
    main = relax.VirtualMachine(tvm.runtime.load_module(str(path)), dev)["main"]
    return lambda inputs: main(*inputs)


def prepare(
    workload: Workload, device: Device, candidates: Sequence[Candidate], folder: Path
) -> None:
    """Build everything of a run, with no GPU: the references' libraries, the kernels' cubins.

    A failure is left for the run to report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prepare_trusted(device)
    for spelling in spellings(device):
        path = reference_path(folder, workload, spelling)
        if not path.exists():
            try:
                build_reference(workload, device, spelling, path)
            except BuildError as error:
                path.with_suffix(".error").write_text(str(error))
    for candidate in candidates:
        try:
            host(workload, device, candidate, "prepared")
        except VibeGEMMError:
            continue
