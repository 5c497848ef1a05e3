"""Servers at a daemon's address: a stub with prepared answers, and the API itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

if TYPE_CHECKING:
    from tests.api.api_fixture import ApiFixture

Result = TypeVar("Result")


class StubRequest(NamedTuple):
    method: str
    path: str
    body: bytes
    authorization: str | None = None

    @property
    def ids(self) -> list[str]:
        """The ids in the lines of an NDJSON body."""
        return [json.loads(line)["id"] for line in self.body.splitlines()]


class StubAnswer(NamedTuple):
    """An answer. `body` is sent as JSON unless it is bytes; with `cut` the connection ends in the middle of it."""

    status: int
    body: Any = b""
    retry_after: str | None = None
    cut: bool = False


Answers = Callable[[StubRequest], StubAnswer]


class StubServer:
    """A server that gives these answers in turn, and the last of them from then on. It counts its connections."""

    def __init__(self, *answers: StubAnswer | Answers, protocol: str = "HTTP/1.0") -> None:
        self.requests: list[StubRequest] = []
        self.connections = 0
        self._answers = answers
        handler = type("BoundHandler", (_Handler,), {"stub": self, "protocol_version": protocol})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: StubRequest) -> StubAnswer:
        answer = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(request)
        return answer if isinstance(answer, StubAnswer) else answer(request)

    @contextmanager
    def running(self) -> Iterator[StubServer]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.002})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stub: StubServer

    def setup(self) -> None:
        super().setup()
        self.stub.connections += 1

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.stub.answer(StubRequest(self.command, self.path, body, self.headers.get("Authorization")))
        sent = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(sent)))
        if answer.retry_after is not None:
            self.send_header("Retry-After", answer.retry_after)
        self.end_headers()
        self.wfile.write(sent[: len(sent) // 2] if answer.cut else sent)
        self.close_connection = self.close_connection or answer.cut

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the tests' output."""


def stub_server(*answers: StubAnswer | Answers, protocol: str = "HTTP/1.0") -> AbstractContextManager[StubServer]:
    """Run a `StubServer` in a context."""
    return StubServer(*answers, protocol=protocol).running()


def create_all(request: StubRequest) -> StubAnswer:
    """Answer that each task was created."""
    return StubAnswer(200, batch_body(*({"id": id, "created": True} for id in request.ids)))


def problem(status: int, detail: str = "come again", retry_after: str | None = None) -> StubAnswer:
    return StubAnswer(status, {"status": status, "detail": detail}, retry_after)


def batch_body(*results: dict[str, Any]) -> dict[str, Any]:
    """Build the answer to `/create/batch` with these results."""
    errors = [result["error"] for result in results if "error" in result]
    refused = sum(error["status"] < 500 for error in errors)
    return {
        "created": sum(result.get("created") is True for result in results),
        "existing": sum(result.get("created") is False for result in results),
        "refused": refused,
        "failed": len(errors) - refused,
        "results": list(results),
    }


def error_result(status: int, detail: str, **more: Any) -> dict[str, Any]:
    return {"error": {"status": status, "detail": detail, **more}}


class ApiServer(NamedTuple):
    """The API, listening, for synchronous callers."""

    url: str
    fixture: ApiFixture
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the API's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@contextmanager
def api_server(**options: Any) -> Iterator[ApiServer]:
    """Run the API in a context."""
    pytest.importorskip("redis", reason="the API needs the server, unlike the stub")
    from tests.api.api_fixture import serve_api

    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        fixture = asyncio.run_coroutine_threadsafe(stack.enter_async_context(serve_api(**options)), loop).result()
        try:
            yield ApiServer(str(fixture.http.make_url("/")).rstrip("/"), fixture, loop)
        finally:
            asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
