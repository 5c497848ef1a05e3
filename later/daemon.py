"""Builds the house from a Config, starts it and stops it in order."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import structlog
from aiohttp import web

from later import __version__
from later.api.app import build_app, build_health_app
from later.api.server import Runner
from later.config import Config
from later.core.errors import LaterError, StoreDown, StoreMismatch
from later.core.policy import Policy
from later.core.retry import Backoff
from later.delivery.sender import Sender
from later.embedded import EmbeddedStore
from later.memory import build_memory
from later.metrics import Metrics
from later.values import Address
from later.worker.crew import Crew
from later.worker.figures import Figures
from later.worker.ticker import Errand, Ticked, Ticker

log = structlog.get_logger("later.daemon")

CLOCK_EVERY_MS = 1000
BEAT_EVERY_MS = 2000
FIGURES_EVERY_MS = 15_000
EMBEDDED_EVERY_MS = 1000
EMBEDDED = "embedded"
REQUESTS_PATIENCE_S = 5.0
"""How long a stop waits for requests under way: longer than the store may take to answer."""


def run_up(config: Config) -> int:
    """API and workers in one process, on the embedded store unless a Redis was named; the exit status."""
    return _run(_Daemon(config, api=True, worker=True, embedded=not config.redis_given))


def run_serve(config: Config) -> int:
    """The HTTP frontend alone."""
    return _run(_Daemon(config, api=True, worker=False, embedded=False))


def run_worker(config: Config) -> int:
    """The tickers alone."""
    return _run(_Daemon(config, api=False, worker=True, embedded=False))


class _Daemon:
    """One process: what of it there is depends on the command."""

    def __init__(self, config: Config, *, api: bool, worker: bool, embedded: bool) -> None:
        self._config = config
        self._metrics = Metrics()
        self._embedded = EmbeddedStore(config.data) if embedded else None
        url = config.store_url if self._embedded is None else self._embedded.url
        self._memory = build_memory(config, url, config.shards, self._metrics, checked=True)
        self._sender = Sender(
            timeout_ms=config.timeout_ms, lookups=config.concurrency, user_agent=f"later/{__version__}"
        )
        self._crew = self._build_crew() if worker else None
        self._crew_started = False
        self._instance = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._tickers = self._background()
        self._runners = self._build_runners(api)
        self._stop_asked = asyncio.Event()
        self._failure: LaterError | None = None

    async def run(self) -> int:
        """Until a signal or a failure; the exit status. Raises what made it fail."""
        self._listen_for_signals()
        starting = asyncio.create_task(self._start())
        asked = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await asked
        finally:
            await _cancel(starting, asked)
            await self._stop()
        if self._failure is not None:
            raise self._failure
        return 0

    async def _start(self) -> None:
        _allow_many_connections()
        if self._embedded is not None:
            await self._embedded.start()
        await self._open()
        for ticker in self._tickers:
            ticker.start()
        if self._crew is not None:
            await self._sender.start()
            self._crew.start()
            self._crew_started = True
        for runner, address in self._runners:
            await self._serve(runner, address)

    async def _open(self) -> None:
        """A store that is away is waited for, with the frontend up: it answers 503 until then."""
        try:
            await self._memory.client.open()
            log.info("store found", store=self._where(), tasks=await self._memory.census.tasks())
        except StoreDown as error:
            log.warning("the store is away, going on as soon as it answers", reason=str(error))

    async def _serve(self, runner: web.AppRunner, address: Address) -> None:
        await runner.setup()
        try:
            await web.TCPSite(runner, address.host, address.port).start()
        except OSError as error:
            # Asked by identity: --listen may name the same address, and without an API there is no use in going on.
            may_miss = address is self._config.health and not self._config.health_given
            if may_miss and error.errno == errno.EADDRINUSE:
                log.warning("health address in use: going on without; --health names another", address=str(address))
                return
            raise LaterError(f"cannot listen on {address}: {error.strerror or error}; choose another") from error
        for host, port, *_ in runner.addresses:
            log.info("listening", url=f"http://{Address(host, port)}")
        if not address.is_loopback:
            log.warning("listening beyond this machine: whoever reaches this port may make calls", address=str(address))

    async def _stop(self) -> None:
        """Requests and claims first, then what they stand on; the store last, whatever went wrong before."""
        log.info("stopping")
        async with AsyncExitStack() as last_first:
            if self._embedded is not None:
                last_first.push_async_callback(self._embedded.stop)
            last_first.push_async_callback(self._memory.client.aclose)
            last_first.push_async_callback(self._leave)
            last_first.push_async_callback(self._stop_tickers)
            await asyncio.gather(self._stop_crew(), *(runner.cleanup() for runner, _ in self._runners))
        log.info("stopped")

    async def _stop_crew(self) -> None:
        if self._crew is not None and self._crew_started:
            await self._crew.stop(self._config.drain_ms / 1000)
            await self._sender.close()

    async def _stop_tickers(self) -> None:
        """A check of the embedded store may be starting it: that one ends in its own time."""
        await asyncio.gather(*(t.stop() if t.name == EMBEDDED else t.cut() for t in self._tickers))

    async def _leave(self) -> None:
        if self._crew_started:
            try:
                await self._memory.census.leave(self._instance)
            except LaterError as error:
                log.debug("leaving without a word", reason=str(error))

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        """The first signal asks for a stop; the second leaves at once, and leases see to the rest."""
        if self._stop_asked.is_set():
            log.warning("leaving at once")
            if self._embedded is not None:
                self._embedded.abandon()
            os._exit(128 + number)
        self._stop_asked.set()

    def _fail(self, error: LaterError) -> None:
        self._failure = error
        self._stop_asked.set()

    def _build_crew(self) -> Crew:
        config = self._config
        return Crew(
            store=self._memory.store,
            jobs=self._memory.jobs,
            clock=self._memory.clock,
            sender=self._sender,
            metrics=self._metrics,
            backoff=Backoff(base_ms=config.retry_base_ms, cap_ms=config.retry_cap_ms, jitter=config.retry_jitter),
            hands=config.concurrency,
            tick_ms=config.tick_ms,
            timeout_ms=config.timeout_ms,
            lease_ms=config.lease_ms,
            remember_ms=config.remember_ms,
            chance=random.random,
        )

    def _build_runners(self, api: bool) -> list[tuple[web.AppRunner, Address]]:
        config = self._config
        if api:
            app = build_app(
                store=self._memory.store,
                jobs=self._memory.jobs,
                metrics=self._metrics,
                policy=Policy(max_delay_ms=config.max_delay_ms, retry=config.retry),
                max_body=config.max_body,
                remember_ms=config.remember_ms,
                backlog=config.backlog,
                why_not_ready=self._why_not_ready,
                on_create=self._crew.nudge if self._crew is not None else _nobody_waits,
            )
            return [(_runner(app), config.listen)]
        if config.health is None:
            return []
        return [(_runner(build_health_app(metrics=self._metrics, why_not_ready=self._why_not_ready)), config.health)]

    def _background(self) -> list[Ticker]:
        """What goes on beside requests and deliveries, each on a ticker: none of them may end."""
        table: list[tuple[str, Errand, int]] = [
            ("clock", self._tick_clock, CLOCK_EVERY_MS),
            ("figures", Figures(self._memory.store, self._memory.census, self._metrics).tick, FIGURES_EVERY_MS),
        ]
        if self._crew is not None:
            table.append(("beat", self._tick_beat, BEAT_EVERY_MS))
        if self._embedded is not None:
            table.append((EMBEDDED, self._tick_embedded, EMBEDDED_EVERY_MS))
        tickers = [self._ticker(name, errand, every) for name, errand, every in table]
        if self._embedded is not None:
            self._embedded.on_exit = tickers[-1].nudge
        return tickers

    def _ticker(self, name: str, errand: Errand, every_ms: int) -> Ticker:
        """On this process's own clock: these errands are what brings the store's back."""

        async def now() -> int:
            return int(time.monotonic() * 1000)

        return Ticker(
            name,
            errand,
            now=now,
            interval_ms=every_ms,
            count_error=self._metrics.count_tick_error,
        )

    async def _tick_clock(self, now: int) -> Ticked:
        """Measures the store's time, and is the first to see a store that came back as one that cannot serve us."""
        try:
            await self._memory.store.measure_time()
        except StoreMismatch as error:
            self._fail(error)
        return Ticked(0, None)

    async def _tick_beat(self, now: int) -> Ticked:
        await self._memory.census.beat(self._instance, (await self._memory.store.now()).low)
        return Ticked(0, None)

    async def _tick_embedded(self, now: int) -> Ticked:
        assert self._embedded is not None  # it has this ticker only then
        return Ticked(0, await self._embedded.check(now))

    async def _why_not_ready(self) -> str | None:
        if self._embedded is not None and (why := self._embedded.why_away()) is not None:
            return why
        try:
            await self._memory.census.ping()
        except LaterError as error:
            return str(error)
        return None

    def _where(self) -> str:
        return str(self._config.data) if self._embedded is not None else self._config.shown_store_url


def _run(daemon: _Daemon) -> int:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(daemon.run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: a fifth more creates a second on the same core. None: asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  # it is not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def _runner(app: web.Application) -> web.AppRunner:
    return Runner(app, access_log=None, handle_signals=False, shutdown_timeout=REQUESTS_PATIENCE_S)


def _allow_many_connections() -> None:
    """As many descriptors as the system allows: each receiver's host keeps a connection for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS names a limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _nobody_waits(due_at: int) -> None:
    """A worker in another process sees a new task at its next tick."""
