"""The worker survives whatever a job does, and the next job is unaffected. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.errors import InputError
from tvm_vibegemm.judge import worker as worker_module
from tvm_vibegemm.judge.child import scrubbed
from tvm_vibegemm.judge.protocol import MAX_BYTES, WorkerFailure, WorkerStartError
from tvm_vibegemm.judge.verdict import Reason
from tvm_vibegemm.judge.worker import Worker, WorkerPool

# Whatever put these tests on the path names the module of handlers.
HANDLER = f"{__package__}.worker_handlers:handle"
BAD_START = f"{__package__}.worker_bad_start:handle"
LIMIT = 30.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(handler=HANDLER) as it:
        yield it


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Any, seconds: float = 5.0) -> bool:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return bool(condition())


def fails(worker: Worker, reason: Reason, timeout_s: float = LIMIT, **job: Any) -> str:
    """Run a job that must fail, then one that must not, and return the failure's message."""
    with pytest.raises(WorkerFailure) as caught:
        worker.run(job, timeout_s)
    assert caught.value.reason is reason
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1500
    assert worker.run({"do": "echo", "value": 5}, LIMIT)["value"] == 5
    return message


# --- honest jobs


def test_jobs_in_a_row_share_a_process() -> None:
    with Worker(3, HANDLER) as worker:
        assert worker.pid is None
        first = worker.run({"do": "echo", "value": {"a": [1, "é\n", None]}}, LIMIT)
        assert first == {"pid": worker.pid, "device": 3, "value": {"a": [1, "é\n", None]}}
        assert all(worker.run({"do": "echo"}, LIMIT)["pid"] == worker.pid for _ in range(20))
        pid = worker.pid
    assert pid is not None and not alive(pid) and worker.pid is None


def test_a_closed_worker_starts_again(worker: Worker) -> None:
    before = worker.run({"do": "echo"}, LIMIT)["pid"]
    worker.close()
    worker.close()
    assert worker.run({"do": "echo"}, LIMIT)["pid"] != before


def test_progress_arrives_in_order_as_single_lines() -> None:
    heard: list[str] = []
    with Worker(handler=HANDLER, on_progress=heard.append) as worker:
        assert worker.run({"do": "steps"}, LIMIT) is None
    assert heard == ["one two", "three"]


def test_prints_and_reads_of_a_handler_disturb_nothing(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = worker.run({"do": "echo"}, LIMIT)["pid"]
    assert worker.run({"do": "print"}, LIMIT) == {"read": ""}
    assert worker.run({"do": "echo"}, LIMIT)["pid"] == pid
    assert capfd.readouterr() == ("", "")


def test_messages_up_to_the_cap_pass_in_both_directions(worker: Worker) -> None:
    text, length = worker.run({"do": "large", "value": "v" * (MAX_BYTES - 1000)}, LIMIT)
    assert (len(text), length) == (MAX_BYTES - 1000, MAX_BYTES - 1000)


def test_noise_on_stderr_neither_blocks_nor_piles_up(worker: Worker) -> None:
    assert worker.run({"do": "stderr_flood"}, LIMIT) == "done"
    assert worker.run({"do": "echo"}, LIMIT)
    assert 0 < len(worker.stderr) <= 1 << 14
    assert "noise 19999" in worker.stderr


def test_only_the_handler_brings_more_than_the_standard_library(worker: Worker) -> None:
    assert not {"tvm", "tvm_ffi", "numpy", "pydantic"} & set(worker.run({"do": "modules"}, LIMIT))


def test_its_own_session_and_no_core_files(worker: Worker) -> None:
    assert worker.run({"do": "limits"}, LIMIT) == {"core": 0, "leader": True}


# --- jobs that fail


def test_an_exception_is_one_line_and_the_worker_stays(worker: Worker) -> None:
    pid = worker.run({"do": "echo"}, LIMIT)["pid"]
    assert fails(worker, Reason.CRASHED, do="raise") == "ValueError: first line second line"
    assert fails(worker, Reason.PLAN_REFUSED, do="raise_ours") == "the plan's grid is empty"
    assert fails(worker, Reason.CRASHED, do="raise_long").startswith("ValueError: xxx")
    assert fails(worker, Reason.CRASHED, do="no such deed") == "KeyError: 'no such deed'"
    assert worker.pid == pid


def test_a_result_that_cannot_be_sent_is_a_failure_of_the_job(worker: Worker) -> None:
    assert "bytes, more than the" in fails(worker, Reason.CRASHED, do="huge")
    assert "no JSON" in fails(worker, Reason.CRASHED, do="nan")


def test_a_fatal_device_error_costs_the_process(worker: Worker) -> None:
    pid = worker.run({"do": "echo"}, LIMIT)["pid"]
    assert "ILLEGAL_ADDRESS" in fails(worker, Reason.CRASHED, do="fatal")
    assert worker.pid != pid and not alive(pid)
    assert "LAUNCH_FAILED" in fails(worker, Reason.LAUNCH_FAILED, do="fatal_launch")


@pytest.mark.parametrize("deed", ["hang", "hang_with_gil", "partial", "progress_flood"])
def test_a_hang_ends_at_its_limit(worker: Worker, deed: str) -> None:
    pid = worker.run({"do": "echo"}, LIMIT)["pid"]
    start = time.monotonic()
    with pytest.raises(WorkerFailure, match=r"no end within 0\.7 s on device 0") as caught:
        worker.run({"do": deed}, 0.7)
    assert 0.7 <= time.monotonic() - start < 2.7
    assert caught.value.reason is Reason.TIMEOUT
    assert not alive(pid)
    if deed == "hang":
        assert str(caught.value).endswith("last heard: hanging")
    assert worker.run({"do": "echo"}, LIMIT)["pid"] != pid


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("segfault", "the worker was killed by SIGSEGV: about to fall"),
        ("exit", "the worker ended with exit status 3: last words"),
        ("system_exit", "the worker ended with exit status 4"),
        ("close_reply", "the worker closed its reply channel"),
    ],
)
def test_a_death_is_named(worker: Worker, deed: str, says: str) -> None:
    assert fails(worker, Reason.CRASHED, do=deed) == says


def test_an_endless_line_is_cut_off(worker: Worker) -> None:
    start = time.monotonic()
    assert f"more than the {MAX_BYTES} bytes" in fails(worker, Reason.CRASHED, do="flood")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("garbage\n", "no JSON"),
        ('{"id": "2", "result": NaN}\n', "NaN"),
        ('{"id": "1", "result": "of an earlier job"}\n', "another job"),
        ('{"id": "2", "verdict": "accepted"}\n', "one progress line"),
        ("\n", "no JSON"),
    ],
)
def test_garbage_among_the_replies_is_refused(worker: Worker, text: str, says: str) -> None:
    pid = worker.run({"do": "echo"}, LIMIT)["pid"]
    assert says in fails(worker, Reason.CRASHED, do="raw", text=text)
    assert not alive(pid)


def test_what_is_left_in_the_pipe_does_not_reach_the_next_job(worker: Worker) -> None:
    text = '{"id": "1", "result": "planted"}\n{"id": "2", "result": "planted too"}\n'
    assert worker.run({"do": "raw", "text": text, "then": "return"}, LIMIT) == "planted"
    assert worker.run({"do": "echo", "value": 1}, LIMIT)["value"] == 1


def test_a_thread_that_outlives_its_job_is_not_heard(worker: Worker) -> None:
    pid = worker.run({"do": "late_thread"}, LIMIT)
    time.sleep(0.3)
    assert worker.run({"do": "echo"}, LIMIT)["pid"] == pid


def test_a_death_between_jobs_costs_no_job(worker: Worker) -> None:
    pid = worker.run({"do": "die_later"}, LIMIT)
    assert wait_until(lambda: not alive(pid))
    assert worker.run({"do": "echo"}, LIMIT)["pid"] != pid


def test_a_job_that_cannot_be_sent_is_refused_before(worker: Worker) -> None:
    worker.run({"do": "echo"}, LIMIT)
    pid = worker.pid
    for value in ("v" * MAX_BYTES, float("nan"), object()):
        assert "the job cannot be sent" in fails(
            worker, Reason.SOURCE_REFUSED, do="echo", value=value
        )
    assert worker.pid == pid


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_time_limit_is_positive(worker: Worker, limit: float) -> None:
    with pytest.raises(InputError, match="must be positive"):
        worker.run({"do": "echo"}, limit)


def test_hostile_jobs_in_a_row(worker: Worker) -> None:
    for deed in ("segfault", "fatal", "raise", "exit", "huge", "flood", "system_exit"):
        fails(worker, Reason.CRASHED, do=deed)


# --- start


def test_the_start_does_not_count_as_the_jobs_time() -> None:
    with Worker(handler=BAD_START, env={"START_MODE": "slow"}) as worker:
        assert worker.run({}, 0.5) == 0


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("raise", "device 0: ImportError: no such library"),
        ("exit", "device 0: the process ended with exit status 9: loader's last words"),
        ("hang", "device 0: not ready within 1.5 s"),
    ],
)
def test_a_start_that_fails_is_told_from_a_job_that_fails(
    mode: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "START_LIMIT_S", 1.5)
    with Worker(handler=BAD_START, env={"START_MODE": mode}) as worker:
        for _ in range(2):
            with pytest.raises(WorkerStartError, match=says):
                worker.run({}, LIMIT)
            assert worker.pid is None


@pytest.mark.parametrize("handler", ["", "module", "module:", ":function"])
def test_a_handler_is_a_module_and_a_function(handler: str) -> None:
    with pytest.raises(InputError, match="module:function"):
        Worker(handler=handler)


@pytest.mark.parametrize("handler", ["no_such_module:f", f"{__package__}.worker_handlers:nothing"])
def test_a_handler_that_is_not_there(handler: str) -> None:
    with Worker(handler=handler) as worker, pytest.raises(WorkerStartError, match=r"no_such|noth"):
        worker.run({}, LIMIT)


# --- environment

SECRETS = {
    "OPENAI_API_KEY": "hush",
    "OPENAI_ORG": "hush",
    "AWS_REGION": "hush",
    "VIBEGEMM_API_KEY": "hush",
    "VIBEGEMM_DATABASE": "hush",
    "VIBEGEMM_BASE_URL": "hush",
    "vibegemm_api_key": "hush",
    "CUDA_TOKEN": "hush",
    "XDG_SECRET": "hush",
    "VIBEGEMM_PASSWORD": "hush",
    "VIBEGEMM_MODEL": "https://me:hush@example.org",
    "SOME_OTHER": "hush",
}
HARMLESS = {
    "VIBEGEMM_BUILD_TIMEOUT_S": "17",
    "CUDA_VISIBLE_DEVICES": "0",
    "XDG_CACHE_HOME": "/tmp/cache",
    "LD_LIBRARY_PATH": "/nowhere",
    "NVIDIA_VISIBLE_DEVICES": "all",
}


def test_no_secret_reaches_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **HARMLESS}.items():
        monkeypatch.setenv(name, value)
    with Worker(handler=HANDLER, env={"ASKED_FOR": "yes"}) as worker:
        seen = worker.run({"do": "environment"}, LIMIT)
    assert not [line for line in seen if "hush" in line]
    assert {"ASKED_FOR=yes", *(f"{k}={v}" for k, v in HARMLESS.items())} <= set(seen)


def test_a_secret_that_is_passed_by_hand_is_refused() -> None:
    with pytest.raises(InputError, match="HF_TOKEN looks like a secret"):
        Worker(env={"HF_TOKEN": "x"})
    assert scrubbed({"PATH": "/bin", "USER": "me"}) == {"PATH": "/bin"}


def test_a_module_beside_the_user_shadows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    with Worker(handler=HANDLER) as worker:
        assert worker.run({"do": "echo"}, LIMIT)


# --- death of the whole family


def note(path: Path) -> list[int]:
    assert wait_until(lambda: path.exists() and path.read_text().strip(), 20)
    return [int(word) for word in path.read_text().split()]


def test_a_timeout_kills_all_that_the_job_started(worker: Worker, tmp_path: Path) -> None:
    fails(worker, Reason.TIMEOUT, 1.5, do="grandchildren", note=str(tmp_path / "pids"))
    assert wait_until(lambda: not any(map(alive, note(tmp_path / "pids"))))


def test_a_crash_kills_the_group(worker: Worker, tmp_path: Path) -> None:
    # The fork holds the reply channel open, so that its end alone would not show.
    start = time.monotonic()
    job = {"do": "grandchildren", "note": str(tmp_path / "pids"), "then": "crash"}
    assert "SIGSEGV" in fails(worker, Reason.CRASHED, **job)
    assert time.monotonic() - start < 10
    child, inside, outside, forked = note(tmp_path / "pids")
    assert wait_until(lambda: not any(map(alive, (child, inside, forked))))
    os.kill(outside, signal.SIGKILL)  # a session of its own, and its parent is gone


PARENT = """
import sys, threading
from tvm_vibegemm.judge.worker import Worker
worker = Worker(handler={handler!r})
worker.run({{"do": "echo"}}, 30)
worker.run({{"do": {deed!r}, "note": {note!r}}}, 600)
"""


def parent(deed: str, path: Path) -> subprocess.Popen[bytes]:
    code = PARENT.format(handler=HANDLER, deed=deed, note=str(path))
    folders = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folders},
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("deed", ["grandchildren", "hang_with_gil", "hang_unguarded"])
def test_a_killed_parent_takes_the_worker_with_it(deed: str, tmp_path: Path) -> None:
    process = parent(deed, tmp_path / "pids")
    pids = note(tmp_path / "pids")
    assert all(map(alive, pids))
    process.kill()
    process.communicate()
    strays = [pids.pop(2)] if deed == "grandchildren" else []
    assert wait_until(lambda: not any(map(alive, pids)), 2.0)
    for stray in strays:  # has a session of its own
        os.kill(stray, signal.SIGKILL)


def test_a_worker_whose_parent_is_gone_at_once_does_not_start() -> None:
    command = [sys.executable, "-m", "tvm_vibegemm.judge.worker_main", "--device=0"]
    done = subprocess.run(
        [*command, "--reply-fd=1", f"--handler={HANDLER}", "--parent-pid=1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_ctrl_c_kills_the_worker_and_goes_on_as_ctrl_c(tmp_path: Path) -> None:
    process = parent("grandchildren", tmp_path / "pids")
    pids = note(tmp_path / "pids")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode != 0 and b"KeyboardInterrupt" in err
    assert wait_until(lambda: not any(map(alive, pids)), 2.0)


def test_ctrl_c_in_this_process_kills_at_once(worker: Worker) -> None:
    pid = worker.run({"do": "echo"}, LIMIT)["pid"]
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        worker.run({"do": "hang"}, 60)
    assert time.monotonic() - start < 2 and not alive(pid)
    assert worker.run({"do": "echo"}, LIMIT)["pid"] != pid


def test_a_worker_outlives_the_thread_that_started_it(worker: Worker) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(worker.run({"do": "echo"}, LIMIT)["pid"]))
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert alive(found[0])
    assert worker.run({"do": "echo"}, LIMIT)["pid"] == found[0]


def test_an_error_of_the_listener_is_raised_and_leaves_no_job_behind() -> None:
    def listen(line: str) -> None:
        raise RuntimeError(line)

    with Worker(handler=HANDLER, on_progress=listen) as worker:
        with pytest.raises(RuntimeError, match="hanging"):
            worker.run({"do": "hang"}, LIMIT)
        assert worker.pid is None


def test_no_descriptor_is_left_behind(worker: Worker) -> None:
    worker.run({"do": "echo"}, LIMIT)
    worker.close()
    before = len(os.listdir("/proc/self/fd"))
    for deed in ("exit", "raise"):
        fails(worker, Reason.CRASHED, do=deed)
    worker.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- several workers


def test_two_workers_run_at_the_same_time() -> None:
    with WorkerPool([0, 1], HANDLER) as pool:
        list(pool.map([{"do": "echo"}] * 2, LIMIT))
        jobs = [{"do": "sleep", "seconds": 0.5}] * 2
        (_, first), (_, second) = pool.map(jobs, LIMIT)
    assert {first[0], second[0]} == {0, 1}
    assert max(first[1], second[1]) < min(first[2], second[2])  # their times overlap


def test_each_job_has_one_outcome_and_failures_are_among_them() -> None:
    deeds = ["echo", "raise", "exit", "hang", "segfault", "fatal"] + ["echo"] * 10
    jobs = [{"do": deed, "value": number} for number, deed in enumerate(deeds)]
    with WorkerPool([0, 1], HANDLER) as pool:
        outcomes = dict(pool.map(jobs, 1.0))
        pids = {worker.pid for worker in pool.workers}
        assert list(pool.map([], LIMIT)) == []
    assert sorted(outcomes) == list(range(len(jobs)))
    for number, deed in enumerate(deeds):
        outcome = outcomes[number]
        if deed == "echo":
            assert outcome["value"] == number
        else:
            want = Reason.TIMEOUT if deed == "hang" else Reason.CRASHED
            assert isinstance(outcome, WorkerFailure) and outcome.reason is want
    assert not any(alive(pid) for pid in pids if pid)


def test_progress_says_which_device_it_comes_from() -> None:
    heard: list[tuple[int, str]] = []
    with WorkerPool([4], HANDLER, on_progress=lambda *line: heard.append(line)) as pool:
        list(pool.map([{"do": "steps"}], LIMIT))
    assert heard == [(4, "one two"), (4, "three")]


def test_a_broken_device_takes_no_jobs_from_the_others() -> None:
    with WorkerPool([0, 1], BAD_START, env={"START_MODE": "device-1"}) as pool:
        outcomes = dict(pool.map([{"seconds": 0.2}] * 6, LIMIT))
    assert outcomes == dict.fromkeys(range(6), 0)


def test_when_no_device_is_left_every_job_says_so() -> None:
    with WorkerPool([1, 1], BAD_START, env={"START_MODE": "device-1"}) as pool:
        outcomes = dict(pool.map([{}] * 3, LIMIT))
    assert sorted(outcomes) == [0, 1, 2]
    assert all(isinstance(outcome, WorkerStartError) for outcome in outcomes.values())


def test_ctrl_c_kills_every_worker_of_a_pool() -> None:
    with WorkerPool([0, 1], HANDLER) as pool:
        list(pool.map([{"do": "sleep", "seconds": 0.3}] * 2, LIMIT))
        pids = [worker.pid for worker in pool.workers]
        threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            list(pool.map([{"do": "hang"}], 60))  # the other worker is idle
        assert time.monotonic() - start < 3
        assert not any(alive(pid) for pid in pids if pid)


def test_an_iteration_that_is_given_up_leaves_nothing_running() -> None:
    with WorkerPool([0, 1], HANDLER) as pool:
        outcomes = pool.map([{"do": "echo"}, {"do": "hang"}, {"do": "hang"}], 60)
        _, first = next(outcomes)
        start = time.monotonic()
        outcomes.close()  # type: ignore[attr-defined]
        assert time.monotonic() - start < 3
        assert not alive(first["pid"])
        assert all(worker.pid is None for worker in pool.workers)


def test_an_error_of_the_pools_listener_is_raised() -> None:
    def listen(device: int, line: str) -> None:
        raise RuntimeError(f"{device}: {line}")

    with (
        WorkerPool([0], HANDLER, on_progress=listen) as pool,
        pytest.raises(RuntimeError, match="0: one two"),
    ):
        list(pool.map([{"do": "steps"}] * 3, LIMIT))


def test_a_pool_needs_a_device() -> None:
    with pytest.raises(InputError, match="needs a device"):
        WorkerPool([])
