"""The closed list of what a judge can say about a kernel, and why."""

from __future__ import annotations

from enum import StrEnum

from ..errors import BuildError, BuildTimeout, PlanError, ResourceError, SourceError


class Reason(StrEnum):
    """Verdict of one kernel at one workload; :attr:`meaning` says it in words."""

    ACCEPTED = "accepted"
    # Before anything runs.
    SOURCE_REFUSED = "source-refused"
    PLAN_REFUSED = "plan-refused"
    BUILD_FAILED = "build-failed"
    BUILD_TIMEOUT = "build-timeout"
    RESOURCES = "resources"
    # While it runs.
    LAUNCH_FAILED = "launch-failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    # What it leaves in memory.
    NOT_WRITTEN = "not-written"
    NOT_FINITE = "not-finite"
    WRONG_ELEMENTS = "wrong-elements"
    BELOW_PRECISION = "below-precision"
    INPUT_MODIFIED = "input-modified"
    OUT_OF_BOUNDS_WRITE = "out-of-bounds-write"
    OUT_OF_BOUNDS_READ = "out-of-bounds-read"
    # What it does the second time, or elsewhere.
    NOT_REPEATABLE = "not-repeatable"
    DIRTY_WORKSPACE = "dirty-workspace"
    STATEFUL = "stateful"
    NEIGHBOUR_WRONG = "neighbour-wrong"
    # Time.
    TOO_FAST = "too-fast"
    # Of a rival.
    NO_VALID_REFERENCE = "no-valid-reference"

    @property
    def meaning(self) -> str:
        """One sentence that a person, or a model that repairs the kernel, can act on."""
        return _MEANING[self]


_MEANING = {
    Reason.ACCEPTED: "right within its precision class, and timed",
    Reason.SOURCE_REFUSED: "the source holds something that no kernel may hold",
    Reason.PLAN_REFUSED: "the launch plan is not valid for this workload and device",
    Reason.BUILD_FAILED: "the source does not compile",
    Reason.BUILD_TIMEOUT: "the compiler did not come to an end in time",
    Reason.RESOURCES: "a block asks for more shared memory, registers or threads than there are",
    Reason.LAUNCH_FAILED: "the driver refused a launch",
    Reason.TIMEOUT: "the kernel did not come to an end in time",
    Reason.CRASHED: "the kernel made the device fail: an illegal address or instruction",
    Reason.NOT_WRITTEN: "elements of the output were never written",
    Reason.NOT_FINITE: "elements are NaN or infinite where the true result is finite",
    Reason.WRONG_ELEMENTS: "elements are wrong by more than rounding",
    Reason.BELOW_PRECISION: "the error is that of a lower precision class than the one claimed",
    Reason.INPUT_MODIFIED: "an input was written to",
    Reason.OUT_OF_BOUNDS_WRITE: "memory beside a buffer was written to",
    Reason.OUT_OF_BOUNDS_READ: "the output depends on memory beside an input",
    Reason.NOT_REPEATABLE: "two runs on equal inputs gave different bits",
    Reason.DIRTY_WORKSPACE: "the output depends on what an earlier run left in the workspace",
    Reason.STATEFUL: "a later call gave a wrong result, though the first ones were right",
    Reason.NEIGHBOUR_WRONG: "wrong at another shape that the plan's requires allow",
    Reason.TOO_FAST: "faster than the device can move the bytes or do the operations",
    Reason.NO_VALID_REFERENCE: "TVM's own schedule does not build or is wrong here",
}

# The first that fits: a ResourceError is a PlanError, and a BuildTimeout a BuildError.
_OF_ERRORS: tuple[tuple[type[Exception], Reason], ...] = (
    (SourceError, Reason.SOURCE_REFUSED),
    (ResourceError, Reason.RESOURCES),
    (PlanError, Reason.PLAN_REFUSED),
    (BuildTimeout, Reason.BUILD_TIMEOUT),
    (BuildError, Reason.BUILD_FAILED),
)


def reason_of(error: Exception, otherwise: Reason) -> Reason:
    """Return the verdict that an error of checking or building a kernel means."""
    return next((reason for kind, reason in _OF_ERRORS if isinstance(error, kind)), otherwise)
