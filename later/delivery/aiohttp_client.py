"""The HTTP client by aiohttp: a second opinion beside later's own, and a way out of a fault of it."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from multidict import istr
from yarl import URL

from later.core.origin import DEFAULT_PORTS, Origin
from later.core.policy import Ack
from later.core.reply import Reply
from later.delivery.http_client import (
    LINGER_S,
    MAX_HEARD_BYTES,
    MAX_REPLY_BYTES,
    OWN_ERRNOS,
    BrokenReply,
    LocalFault,
    NoConnection,
)
from later.delivery.request import CallbackRequest
from later.delivery.resolver import Resolver
from later.delivery.tls import build_tls_context

KEEPALIVE_S = 4.0
"""How long an idle connection is kept: Node.js closes it after five seconds."""
CALL_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError)
"""Errors that receivers, networks and name servers cause. A timeout and an error of TLS are an OSError, too."""
LATER_AFTER = istr("later-after")
LATER_REASON = istr("later-reason")
MAX_HEADERS = 2000
NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
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
would cost a fifth of the client's speed.)"""

_call_timeout_s: ContextVar[float] = ContextVar("call_timeout_s")
"""The timeout of the call that the running asyncio task makes. (aiohttp looks names up in a task of its own, which
inherits the context and outlives the call.)"""


class AiohttpResolver(AbstractResolver):
    """Later's resolver in aiohttp's form."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            async with asyncio.timeout(_call_timeout_s.get()):
                addresses = await self._resolver.resolve(host, port)
        except TimeoutError:  # the call has ended, too
            raise socket.gaierror(socket.EAI_AGAIN, "the lookup took too long") from None
        results = []
        for kind, _, proto, _, address in addresses:
            numeric, scope = str(address[0]), address[3] if len(address) == 4 else 0
            if scope and "%" not in numeric:  # a link-local address is unreachable without its scope
                numeric = f"{numeric}%{scope}"
            found = ResolveResult(hostname=host, host=numeric, port=port, family=kind, proto=proto, flags=NUMERIC)
            results.append(found)
        return results

    async def close(self) -> None:
        """Leave hanging threads alone: they end with the process."""


class AiohttpClient:
    """An HTTP client that looks up `max_lookups` names at a time."""

    def __init__(self, *, max_lookups: int) -> None:
        self._max_lookups = max_lookups
        self._sessions = AsyncExitStack()
        self._is_closed = False

    async def start(self) -> None:
        build_connector = partial(
            aiohttp.TCPConnector,
            resolver=AiohttpResolver(Resolver(max_lookups=self._max_lookups)),
            use_dns_cache=False,  # the resolver has one
            limit=0,
            socket_factory=_open_socket,
            ssl=build_tls_context(),
        )
        self._pooled = await self._open_session(build_connector(keepalive_timeout=KEEPALIVE_S))
        self._unpooled = await self._open_session(build_connector(force_close=True))

    async def close(self) -> None:
        self._is_closed = True
        await self._sessions.aclose()

    async def post(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        try:
            return await self._call(request, timeout_s, ack)
        except TimeoutError:
            raise
        except CALL_ERRORS as error:
            if self._is_closed:
                raise LocalFault("the client was closed") from error
            if (fault := _local_fault(error)) is not None:
                raise LocalFault(fault) from error
            if _had_connection(error):
                raise BrokenReply(_explain_broken_reply(error)) from error
            raise NoConnection(_explain_no_connection(error)) from error

    async def _call(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        state = CallState()
        _current_call.set(state)
        _call_timeout_s.set(timeout_s)
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
        # Private to aiohttp, which has no other way to limit a reply. A test fails where it is renamed.
        connector._factory = cast(Any, partial(BoundedProtocol, asyncio.get_running_loop()))
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            read_bufsize=MAX_REPLY_BYTES,
            max_line_size=MAX_REPLY_BYTES,
            max_field_size=MAX_REPLY_BYTES,
            max_headers=MAX_HEADERS,
        )
        return await self._sessions.enter_async_context(session)


class ReplyTooLong(aiohttp.ClientPayloadError):
    """More was heard of a reply than `MAX_HEARD_BYTES`."""


class BoundedProtocol(ResponseHandler):
    """aiohttp's protocol with an end of each reply: after so many bytes, and when its connection ends.

    aiohttp would read interim responses, blank lines and chunk framing without end. And it would take bytes that come
    while the connection is idle for the reply to the next call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._heard_bytes = 0
        self._reply_body: aiohttp.StreamReader | None = None

    def set_response_params(self, **params: Any) -> None:
        """Begin a call."""
        self._heard_bytes = 0
        self._reply_body = None
        super().set_response_params(**params)

    def feed_data(self, data: tuple[Any, aiohttp.StreamReader], size: int = 0) -> None:
        """Take the head of a reply, or of an interim response."""
        message, body = data
        if message.code >= 200:
            self._reply_body = body
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if data and self._reply_body is not None and self._reply_body.is_eof():  # the connection is idle
            self._abort_transport()
            return
        self._heard_bytes += len(data)
        if self._heard_bytes <= MAX_HEARD_BYTES:
            super().data_received(data)
            return
        self._abort_transport()
        if self._reply_body is None:
            self.set_exception(ReplyTooLong())
        else:
            self._reply_body.set_exception(ReplyTooLong())

    def connection_lost(self, exc: BaseException | None) -> None:
        """End a body that is not complete: after some broken chunks aiohttp lets its reader wait for the deadline."""
        super().connection_lost(exc)
        body = self._reply_body
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError())

    def _abort_transport(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    _current_call.get().has_new_connection = True
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


@lru_cache(maxsize=4096)
def build_url(origin: Origin, target: str) -> URL:
    """Return the URL with which aiohttp sends this target as it is: yarl would turn `%41` into `A`."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    authority = host if origin.port == DEFAULT_PORTS[origin.scheme] else f"{host}:{origin.port}"
    if target.find("?") == len(target) - 1:  # the query is empty: as a part of the path, because yarl drops it
        return URL.build(scheme=origin.scheme, authority=authority, path=target, encoded=True)
    return URL(f"{origin.scheme}://{authority}{target}", encoded=True)


async def _post_once(session: aiohttp.ClientSession, request: CallbackRequest) -> aiohttp.ClientResponse:
    body = request.body
    lines = request.headers.decode().removesuffix("\r\n").split("\r\n")
    return await session.post(
        build_url(request.origin, request.target),
        data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
        headers=dict(line.split(": ", 1) for line in lines),
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
    if response.status == 101:
        raise BrokenReply("it is not HTTP, or its headers are too long")
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
    try:
        while not content.at_eof():
            body += await content.readany()
            if len(body) > MAX_REPLY_BYTES:
                return None
    except ReplyTooLong:
        return None
    encoding = response.headers.get(aiohttp.hdrs.CONTENT_ENCODING, "").strip().lower()
    return bytes(body) if encoding in ("", "identity") else None


def _local_fault(error: Exception) -> str | None:
    """Return why this machine could not make the call; None if the cause is the receiver or the network."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, (socket.gaierror, ssl.SSLError)) or not isinstance(cause, OSError):
        return None
    return os.strerror(cause.errno) if cause.errno in OWN_ERRNOS else None


def _explain_no_connection(error: Exception) -> str:
    """Return why there is no connection. aiohttp's own texts contain the URL, whose query may be a secret."""
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
        case ReplyTooLong():
            return "it is longer than a reply may be"
        case aiohttp.ClientPayloadError():
            return "the body was cut off"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return "it is not HTTP, or its headers are too long"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return type(error).__name__
