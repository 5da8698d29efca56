"""Errors a user can cause or must know of: one clear line each at the command line."""

from __future__ import annotations


def last_line(error: BaseException, limit: int = 300) -> str:
    """Return what a foreign library's error says, as one line: TVM puts the reason last.

    Parameters
    ----------
    error
        Any exception.
    limit
        Most characters.

    Returns
    -------
    str
        Its last line that is not blank, else the name of its type.
    """
    kind = type(error).__name__
    if isinstance(error, KeyError):  # whose text is the bare key
        return f"{kind} {error}"[:limit]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [kind])[-1][:limit]


class VibeGEMMError(Exception):
    """Base of every error that names its input, the reason and what to do.

    Command-line verbs print ``str(error)`` on one line and exit with ``exit_status``.
    """

    exit_status = 2

    def __str__(self) -> str:
        """Return the message folded into a single line."""
        return " ".join(super().__str__().split())


class InputError(VibeGEMMError):
    """A file, shape, name or option that the user gave does not fit."""


class PlanError(VibeGEMMError):
    """A launch plan is malformed or promises what it cannot keep."""


class ResourceError(PlanError):
    """A block asks for more shared memory, registers or threads than the device has."""


class SourceError(VibeGEMMError):
    """A kernel source breaks the contract (includes, host code, state between calls)."""


class BuildError(VibeGEMMError):
    """NVRTC or ptxas refused a kernel, or took too long.

    Parameters
    ----------
    message
        One line: which kernel, and the first error of the compiler.
    log
        The whole compiler log.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class BuildTimeout(BuildError):
    """NVRTC did not come to an end in time."""


class ToolchainError(VibeGEMMError):
    """NVRTC, CUDA headers, the driver or the C++ compiler is missing or unusable."""


class DatabaseError(VibeGEMMError):
    """The tuning database is corrupt, of a newer version, locked or unwritable."""


class DeviceError(VibeGEMMError):
    """An architecture or device is unknown, or no GPU is there where one is needed."""


class ReplyError(VibeGEMMError):
    """A language model's reply cannot be read as a kernel."""


class ProviderError(VibeGEMMError):
    """A language model could not be asked, or gave no answer."""
