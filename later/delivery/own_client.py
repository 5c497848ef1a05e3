"""Later's own HTTP client: it POSTs a small request to any of many receivers, and reads a small reply.

It does what that needs, and nothing else: no redirects, cookies, decompression or HTTP/2. A call on a kept connection
costs a write, a read and a future.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial

from later.core.origin import Origin
from later.core.policy import Ack
from later.core.reply import Reply
from later.delivery.client_settings import ClientSettings
from later.delivery.connection import Connection, ConnectionLost
from later.delivery.connector import Connector
from later.delivery.deadlines import Deadlines
from later.delivery.http_client import CLOSED, BrokenReply, LocalFault, ProxyFailed
from later.delivery.large_reads import LargeReads
from later.delivery.pool import ConnectionPool
from later.delivery.proxy import NO_CONNECTION_IN_TIME
from later.delivery.request import CallbackRequest
from later.delivery.resolver import Resolver
from later.delivery.tls import TlsClient, TlsContexts, build_tls_context


class OwnClient:
    """Later's own HTTP client."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._proxy = settings.proxy
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Timeout] = set()
        """The deadlines of the calls that open a connection."""
        self._is_closed = False
        self._parts = ExitStack()
        """The parts to be closed."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._parts.callback(self._deadlines.close)
        self._large_reads = LargeReads(self._loop)
        self._parts.callback(self._large_reads.close)
        self._pool = ConnectionPool(max_idle=self._settings.max_idle)
        self._parts.callback(self._pool.close)
        self._tls = TlsClient(self._settings.tls or TlsContexts(build_tls_context()))
        self._connector = Connector(
            resolver=Resolver(max_lookups=self._settings.max_lookups),
            tls=self._tls,
            guard=self._settings.guard,
            open_socket=self._settings.open_socket,
            free_descriptors=self._pool.close_all,
            proxy=self._proxy,
        )

    async def close(self) -> None:
        self._is_closed = True
        for connecting in self._connecting:
            if not connecting.expired():
                connecting.reschedule(self._loop.time())
        for connection in list(self._open):
            connection.fail(LocalFault(CLOSED))
        self._parts.close()

    async def post(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        deadline = self._loop.time() + timeout_s
        origin, head, body = request.origin, request.head, request.body
        if self._proxy is not None and origin.scheme == "http":
            head = request.head_to_proxy(self._proxy.authorization_line)
        decided_by_status = ack is Ack.STATUS
        connection = self._pool.take(origin)
        if connection is not None:
            try:
                return await connection.exchange(head, body, deadline, decided_by_status=decided_by_status)
            except ConnectionLost:
                pass  # receivers close idle connections when they like: the task did not fail
        has_session = self._tls.has_session(origin.host.removesuffix("."))
        connection = await self._connect(origin, deadline)
        reply = await connection.exchange(head, body, deadline, decided_by_status=decided_by_status)
        if (tls := connection.tls_object()) is not None:
            self._tls.remember(tls, was_offered=has_session)
        return reply

    async def _connect(self, origin: Origin, deadline: float) -> Connection:
        """Return a new connection, which was opened before the deadline (a time of the event loop, in s)."""
        build = partial(Connection, origin, self._deadlines, self._large_reads, self._pool.put, self._on_closed)
        connected = None
        try:
            async with asyncio.timeout_at(deadline) as connecting:
                self._connecting.add(connecting)
                try:
                    connected = await self._connector.connect(origin)
                    connection = await self._connector.start(connected, origin, build)
                finally:
                    self._connecting.discard(connecting)
        except TimeoutError:
            if self._is_closed:
                raise LocalFault(CLOSED) from None
            if self._proxy is not None and connected is None:
                raise ProxyFailed(NO_CONNECTION_IN_TIME) from None
            raise
        if self._is_closed:
            connection.abort()
            raise LocalFault(CLOSED)
        if not connection.is_open:
            raise BrokenReply("the connection was closed")
        self._open.add(connection)
        return connection

    def _on_closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._pool.discard(connection)
