"""Everything that serves in one process, whether it stands alone or beside others: built, started, stopped in order."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

import structlog
from aiohttp import web

from later import __version__
from later.api.app import build_app, build_health_app
from later.api.server import Runner
from later.config import API_COMMANDS, WORKER_COMMANDS, Config
from later.core.clock import Clock
from later.core.errors import LaterError, StoreDown, StoreMismatch
from later.daemon.listen import listen_address, listen_error, log_not_listening, may_skip_listening
from later.daemon.store_metrics import StoreMetrics
from later.delivery.sender import Sender
from later.metrics import Metrics
from later.option_types import Address
from later.store.open import connect_store
from later.store.settings import StoreSettings
from later.worker.ticker import Ticker, TickResult
from later.worker.worker import Worker

log = structlog.get_logger("later.daemon")

CLOCK_EVERY_MS = 1000
POLICIES_EVERY_MS = 1000
HEARTBEAT_EVERY_MS = 2000
REQUEST_GRACE_S = 5.0
"""How long a stop waits for requests under way: longer than the store may take to answer."""


class Service:
    """What of it there is depends on the command.

    `why_not_ready` and `exposition` answer /readyz and /metrics; `fail` is told of a store that cannot serve us.
    """

    def __init__(
        self,
        command: str,
        config: Config,
        metrics: Metrics,
        *,
        why_not_ready: Callable[[], Awaitable[str | None]],
        exposition: Callable[[], Awaitable[bytes]],
        fail: Callable[[LaterError], None],
    ) -> None:
        self._command = command
        self._config = config
        self._metrics = metrics
        self._fail = fail
        self._sender = Sender(max_lookups=config.concurrency, user_agent=f"later/{__version__}")
        self._instance = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._store = connect_store(
            StoreSettings(url=config.store_url, prefix=config.prefix, timeout_s=config.store_timeout_ms / 1000),
            config.shards,
            Clock(time.monotonic, time.time),
            config.policy,
            self._instance,
            metrics.observe_round_trip,
        )
        self._crew = self._build_crew() if command in WORKER_COMMANDS else None
        self._crew_started = False
        self._tickers = [
            Ticker.on_local_clock("clock", self._tick_clock, CLOCK_EVERY_MS, metrics.count_tick_error),
            Ticker.on_local_clock("policies", self._tick_policies, POLICIES_EVERY_MS, metrics.count_tick_error),
        ]
        if self._crew is not None:
            self._tickers.append(
                Ticker.on_local_clock("heartbeat", self._tick_beat, HEARTBEAT_EVERY_MS, metrics.count_tick_error)
            )
        self._runner = _runner(self._build_app(why_not_ready, exposition))
        self.store_metrics = StoreMetrics(self._store, metrics)

    async def open(self) -> int | None:
        """How many tasks the store holds. None where it is away: it is waited for, and the frontend answers 503."""
        _allow_many_connections()
        try:
            await self._store.client.open()
            return await self._store.stats.task_count()
        except StoreDown as error:
            log.warning("store unavailable", reason=str(error))
            return None

    async def start_work(self) -> None:
        """Begin what goes on by itself: claims and deliveries, and what they stand on."""
        for ticker in self._tickers:
            ticker.start()
        if self._crew is not None:
            await self._sender.start()
            self._crew.start()
            self._crew_started = True

    async def listen(self) -> list[Address]:
        """Where requests are answered from now on. Raises LaterError: they cannot be, and that was the point."""
        address = listen_address(self._command, self._config)
        if address is None:
            return []
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, address.host, address.port).start()
        except OSError as error:
            if not may_skip_listening(self._command, self._config, error):
                raise listen_error(address, error) from error
            log_not_listening(address)
        return [Address(host, port) for host, port, *_ in self._runner.addresses]

    async def listen_shared(self, addresses: Sequence[Address]) -> None:
        """Beside others, at what somebody holds for all of them. Raises LaterError: one of these cannot be had."""
        await self._runner.setup()
        for place in addresses:
            try:
                await web.TCPSite(self._runner, place.host, place.port, reuse_port=True).start()
            except OSError as error:
                raise listen_error(place, error) from error

    async def why_store_unavailable(self) -> str | None:
        """Why the store does not answer; None where it does."""
        try:
            await self._store.stats.ping()
        except LaterError as error:
            return str(error)
        return None

    async def stop(self) -> None:
        """Requests and claims first, then what they stand on."""
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._store.client.aclose)
            last_first.push_async_callback(self._leave)
            last_first.push_async_callback(self._stop_tickers)
            await asyncio.gather(self._stop_crew(), self._runner.cleanup())

    async def _stop_crew(self) -> None:
        if self._crew is not None and self._crew_started:
            await self._crew.stop(self._config.drain_ms / 1000)
            await self._sender.close()

    async def _stop_tickers(self) -> None:
        await asyncio.gather(*(ticker.cancel() for ticker in self._tickers))

    async def _leave(self) -> None:
        if self._crew_started:
            try:
                await self._store.stats.remove_worker(self._instance)
            except LaterError as error:
                log.debug("leaving without a word", reason=str(error))

    def _build_crew(self) -> Worker:
        config = self._config
        return Worker(
            store=self._store,
            sender=self._sender,
            metrics=self._metrics,
            slots=config.concurrency,
            tick_ms=config.tick_ms,
            lease_ms=config.lease_ms,
            remember_ms=config.remember_ms,
            random=random.random,
        )

    def _build_app(
        self, why_not_ready: Callable[[], Awaitable[str | None]], exposition: Callable[[], Awaitable[bytes]]
    ) -> web.Application:
        if self._command not in API_COMMANDS:
            return build_health_app(why_not_ready=why_not_ready, exposition=exposition)
        config = self._config
        return build_app(
            store=self._store,
            metrics=self._metrics,
            max_body=config.max_body,
            remember_ms=config.remember_ms,
            max_pending_writes=config.max_pending_writes,
            lease_ms=config.lease_ms,
            why_not_ready=why_not_ready,
            exposition=exposition,
            on_create=self._crew.wake if self._crew is not None else _nobody_waits,
        )

    async def _tick_clock(self, now: int) -> TickResult:
        """Measures the store's time, and is the first to see a store that came back as one that cannot serve us."""
        try:
            await self._store.measure_time()
        except StoreMismatch as error:
            self._fail(error)
        return TickResult(0, None)

    async def _tick_policies(self, now: int) -> TickResult:
        await self._store.policies.read()
        return TickResult(0, None)

    async def _tick_beat(self, now: int) -> TickResult:
        await self._store.stats.heartbeat(self._instance, (await self._store.now()).low)
        return TickResult(0, None)


def _runner(app: web.Application) -> web.AppRunner:
    return Runner(app, access_log=None, handle_signals=False, shutdown_timeout=REQUEST_GRACE_S)


def _allow_many_connections() -> None:
    """As many descriptors as the system allows: each receiver's host keeps a connection for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS names a limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _nobody_waits(due_at: int) -> None:
    """A worker in another process sees a new task at its next tick."""
