"""Calls to later's API, one connection each."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MAX_BATCH = 1000


class Answer(NamedTuple):
    """`took` is in seconds; the body is read as JSON where it is."""

    status: int
    headers: Mapping[str, str]
    body: Any
    took: float


def post(url: str, path: str, body: object, patience: float = 30) -> Answer:
    """Raises OSError or HTTPException: nobody answers."""
    return _exchange(url, "POST", path, json.dumps(body).encode(), patience)


def get(url: str, path: str, patience: float = 30) -> Answer:
    """Raises OSError or HTTPException: nobody answers."""
    return _exchange(url, "GET", path, None, patience)


def call(url: str, method: str, path: str, body: object = None, patience: float = 30) -> Answer:
    """Raises OSError or HTTPException: nobody answers."""
    return _exchange(url, method, path, None if body is None else json.dumps(body).encode(), patience)


def _exchange(url: str, method: str, path: str, body: bytes | None, patience: float) -> Answer:
    started = time.monotonic()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=patience)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        read = response.read()
    finally:
        connection.close()
    is_json = "json" in (response.headers.get("Content-Type") or "")
    return Answer(
        response.status, dict(response.headers), json.loads(read) if is_json else read, time.monotonic() - started
    )


def create(url: str, **fields: Any) -> str:
    """A task's id, once it is accepted."""
    answer = post(url, "/create", {"topic": "order", **fields})
    assert answer.status == 200, answer
    return str(answer.body["id"])


def create_many(url: str, tasks: Sequence[Mapping[str, Any]]) -> None:
    """All of them, or the test fails."""
    for start in range(0, len(tasks), MAX_BATCH):
        some = tasks[start : start + MAX_BATCH]
        answer = post(url, "/create/batch", some)
        assert answer.status == 200, answer
        assert answer.body["created"] == len(some), answer.body


def build_tasks(
    count: int, callback: str, first: float, rate: float = 1e9, topic: str = "order"
) -> list[dict[str, Any]]:
    """Tasks with ids of their own, due from `first` (Unix seconds) on, at `rate` a second."""
    return [
        {"id": str(uuid.uuid4()), "topic": topic, "callback": callback, "execute_time": round(first + i / rate, 3)}
        for i in range(count)
    ]


def query(url: str, id: str) -> dict[str, Any]:
    """What /query says of a task that is there."""
    answer = post(url, "/query", {"id": id})
    assert answer.status == 200, answer
    return dict(answer.body)


def read_metric(url: str, name: str) -> float:
    """A sample of /metrics, by its name with its labels; 0 where there is none yet."""
    for line in get(url, "/metrics").body.decode().splitlines():
        sample, _, value = line.rpartition(" ")
        if sample == name:
            return float(value)
    return 0.0
