"""The OpenAI-compatible provider against a real local HTTP server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tvm_vibegemm.config import Settings
from tvm_vibegemm.errors import ProviderError
from tvm_vibegemm.generator.openai_provider import OpenAIProvider
from tvm_vibegemm.generator.provider import Message, load_provider

ASK = [Message("system", "Terse."), Message("user", "Write a kernel.")]
PATH = "/v1/chat/completions"
KEY = "sk-not-to-be-shown"


def answer(content: str | None = "done", reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "1", "object": "chat.completion", "created": 0, "model": "m-2",
        "choices": [
            {
                "index": 0, "finish_reason": reason,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }  # fmt: skip


class Server:
    """Gives the responses in order, and keeps what was asked and how long was waited."""

    def __init__(self, http: HTTPServer) -> None:
        self.http = http
        self.requests: list[dict[str, Any]] = []
        self.waits: list[float] = []

    def serve(self, *responses: Response | dict[str, Any]) -> None:
        left = list(responses)

        def handle(request: Request) -> Response:
            assert request.headers["Authorization"] == f"Bearer {KEY}"
            self.requests.append(request.get_json())
            body = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(body, Response):
                return body
            return Response(json.dumps(body), content_type="application/json")

        self.http.expect_request(PATH, method="POST").respond_with_handler(handle)

    def provider(self, **options: Any) -> OpenAIProvider:
        config = Settings(api_key=KEY, model="m", base_url=self.http.url_for("/v1"))
        loaded = load_provider("openai", config, sleep=self.waits.append, **options)
        assert isinstance(loaded, OpenAIProvider)
        return loaded


@pytest.fixture
def server(httpserver: HTTPServer) -> Server:
    return Server(httpserver)


def test_asks_and_reads(server: Server) -> None:
    server.serve(answer("a kernel"))
    reply = server.provider().complete(ASK)
    assert (reply.text, reply.model, reply.finish_reason) == ("a kernel", "m-2", "stop")
    assert reply.usage["total_tokens"] == 12
    assert server.requests[0]["model"] == "m"
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "Terse."},
        {"role": "user", "content": "Write a kernel."},
    ]


def test_retry_after_is_honoured(server: Server) -> None:
    busy = Response("{}", status=429, headers={"Retry-After": "7"})
    server.serve(busy, Response("{}", status=503), answer())
    assert server.provider().complete(ASK).text == "done"
    assert server.waits == [7.0, 2.0]


def test_a_longer_wait_than_allowed_is_an_error(server: Server) -> None:
    server.serve(Response("{}", status=429, headers={"Retry-After": "9999"}))
    with pytest.raises(ProviderError, match="asks to wait 9999 s"):
        server.provider().complete(ASK)
    assert server.waits == []


def test_gives_up(server: Server) -> None:
    server.serve(Response("{}", status=500))
    with pytest.raises(ProviderError, match="no answer after 3 requests; last: status 500"):
        server.provider(retries=2).complete(ASK)
    assert len(server.requests) == 3


def test_a_wrong_key_is_not_tried_again_and_not_shown(server: Server) -> None:
    server.serve(Response(json.dumps({"error": {"message": "bad\nkey"}}), status=401,
                          content_type="application/json"))  # fmt: skip
    with pytest.raises(ProviderError, match="status 401") as caught:
        server.provider().complete(ASK)
    assert len(server.requests) == 1
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (answer(reason="length"), "cut off at the token limit"),
        (answer(reason="content_filter"), "refused by a filter"),
        (answer(None, refusal="I will not"), "refused: I will not"),
        (answer("  \n"), "empty answer"),
        (answer(None), "empty answer"),
        ({**answer(), "choices": []}, "without choices"),
        ({}, "without choices"),
        (Response("<html>", content_type="text/html"), "without choices"),
        (Response("{not json", content_type="application/json"), "not JSON"),
    ],
)
def test_no_answer_is_one_line(server: Server, body: Any, says: str) -> None:
    server.serve(body)
    with pytest.raises(ProviderError, match=says) as caught:
        server.provider(retries=0).complete(ASK)
    assert "\n" not in str(caught.value)


def test_timeout(server: Server) -> None:
    def slow(_: Request) -> Response:
        import time

        time.sleep(1)
        return Response("{}")

    server.http.expect_request(PATH).respond_with_handler(slow)
    with pytest.raises(ProviderError, match="timed out"):
        server.provider(retries=0, timeout_s=0.2).complete(ASK)


def test_no_connection() -> None:
    provider = OpenAIProvider("m", KEY, "http://127.0.0.1:9/v1", retries=1, sleep=lambda _: None)
    with pytest.raises(ProviderError, match=r"no connection to http://127\.0\.0\.1:9"):
        provider.complete(ASK)


def test_settings_fall_back_to_openai(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    empty = Settings(api_key=None, model=None, base_url=None)
    with pytest.raises(ProviderError, match="set VIBEGEMM_API_KEY"):
        load_provider("openai", empty)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ProviderError, match="set VIBEGEMM_MODEL"):
        load_provider("openai", empty)
    monkeypatch.setenv("OPENAI_MODEL", "other")
    monkeypatch.setenv("OPENAI_BASE_URL", server.http.url_for("/v1"))
    server.serve(answer())
    load_provider("openai", empty).complete(ASK)
    assert server.requests[0]["model"] == "other"
