"""The run as seen from outside the worker, with a worker that answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.errors import InputError
from tvm_vibegemm.judge.protocol import WorkerFailure, WorkerStartError
from tvm_vibegemm.judge.session import JUDGE_VERSION, Session, job_id
from tvm_vibegemm.judge.verdict import Reason
from tvm_vibegemm.workload import Workload

WORKLOAD = Workload.parse("vg1:f16.f16.f32.f16:nn:x1:m64:n64:k64:-")
FACTS = {"sets": 3, "cold": True, "driver": 13000}


def entry(kernel: str, **tunables: int) -> dict[str, Any]:
    return {"source": kernel, "plan": "{}", "tunables": tunables, "kernel": kernel * 64}


def answer(verdict: str = "accepted", detail: str = "") -> dict[str, Any]:
    return {"name": "k", "verdict": verdict, "detail": detail, "evidence": {"numerics": {}}}


class Script:
    """A worker whose answers are functions of the request."""

    def __init__(
        self,
        check: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
        time: Callable[[list[str]], Any] | None = None,
    ) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self._check = check or (lambda _: answer())
        self._time = time or (lambda names: [10.0 + i for i in range(len(names))])

    def run(self, job: Mapping[str, Any], timeout_s: float) -> Any:
        assert timeout_s > 0
        if job["do"] == "reference":
            self.asked.append(("reference", []))
            return [{**answer(), "name": "reference sm_90", "evidence": {"spelling": "sm_90"}}]
        names = [c["source"] for c in job["candidates"]]
        assert all(set(c) == {"source", "plan", "tunables"} for c in job["candidates"])
        self.asked.append((job["do"], names))
        if job["do"] == "check":
            return [self._check(c) for c in job["candidates"]]
        times = self._time(names)
        return {
            "kernels": [
                {**answer(), "time": [t, t - 0.1, t + 0.1], "evidence": {"timed_samples": 9}}
                for t in times
            ],
            "references": {f"reference {s}": [100.0, 99.0, 101.0] for s in job["spellings"]},
            "facts": FACTS,
            "arch": "sm_90",
            "device": "NVIDIA H200",
        }


def session(script: Script, tmp_path: Path) -> Session:
    return Session(script, tmp_path)  # type: ignore[arg-type]


def test_kernels_are_checked_apart_and_timed_together(tmp_path: Path) -> None:
    script = Script()
    entries = [entry("a", BM=1), entry("b"), entry("a", BM=2)]
    found = session(script, tmp_path).judge(WORKLOAD, entries, job="j")
    assert script.asked == [
        ("check", ["a", "a"]),
        ("check", ["b"]),
        ("reference", []),
        ("time", ["a", "b", "a"]),
    ]
    assert [m.subject for m in found] == ["reference", "kernel", "kernel", "kernel"]
    assert [m.median_us for m in found] == [100.0, 10.0, 11.0, 12.0]
    assert [m.tunables for m in found[1:]] == [{"BM": 1}, {}, {"BM": 2}]
    assert {m.run for m in found} == {found[0].run}
    for m in found:
        assert m.evidence["judge"] == JUDGE_VERSION
        assert m.evidence["job"] == "j"
        assert m.evidence["driver"] == 13000
    assert found[1].evidence["timed_samples"] == 9


def test_what_was_refused_is_not_timed(tmp_path: Path) -> None:
    script = Script(
        check=lambda c: answer("wrong-elements", "K") if c["source"] == "b" else answer()
    )
    _, a, b = session(script, tmp_path).judge(WORKLOAD, [entry("a"), entry("b")])
    assert script.asked[-1] == ("time", ["a"])
    assert (a.verdict, b.verdict, b.median_us) == ("accepted", "wrong-elements", None)
    assert b.evidence["detail"] == "K"


def test_a_crash_is_the_verdict_of_the_variant_that_causes_it(tmp_path: Path) -> None:
    class Crashing(Script):
        def run(self, job: Mapping[str, Any], timeout_s: float) -> Any:
            if job["do"] == "check" and any(c["tunables"] == {"X": 2} for c in job["candidates"]):
                raise WorkerFailure(Reason.CRASHED, "SIGSEGV")
            return super().run(job, timeout_s)

    entries = [entry("a", X=1), entry("a", X=2), entry("a", X=3)]
    found = session(Crashing(), tmp_path).judge(WORKLOAD, entries)[1:]
    assert [m.verdict for m in found] == ["accepted", "crashed", "accepted"]
    assert [m.median_us is None for m in found] == [False, True, False]


def test_a_hang_while_timing_is_found_and_the_rest_is_timed(tmp_path: Path) -> None:
    def time(names: list[str]) -> list[float]:
        if "b" in names:
            raise WorkerFailure(Reason.TIMEOUT, "took over 3 s")
        return [7.0] * len(names)

    script = Script(time=time)
    found = session(script, tmp_path).judge(WORKLOAD, [entry("a"), entry("b"), entry("c")])[1:]
    assert [m.verdict for m in found] == ["accepted", "timeout", "accepted"]
    assert [m.median_us for m in found] == [7.0, None, 7.0]


def test_a_worker_that_does_not_start_says_nothing_of_a_kernel(tmp_path: Path) -> None:
    class Dead(Script):
        def run(self, job: Mapping[str, Any], timeout_s: float) -> Any:
            raise WorkerStartError("no GPU")

    with pytest.raises(WorkerStartError, match="no GPU"):
        session(Dead(), tmp_path).judge(WORKLOAD, [entry("a"), entry("a", X=1)])


def test_without_rounds_nothing_is_timed(tmp_path: Path) -> None:
    script = Script()
    (only,) = session(script, tmp_path).judge(WORKLOAD, [entry("a")], rounds=0)
    assert [what for what, _ in script.asked] == ["check"]
    assert only.verdict == "accepted" and only.median_us is None


@pytest.mark.parametrize("size", ["m*:n64", "m0:n64", "m64:n0"])
def test_nothing_to_judge_is_said(size: str, tmp_path: Path) -> None:
    workload = Workload.parse(WORKLOAD.key.replace("m64:n64", size))
    with pytest.raises(InputError, match="a size"):
        session(Script(), tmp_path).judge(workload, [entry("a")])


def test_a_job_is_named_by_what_it_asks() -> None:
    a = {"workload": "w", "candidates": [["k", {"X": 1, "Y": 2}]]}
    b = {"candidates": [["k", {"Y": 2, "X": 1}]], "workload": "w"}
    assert job_id(a) == job_id(b)
    assert job_id(a) != job_id({**a, "workload": "v"})
