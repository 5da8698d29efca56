"""One kernel family from one conversation: ask, check, build, and give the faults back.

The first form of the loop. Whether a kernel is right and fast is the judge's work; here a reply
becomes a kernel that keeps the contract and builds for everything that its brief names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..device import device_for
from ..errors import BuildError, PlanError, ReplyError, SourceError, VibeGEMMError
from ..generator.brief import Brief
from ..generator.prompt import Fault, conversation, repair_message
from ..generator.provider import Provider, Reply
from ..generator.reply import parse_reply
from ..generator.transcript import Transcript
from ..kernel.build import Binary, build
from ..kernel.kernel import Kernel
from ..kernel.plan import Plan
from ..kernel.source import check_source
from ..kernel.validity import why_not
from ..workload import Workload

MAX_FAULTS = 4
Progress = Callable[[str], None]


@dataclass(frozen=True)
class BuildCase:
    """One build that a kernel has to pass.

    Parameters
    ----------
    arch
        E.g. ``sm_90``.
    workload
        Types, layout, batch and epilogue form.
    tunables
        Values that differ from the defaults.
    """

    arch: str
    workload: Workload
    tunables: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        chosen = "".join(f" {name}={value}" for name, value in self.tunables.items())
        return f"{self.arch} {self.workload.key}{chosen}"


@dataclass(frozen=True)
class Checked:
    """What the checks found of one reply.

    Parameters
    ----------
    kernel
        The kernel where the reply could be read as one.
    faults
        Why it does not pass; empty where it does.
    binaries
        What was built, by case.
    """

    kernel: Kernel | None
    faults: tuple[Fault, ...] = ()
    binaries: dict[str, Binary] = field(default_factory=dict)


@dataclass(frozen=True)
class Generated:
    """A kernel and how it came about.

    Parameters
    ----------
    kernel
        Passes every check of :func:`check_reply`.
    transcript
        The whole conversation.
    attempts
        How many replies it took.
    binaries
        What was built, by case.
    """

    kernel: Kernel
    transcript: Transcript
    attempts: int
    binaries: dict[str, Binary]


def generate(
    brief: Brief,
    provider: Provider,
    *,
    repairs: int = 2,
    transcripts: Path | None = None,
    jobs: int | None = None,
    progress: Progress = lambda line: None,
) -> Generated:
    """Ask for a brief's kernel until a reply passes, and record the conversation.

    The transcript is written whatever the end is, so that no answer is lost.

    Parameters
    ----------
    brief
        What to ask for.
    provider
        Whom to ask.
    repairs
        How many further replies may be asked for after one that does not pass.
    transcripts
        Folder for the transcript; None means ``codegen/transcripts``.
    jobs
        Builds at a time; None means one for each CPU.
    progress
        Called with one line for each step.

    Returns
    -------
    Generated
        The kernel and its transcript.

    Raises
    ------
    ReplyError
        When no reply passes; the message holds the last fault.
    ProviderError
        When there is no reply.
    """
    transcript = conversation(brief)
    for attempt in range(1, repairs + 2):
        progress(f"{brief.name}: asking {provider.name} (attempt {attempt} of {repairs + 1})")
        reply = provider.complete(transcript.messages)
        checked = check_reply(reply, brief, jobs=jobs, progress=progress)
        if checked.kernel is not None and not checked.faults:
            transcript = transcript.answer(reply, kernel=checked.kernel.hash, verdict="built")
            transcript.save(transcripts)
            return Generated(checked.kernel, transcript, attempt, checked.binaries)
        fault = checked.faults[0]
        progress(f"{brief.name}: attempt {attempt}: {fault.stage}: {fault.summary}")
        transcript = transcript.answer(reply, verdict=f"{fault.stage}: {fault.summary}")
        transcript.save(transcripts)
        if attempt <= repairs:
            transcript = transcript.ask(repair_message(checked.faults, attempt))
    raise ReplyError(
        f"generate {brief.name}: no reply of {repairs + 1} passed; last fault: "
        f"{fault.stage}: {fault.summary}"
    )


def check_reply(
    reply: Reply | str,
    brief: Brief,
    *,
    jobs: int | None = None,
    progress: Progress = lambda line: None,
) -> Checked:
    """Run every check that needs no GPU: form, plan, source, coverage, builds.

    Parameters
    ----------
    reply
        The model's answer.
    brief
        What it has to serve.
    jobs
        Builds at a time; None means one for each CPU.
    progress
        Called with one line for each step.
    """
    text = reply if isinstance(reply, str) else reply.text
    try:
        parsed = parse_reply(text)
        plan = Plan.load(parsed.plan)
    except ReplyError as error:
        return Checked(None, (Fault("Reading the answer", str(error)),))
    except PlanError as error:
        return Checked(None, (Fault("Reading the plan", str(error)),))
    kernel = Kernel(parsed.source, plan)
    try:
        check_source(kernel.source, plan)
    except (SourceError, PlanError) as error:
        return Checked(kernel, (Fault("Checking the source against the contract", str(error)),))
    faults = coverage(plan, brief)
    if faults:
        return Checked(kernel, tuple(faults[:MAX_FAULTS]))
    return _build_all(kernel, brief, jobs, progress)


def coverage(plan: Plan, brief: Brief) -> list[Fault]:
    """Return where a plan promises less than its brief asks for."""
    stage = "Comparing the plan with the task"
    faults = []

    def lacks(what: str) -> None:
        faults.append(Fault(stage, what))

    if plan.name != brief.name:
        lacks(f"name is {plan.name!r}, not {brief.name!r}")
    for arch in brief.arch:
        if arch not in plan.arch:
            lacks(f"arch {arch} is missing")
    for types in brief.types:
        for out in types.out:
            if not any(
                (own.a, own.b, own.acc) == (types.a, types.b, types.acc) and out in own.out
                for own in plan.types
            ):
                lacks(f"types {types.a}, {types.b}, {types.acc} → {out} are missing")
    for layout in brief.layouts:
        if brief.must(layout) and layout not in plan.layouts:
            lacks(f"layout {layout} is missing")
    if brief.batched and brief.must("batched") and not plan.batched:
        lacks("batched has to be true")
    for name in ("epilogue", "dynamic_m"):
        if getattr(brief, name) and not getattr(plan, name):
            lacks(f"{name} has to be true")
    for name in brief.properties:
        if name not in plan.properties:
            lacks(f"property {name} has to be declared")
    if not faults:
        device = device_for(brief.arch[0])
        for workload in brief.workloads():
            if not _offered(plan, workload):
                continue
            reason = _served(plan, workload, brief.arch[0])
            if reason is not None:
                lacks(f"{workload.key} on {device.arch}: no choice of tunables serves it: {reason}")
    return faults


def _offered(plan: Plan, workload: Workload) -> bool:
    # What the brief leaves open may be left out; everything else was compared before.
    return workload.layout in plan.layouts and (plan.batched or workload.batch == 1)


def _served(plan: Plan, workload: Workload, arch: str) -> str | None:
    """Return None where some choice of tunables is valid, else the defaults' reason."""
    device = device_for(arch)
    first = why_not(plan, workload, device, plan.defaults())
    if first is None or any(
        why_not(plan, workload, device, tunables) is None for tunables in plan.variants()
    ):
        return None
    return first


def build_cases(kernel: Kernel, brief: Brief) -> list[BuildCase]:
    """Return everything that has to build: the brief's forms, then each tunable's choices.

    Tunables are varied one at a time, on the first architecture, for the first form.
    """
    plan = kernel.plan
    cases = [
        BuildCase(arch, workload) for arch, workload in brief.builds() if _offered(plan, workload)
    ]
    if cases:
        first = cases[0]
        device = device_for(first.arch)
        for name, tunable in plan.tunables.items():
            for value in tunable.choices:
                case = BuildCase(first.arch, first.workload, {name: value})
                values = plan.check_tunables(case.tunables)
                if value != tunable.default and not _static_reason(plan, case, values, device.arch):
                    cases.append(case)
    return cases


def _static_reason(plan: Plan, case: BuildCase, values: dict[str, int], arch: str) -> str | None:
    # A limit on M is no reason not to build: take an M that is as small as can be.
    workload = case.workload if case.workload.m is not None else case.workload.at(1)
    return why_not(plan, workload, device_for(arch), values)


def _build_all(kernel: Kernel, brief: Brief, jobs: int | None, progress: Progress) -> Checked:
    cases = build_cases(kernel, brief)
    progress(f"{brief.name}: building {len(cases)} forms")
    faults: list[Fault] = []
    binaries: dict[str, Binary] = {}

    def one(case: BuildCase) -> tuple[BuildCase, Binary | VibeGEMMError | None]:
        if len(faults) >= MAX_FAULTS:
            return case, None
        try:
            return case, build(kernel, case.workload, device_for(case.arch), case.tunables)
        except (BuildError, SourceError, PlanError) as error:
            return case, error

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        for case, result in pool.map(one, cases):
            if isinstance(result, VibeGEMMError):
                log = result.log if isinstance(result, BuildError) else ""
                # The same compiler message for several forms says nothing new.
                if all(log != fault.detail or not log for fault in faults):
                    faults.append(Fault(f"Building for {case}", str(result), log))
                progress(f"{brief.name}: {case}: {result}")
            elif result is not None:
                binaries[str(case)] = result
    return Checked(kernel, tuple(faults[:MAX_FAULTS]), binaries)
