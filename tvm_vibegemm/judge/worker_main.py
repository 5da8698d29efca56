"""The worker's own process: takes jobs from its stdin, answers on a descriptor of its own.

``python -m tvm_vibegemm.judge.worker_main --device N --reply-fd F [--handler module:function]``;
:class:`tvm_vibegemm.judge.worker.Worker` starts it. Only the standard library is imported before
the process is bound to its parent's life, and TVM comes with the handler.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .protocol import (
    MAX_BYTES,
    FatalDeviceError,
    ProtocolError,
    encode,
    one_line,
    read_request,
)
from .verdict import Reason, reason_of

Handler = Callable[[dict[str, Any], int, Callable[[str], None]], Any]

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> NoReturn:
    """Serve jobs until the parent closes our stdin or dies, or a device error is fatal."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parser = argparse.ArgumentParser(prog="python -m tvm_vibegemm.judge.worker_main")
    parser.add_argument("--device", type=int, required=True)
    parser.add_argument("--reply-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, default=os.getppid())
    parser.add_argument("--handler", default="tvm_vibegemm.judge.job:run_job")
    options = parser.parse_args(arguments)
    if os.getppid() != options.parent_pid:  # it died before prctl could tell us
        sys.exit(1)

    replies = _Replies(options.reply_fd)
    requests = _take_stdin()
    _guard_group(requests, replies.descriptor)
    # A core file of a process that maps a GPU can be tens of gigabytes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        handler = _load(options.handler)
    except Exception as error:
        traceback.print_exc()
        replies.send(encode({"failed": _say(error)}))
        sys.exit(1)
    replies.send(encode({"ready": os.getpid()}))

    stream = open(requests, "rb", closefd=False)  # noqa: SIM115  as long as the process
    while line := stream.readline(MAX_BYTES + 1):
        if len(line) > MAX_BYTES or not line.endswith(b"\n"):
            sys.exit("a request over the cap, or cut short")
        _serve(line, handler, options.device, replies)
    sys.exit(0)


class _Replies:
    """The way back to the parent, which whatever the handler starts does not inherit."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.descriptor = descriptor
        # A handler may report progress from several threads.
        self.lock = threading.RLock()

    def send(self, line: bytes) -> None:
        with self.lock:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self.descriptor, view) :]
            except BrokenPipeError:  # the parent has gone
                os._exit(1)


def _take_stdin() -> int:
    """Move the requests off descriptor 0, where code that reads its stdin would eat them."""
    requests = os.dup(0)  # not inherited
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return requests


def _guard_group(requests: int, replies: int) -> None:
    """Leave a process behind that kills our group when the parent has gone.

    The parent's death kills this process at once, and with it all knowledge of what it started (a
    compiler, a sanitizer). And while a handler hangs in a library, no thread of ours may run. So a
    small process waits for the last writer of our stdin to vanish.
    """
    if os.getpgrp() != os.getpid():  # started by hand: never kill the group of a shell
        os.setsid()
    if os.fork():
        return
    try:
        os.close(replies)  # or the parent would not see the worker's end
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        waiter = select.poll()
        waiter.register(requests, 0)  # hang-up alone; requests are not ours to read
        waiter.poll()
        os.kill(0, signal.SIGKILL)
    finally:
        os._exit(1)


def _load(name: str) -> Handler:
    module, _, function = name.partition(":")
    handler: Handler = getattr(importlib.import_module(module), function)
    return handler


def _serve(line: bytes, handler: Handler, device: int, replies: _Replies) -> None:
    identity, job = read_request(line)
    running = True

    def progress(text: str) -> None:
        with replies.lock:
            if running:  # a thread that outlives its job must not speak into the next one
                replies.send(encode({"id": identity, "progress": one_line(str(text))}))

    fatal = False
    try:
        result = handler(job, device, progress)
        answer = encode({"id": identity, "result": result})
    except ProtocolError as error:
        answer = _error(identity, Reason.CRASHED, f"the job's result: {error}", False)
    except Exception as error:
        traceback.print_exc()
        fatal = isinstance(error, FatalDeviceError)
        answer = _error(identity, _reason(error), _say(error), fatal)
    with replies.lock:
        running = False
        replies.send(answer)
    if fatal:
        # Not through the interpreter's end: destructors of a lost context hang or abort.
        sys.stderr.flush()
        os._exit(1)


def _error(identity: str, reason: Reason, message: str, fatal: bool) -> bytes:
    error: Mapping[str, Any] = {"reason": reason.value, "message": message, "fatal": fatal}
    return encode({"id": identity, "error": error})


def _reason(error: Exception) -> Reason:
    own = getattr(error, "reason", None)
    if isinstance(own, Reason) and own is not Reason.ACCEPTED:
        return own
    return reason_of(error, Reason.CRASHED)


def _say(error: Exception) -> str:
    """Name an error that is not ours by its type too: a bare ``'x'`` says nothing."""
    text = one_line(str(error))
    ours = type(error).__module__.startswith(f"{__package__.partition('.')[0]}.")
    return text if ours and text else f"{type(error).__name__}: {text}".removesuffix(": ")


if __name__ == "__main__":
    main()
