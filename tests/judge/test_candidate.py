"""What is refused before it runs, and by which name."""

from __future__ import annotations

import pytest

from tests.exploits.catalogue import CONTROLS, EXPLOITS, Control, Exploit
from tvm_vibegemm.device import device_for
from tvm_vibegemm.errors import VibeGEMMError
from tvm_vibegemm.judge.candidate import Candidate, host
from tvm_vibegemm.judge.verdict import Reason, reason_of
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.workload import Workload

# Compile bombs take their whole time limit; the catalogue's own tests build them.
EARLY = [e for e in EXPLOITS if e.stage != "run" and not e.name.endswith("_bomb")]
H200 = device_for("sm_90")


def reason(exploit: Exploit) -> str:
    try:
        plan = exploit.path.with_suffix(".json").read_text()
        kernel = Kernel(exploit.path.read_text(), Plan.load(plan))
        candidate = Candidate(kernel, kernel.plan.defaults())
        host(Workload.parse(exploit.workload), H200, candidate, "f")
    except VibeGEMMError as error:
        return reason_of(error, Reason.BUILD_FAILED)
    return "accepted"


@pytest.mark.parametrize("exploit", EARLY, ids=lambda e: e.name)
def test_it_is_refused_for_its_reason(exploit: Exploit) -> None:
    assert reason(exploit) in (exploit.reason, *exploit.also)


@pytest.mark.parametrize("control", CONTROLS[:2], ids=lambda c: c.workload)
def test_a_candidate_travels_as_data(control: Control) -> None:
    kernel = Kernel.load(control.path)
    candidate = Candidate(kernel, kernel.plan.defaults())
    again = Candidate.from_job(candidate.as_job())
    assert again.kernel.hash == kernel.hash
    assert dict(again.tunables) == dict(candidate.tunables)
    assert host(Workload.parse(control.workload), H200, again, "f").codes
