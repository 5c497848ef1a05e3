"""The HTTP client by aiohttp: a second opinion beside later's own, and a way out of a fault of it."""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from contextlib import AsyncExitStack
from functools import lru_cache, partial

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from multidict import istr
from yarl import URL

from later.core.address_guard import PROXY, Refusal
from later.core.origin import DEFAULT_PORTS, Origin
from later.core.policy import Ack
from later.core.reply import Reply
from later.delivery.aiohttp_connector import AiohttpConnector, AiohttpResolver, CallState, ReplyTooLong, current_call
from later.delivery.client_settings import ClientSettings
from later.delivery.connector import SocketFactory, explain_no_connection, is_local_fault
from later.delivery.http_client import (
    CLOSED,
    LINGER_S,
    MAX_IDLE_S,
    MAX_REPLY_BYTES,
    UNREADABLE,
    AddressRefused,
    BrokenReply,
    LocalFault,
    NoConnection,
    ProxyFailed,
)
from later.delivery.proxy import NO_CONNECTION_IN_TIME, NO_TUNNEL, SMOKESCREEN_ERROR, is_refusal
from later.delivery.request import CallbackRequest
from later.delivery.resolver import Resolver
from later.delivery.tls import TlsContexts, build_tls_context

CALL_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError)
"""Errors that receivers, networks and name servers cause. A timeout and an error of TLS are an OSError, too."""
LATER_AFTER = istr("later-after")
LATER_REASON = istr("later-reason")
MAX_HEADERS = 2000
HTTP_VERSIONS = (aiohttp.HttpVersion10, aiohttp.HttpVersion11)
NOT_HTTP = "it is not HTTP"
LARGE_BODY_BYTES = 1 << 20
"""aiohttp wants a longer body as a file, and writes it in pieces: other calls go on in between."""


class AiohttpClient:
    """The HTTP client by aiohttp."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._proxy = settings.proxy
        self._sessions = AsyncExitStack()
        self._is_closed = False
        self._deadlines: set[asyncio.Timeout] = set()
        """The deadlines of the calls under way."""
        self._calls_ended = asyncio.Event()
        """Set when the client is closed and no call is under way any more."""

    async def start(self) -> None:
        tls = self._settings.tls or TlsContexts(build_tls_context())
        resolver = AiohttpResolver(Resolver(max_lookups=self._settings.max_lookups))
        build = partial(AiohttpConnector, max_idle=self._settings.max_idle, tls=tls, resolver=resolver)
        self._pooled = await self._open_session(build(keepalive_timeout=MAX_IDLE_S))
        self._unpooled = await self._open_session(build(force_close=True))

    async def close(self) -> None:
        self._is_closed = True
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())
        if self._deadlines:  # aiohttp would close no connection that it is opening
            await self._calls_ended.wait()
        await self._sessions.aclose()

    async def post(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        host = (self._proxy or request).origin.host
        state = CallState(SocketFactory(host, self._settings.guard, self._settings.open_socket), timeout_s)
        current_call.set(state)
        try:
            return await self._call(request, timeout_s, ack, state)
        except TimeoutError as error:
            if self._is_closed:
                raise LocalFault(CLOSED) from error
            if self._proxy is not None and not state.has_passed_proxy:
                raise ProxyFailed(NO_CONNECTION_IN_TIME) from error
            raise
        except CALL_ERRORS as error:
            if self._is_closed:
                raise LocalFault(CLOSED) from error
            if state.sockets.refusal is not None:
                raise AddressRefused(state.sockets.refusal) from error
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            if isinstance(cause, OSError) and is_local_fault(cause, state.sockets.tried):
                raise LocalFault(type(cause).__name__ if cause.strerror is None else cause.strerror) from error
            if self._proxy is not None and not state.has_passed_proxy:
                raise _translate_proxy_failure(error) from error
            if _had_connection(error):
                raise BrokenReply(_explain_broken_reply(error)) from error
            raise NoConnection(_explain_connector_error(error)) from error

    async def _call(self, request: CallbackRequest, timeout_s: float, ack: Ack, state: CallState) -> Reply:
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                self._deadlines.add(deadline)
                try:
                    response = await self._post(request, state)
                    try:
                        if response.version not in HTTP_VERSIONS or not 200 <= response.status < 600:
                            raise BrokenReply(NOT_HTTP)
                        return await _read_reply(response, state, deadline, ack)
                    finally:
                        response.close()  # closes nothing if the reply was read to its end
                finally:
                    self._deadlines.discard(deadline)
                    if self._is_closed and not self._deadlines:
                        self._calls_ended.set()
        except (*CALL_ERRORS, asyncio.CancelledError):
            if state.decisive_reply is None:
                raise
            return state.decisive_reply

    async def _post(self, request: CallbackRequest, state: CallState) -> aiohttp.ClientResponse:
        """Post; post again on a new connection if an idle one was closed before the answer began.

        Receivers close idle connections when they like: the task did not fail.
        """
        try:
            return await self._post_once(self._pooled, request)
        except (aiohttp.ServerDisconnectedError, OSError) as error:
            # An error that carries a message object says that an answer had begun.
            answer_began = isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
            if state.sockets.tried or not _had_connection(error) or answer_began:
                raise
        state.has_passed_proxy = False
        return await self._post_once(self._unpooled, request)

    async def _post_once(self, session: aiohttp.ClientSession, request: CallbackRequest) -> aiohttp.ClientResponse:
        body, origin, proxy = request.body, request.origin, self._proxy
        lines = request.headers.decode().removesuffix("\r\n").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        proxy_headers: dict[str, str] = {}
        if proxy is not None and proxy.authorization is not None:
            to_proxy = headers if origin.scheme == "http" else proxy_headers
            to_proxy[aiohttp.hdrs.PROXY_AUTHORIZATION] = proxy.authorization
        return await session.post(
            build_url(origin, request.target),
            data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
            headers=headers,
            allow_redirects=False,
            proxy=None if proxy is None else build_url(proxy.origin, "/"),
            proxy_headers=proxy_headers,
        )

    async def _open_session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
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


@lru_cache(maxsize=4096)
def build_url(origin: Origin, target: str) -> URL:
    """Return the URL with which aiohttp sends this target as it is: yarl would turn `%41` into `A`."""
    authority = origin.url_host if origin.port == DEFAULT_PORTS[origin.scheme] else f"{origin.url_host}:{origin.port}"
    if target.find("?") == len(target) - 1:  # the query is empty: as a part of the path, because yarl drops it
        return URL.build(scheme=origin.scheme, authority=authority, path=target, encoded=True)
    return URL(f"{origin.scheme}://{authority}{target}", encoded=True)


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
        raise BrokenReply(UNREADABLE)
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
        later_topics=headers.get("later-topics"),
        location=headers.get(aiohttp.hdrs.LOCATION),
        proxy_status=headers.get("Proxy-Status"),
        squid_error=headers.get("X-Squid-Error"),
        smokescreen_error=headers.get(SMOKESCREEN_ERROR),
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


def _explain_connector_error(error: Exception) -> str:
    """Return why there is no connection. aiohttp's own texts contain the URL, whose query may be a secret."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return type(error).__name__
    return explain_no_connection(error.os_error)


def _translate_proxy_failure(error: Exception) -> Exception:
    """Return the error to be raised because there is no connection through the proxy."""
    match error:
        case aiohttp.ClientHttpProxyError():
            has_refused = is_refusal(error.status, SMOKESCREEN_ERROR in (error.headers or ()))
            return (
                AddressRefused(Refusal(PROXY)) if has_refused else ProxyFailed(f"it answered {error.status} to CONNECT")
            )
        case aiohttp.ClientConnectorError():
            return ProxyFailed(f"no connection to it: {_explain_connector_error(error)}")
        case _:
            return ProxyFailed(f"{NO_TUNNEL}: {_explain_broken_reply(error)}")


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
            return UNREADABLE
        case OSError(errno=int(number)):  # OpenSSL's errors have numbers that mean something else
            return "TLS failed" if isinstance(error, ssl.SSLError) else os.strerror(number)
        case _:
            return type(error).__name__
