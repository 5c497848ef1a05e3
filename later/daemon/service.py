"""The service of one process, alone or one of several: API, worker and tickers, started and stopped in order."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

import structlog
from aiohttp import web

from later import __version__
from later.api.app import build_app, build_health_app
from later.api.authorization import Authorization
from later.api.cross_site import CrossSiteProtection
from later.api.server import Runner
from later.api.server_connections import ServerConnections, connection_limit
from later.config import Config
from later.core.address_guard import AddressGuard
from later.core.admission_limits import AdmissionLimits
from later.core.audit_event import AuditAction, AuditEvent
from later.core.clock import Clock
from later.core.errors import LaterError, StoreDown, StoreMismatch
from later.core.policy import Sign
from later.core.signing import KeyRing
from later.daemon.certificates import read_client_tls, read_server_certificate
from later.daemon.guard import build_guard, why_guard_is_off
from later.daemon.lifecycle import wait_for_all
from later.daemon.listen import (
    listen_error,
    log_not_listening,
    may_skip_listening,
    no_keys_error,
)
from later.daemon.signing_key import read_masters
from later.daemon.store_metrics import StoreMetrics
from later.delivery.aiohttp_client import AiohttpClient
from later.delivery.http_client import HttpClient
from later.delivery.own_client import OwnClient
from later.delivery.pool import idle_limit
from later.delivery.proxy import Proxy
from later.delivery.refusals import RefusalReport
from later.delivery.sender import Sender
from later.delivery.signer import Signer
from later.delivery.tls import TlsContexts
from later.metrics import Exposition, Metrics
from later.option_types import Address
from later.store.admission import write_limits
from later.store.open import Store, connect_store
from later.store.schema import Execute
from later.store.settings import StoreSettings
from later.worker.ticker import Ticker, TickResult, start_tickers
from later.worker.worker import Worker

log = structlog.get_logger("later.daemon")

CLOCK_EVERY_MS = 1000
POLICIES_EVERY_MS = 1000
KEYS_EVERY_MS = 1000
EVENT_LOOP_EVERY_MS = 500
HEARTBEAT_EVERY_MS = 2000
AUDIT_EVERY_MS = 1000
REQUEST_GRACE_S = 5.0
"""How long a stop waits for requests in flight: longer than the store may take to answer."""


class Service:
    """The API, the worker, or both, as the command says, with the tickers that both need.

    `why_not_ready` and `exposition` answer /readyz and /metrics; `fail` is called if the store cannot serve us.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        *,
        why_not_ready: Callable[[], Awaitable[LaterError | None]],
        exposition: Callable[[str], Awaitable[Exposition]],
        fail: Callable[[LaterError], None],
    ) -> None:
        self._metrics = metrics
        self._config = config
        self._fail = fail
        self._slots = config.concurrency if config.runs_worker else 0
        self._instance = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._store = connect_store(
            StoreSettings(url=config.store_url, prefix=config.prefix, timeout_s=config.store_timeout_ms / 1000),
            config.shards,
            Clock(time.monotonic, time.time),
            config.policy,
            self._instance,
            metrics.round_trip_observer,
            self.write_admission_limits if config.runs_api else None,
        )
        build_ticker = partial(Ticker.on_local_clock, count_error=metrics.count_tick_error)
        self._tickers = [
            build_ticker("clock", self.measure_clock, CLOCK_EVERY_MS),
            build_ticker("policies", self.read_policies, POLICIES_EVERY_MS),
            build_ticker("event_loop", self.measure_event_loop, EVENT_LOOP_EVERY_MS),
        ]
        if config.runs_api:
            audit_ticker = build_ticker("audit", self.write_audit_events, AUDIT_EVERY_MS)
            self._store.audit_trail.on_record = audit_ticker.wake
            self._tickers.append(audit_ticker)
        self._descriptors = raise_descriptor_limit()
        self._guard = build_guard(config)
        tls = read_client_tls(config.ca, config.receivers) if config.runs_worker else None
        key_ring = lambda: self._store.signing.latest  # noqa: E731
        self._sender = build_sender(config, self._guard, metrics, self._descriptors, key_ring, tls)
        self._worker: Worker | None = None
        if config.runs_worker:
            self._worker = Worker(
                store=self._store,
                sender=self._sender,
                metrics=metrics,
                slots=self._slots,
                tick_ms=config.tick_ms,
                lease_ms=config.lease_ms,
                remember_ms=config.remember_ms,
                random=random.random,
            )
            self._tickers.append(build_ticker("heartbeat", self.send_heartbeat, HEARTBEAT_EVERY_MS))
        self._worker_started = False
        self._next_loop_measure: float | None = None
        """When (s, monotonic) the event loop should run `measure_event_loop` next."""
        self._authorization = build_authorization(config, self._store, metrics)
        if self._authorization.reads_keys:
            self._tickers.append(build_ticker("keys", self.read_keys, KEYS_EVERY_MS))
        app = self._build_app(metrics, why_not_ready, exposition)
        self._certificate = read_server_certificate(config.tls_cert, config.tls_key)
        connections = ServerConnections(
            most=config.connections or connection_limit(self._descriptors, self._slots),
            idle_s=config.idle_ms / 1000,
            count_refused=metrics.connections_refused.inc,
            certificate=self._certificate,
        )
        self._runner = Runner(app, connections, access_log=None, handle_signals=False, shutdown_timeout=REQUEST_GRACE_S)
        self.store_metrics = StoreMetrics(self._store, metrics)

    def _build_app(
        self,
        metrics: Metrics,
        why_not_ready: Callable[[], Awaitable[LaterError | None]],
        exposition: Callable[[str], Awaitable[Exposition]],
    ) -> web.Application:
        config, worker = self._config, self._worker
        address = config.http_address
        own_hosts = set() if address is None else {address.host}
        authorization = self._authorization
        cross_site_protection = CrossSiteProtection(
            config.allow_hosts | own_hosts,
            config.allow_origins,
            takes_any_host=lambda: not config.allow_hosts and authorization.asks_for_keys,
        )
        if not config.runs_api:
            return build_health_app(
                authorization=authorization,
                cross_site_protection=cross_site_protection,
                metrics=metrics,
                why_not_ready=why_not_ready,
                exposition=exposition,
                clock=self._store.clock,
            )
        return build_app(
            store=self._store,
            metrics=metrics,
            guard=self._guard,
            max_body=config.max_body,
            remember_ms=config.remember_ms,
            max_pending_writes=config.max_pending_writes,
            lease_ms=config.lease_ms,
            authorization=authorization,
            cross_site_protection=cross_site_protection,
            why_not_ready=why_not_ready,
            exposition=exposition,
            wake_delay_ticker=worker.delay_ticker.wake if worker is not None else lambda due_at: None,
        )

    async def open(self) -> int | None:
        """Read the signing key and open the store; return how many tasks it holds.

        None if it is unavailable: the tickers keep trying, and the API answers 503 meanwhile.

        Raises:
            ConfigError: the signing key cannot be read.
            StoreMismatch: the store cannot serve this configuration.
        """
        self._store.signing.use_masters(read_masters(self._config))
        try:
            await self._store.client.open()
            await self._report_signing()
            return await self._store.stats.task_count()
        except StoreDown as error:
            log.warning("store unavailable", reason=str(error))
            return None

    async def _report_signing(self) -> None:
        """Log by which keys deliveries are signed, and which are missing. Raises StoreDown."""
        if self._worker is None:
            return
        ring = await self._store.signing.read()
        now = (await self._store.time.now()).low
        if ring.masters:
            log.info("signing key read", masters=[master.fingerprint for master in ring.masters])
        elif self._config.policy.sign is not Sign.OFF:
            log.warning("deliveries are not signed", reason="no --signing-key; `later secrets init` makes one")
        for master, scopes in ring.missing_masters(now).items():
            log.warning("signing key missing", master=master, of=scopes)

    def decide_guard(self) -> str | None:
        """Turn the address guard on or off, and return why it is off. The store must be open."""
        why_off = why_guard_is_off(self._config.guard, has_keys=self._authorization.asks_for_keys)
        self._guard.is_on = why_off is None
        return why_off

    async def check_keys(self) -> None:
        """Refuse to listen where others can call and nobody has a key, before anything is delivered.

        A store that is away is waited for: the API answers 503 until its keys were read. A worker delivers all the
        same: without a key, its metrics are closed.

        Raises:
            LaterError: there is no root key, and the store has never had a key.
        """
        address = self._config.http_address
        if address is None or not self._authorization.reads_keys:
            return
        with suppress(StoreDown):
            await self._store.key_book.read()
        if self._config.runs_api and not address.is_loopback and not self._authorization.has_had_keys:
            raise no_keys_error(address)
        if not self._authorization.has_keys:
            log.warning("no API keys", detail='every call is refused: make one with "later keys create"')

    async def start_work(self) -> None:
        """Start the tickers and the worker."""
        if self._config.connections is not None and self._config.connections + self._slots > self._descriptors:
            log.warning("connections may take the descriptors of deliveries", descriptors=self._descriptors)
        start_tickers(self._tickers, self._metrics)
        if self._worker is not None:
            await self._sender.start()
            if self._config.proxy is not None:
                log.info("calls go through a proxy", proxy=self._config.shown_proxy)
            self._worker.start()
            self._worker_started = True

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
        """Read the certificate of the HTTP server again; connections that are open keep the old one."""
        if self._certificate is not None:
            self._certificate.reload()

    async def why_store_unavailable(self) -> LaterError | None:
        """Return the error with which the store answers, or does not; None if it serves."""
        try:
            await self._store.stats.ping()
        except LaterError as error:
            return error
        return None

    async def stop(self) -> None:
        """Stop requests and claims first, then what they need; whatever fails, everything is stopped and closed."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._store.aclose)
            stack.push_async_callback(self.remove_heartbeat)
            stack.push_async_callback(self._store.audit_trail.flush_or_log)
            stack.push_async_callback(self.cancel_tickers)
            await wait_for_all(self.stop_worker(), self._runner.cleanup())

    async def stop_worker(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._sender.close)
            if self._worker is not None and self._worker_started:
                await self._worker.stop(self._config.drain_ms / 1000)

    async def cancel_tickers(self) -> None:
        await asyncio.gather(*(ticker.cancel() for ticker in self._tickers))

    async def remove_heartbeat(self) -> None:
        if self._worker_started:
            try:
                await self._store.stats.remove_worker(self._instance)
            except LaterError as error:
                log.debug("heartbeat not removed", reason=str(error))

    async def write_admission_limits(self, execute: Execute) -> None:
        """Write the options that decide on a create into the store, for bulk jobs that write to it without an API."""
        config = self._config
        limits = AdmissionLimits(max_body=config.max_body, remember_ms=config.remember_ms, policy=config.policy)
        changed = await write_limits(execute, config.prefix, limits)
        if changed:
            log.warning("admission limits replaced", options=changed)

    async def measure_clock(self, now: int) -> TickResult:
        """Measure the store's time. A store that came back and cannot serve us is first noticed here."""
        try:
            await self._store.time.measure()
        except StoreMismatch as error:
            self._fail(error)
        return TickResult(0, None)

    async def read_policies(self, now: int) -> TickResult:
        await asyncio.gather(self._store.policies.read(), self._store.signing.read())
        return TickResult(0, None)

    async def read_keys(self, now: int) -> TickResult:
        """Read the keys, write when they were used, and record which have ended."""
        book = self._store.key_book
        await book.read()
        await book.write_uses()
        if self._config.runs_api:
            for key in await book.note_ended():
                about = {"id": key.id, "name": key.name}
                event = AuditEvent(action=AuditAction.KEY_ENDED, key=None, namespace=key.namespace, details=about)
                self._store.audit_trail.record(event)
        return TickResult(0, None)

    async def send_heartbeat(self, now: int) -> TickResult:
        await self._store.stats.heartbeat(self._instance, (await self._store.time.now()).low)
        return TickResult(0, None)

    async def write_audit_events(self, now: int) -> TickResult:
        return TickResult(await self._store.audit_trail.flush(), None)

    async def measure_event_loop(self, now: int) -> TickResult:
        """Measure how much later than planned the event loop has come back to this ticker."""
        at = time.monotonic()
        if self._next_loop_measure is not None:
            self._metrics.event_loop_lag.observe(max(at - self._next_loop_measure, 0))
        self._next_loop_measure = at + EVENT_LOOP_EVERY_MS / 1000
        return TickResult(0, None)


def raise_descriptor_limit() -> int:
    """Raise the number of descriptors that this process may have to what it may be, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS reports a limit that it does not grant
            return soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def build_sender(
    config: Config,
    guard: AddressGuard,
    metrics: Metrics,
    descriptors: int,
    key_ring: Callable[[], KeyRing],
    tls: TlsContexts | None,
) -> Sender:
    """Return the sender with the HTTP client, and through the proxy, that the options say. It signs by `key_ring()`."""
    proxy = None if config.proxy is None else Proxy.parse(config.proxy)
    max_idle = idle_limit(descriptors, config.concurrency)
    client: HttpClient
    if config.http_client == "aiohttp":
        client = AiohttpClient(max_lookups=config.concurrency, max_idle=max_idle, guard=guard, proxy=proxy, tls=tls)
    else:
        client = OwnClient(max_lookups=config.concurrency, max_idle=max_idle, guard=guard, proxy=proxy, tls=tls)
    return Sender(
        client,
        Signer(key_ring),
        user_agent=f"later/{__version__}",
        guard=guard,
        refusals=RefusalReport(lambda why: metrics.callbacks_refused.labels(why).inc()),
        has_proxy=proxy is not None,
    )


def build_authorization(config: Config, store: Store, metrics: Metrics) -> Authorization:
    """Return the check of keys that the options say. A worker's metrics stay open on loopback."""
    address = config.http_address
    is_loopback = address is None or address.is_loopback
    if config.auth == "off" or (not config.runs_api and is_loopback):
        return Authorization()
    return Authorization(
        store.key_book,
        root_key=config.root_key,
        is_optional=config.auth == "auto" and is_loopback,
        count_denial=metrics.count_denial,
        monotonic=time.monotonic,
    )
