"""Calls over WSGI: Flask, Django and every other application of that kind.

Handlers that are not async run in the thread of the request, so that connections which frameworks keep by thread are
those that the application knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from later.handlers.runner import RequestExecutor
from later.receiver.callback import MAX_BODY_BYTES, Answer
from later.receiver.receiver import Receiver


class WsgiReceiver:
    """A WSGI application for the calls of later."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = answer_blocking(self._receiver, environ["REQUEST_METHOD"], read_headers(environ), _read(environ))
        headers = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
        return [answer.body]


def answer_blocking(receiver: Receiver, method: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
    """Answer a call, with the functions that are not async in this thread, which runs no event loop."""
    executor = RequestExecutor()
    return executor.run(receiver.answer_once(method, headers, body, executor))


def read_headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request, with their names in lower case."""
    return {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }


def _read(environ: Mapping[str, Any]) -> bytes | None:
    """Read a body; None if it is too large, or does not say how long it is."""
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return None
    if not 0 <= length <= MAX_BODY_BYTES:
        return None
    return bytes(environ["wsgi.input"].read(length))
