"""The HTTP server of one process: the API, or a worker's health endpoints, with the check of keys in front."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from later.address_types import Address
from later.api.access_log import ACCESS_LOG, AccessLog
from later.api.application.app import ApiSettings, build_app, build_health_app
from later.api.authorization import Authorization, NoScope
from later.api.clock_moves import MoveClock
from later.api.console_sessions import ConsoleSessions, SessionCookie
from later.api.cross_site import CrossSiteProtection
from later.api.durable_writes import DurableWrites
from later.api.health import HealthSource
from later.api.routes import Route
from later.api.server import Runner
from later.api.server_connections import ServerConnections
from later.api.sign_in import SignInHandlers
from later.api.topic_rows import ReadSnapshot
from later.config import Config
from later.console.pages import PATH, ConsolePages
from later.core.address_guard import AddressGuard
from later.core.errors import StoreDown
from later.daemon.certificates import read_server_certificate
from later.daemon.listen import listen_error, log_not_listening, may_skip_listening, no_keys_error
from later.event_lines import EVENT_LINES
from later.metrics import Metrics
from later.store.open import Store

if TYPE_CHECKING:
    from later.tracing.spans import SpanRecorder

log = structlog.get_logger("later.daemon")

REQUEST_GRACE_S = 5.0
"""How long a stop waits for requests in flight: longer than the store may take to answer."""


class HttpServer:
    """The server that the options say. It has at most `most_connections`; `guard` judges the callbacks of writes."""

    def __init__(
        self,
        config: Config,
        store: Store,
        metrics: Metrics,
        health: HealthSource,
        *,
        guard: AddressGuard,
        durable_writes: DurableWrites,
        most_connections: int,
        wake_delay_ticker: Callable[[int, Sequence[str]], None],
        read_snapshot: ReadSnapshot,
        move_clock: MoveClock | None = None,
        span_recorder: SpanRecorder | None = None,
    ) -> None:
        """`move_clock` moves the clock of a `later dev`. `span_recorder` traces creates."""
        self._config = config
        self._store = store
        self._metrics = metrics
        self._cross_site_protection = build_cross_site_protection(config, lambda: self.authorization.asks_for_keys)
        self._cookie = SessionCookie.of_server(
            config.base_path, is_secure=config.tls_cert is not None or config.behind_proxy
        )
        self.authorization = build_authorization(config, store, metrics, self._build_sessions())
        self._max_waiters = max(most_connections // 2, 1) if config.waiters is None else config.waiters
        self._certificate = read_server_certificate(config.tls_cert, config.tls_key)
        connections = ServerConnections(
            most=most_connections,
            idle_s=config.idle_ms / 1000,
            count_refused=metrics.connections_refused.inc,
            certificate=self._certificate,
        )
        self._durable_writes = durable_writes
        app = self._build_app(health, guard, wake_delay_ticker, read_snapshot, move_clock, span_recorder)
        if config.access_log != "off":
            app[ACCESS_LOG] = AccessLog(
                logs_all=config.access_log == "all", monotonic=time.monotonic, add_event=EVENT_LINES.add
            )
        self._runner = Runner(
            app,
            connections,
            config.base_path,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=REQUEST_GRACE_S,
        )

    def _build_sessions(self) -> ConsoleSessions | None:
        """Return the sessions of the console, if there is one."""
        if self._config.console_mode == "off":
            return None
        return ConsoleSessions(
            self._store.session_secret,
            self._cookie,
            is_of_own_page=self._cross_site_protection.is_of_own_page,
            is_read_only=self._config.console_mode == "readonly",
        )

    def _build_app(
        self,
        health: HealthSource,
        guard: AddressGuard,
        wake_delay_ticker: Callable[[int, Sequence[str]], None],
        read_snapshot: ReadSnapshot,
        move_clock: MoveClock | None,
        span_recorder: SpanRecorder | None,
    ) -> web.Application:
        config, authorization = self._config, self.authorization
        if not config.runs_api:
            return build_health_app(
                authorization=authorization,
                cross_site_protection=self._cross_site_protection,
                metrics=self._metrics,
                health=health,
                clock=self._store.clock,
            )
        return build_app(
            ApiSettings(
                max_body=config.max_body,
                max_pending_writes=config.max_pending_writes,
                remember_ms=config.policy.remember_ms,
                lease_ms=config.lease_ms,
                max_waiters=self._max_waiters,
                base_path=config.base_path,
                keeps_trace_context=config.trace_context == "keep",
                keeps_history=config.keeps_history,
            ),
            store=self._store,
            metrics=self._metrics,
            guard=guard,
            durable_writes=self._durable_writes,
            authorization=authorization,
            cross_site_protection=self._cross_site_protection,
            health=health,
            wake_delay_ticker=wake_delay_ticker,
            pages=self._console_routes(),
            read_snapshot=read_snapshot,
            move_clock=move_clock,
            span_recorder=span_recorder,
        )

    def _console_routes(self) -> list[Route]:
        mode = self._config.console_mode
        return [] if mode == "off" else console_routes(mode, self._config.base_path, self.authorization, self._cookie)

    async def check_keys(self) -> None:
        """Refuse to listen where others can call and nobody has a key, before anything is delivered.

        A store that is away is waited for: the API answers 503 until its keys were read. A worker delivers all the
        same: without a key, its metrics are closed.

        Raises:
            LaterError: there is no root key, and the store has never had a key.
        """
        address, authorization = self._config.http_address, self.authorization
        if address is None or not authorization.reads_keys:
            return
        with suppress(StoreDown):
            await self._store.key_book.read()
        if self._config.runs_api and not address.is_loopback and not authorization.has_had_keys:
            raise no_keys_error(address)
        if not authorization.has_keys:
            log.warning("no API keys", detail='every call is refused: make one with "later keys create"')

    async def listen(self) -> list[Address]:
        """Listen, and return the numeric addresses. Raises LaterError if an API cannot."""
        address = self._config.http_address
        if address is None:
            return []
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, address.host, address.port).start()
        except OSError as error:
            if not may_skip_listening(self._config, error):
                raise listen_error(address, error) from error
            log_not_listening(address)
        return [Address(host, port) for host, port, *_ in self._runner.addresses]

    async def listen_shared(self, addresses: Sequence[Address]) -> None:
        """Listen beside other processes, on addresses that the supervisor reserved. Raises LaterError."""
        await self._runner.setup()
        for address in addresses:
            try:
                await web.TCPSite(self._runner, address.host, address.port, reuse_port=True).start()
            except OSError as error:
                raise listen_error(address, error) from error

    def reload_certificate(self) -> None:
        """Read the certificate again; connections that are open keep the old one."""
        if self._certificate is not None:
            self._certificate.reload()

    async def close(self, notice_s: float = 0.0) -> None:
        """Stop listening after `notice_s`, and wait for requests in flight."""
        try:
            if notice_s and self._runner.addresses:
                await asyncio.sleep(notice_s)
        finally:
            await self._runner.cleanup()


def console_routes(mode: str, base_path: str, authorization: Authorization, cookie: SessionCookie) -> list[Route]:
    """Return the routes of the console. They are open, because its pages hold no data: the calls that they make do."""
    pages, sign_in = ConsolePages(base_path, mode), SignInHandlers(authorization, cookie)
    return [
        Route("POST", f"{PATH}session", sign_in.sign_in, NoScope.OPEN),
        Route("DELETE", f"{PATH}session", sign_in.sign_out, NoScope.OPEN),
        Route("GET", PATH.rstrip("/"), pages.redirect, NoScope.OPEN, is_page=True),
        # not the address of sessions, which takes no GET
        Route("GET", f"{PATH}{{path:(?!session$).*}}", pages.show, NoScope.OPEN, is_page=True),
    ]


def build_cross_site_protection(config: Config, asks_for_keys: Callable[[], bool]) -> CrossSiteProtection:
    """Return the protection that the options say. With keys, any host is allowed unless some are named."""
    own_hosts = set() if config.http_address is None else {config.http_address.host}
    return CrossSiteProtection(
        config.allow_hosts | own_hosts,
        config.allow_origins,
        takes_any_host=lambda: not config.allow_hosts and asks_for_keys(),
    )


def build_authorization(
    config: Config, store: Store, metrics: Metrics, sessions: ConsoleSessions | None
) -> Authorization:
    """Return the check of keys that the options say. A worker's metrics stay open on loopback."""
    is_loopback = config.http_address is None or config.http_address.is_loopback
    if config.auth == "off" or (not config.runs_api and is_loopback):
        return Authorization()
    return Authorization(
        store.key_book,
        root_key=config.root_key,
        is_optional=config.auth == "auto" and is_loopback,
        sessions=sessions,
        count_denial=metrics.count_denial,
        monotonic=time.monotonic,
    )
