"""aiohttp's connector and protocol, with what later needs besides: limits of a reply, and how far a call got."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from later.core.reply import Reply
from later.delivery.connector import SocketFactory
from later.delivery.http_client import MAX_AGE_S, MAX_HEARD_BYTES
from later.delivery.resolver import Resolver
from later.delivery.tls import TlsContexts

NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class CallState(msgspec.Struct):
    """The state of one call, for its error handling."""

    sockets: SocketFactory
    """Opens its sockets. If none was tried, the call has an idle connection."""
    timeout_s: float
    """The time from its begin to its deadline."""
    has_passed_proxy: bool = False
    """True if the call has a connection to its proxy, or for https a tunnel through it."""
    decisive_reply: Reply | None = None
    """The reply, once its status alone has decided the outcome, whatever happens to the body."""


current_call: ContextVar[CallState] = ContextVar("current_call")
"""The call that the running asyncio task makes, for its connector and resolver. (aiohttp's TraceConfig could
say the same, but would cost a fifth of the client's speed. It looks names up in a task of its own, which inherits the
context and outlives the call.)"""


class AiohttpResolver(AbstractResolver):
    """Later's resolver in aiohttp's form."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            async with asyncio.timeout(current_call.get().timeout_s):
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


class AiohttpConnector(aiohttp.TCPConnector):
    """aiohttp's connector, which notes in the call's state how far it got."""

    def __init__(self, *, max_idle: int, tls: TlsContexts, **options: Any) -> None:
        def open_for_call(address: aiohttp.AddrInfoType) -> socket.socket:
            return current_call.get().sockets(address)

        # The resolver has a cache of its own.
        super().__init__(use_dns_cache=False, limit=0, socket_factory=open_for_call, **options)
        self._max_idle = max_idle
        self._tls = tls
        # This and the methods below are private to aiohttp, which has no other way. Tests fail where they are renamed.
        self._factory = cast(Any, partial(BoundedProtocol, asyncio.get_running_loop()))

    async def connect(self, *args: Any, **options: Any) -> aiohttp.connector.Connection:
        """Return a connection, new or kept."""
        connection = await super().connect(*args, **options)
        current_call.get().has_passed_proxy = True
        return connection

    def _get_ssl_context(self, req: aiohttp.ClientRequest) -> ssl.SSLContext | None:
        """Return the TLS of the host that is connected to. aiohttp would show a receiver's to the proxy, too."""
        return self._tls.for_host(req.host) if req.is_ssl() else None

    async def _start_tls_connection(self, *args: Any, **options: Any) -> tuple[asyncio.BaseTransport, ResponseHandler]:
        """Begin TLS in the tunnel of a proxy."""
        current_call.get().has_passed_proxy = True
        return await super()._start_tls_connection(*args, **options)

    def _release(
        self, key: aiohttp.client_reqrep.ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        """Keep an idle connection that is not too old, and at most `max_idle` of them: each takes a descriptor."""
        is_full = sum(map(len, self._conns.values())) >= self._max_idle
        is_old = isinstance(protocol, BoundedProtocol) and protocol.is_old
        super()._release(key, protocol, should_close=should_close or is_full or is_old)


class ReplyTooLong(aiohttp.ClientPayloadError):
    """More was heard of a reply than `MAX_HEARD_BYTES`."""


class BoundedProtocol(ResponseHandler):
    """aiohttp's protocol with an end of each reply: after so many bytes, and when its connection ends.

    aiohttp would read interim responses, blank lines and chunk framing without end. And it would take bytes that come
    while the connection is idle for the reply to the next call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._opened_at = loop.time()
        self._heard_bytes = 0
        self._reply_body: aiohttp.StreamReader | None = None

    @property
    def is_old(self) -> bool:
        return self._loop.time() > self._opened_at + MAX_AGE_S

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
