"""The HTTP server below the routes: the fast path for the most frequent calls, and the answers to malformed HTTP."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from aiohttp import StreamReader, hdrs, web
from aiohttp.http import HttpVersion11, RawRequestMessage, StreamWriter
from aiohttp.http_exceptions import InvalidURLError
from aiohttp.typedefs import Handler
from yarl import URL

from later.api.access_log import ACCESS_LOG
from later.api.requests import check_expectation
from later.api.routes import AUTHORIZATION, CROSS_SITE_PROTECTION, ERROR_ANSWER, REQUESTS, ROUTES
from later.api.server_connections import (
    GOODBYE_S,
    UNREAD_ANSWER_S,
    AcceptedConnection,
    ServerConnections,
)
from later.core.errors import Refused
from later.metrics.http_requests import OTHER_ROUTE

NO_STATUS = 1000
"""A number that no status reaches: nothing is logged."""
_QUOTE_START = re.compile(r"""[:"\n]|\B'(?![A-Za-z-]+' header)""")
"""Where a message of aiohttp begins to quote the request, which may contain a secret.

`can't` and `'Host' header` begin no quotation."""


class Runner(web.AppRunner):
    """A `web.AppRunner` with the server of this module, and limits for its connections."""

    def __init__(
        self, app: web.Application, connections: ServerConnections | None = None, base_path: str = "", **options: Any
    ) -> None:
        """`base_path` is taken off the paths that begin with it."""
        self._base_path = base_path
        self._connections = connections or ServerConnections()
        # `read_body` decompresses: aiohttp would do so with bodies that nobody reads, and close over a broken one
        super().__init__(app, keepalive_timeout=self._connections.idle_s, auto_decompress=False, **options)
        self._own_protocol: _Protocol | None = None

    async def answer(self, message: RawRequestMessage, body: bytes) -> web.StreamResponse:
        """Return the answer to a request of this process itself, as any other has it. Nothing is sent.

        `setup` must have been called.
        """
        server, loop, task = self.server, asyncio.get_running_loop(), asyncio.current_task()
        assert isinstance(server, _Server)
        assert task is not None
        if self._own_protocol is None:
            self._own_protocol = server.build_protocol(loop.time())
            self._own_protocol.transport = _NoTransport()
        protocol = self._own_protocol
        content = StreamReader(protocol, limit=sys.maxsize, loop=loop)
        content.feed_data(body)
        content.feed_eof()
        request = server.request_factory(message, content, protocol, StreamWriter(protocol, loop), task)
        return await server.dispatcher(request)

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        dispatcher = _Dispatcher(self.app, server.request_handler)
        make_request = server.request_factory
        if self._base_path:
            make_request = _strip_base_path(self._base_path, make_request)
        return _Server(self._connections, dispatcher, request_factory=make_request, **self._kwargs)


def _strip_base_path(base_path: str, make_request: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Return a factory of requests that have not the base path in front, whatever a proxy leaves there."""
    start = f"{base_path}/"

    def make(message: RawRequestMessage, *parts: Any) -> web.BaseRequest:
        url = message.url  # the target may be a whole URL (RFC 9112, section 3.2.2)
        if url.raw_path.startswith(start) or url.raw_path == base_path:
            url = URL.build(path=url.raw_path[len(base_path) :] or "/", query_string=url.raw_query_string, encoded=True)
            message = message._replace(path=url.raw_path_qs, url=url)
        return make_request(message, *parts)

    return make


class _Dispatcher:
    """The first handler of every request: checks its headers, then calls a fast route or the application's router.

    Routing takes a tenth of a create's time. Fast routes skip the application's middleware, too.
    """

    def __init__(self, application: web.Application, handle: Handler) -> None:
        routes = application[ROUTES]
        self.answer_error = application[ERROR_ANSWER]
        self._check_cross_site = application[CROSS_SITE_PROTECTION].check
        self._health_paths = frozenset(route.path for route in routes if route.is_health)
        self._metrics = metrics = application[REQUESTS].add_routes([*dict.fromkeys(route.template for route in routes)])
        self._unrouted = metrics[OTHER_ROUTE]
        self._access_log = application.get(ACCESS_LOG)
        self._least_logged = NO_STATUS if self._access_log is None else self._access_log.least_status
        self._fast = {
            route.path: (route.checked_handler(application[AUTHORIZATION]), route.template, metrics[route.template])
            for route in routes
            if route.is_fast
        }
        self._handle = handle

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)  # the application's factory made it
        started = perf_counter()
        fast = self._fast.get(request.raw_path) if request.method == "POST" else None
        try:
            if hdrs.TRANSFER_ENCODING in request.headers and request.version < HttpVersion11:
                # HTTP/1.0 ignores the header, and so may a proxy before us: what is a body to us is a request to it
                raise Refused("malformed HTTP: Transfer-Encoding in HTTP/1.0")
            self._check_cross_site(request, self._health_paths)
            if fast is None:  # aiohttp would answer an unknown one in plain text; a fast route has it checked later
                check_expectation(request)
        except Refused as error:
            response = self.answer_error(request, error)
            response.force_close()  # its body is not read
            self.note_unrouted(request, response, perf_counter() - started)
            return response
        if fast is None:
            return await self._route(request, started)
        handler, template, metrics = fast
        try:
            answer = await handler(request)
        except Exception as error:
            answer = self.answer_error(request, error)
        seconds = perf_counter() - started
        metrics.observe(answer.status, seconds)
        if answer.status >= self._least_logged:
            self._log(request, answer, template, seconds)
        return answer

    def note_unrouted(self, request: web.BaseRequest, answer: web.StreamResponse, seconds: float) -> None:
        """Count and log an answer that no route gave."""
        self._unrouted.observe(answer.status, seconds)
        self._log(request, answer, OTHER_ROUTE, seconds)

    def _log(self, request: web.BaseRequest, answer: web.StreamResponse, template: str, seconds: float) -> None:
        if self._access_log is not None:
            self._access_log.note(request, answer, template, seconds, is_health=template in self._health_paths)

    async def _route(self, request: web.Request, started: float) -> web.StreamResponse:
        """Answer by the application's router."""
        answer = await self._handle(request)
        if hdrs.EXPECT in request.headers and not request.content.at_eof():
            answer.force_close()  # a client that was not told to go on may send its next request instead of the body
        resource = request.match_info.route.resource
        template = OTHER_ROUTE if resource is None else resource.canonical
        metrics = self._metrics.get(template)
        if metrics is None:
            template, metrics = OTHER_ROUTE, self._unrouted
        seconds = perf_counter() - started
        metrics.observe(answer.status, seconds)
        self._log(request, answer, template, seconds)
        return answer


@contextmanager
def watch_connection(request: web.Request, on_disconnect: Callable[[], None]) -> Iterator[None]:
    """Call a function if the client disconnects in this block, or has done so: it does not wait any more.

    A client that has ended its side has, too. It may still read, but most that do so have closed the whole connection.
    """
    protocol = request.protocol
    assert isinstance(protocol, _Protocol)
    protocol.on_disconnect = on_disconnect
    try:
        if request.transport is None or protocol.is_ending:
            on_disconnect()
        yield
    finally:
        protocol.on_disconnect = None


class _Server(web.Server):
    """A factory of protocols, one for each connection."""

    def __init__(self, connections: ServerConnections, handler: _Dispatcher, **options: Any) -> None:
        super().__init__(handler, **options)
        self.dispatcher = handler
        self._limits = connections

    def __call__(self) -> AcceptedConnection:  # type: ignore[override]  # the HTTP protocol takes it over
        return AcceptedConnection(self._limits, self.build_protocol)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._limits.release()
        super().connection_lost(handler, exc)

    async def shutdown(self, timeout: float | None = None) -> None:
        for handshake in self._limits.handshakes:
            handshake.cancel()
        await super().shutdown(timeout)

    def build_protocol(self, head_until: float) -> _Protocol:
        return _Protocol(self, head_until, loop=self._loop, **self._kwargs)


class _NoTransport(asyncio.Transport):
    """The transport of requests that come over no connection: handlers that send their answers write to it."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Drop the data: the caller gets the answer itself."""

    def is_closing(self) -> bool:
        return False


class _Protocol(web.RequestHandler):
    """The HTTP protocol on one connection, whose first head must be there at `head_until` (of the event loop)."""

    __slots__ = ("_dispatcher", "_head_until", "_unread", "on_disconnect")

    def __init__(self, server: _Server, head_until: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._dispatcher = server.dispatcher
        self._head_until = head_until
        self._unread: asyncio.TimerHandle | None = None
        self.on_disconnect: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._keepalive_handle is not None:  # aiohttp gives the first head as much time as each further one
            self._keepalive_handle.cancel()
        self._next_keepalive_close_time = self._head_until
        self._keepalive_handle = self._loop.call_at(self._head_until, self._process_keepalive)

    @property
    def is_ending(self) -> bool:
        """True if no request follows the one that is being answered: the client has ended its side, or a stop began."""
        return self._close

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio keeps a connection open for True
        """Return True if the connection stays open for answers: a client may end its side after its last request.

        Nobody waits for the rest of a body that was cut short. TLS always ends both sides at once.
        """
        if self.on_disconnect is not None:
            self.on_disconnect()
        if self.transport is None or not self.transport.can_write_eof():
            return False
        if self._messages:
            message, body = self._messages[-1]
            if isinstance(message, RawRequestMessage):  # the last answer says that the connection closes
                self._messages[-1] = message._replace(should_close=True), body
            return body.is_eof()
        if self._waiter is not None:  # every request is answered
            return False
        self._close = True
        self._loop.call_soon(self._end_without_body)  # by then aiohttp says which request is being answered
        return True

    def _end_without_body(self) -> None:
        """Close the connection if it was left open for a request whose body was cut short, or that is answered."""
        request = self._current_request
        is_cut = request is not None and not request.content.is_eof()
        if self.transport is not None and (is_cut or not self._request_in_progress):
            self.transport.close()

    def _process_keepalive(self) -> None:
        """Close the connection if it is idle for too long, and do not wait long for the goodbye of TLS."""
        transport = self.transport
        super()._process_keepalive()
        if transport is not None and self.transport is None:
            self._loop.call_later(GOODBYE_S, transport.abort)

    def pause_writing(self) -> None:
        """Wait until the client has read more of its answer, but not for ever."""
        super().pause_writing()
        if self.transport is not None:
            self._unread = self._loop.call_later(UNREAD_ANSWER_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        if self.on_disconnect is not None:
            self.on_disconnect()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log an exception, unless a client's body was cut short: that was answered, and clients could fill the log."""
        if not isinstance(sys.exception(), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that no handler could: malformed HTTP (400), or a fault outside all handlers (500)."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already")
        error = exc if isinstance(exc, Exception) else TimeoutError()  # aiohttp hands over no error for one
        if isinstance(exc, InvalidURLError):  # its message is the target itself
            error = Refused("malformed HTTP: expected a path as the target")
        elif status == 400:
            reason = _QUOTE_START.split(message or "", maxsplit=1)[0].strip()
            error = Refused(f"malformed HTTP: {reason}")
        response = self._dispatcher.answer_error(request, error)
        response.force_close()
        self._dispatcher.note_unrouted(request, response, 0.0)
        return response
