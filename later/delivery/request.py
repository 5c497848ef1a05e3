"""The HTTP request of one attempt, as it is sent."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from later.core.clock import rfc3339
from later.core.operator_event import EVENTS_TOPIC
from later.core.origin import Origin
from later.core.policy import plain_number
from later.core.task import Task, headers_of_call


class CallbackBody(msgspec.Struct, frozen=True):
    """The JSON body of a call."""

    id: str
    topic: str
    content: str


class _BodyWithContext(CallbackBody, frozen=True):
    """The JSON body of a call of a task with a context."""

    context: dict[str, str]


_encode = msgspec.json.Encoder().encode

_LINE_END = "\r\n"
_UNSENDABLE_VALUE = re.compile(r"[\r\n\0]")


class CallbackRequest(msgspec.Struct, frozen=True):
    """The HTTP request of one attempt. `head` is its request line and headers, as they are sent to the origin itself.

    A named tuple would take eight times as long to make.
    """

    origin: Origin
    target: str
    head: bytes
    body: bytes

    @property
    def headers(self) -> bytes:
        """The header lines, each with its line end."""
        return self.head[self.head.index(b"\r\n") + 2 : -2]

    def head_to_proxy(self, authorization: bytes) -> bytes:
        """Return the head of an http request to a forward proxy: in absolute form, with `authorization` (a line)."""
        url = f"{self.origin.scheme}://{self.origin.authority}{self.target}"
        return b"POST %b HTTP/1.1\r\n%b%b\r\n" % (url.encode(), self.headers, authorization)


def encode_body(task: Task) -> bytes:
    """Return the body of a call: of an operator event, the event alone.

    Raises:
        ValueError: an older version admitted content that is no text.
    """
    if task.topic == EVENTS_TOPIC:
        return task.content.encode()  # it is a message of its own, in the form of Standard Webhooks
    if task.context is None:
        return _encode(CallbackBody(task.id, task.topic, task.content))
    return _encode(_BodyWithContext(task.id, task.topic, task.content, task.context))


class RequestBuilder:
    """Builds the requests of attempts."""

    def __init__(self, user_agent: str) -> None:
        self._constant = {"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": "identity"}
        self._constant_lines = _format_lines(self._constant)

    def build(
        self, task: Task, attempt: int, failures: int, now: int, timeout_ms: int, body: bytes, signature: str
    ) -> CallbackRequest:
        """Return the request of `attempt` at `now` (ms), after `failures` failures, with a body of `encode_body`.

        It has no header `webhook-signature` if the signature is empty.

        Raises:
            ValueError: the task cannot be sent: an older version admitted its URL or a header.
        """
        receiver = parse_receiver(task.callback)
        head = (
            f"{receiver.first_lines}"
            f"Content-Length: {len(body)}\r\n"
            f"{self._lines_of(task) if task.headers or task.trace_context else self._constant_lines}"
            f"webhook-id: {task.id}\r\n"
            f"webhook-timestamp: {now // 1000}\r\n"
            f"{signature and f'webhook-signature: {signature}{_LINE_END}'}"
            f"later-attempt: {attempt}\r\n"
            f"{'' if task.scheduled_at is None else f'later-scheduled: {rfc3339(task.scheduled_at)}{_LINE_END}'}"
            f"later-due: {rfc3339(task.execute_at)}\r\n"
            f"later-created: {rfc3339(task.created_at)}\r\n"
            f"later-timeout: {_format_seconds(timeout_ms)}\r\n"
            f"later-failures: {failures}\r\n"
            f"later-max-retry: {task.max_retry}\r\n\r\n"
        )
        return CallbackRequest(receiver.origin, receiver.target, head.encode(), body)

    def _lines_of(self, task: Task) -> str:
        """Return the header lines of a task that has headers of its own: each replaces a constant one."""
        headers = headers_of_call(task)
        own = {name.lower() for name in headers}
        if any(_UNSENDABLE_VALUE.search(value) for value in headers.values()):
            raise ValueError("a header is one line")
        constant = {name: value for name, value in self._constant.items() if name.lower() not in own}
        return _format_lines(constant | headers)


def _format_lines(headers: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


@lru_cache(maxsize=64)
def _format_seconds(ms: int) -> str:
    return str(plain_number(ms / 1000))


_SENDABLE = re.compile(r"/(%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=-])*")
_UNSENDABLE = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")


class _Receiver(NamedTuple):
    """The parts of requests that are the same in each one to a callback. The target is that of the request line."""

    origin: Origin
    target: str
    first_lines: str


@lru_cache(maxsize=4096)
def parse_receiver(callback: str) -> _Receiver:
    """Return the origin of a callback, the target of its request line, and the first lines of its requests.

    The target is as its caller wrote it, because receivers may compare it. Only what cannot stand in a request line is
    percent-encoded.

    Raises:
        ValueError: it cannot be called.
    """
    origin = Origin.of(callback)
    target = re.split(r"(?=[/?#])", callback.partition("://")[2], maxsplit=1)[1:]
    path = "".join(target).partition("#")[0]
    if not path.startswith("/"):
        path = f"/{path}"
    if not _SENDABLE.fullmatch(path):
        path = _UNSENDABLE.sub(lambda match: quote(match[0], safe=""), path)
    first_lines = f"POST {path} HTTP/1.1\r\nHost: {origin.authority}\r\nContent-Type: application/json\r\n"
    return _Receiver(origin, path, first_lines)
