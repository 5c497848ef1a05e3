"""Calls of later's API, each on a new connection."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.system import canaries

MAX_BATCH = 1000
WITH_KEY = {"Authorization": f"Bearer {canaries.KEY}"}


class Answer(NamedTuple):
    """An answer of the API. The body is parsed if it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any
    took_s: float


def post(url: str, path: str, body: object, timeout_s: float = 30) -> Answer:
    """POST a JSON body. Raises OSError or HTTPException if nobody answers."""
    return _exchange(url, "POST", path, json.dumps(body).encode(), timeout_s)


def get(url: str, path: str, timeout_s: float = 30) -> Answer:
    """GET a path. Raises OSError or HTTPException if nobody answers."""
    return _exchange(url, "GET", path, None, timeout_s)


def call(
    url: str,
    method: str,
    path: str,
    body: object = None,
    timeout_s: float = 30,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Call with any method. Raises OSError or HTTPException if nobody answers."""
    return _exchange(url, method, path, None if body is None else json.dumps(body).encode(), timeout_s, headers)


def _exchange(
    url: str, method: str, path: str, body: bytes | None, timeout_s: float, headers: Mapping[str, str] | None = None
) -> Answer:
    """Exchange a request, with a canary as its key if it has no headers, and its answer, in which no canary may be."""
    started = time.monotonic()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    try:
        connection.request(method, path, body, WITH_KEY if headers is None else headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    canaries.check(content, f"the answer of {method} {path.partition('?')[0]}")
    is_json = "json" in (response.headers.get("Content-Type") or "")
    return Answer(
        response.status, dict(response.headers), json.loads(content) if is_json else content, time.monotonic() - started
    )


def create(url: str, **fields: Any) -> str:
    """Create a task and return its id. The test fails if it is refused."""
    headers = {**canaries.HEADERS, **fields.pop("headers", {})}
    answer = post(url, "/create", {"topic": "order", "headers": headers, **fields})
    assert answer.status == 200, answer
    return str(answer.body["id"])


def create_many(url: str, tasks: Sequence[Mapping[str, Any]]) -> None:
    """Create all tasks. The test fails if any is refused."""
    for start in range(0, len(tasks), MAX_BATCH):
        chunk = [{"headers": canaries.HEADERS, **task} for task in tasks[start : start + MAX_BATCH]]
        answer = post(url, "/create/batch", chunk)
        assert answer.status == 200, answer
        assert answer.body["created"] == len(chunk), answer.body


def build_tasks(
    count: int, callback: str, first: float, rate: float = 1e9, topic: str = "order"
) -> list[dict[str, Any]]:
    """Return tasks with ids, due from `first` (Unix seconds) on at `rate` per second."""
    return [
        {"id": str(uuid.uuid4()), "topic": topic, "callback": callback, "execute_time": round(first + i / rate, 3)}
        for i in range(count)
    ]


def query(url: str, id: str) -> dict[str, Any]:
    """Return the answer of /query. The test fails if the task is missing."""
    answer = post(url, "/query", {"id": id})
    assert answer.status == 200, answer
    return dict(answer.body)


def list_dead(url: str, topic: str) -> list[dict[str, Any]]:
    """Return the dead tasks of a topic."""
    tasks: list[dict[str, Any]] = []
    page: dict[str, Any] = {"topic": topic, "state": "dead", "limit": MAX_BATCH}
    while True:
        answer = post(url, "/list", page)
        assert answer.status == 200, answer
        tasks += answer.body["tasks"]
        if answer.body["cursor"] is None:
            return tasks
        page["cursor"] = answer.body["cursor"]


def read_metric(url: str, name: str) -> float:
    """Return a sample of /metrics by its name with labels; 0 if it is missing."""
    for line in get(url, "/metrics").body.decode().splitlines():
        sample, _, value = line.rpartition(" ")
        if sample == name:
            return float(value)
    return 0.0
