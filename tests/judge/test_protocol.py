"""The judge's messages: what is let through, and that nothing else is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from tvm_vibegemm.judge.protocol import (
    LineBuffer,
    ProtocolError,
    WorkerFailure,
    WorkerStartError,
    decode,
    encode,
    one_line,
    read_reply,
    read_request,
)
from tvm_vibegemm.judge.verdict import Reason


@pytest.mark.parametrize(
    "job", [{}, {"text": "line\nline\u2028\x00é\ud800"}, {"n": [1, -2.5, 1e-300, None, True]}]
)
def test_a_request_comes_back_as_it_was(job: dict[str, Any]) -> None:
    line = encode({"id": "7", "job": job})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert read_request(line) == ("7", job)


def test_the_cap_counts_every_byte_of_the_line() -> None:
    exact = len(encode({"x": "y"}))
    assert encode({"x": "y"}, cap=exact)
    with pytest.raises(ProtocolError, match=f"{exact} bytes, more than the {exact - 1} allowed"):
        encode({"x": "y"}, cap=exact - 1)
    # Escapes are counted as they are sent.
    with pytest.raises(ProtocolError, match="bytes"):
        encode({"x": "é" * 10}, cap=40)


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, b"bytes", object(), _deep()])
def test_what_is_no_json_is_not_sent(value: Any) -> None:
    with pytest.raises(ProtocolError, match="no JSON") as caught:
        encode({"x": value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b'{"x": 1',
        b'{"x": NaN}',
        b'{"x": -Infinity}',
        b'{"x": 1e999}',
        b'{"x": "\xff"}',
        b'{"x": 1} {"y": 2}',
        "{}".encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"[" * 200_000,
        b'{"x": ' + b"9" * 5000 + b"}",
        b"[1]",
        b"null",
        b'"text"',
    ],
)
def test_what_is_no_json_object_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(line)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        {"id": "1"},
        {"job": {}},
        {"id": 1, "job": {}},
        {"id": "1", "job": []},
        {"id": "1", "job": {}, "more": 1},
    ],
)
def test_a_request_has_an_id_and_a_job(message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="an id and a job"):
        read_request(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ({"progress": "a\nb"}, ("progress", "a b")),
        ({"result": None}, ("result", None)),
        ({"result": {"error": 1}}, ("result", {"error": 1})),
        (
            {"error": {"reason": "timeout", "message": "m\nn", "fatal": False}},
            ("error", {"reason": Reason.TIMEOUT, "message": "m n", "fatal": False}),
        ),
    ],
)
def test_replies(body: dict[str, Any], want: tuple[str, Any]) -> None:
    assert read_reply(encode({"id": "1", **body}), "1") == want


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"id": "2", "result": 1}, "another job"),
        ({"id": 1, "result": 1}, "another job"),
        ({"result": 1}, "another job"),
        ({"id": "1"}, "one progress line, one result or one error"),
        ({"id": "1", "result": 1, "error": {}}, "one progress line"),
        ({"id": "1", "progress": 3}, "one progress line"),
        ({"id": "1", "verdict": "accepted"}, "one progress line"),
        ({"id": "1", "error": "text"}, "one progress line"),
        ({"id": "1", "error": {"reason": "new", "message": "", "fatal": False}}, "not in the list"),
        ({"id": "1", "error": {"reason": [], "message": "", "fatal": False}}, "not in the list"),
        ({"id": "1", "error": {"reason": "crashed", "message": 1, "fatal": False}}, "fatal"),
        ({"id": "1", "error": {"reason": "crashed", "message": "", "fatal": 0}}, "fatal"),
        ({"id": "1", "error": {"reason": "accepted", "message": "", "fatal": False}}, "fatal"),
    ],
)
def test_every_other_reply_is_refused(message: dict[str, Any], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        read_reply(encode(message), "1")


def test_lines_come_out_however_the_bytes_come_in() -> None:
    text = b"one\n\ntwo\nthree"
    for step in range(1, len(text) + 1):
        buffer, lines = LineBuffer(), []
        for start in range(0, len(text), step):
            buffer.feed(text[start : start + step])
            while (line := buffer.pop()) is not None:
                lines.append(line)
        assert lines == [b"one", b"", b"two"]
        assert len(buffer) == len(b"three")


def test_a_line_over_the_cap_is_refused_before_and_with_its_end() -> None:
    buffer = LineBuffer(cap=4)
    buffer.feed(b"abc\n")
    assert buffer.pop() == b"abc"
    buffer.feed(b"abcd")
    assert buffer.pop() is None
    buffer.feed(b"\n")
    with pytest.raises(ProtocolError, match="4 bytes"):
        buffer.pop()
    endless = LineBuffer(cap=4)
    endless.feed(b"abcde")
    with pytest.raises(ProtocolError, match="4 bytes"):
        endless.pop()


def test_a_failure_is_one_line_with_its_reason() -> None:
    failure = WorkerFailure(Reason.TIMEOUT, "a\nb")
    assert (failure.reason, str(failure)) == (Reason.TIMEOUT, "a b")
    assert isinstance(WorkerStartError("x"), WorkerFailure)
    assert one_line("a  b\n" * 10_000, 7) == "a b a b"


def test_neither_side_imports_anything_heavy() -> None:
    code = (
        "import tvm_vibegemm.judge.worker, tvm_vibegemm.judge.worker_main, sys;"
        "print(*{'tvm', 'tvm_ffi', 'numpy', 'pydantic', 'cuda', 'pickle'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []
