"""A worker's process as its parent holds it: environment, pipes, deadlines, death."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ..errors import InputError
from .protocol import LineBuffer, one_line

#: How often, in seconds, a wait looks whether it is cancelled and whether the process still lives.
TICK_S = 0.1
#: Seconds that a killed process gets to vanish before we go on without it.
REAP_S = 1.5

_CHUNK = 1 << 16
_TAIL = 1 << 14

_NAMES = frozenset(
    ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "PYTHONPATH", "TMPDIR")
)
_PREFIXES = ("CUDA_", "XDG_", "VIBEGEMM_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|^OPENAI_|^AWS_", re.IGNORECASE)
# Ours that may carry a password inside a URL; a worker needs neither.
_URLS = frozenset(("VIBEGEMM_DATABASE", "VIBEGEMM_BASE_URL"))
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]*@")


class Expired(Exception):
    """The deadline has passed."""


class Ended(Exception):
    """The process has ended, or has closed its way back to us."""


class Cancelled(Exception):
    """Someone asked us to stop waiting."""


def scrubbed(source: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that a worker may see.

    Parameters
    ----------
    source
        An environment; only names on a short list pass, and none that looks like a secret.
    extra
        Variables that are set beside them, whatever their names.

    Raises
    ------
    InputError
        A name in ``extra`` looks like that of a secret.
    """
    for name in extra or ():
        if _SECRET.search(name):
            raise InputError(f"the variable {name} looks like a secret: no worker may see it")
    kept = {
        name: value
        for name, value in source.items()
        if (name in _NAMES or name.startswith(_PREFIXES))
        and name not in _URLS
        and not _SECRET.search(name)
        and not _PASSWORD_IN_URL.search(value)
    }
    return {**kept, **(extra or {})}


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Scrub ours, and let the child import what we import, in the same order."""
    env = scrubbed(os.environ, extra)
    folders = [os.path.abspath(folder) for folder in sys.path if folder]
    package = str(Path(__file__).resolve().parents[2])
    first = (extra or {}).get("PYTHONPATH", "").split(os.pathsep)
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, first), *folders, package]))
    return env


# The kernel counts as a process's parent the *thread* that made it, and PR_SET_PDEATHSIG fires when
# that thread ends. So every child is made by one thread that lives as long as we do.
_makers: list[ThreadPoolExecutor] = []
_makers_lock = threading.Lock()


def _forget_maker() -> None:
    """In a forked copy of us there is no such thread."""
    global _makers_lock
    _makers.clear()
    _makers_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_maker)


def _kill_unclaimed(future: Future[subprocess.Popen[bytes]]) -> None:
    if future.cancelled() or future.exception() is not None:
        return
    process = future.result()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _make(command: list[str], env: dict[str, str], reply: int) -> subprocess.Popen[bytes]:
    def make() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what a library prints is nobody's answer
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            pass_fds=(reply,),
            start_new_session=True,
        )

    with _makers_lock:
        if not _makers:
            _makers.append(ThreadPoolExecutor(1, thread_name_prefix="vibegemm-worker-maker"))
        future = _makers[0].submit(make)
    try:
        return future.result()
    except BaseException:  # Ctrl-C while it was made: nobody will ever hold it
        future.add_done_callback(_kill_unclaimed)
        raise


class Child:
    """A worker's process with its three pipes; none of the calls waits beyond its deadline.

    Parameters
    ----------
    device
        Number of the GPU.
    handler
        ``module:function`` that runs a job there.
    env
        Variables beside the scrubbed environment.

    Raises
    ------
    OSError
        The process cannot be made.
    """

    def __init__(self, device: int, handler: str, env: Mapping[str, str] | None) -> None:
        reply, theirs = os.pipe()
        try:
            self._process = _make(
                # -P: a file of the folder where we happen to stand must not shadow a module.
                [
                    *(sys.executable, "-P", "-m", "tvm_vibegemm.judge.worker_main"),
                    f"--device={device}",
                    f"--reply-fd={theirs}",
                    f"--handler={handler}",
                    f"--parent-pid={os.getpid()}",
                ],
                _environment(env),
                theirs,
            )
        except BaseException:
            os.close(reply)
            raise
        finally:
            os.close(theirs)
        self.pid = self._process.pid
        self._reply = reply
        stdin, stderr = self._process.stdin, self._process.stderr
        assert stdin is not None and stderr is not None
        self._stdin, self._stderr = stdin.fileno(), stderr.fileno()
        self._buffer = LineBuffer()
        self._tail = b""
        self._request = memoryview(b"")
        self._open = {self._reply, self._stderr}
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._reply, self._stderr, self._stdin):
            os.set_blocking(descriptor, False)
        for descriptor in self._open:
            self._selector.register(descriptor, selectors.EVENT_READ)

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr, at most 16 KiB."""
        return self._tail.decode("utf-8", "replace")

    def lines(
        self, request: bytes, deadline: float, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[bytes]:
        """Send a request and yield the lines that come back, for as long as they are asked for.

        Parameters
        ----------
        request
            Whole lines; may be empty. It is sent while lines are awaited, so that neither side
            waits for the other with a full pipe.
        deadline
            In seconds of :func:`time.monotonic`.
        cancelled
            Asked every :data:`TICK_S` seconds.

        Raises
        ------
        Expired
            The deadline has passed before the caller had enough.
        Ended
            The process has ended, and all that it said was yielded.
        Cancelled
            So ``cancelled`` says.
        ProtocolError
            A line is over the cap.
        """
        self._request = memoryview(request)
        if request:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        while True:
            while (line := self._buffer.pop()) is not None:
                yield line
            if cancelled():
                raise Cancelled
            left = deadline - time.monotonic()
            if left <= 0:
                raise Expired
            # Asked before the pipe is read: what it said before it died is in the pipe by then.
            dead = self._exit() is not None
            heard = self._pump(0.0 if dead else min(left, TICK_S))
            if not heard and (dead or self._reply not in self._open):
                raise Ended

    def idle(self) -> bool:
        """Return whether it lives and has nothing to say, as is due between two jobs."""
        heard = self._pump(0.0)
        silent = not heard and not len(self._buffer) and not len(self._request)
        return silent and self._reply in self._open and self._exit() is None

    def _pump(self, timeout: float) -> bool:
        """Move what can be moved within ``timeout`` seconds; return whether a reply came."""
        heard = False
        for key, _ in self._selector.select(timeout):
            if key.fd == self._stdin:
                self._push()
                continue
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fd)
                self._open.discard(key.fd)
            elif key.fd == self._stderr:
                self._tail = (self._tail + data)[-_TAIL:]
            else:
                self._buffer.feed(data)
                heard = True
        return heard

    def _push(self) -> None:
        try:
            self._request = self._request[os.write(self._stdin, self._request[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # its death shows on the other pipe
            self._request = memoryview(b"")
        if not self._request:
            self._selector.unregister(self._stdin)

    def _exit(self) -> str | None:
        """Say how it ended, and leave it unreaped: its number stays its own until we kill."""
        try:
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # reaped by others (SIGCHLD ignored)
            return "ended"
        if end is None:
            return None
        if end.si_code == os.CLD_EXITED:
            return f"ended with exit status {end.si_status}"
        try:
            return f"was killed by {signal.Signals(end.si_status).name}"
        except ValueError:
            return f"was killed by signal {end.si_status}"

    def obituary(self) -> str:
        """Say in one line how it ended and what it wrote last to stderr; call before :meth:`kill`.

        A closed pipe is seen a little before the end itself, which gets half a second to come.
        """
        limit = time.monotonic() + 0.5
        while (end := self._exit()) is None and time.monotonic() < limit:
            time.sleep(0.005)
        for _ in range(64):  # all that a pipe holds, and no end of it from a heir that still writes
            if not self._selector.select(0.0):
                break
            self._buffer = LineBuffer()
            self._pump(0.0)
        written = [line for line in self.stderr.splitlines() if line.strip()]
        last = f": {one_line(written[-1], 300)}" if written else ""
        return f"{end or 'closed its reply channel'}{last}"

    def kill(self) -> bool:
        """Kill it and all that it started; return whether it is gone.

        It may stay for a while where the driver has to end its kernels first.
        """
        strays = _descendants(self.pid) if self._process.returncode is None else []
        for number, send in [(self.pid, os.killpg), *((stray, os.kill) for stray in strays)]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(number, signal.SIGKILL)
        self._selector.close()
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                stream.close()
        os.close(self._reply)
        return self.reap(REAP_S)

    def reap(self, timeout: float) -> bool:
        """Wait for a killed process to vanish, for so many seconds; return whether it did."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def _descendants(root: int) -> list[int]:
    """Return the processes below one: those with a session of their own outlive its group."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state parent ...", where the name may hold anything
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = list(children.get(root, ()))
    for number in found:  # grows as we go
        found += children.get(number, ())
    return found
