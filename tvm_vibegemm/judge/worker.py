"""Workers: processes that own a GPU each, run one job at a time, and may be killed for it.

A kernel under test may hang, corrupt its context or take its process down. None of this reaches us,
nor the next job: the worker is killed with all that it started, and the next job gets a new one.
Importing this imports no TVM.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from ..errors import InputError
from .child import TICK_S, Cancelled, Child, Ended, Expired, scrubbed
from .protocol import (
    ProtocolError,
    WorkerFailure,
    WorkerStartError,
    decode,
    encode,
    one_line,
    read_reply,
)
from .verdict import Reason

HANDLER = "tvm_vibegemm.judge.job:run_job"
#: Seconds that a worker may take until it is ready for its first job (TVM's import, mostly).
START_LIMIT_S = 120.0


def _ignore(_: str) -> None:
    pass


class Worker:
    """One process on one GPU, started by the first job and again after each death.

    Parameters
    ----------
    device
        Number of the GPU, as the handler gets it.
    handler
        ``module:function`` with the signature ``(job: dict, device: int, progress:
        Callable[[str], None]) -> JSON``; its module is imported in the worker, not here.
    env
        Variables for the worker beside the scrubbed environment.
    on_progress
        Receives a job's lines of progress, in the thread that called :meth:`run`.

    Raises
    ------
    InputError
        ``handler`` is no ``module:function``, or ``env`` names a secret.

    Examples
    --------
    >>> with Worker(handler="builtins:divmod") as worker:  # not a handler: it fails, and says so
    ...     worker.run({}, timeout_s=10)
    Traceback (most recent call last):
    ...
    tvm_vibegemm.judge.protocol.WorkerFailure: TypeError: divmod expected 2 arguments, got 3
    """

    def __init__(
        self,
        device: int = 0,
        handler: str = HANDLER,
        env: Mapping[str, str] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        module, _, function = handler.partition(":")
        if not module or not function:
            raise InputError(f"the handler {handler!r} is not of the form module:function")
        scrubbed({}, env)
        self.device = device
        self._handler = handler
        self._env = env
        self._on_progress = on_progress or _ignore
        self._child: Child | None = None
        self._dying: Child | None = None
        self._ids = itertools.count(1)
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process's number; None before the first job, and after a death."""
        return self._child.pid if self._child else None

    @property
    def stderr(self) -> str:
        """The end of what the process, while there is one, wrote to stderr."""
        return self._child.stderr if self._child else ""

    def run(self, job: Mapping[str, Any], timeout_s: float) -> Any:
        """Run one job and return its result.

        Parameters
        ----------
        job
            JSON values, at most 16 MiB of them.
        timeout_s
            Seconds that it may take. A worker's start is not counted.

        Returns
        -------
        Any
            What the handler returned, once through JSON.

        Raises
        ------
        WorkerFailure
            With its reason: ``TIMEOUT`` (the worker was killed), ``CRASHED`` (it died, or what it
            said was no answer), what the handler's exception says otherwise; ``SOURCE_REFUSED``
            where the job is too large to be sent.
        WorkerStartError
            The worker did not start, so nothing is known of the job.
        InputError
            ``timeout_s`` is not positive.
        """
        return self._run(job, timeout_s, lambda: False)

    def _run(self, job: Mapping[str, Any], timeout_s: float, cancelled: Callable[[], bool]) -> Any:
        if not timeout_s > 0:
            raise InputError(f"a time limit of {timeout_s} s: it must be positive")
        with self._lock:
            identity = str(next(self._ids))
            try:
                request = encode({"id": identity, "job": dict(job)})
            except ProtocolError as error:
                raise WorkerFailure(
                    Reason.SOURCE_REFUSED, f"the job cannot be sent: {error}"
                ) from None
            try:
                child = self._ready(cancelled)
                kind, value = self._talk(child, identity, request, timeout_s, cancelled)
            except BaseException:  # its own failures, Ctrl-C, an error of on_progress
                self._discard()
                raise
            if kind == "result":
                return value
            if value["fatal"]:
                self._discard()
            raise WorkerFailure(value["reason"], value["message"])

    def _talk(
        self,
        child: Child,
        identity: str,
        request: bytes,
        timeout_s: float,
        cancelled: Callable[[], bool],
    ) -> tuple[str, Any]:
        lines = child.lines(request, time.monotonic() + timeout_s, cancelled)
        step = ""
        while True:
            try:
                kind, value = read_reply(next(lines), identity)
            except Expired:
                last = f", last heard: {step}" if step else ""
                raise WorkerFailure(
                    Reason.TIMEOUT, f"no end within {timeout_s:g} s on device {self.device}{last}"
                ) from None
            except Ended:
                raise WorkerFailure(Reason.CRASHED, f"the worker {child.obituary()}") from None
            except ProtocolError as error:
                raise WorkerFailure(
                    Reason.CRASHED, f"the worker's reply is refused: {error}"
                ) from None
            if kind != "progress":
                return kind, value
            step = value
            self._on_progress(step)

    def _ready(self, cancelled: Callable[[], bool]) -> Child:
        """Return a process that waits for a job; what an earlier job left behind is not one."""
        if self._child is not None and not self._child.idle():
            self._discard()
        if self._child is not None:
            return self._child
        if self._dying is not None:
            limit = time.monotonic() + START_LIMIT_S
            while not self._dying.reap(TICK_S):
                if cancelled():
                    raise Cancelled
                if time.monotonic() > limit:
                    self._fail(f"process {self._dying.pid} was killed and still holds it")
            self._dying = None
        try:
            child = self._child = Child(self.device, self._handler, self._env)
        except OSError as error:
            self._fail(str(error))
        try:
            lines = child.lines(b"", time.monotonic() + START_LIMIT_S, cancelled)
            greeting = decode(next(lines))
        except Expired:
            self._fail(f"not ready within {START_LIMIT_S:g} s")
        except Ended:
            self._fail(f"the process {child.obituary()}")
        except ProtocolError as error:
            self._fail(str(error))
        if greeting != {"ready": child.pid}:
            self._fail(one_line(str(greeting.get("failed", "no greeting"))))
        return child

    def _fail(self, why: str) -> NoReturn:
        raise WorkerStartError(f"no worker starts on device {self.device}: {why}") from None

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child is not None and not child.kill():
            self._dying = child

    def close(self) -> None:
        """End the process and all that it started; a later job starts a new one."""
        with self._lock:
            self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class WorkerPool:
    """Several workers that share out a list of jobs.

    Parameters
    ----------
    devices
        Numbers of the GPUs, one worker each.
    handler, env
        As for :class:`Worker`.
    on_progress
        Receives ``(device, line)``, in the thread of that device's worker.

    Raises
    ------
    InputError
        No device, or what :class:`Worker` refuses.
    """

    def __init__(
        self,
        devices: Sequence[int],
        handler: str = HANDLER,
        env: Mapping[str, str] | None = None,
        on_progress: Callable[[int, str], None] | None = None,
    ) -> None:
        if not devices:
            raise InputError("a pool of workers needs a device")

        def speaker(device: int) -> Callable[[str], None] | None:
            if on_progress is None:
                return None
            return lambda line: on_progress(device, line)

        self.workers = tuple(Worker(device, handler, env, speaker(device)) for device in devices)

    def map(
        self, jobs: Iterable[Mapping[str, Any]], timeout_s: float
    ) -> Iterator[tuple[int, Any | WorkerFailure]]:
        """Run every job once and yield its number and outcome, in the order of their ends.

        A job whose worker does not start goes to another device; that device gets no further job
        of this call. Only when none is left do jobs fail for it.

        Parameters
        ----------
        jobs
            As for :meth:`Worker.run`.
        timeout_s
            Seconds for each job.

        Yields
        ------
        tuple
            ``(index into jobs, result)``, or ``(index, WorkerFailure)``.

        Raises
        ------
        BaseException
            Any other error of a worker's thread (``on_progress`` raised, say). Then, upon Ctrl-C
            and when the iteration is given up, every worker is killed.
        """
        share = _Share(list(jobs))
        threads = [
            threading.Thread(target=_work, args=(worker, share, timeout_s), daemon=True)
            for worker in self.workers
        ]
        try:
            for thread in threads:
                thread.start()
            hindrance: WorkerStartError | None = None
            left = len(threads)
            while left:
                event = share.next()
                if isinstance(event, tuple):
                    yield event
                    continue
                left -= 1
                if isinstance(event, WorkerStartError):
                    hindrance = event
                elif event is not None:
                    raise event
            for index in share.waiting:
                assert hindrance is not None
                yield index, hindrance
        except BaseException:
            share.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            self.close()
            raise

    def close(self) -> None:
        """End every worker's process; a later job starts new ones."""
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Share:
    """The jobs that wait, and what becomes of them.

    ``events`` holds an outcome as a tuple; and for each thread that leaves what it left for: None
    where no job was to be had, else the error.
    """

    def __init__(self, jobs: list[Mapping[str, Any]]) -> None:
        self.jobs = jobs
        self.waiting = deque(range(len(jobs)))
        self.events: queue.SimpleQueue[tuple[int, Any] | BaseException | None]
        self.events = queue.SimpleQueue()
        self.stopped = False
        self._running = 0
        self._changed = threading.Condition()

    def next(self) -> tuple[int, Any] | BaseException | None:
        """Return the next event; wakes up often, so that Ctrl-C is heard at once.

        A signal that another thread happens to receive does not end a wait of the main one.
        """
        while True:
            try:
                return self.events.get(timeout=TICK_S)
            except queue.Empty:
                continue

    def take(self) -> int | None:
        """Return a job's number; None when there are none, and none can come back."""
        with self._changed:
            while not self.stopped:
                if self.waiting:
                    self._running += 1
                    return self.waiting.popleft()
                if not self._running:
                    break
                self._changed.wait()
            return None

    def done(self, again: int | None = None) -> None:
        """Note that a job has ended, or must be run by another."""
        with self._changed:
            self._running -= 1
            if again is not None:
                self.waiting.appendleft(again)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let every thread leave, and kill what it runs."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()


def _work(worker: Worker, share: _Share, timeout_s: float) -> None:
    reason: BaseException | None = None
    while reason is None and (index := share.take()) is not None:
        again = None
        try:
            share.events.put(
                (index, worker._run(share.jobs[index], timeout_s, lambda: share.stopped))
            )
        except WorkerStartError as error:
            reason, again = error, index
        except WorkerFailure as error:
            share.events.put((index, error))
        except BaseException as error:  # for the caller's thread to raise
            reason = error
        share.done(again)
    share.events.put(reason)
