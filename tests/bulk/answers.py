"""What may stand at a daemon's address: one that is told what to answer, and the API itself, on a store in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from tests.api.front import Front, a_front

Result = TypeVar("Result")


class Asked(NamedTuple):
    method: str
    path: str
    body: bytes

    @property
    def ids(self) -> list[str]:
        """Of an NDJSON body's lines."""
        return [json.loads(line)["id"] for line in self.body.splitlines()]


class Answer(NamedTuple):
    """`body` goes as JSON unless it is bytes; with `cut` the connection ends in the middle of it."""

    status: int
    body: Any = b""
    retry_after: str | None = None
    cut: bool = False


Answers = Callable[[Asked], Answer]


class Told:
    """A server that gives these answers one after the other, and the last of them for ever."""

    def __init__(self, *answers: Answer | Answers) -> None:
        self.asked: list[Asked] = []
        self._answers = answers
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"told": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, asked: Asked) -> Answer:
        answer = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append(asked)
        return answer if isinstance(answer, Answer) else answer(asked)

    @contextmanager
    def running(self) -> Iterator[Told]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.002})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    told: Told

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.told.answer(Asked(self.command, self.path, body))
        sent = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(sent)))
        if answer.retry_after is not None:
            self.send_header("Retry-After", answer.retry_after)
        self.end_headers()
        self.wfile.write(sent[: len(sent) // 2] if answer.cut else sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Not into the tests' output."""


def told(*answers: Answer | Answers) -> AbstractContextManager[Told]:
    """A `Told`, running, as a context."""
    return Told(*answers).running()


def taken(asked: Asked) -> Answer:
    """All that was sent is created."""
    ids = asked.ids
    return Answer(200, batch(*({"id": id, "created": True} for id in ids)))


def problem(status: int, detail: str = "come again", retry_after: str | None = None) -> Answer:
    return Answer(status, {"status": status, "detail": detail}, retry_after)


def batch(*results: dict[str, Any]) -> dict[str, Any]:
    """The answer to `/create/batch` with these results."""
    errors = [result["error"] for result in results if "error" in result]
    refused = sum(error["status"] < 500 for error in errors)
    return {
        "created": sum(result.get("created") is True for result in results),
        "existing": sum(result.get("created") is False for result in results),
        "refused": refused,
        "failed": len(errors) - refused,
        "results": list(results),
    }


def wrong(status: int, detail: str, **more: Any) -> dict[str, Any]:
    return {"error": {"status": status, "detail": detail, **more}}


class Served(NamedTuple):
    """The API, for callers that wait."""

    url: str
    front: Front
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do it behind the API."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@contextmanager
def served(**options: Any) -> Iterator[Served]:
    """The API, listening."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        front = asyncio.run_coroutine_threadsafe(stack.enter_async_context(a_front(**options)), loop).result()
        try:
            yield Served(str(front.http.make_url("/")).rstrip("/"), front, loop)
        finally:
            asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
