"""Requests as they are written, each on a new connection, so that each process of a daemon gets some."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 30


class Answer(NamedTuple):
    """An answer as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def exchange(url: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    """Send a request, and return its answer."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()
