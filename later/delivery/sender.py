"""The sender of callbacks: one POST, one Outcome.

A failed delivery is not an error: whatever a receiver or the network does becomes an Outcome. An exception that `send`
raises is a fault of later's own, and must not be held against the receiver.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import socket
import ssl
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from multidict import istr
from yarl import URL

from later.core.clock import rfc3339
from later.core.host_address import parse_host_address
from later.core.policy import MAX_TIMEOUT_MS, Ack, Policy, plain_number
from later.core.reply import Reply, parse_reply
from later.core.retry import Outcome, OutcomeKind
from later.core.task import Task
from later.delivery.resolver import Resolver, call_timeout_s

MAX_REPLY_BYTES = 65_536
KEEPALIVE_S = 30
LINGER_S = 0.1
"""How long to wait for the body of a reply that its status has decided: reading it only saves the connection."""
CALL_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError)
"""Errors that receivers, networks and name servers cause. A timeout and an error of TLS are an OSError, too."""
BAD_URL = "this URL cannot be called"
LATER_AFTER = istr("later-after")
LATER_REASON = istr("later-reason")
LARGE_BODY_BYTES = 1 << 20
"""aiohttp wants a longer body as a file, and writes it in pieces: other calls go on in between."""


class CallState(msgspec.Struct):
    """The state of one call, for its error handling."""

    has_new_connection: bool = False
    """True if a connection was opened for this call."""
    decisive_reply: Reply | None = None
    """The reply, once its status alone has decided the outcome, whatever happens to the body."""


_current_call: ContextVar[CallState] = ContextVar("current_call")
"""The call that the running asyncio task makes, for `_open_socket`. (aiohttp's TraceConfig could say the same, but
would cost a fifth of the sender's speed.)"""


class Sender:
    """An HTTP client that calls receivers, any number at a time, and looks up `max_lookups` names at a time."""

    def __init__(self, *, max_lookups: int, user_agent: str) -> None:
        self._max_lookups = max_lookups
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": user_agent,
            "Accept-Encoding": "identity",
        }
        self._sessions = AsyncExitStack()

    async def start(self) -> None:
        """Open the client's sessions in the running event loop."""
        resolver = Resolver(max_lookups=self._max_lookups, default_timeout_s=MAX_TIMEOUT_MS / 1000)
        self._pooled = await self._open_session(
            aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=_open_socket)
        )
        self._unpooled = await self._open_session(aiohttp.TCPConnector(resolver=resolver, limit=0, force_close=True))

    async def close(self) -> None:
        """Close every connection, if there are any; calls in flight fail."""
        await self._sessions.aclose()

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        """Call the task's callback once, after `failures` failures; `now` is the store's time in ms.

        The policy's `timeout_ms` is the one deadline: name lookup, connect, TLS, the request and the whole reply.
        If it is cancelled when the receiver's status has already decided the outcome, it returns that.
        """
        timeout_s = policy.timeout_ms / 1000
        try:
            request = CallbackRequest.build(task, attempt, failures, now, policy.timeout_ms)
        except ValueError:  # a URL that an older version admitted
            return _failed("connect", f"no connection: {BAD_URL}")
        try:
            return parse_reply(await self._call(request, timeout_s, policy.ack), now, policy.ack)
        except TimeoutError:
            return _failed("timeout", f"no complete answer within {timeout_s:g} s")
        except CALL_ERRORS as error:
            if _had_connection(error):
                return _failed("reply", f"no complete answer: {_explain_broken_reply(error)}")
            return _failed("connect", f"no connection: {_explain_no_connection(error)}")

    async def _call(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        state = CallState()
        _current_call.set(state)
        call_timeout_s.set(timeout_s)
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                response = await self._post(request, state)
                try:
                    return await _read_reply(response, state, deadline, ack)
                finally:
                    response.close()  # closes nothing if the reply was read to its end
        except (*CALL_ERRORS, asyncio.CancelledError):
            if state.decisive_reply is None:
                raise
            return state.decisive_reply

    async def _post(self, request: CallbackRequest, state: CallState) -> aiohttp.ClientResponse:
        """Post; post again on a new connection if an idle one was closed before the answer began.

        Receivers close idle connections when they like: the task did not fail.
        """
        try:
            return await _post_once(self._pooled, request)
        except (aiohttp.ServerDisconnectedError, OSError) as error:
            # An error that carries a message object says that an answer had begun.
            answer_began = isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
            if state.has_new_connection or not _had_connection(error) or answer_began:
                raise
        return await _post_once(self._unpooled, request)

    async def _open_session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            read_bufsize=MAX_REPLY_BYTES,
            max_line_size=MAX_REPLY_BYTES,
            max_field_size=MAX_REPLY_BYTES,
        )
        return await self._sessions.enter_async_context(session)


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    _current_call.get().has_new_connection = True
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


class CallbackBody(msgspec.Struct, frozen=True):
    """The JSON body of a call."""

    id: str
    topic: str
    content: str


_encode = msgspec.json.Encoder().encode


class CallbackRequest(NamedTuple):
    """The HTTP request of one attempt."""

    url: URL
    headers: dict[str, str]
    body: bytes

    @classmethod
    def build(cls, task: Task, attempt: int, failures: int, now: int, timeout_ms: int) -> CallbackRequest:
        """Return the request of `attempt` at `now` (ms), after `failures` failures.

        A task's own header replaces one of the session.
        """
        headers = {
            "webhook-id": task.id,
            "webhook-timestamp": str(now // 1000),
            "later-attempt": str(attempt),
            "later-due": rfc3339(task.execute_at),
            "later-created": rfc3339(task.created_at),
            "later-timeout": _format_seconds(timeout_ms),
            "later-failures": str(failures),
            "later-max-retry": str(task.max_retry),
        }
        body = _encode(CallbackBody(task.id, task.topic, task.content))
        return cls(wire_url(task.callback), task.headers | headers, body)


@lru_cache(maxsize=64)
def _format_seconds(ms: int) -> str:
    return str(plain_number(ms / 1000))


_SENDABLE_URL = re.compile(
    r"https?://[a-z0-9.-]+(:[0-9]{1,5})?([/?](%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=-])*)?"
)
_UNSENDABLE = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")


@lru_cache(maxsize=4096)
def wire_url(callback: str) -> URL:
    """Return the URL as its caller wrote it, because receivers may compare it: yarl would turn `%41` into `A`.

    Only what cannot stand in a request line is percent-encoded. The host takes its ASCII form, and an address its usual
    one (127.0.0.1 for `127.1`), so that no resolver reads it as something else.
    """
    has_empty_query = callback.find("?") == len(callback) - 1
    if not has_empty_query and _SENDABLE_URL.fullmatch(callback):
        url = URL(callback, encoded=True)
        if (host := url.raw_host or "") == _canonical_host(host):
            return url
    url = URL(callback)
    host = _canonical_host(url.raw_host or "")
    port = "" if url.explicit_port is None else f":{url.explicit_port}"
    authority = f"[{host}]{port}" if ":" in host else f"{host}{port}"
    target = re.split(r"(?=[/?#])", callback.partition("://")[2], maxsplit=1)[1:]
    path = _UNSENDABLE.sub(lambda match: quote(match[0], safe=""), "".join(target).partition("#")[0])
    if has_empty_query:  # as a part of the path, because yarl drops an empty query
        return URL.build(scheme=url.scheme, authority=authority, path=f"/{path.removeprefix('/')}", encoded=True)
    return URL(f"{url.scheme}://{authority}{path}", encoded=True)


def _canonical_host(host: str) -> str:
    address = parse_host_address(host)
    return host if address is None else str(address)


async def _post_once(session: aiohttp.ClientSession, request: CallbackRequest) -> aiohttp.ClientResponse:
    body = request.body
    return await session.post(
        request.url,
        data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
        headers=request.headers,
        allow_redirects=False,
    )


def _had_connection(error: Exception) -> bool:
    """Return True if the call failed on a connection, and not before it had one."""
    on_connection = (
        aiohttp.ServerDisconnectedError,
        aiohttp.ClientResponseError,
        aiohttp.ClientPayloadError,
        HttpProcessingError,
        OSError,
    )
    return isinstance(error, on_connection) and not isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))


async def _read_reply(response: aiohttp.ClientResponse, state: CallState, deadline: asyncio.Timeout, ack: Ack) -> Reply:
    """Return the reply. A body that decides nothing, such as that of an error status, gets `LINGER_S` only."""
    if 200 <= response.status < 300 and ack is not Ack.STATUS:
        return _build_reply(response, await _read_body(response))
    state.decisive_reply = _build_reply(response, None)
    if not response.content.is_eof():
        soon = asyncio.get_running_loop().time() + LINGER_S
        deadline.reschedule(min(soon, deadline.when() or soon))
    await _read_body(response)
    return state.decisive_reply


def _build_reply(response: aiohttp.ClientResponse, body: bytes | None) -> Reply:
    headers = response.headers
    return Reply(
        status=response.status,
        body=body,
        retry_after=headers.get(aiohttp.hdrs.RETRY_AFTER),
        later_after=headers.get(LATER_AFTER),
        later_reason=headers.get(LATER_REASON),
        location=headers.get(aiohttp.hdrs.LOCATION),
    )


async def _read_body(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the body; None if it is encoded, or longer than `MAX_REPLY_BYTES`."""
    if (response.content_length or 0) > MAX_REPLY_BYTES:
        return None
    content, body = response.content, bytearray()
    while not content.at_eof():
        body += await content.readany()
        if len(body) > MAX_REPLY_BYTES:
            return None
    encoding = response.headers.get(aiohttp.hdrs.CONTENT_ENCODING, "").strip().lower()
    return bytes(body) if encoding in ("", "identity") else None


def _failed(reason: str, message: str) -> Outcome:
    return Outcome(kind=OutcomeKind.FAILED, reason=reason, message=message)


def _explain_no_connection(error: Exception) -> str:
    """Return why there is no connection. aiohttp's own texts contain the URL, whose query may be a secret."""
    if isinstance(error, aiohttp.InvalidURL):
        return BAD_URL
    if not isinstance(error, aiohttp.ClientConnectorError):
        return type(error).__name__
    match error.os_error:
        case socket.gaierror() as cause:
            return f"the name lookup failed: {cause.strerror or 'no address'}"
        case ssl.SSLCertVerificationError() as cause:
            return f"the certificate was refused: {cause.verify_message}"
        case ssl.SSLError() as cause:
            return f"TLS failed: {cause.reason or 'no reason given'}"
        case cause:
            return os.strerror(cause.errno) if cause.errno else type(cause).__name__


def _explain_broken_reply(error: Exception) -> str:
    """Return what went wrong with the reply, without a word from it or from the URL."""
    match error:
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed"
        case aiohttp.ClientPayloadError():
            return "the body was cut off"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return "it is not HTTP, or its headers are too long"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return type(error).__name__
