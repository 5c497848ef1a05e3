"""A stub of later's HTTP API, the tasks in its answers, and a runner of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

import pytest

from later.cli.program import run

Capture = pytest.CaptureFixture[str]

NOW_S = 1_800_000_000.5
"""The time of the fixture `now`, 2027-01-15T08:00:00.5Z."""


class Request(NamedTuple):
    """A request that the stub has received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


class Reply(NamedTuple):
    """An answer: `body` is sent as JSON unless it is bytes; with `lost`, the connection ends in the middle of it."""

    status: int
    body: Any
    retry_after: str | None = None
    lost: bool = False


class ApiStub:
    """A stub that gives the `replies` in turn, and then answers as /create/batch. It refuses the topic "bad"."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.replies: list[Reply | Callable[[Request], Reply]] = []
        self.existing_ids: set[str] = set()

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The method and path of each request."""
        return [(request.method, request.path) for request in self.requests]

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        if not self.replies:
            return self.create_batch(request)
        reply = self.replies.pop(0)
        return reply if isinstance(reply, Reply) else reply(request)

    def create_batch(self, request: Request) -> Reply:
        results: list[dict[str, Any]] = []
        for line in request.lines:
            if line["topic"] == "bad":
                results.append({"error": {"status": 400, "detail": "topic: expected a good one", "field": "topic"}})
            else:
                results.append({"id": line["id"], "created": line["id"] not in self.existing_ids})
                self.existing_ids.add(line["id"])
        return Reply(200, {"results": results})


class StubHandler(BaseHTTPRequestHandler):
    """The HTTP side of the stub."""

    api: ApiStub

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_PATCH(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.api.answer(Request(self.command, self.path, dict(self.headers), body))
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(content) + (1 if reply.lost else 0)))
        if reply.retry_after is not None:
            self.send_header("Retry-After", reply.retry_after)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def problem_reply(status: int, detail: str, retry_after: str | None = None) -> Reply:
    return Reply(status, {"title": "x", "status": status, "detail": detail}, retry_after)


def exit_code_of(*arguments: str) -> int:
    """Run a command and return its exit code."""
    return run(arguments).code


# Tasks in answers


TASK_JSON = {
    "id": "n1",
    "topic": "order",
    "state": "delay",
    "content": "a\x1b[2J\nb",
    "last_error": None,
    "attempts": 0,
}

ERROR_JSON = {"reason": "status", "status": 503, "message": "answered 503", "at": "2027-01-15T08:00:00.000Z"}


def listed_task(id: str, **changes: Any) -> dict[str, Any]:
    due = {"due_at": "2027-01-15T08:00:00.000Z"}
    return {"id": id, "topic": "order", "callback": "http://a/", "attempts": 0, "last_error": None, **due, **changes}


def dead_task(id: str, reason: str = "exhausted", **error: Any) -> dict[str, Any]:
    died = "2027-01-15T09:00:00.000Z"
    return {"id": id, "topic": "order", "attempts": 4, "last_error": {**ERROR_JSON, "reason": reason, **error},
            "died_at": died}  # fmt: skip


def tasks_page(*tasks: dict[str, Any], cursor: str | None = None) -> Reply:
    return Reply(200, {"tasks": list(tasks), "cursor": cursor})
