"""The supervisor of a daemon of several processes: starts them, restarts them, answers for them, stops them in order.

It serves no requests and makes no deliveries, so that neither can block it. Signals, the embedded store, the port and
the metrics of all processes are its own.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import structlog

from later.config import Config
from later.core.errors import LaterError, StoreDown
from later.daemon.backing_store import build_backing_store
from later.daemon.certificates import check_tls_files
from later.daemon.guard import log_guard, resolve_guard
from later.daemon.lifecycle import STOPPING, Lifecycle, run_in_loop
from later.daemon.listen import listen_error, log_listening, log_not_listening, may_skip_listening
from later.daemon.signing_key import format_masters, read_masters
from later.metrics import Exposition, Metrics
from later.processes.child import MAX_SILENT_CHECKS, MAX_START_CHECKS, Child
from later.processes.metrics import ProcessMetrics
from later.processes.pool import ProcessPool
from later.processes.reserved_port import ReservedPort, reserve_port
from later.processes.rpc import ExitReport, Handlers, RpcError, StoreSnapshot, encode_startup
from later.worker.ticker import Ticker, TickResult, start_tickers

log = structlog.get_logger("later.processes")

CHECK_EVERY_MS = 1000
PROCESS_METRICS_EVERY_MS = 2000
STORE_METRICS_EVERY_MS = 15_000
STORE_SAMPLES_TIMEOUT_S = 60.0
"""How long a process may take to read the metrics of the whole store: each of its calls has the store's own timeout."""
HUNG_TICKERS_TIMEOUT_S = 0.5
"""How long a process may take to say which of its tickers hang: the one that asks for all waits a second."""
RELOAD_TIMEOUT_S = 10.0
"""How long a process may take to read a certificate."""
STOP_GRACE_S = 10.0
"""How much longer than --drain a process may take to stop: to settle, to give tasks back, to report its exit."""


def run(config: Config) -> int:
    """Run `up`, `serve` or `worker` until it is stopped; return the exit status. Raises LaterError."""
    return run_in_loop(Supervisor(config).run())


class Supervisor:
    """The children, what they share, and the handlers of their calls.

    A child is killed after `max_silent_checks` checks in a row that it does not answer.
    """

    def __init__(self, config: Config, *, max_silent_checks: int = MAX_SILENT_CHECKS) -> None:
        check_tls_files(config)
        self._config = config = resolve_guard(config)
        self._max_silent_checks = max_silent_checks
        self._metrics = metrics = Metrics()
        metrics.processes.set(config.processes)
        metrics.processes_up.set_function(lambda: len(self._children.up))
        self._store_read_at = time.monotonic()
        metrics.snapshot_age.set_function(lambda: time.monotonic() - self._store_read_at)
        self._backing_store = build_backing_store(config, metrics)
        self._lifecycle = Lifecycle(
            force_exit=self.force_exit,
            reload=None if config.tls_cert is None else self.reload_certificates,
        )
        self._reload: asyncio.Future[list[None]] | None = None
        self._children = ProcessPool(config, handlers=self.handlers, on_unexpected_exit=self.on_unexpected_exit)
        self._process_metrics = ProcessMetrics(metrics, config.processes)
        build_ticker = partial(Ticker.on_local_clock, count_error=metrics.count_tick_error)
        self._check_ticker = build_ticker("processes", self.check_children, CHECK_EVERY_MS)
        self._process_ticker = build_ticker("process_metrics", self.update_process_metrics, PROCESS_METRICS_EVERY_MS)
        self._store_ticker = build_ticker("store_metrics", self.update_store_metrics, STORE_METRICS_EVERY_MS)
        self._children.on_exit = self._check_ticker.wake
        self._port: ReservedPort | None = None
        self._logged_events: set[str] = set()
        self._have_been_up: set[int] = set()

    async def run(self) -> int:
        return await self._lifecycle.run(self.start, self.stop)

    async def start(self) -> None:
        await self._backing_store.start()
        masters = read_masters(self._config)
        self._config = replace(self._config, signing_key=format_masters(masters))
        await self.reserve_port()
        start_tickers((self._check_ticker, self._process_ticker, self._store_ticker), self._metrics)

    async def reserve_port(self) -> None:
        address = self._config.http_address
        if address is None:
            return
        try:
            self._port = await reserve_port(address)
        except OSError as error:
            if not may_skip_listening(self._config, error):
                raise listen_error(address, error) from error
            log_not_listening(address)

    async def stop(self) -> None:
        """Stop requests, claims and deliveries first, and the store last, whatever fails before."""
        log.info("stopping")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._backing_store.stop)
            stack.push_async_callback(self._children.stop, self._config.drain_ms / 1000 + STOP_GRACE_S)
            stack.push_async_callback(self._process_ticker.cancel)
            stack.push_async_callback(self._store_ticker.cancel)
            stack.push_async_callback(self._check_ticker.stop)  # it may be starting a process, which must be stopped
            if self._port is not None:
                self._port.close()
        log.info("stopped")

    def force_exit(self) -> None:
        self._children.kill()
        self._backing_store.stop_nowait()

    def reload_certificates(self) -> None:
        """Let each process read the certificate of the HTTP server again.

        One that is being started is asked, too: it may have read the old one already. One that waits to be started
        again is started now: perhaps it could not use the old one.
        """

        async def reload(child: Child) -> None:
            try:
                await child.call("reload_certificate", timeout_s=RELOAD_TIMEOUT_S)
            except RpcError as error:
                if child.up:
                    log.warning("certificate not replaced", process=child.number, reason=str(error))

        self._reload = asyncio.gather(*map(reload, self._children))
        self._children.end_delays()
        self._check_ticker.wake()

    # Tickers

    async def check_children(self, now: int) -> TickResult:
        return TickResult(0, await self._children.check(now))

    async def update_process_metrics(self, now: int) -> TickResult:
        """Fetch every process's samples, so that little is lost when one is killed, and kill those that hang for good.

        The kernel goes on giving a hung process its part of the connections. To kill it is safe: its leases expire.
        """
        topics = self._process_metrics.topics_in_use
        await asyncio.gather(*(child.check(topics) for child in self._children))
        for child in self._children:
            if child.silent_checks == self._max_silent_checks or child.start_checks == MAX_START_CHECKS:
                log.warning("process killed: it does not answer", process=child.number, pid=child.pid)
                self._metrics.process_kills.inc()
                child.kill()
        return TickResult(0, None)

    async def update_store_metrics(self, now: int) -> TickResult:
        """Let one process read the store's metrics for all; the next one if it does not answer.

        Raises:
            StoreDown: the store is unavailable; it is counted and logged as in a single-process daemon.
        """
        up = self._children.up
        for child in sorted(up, key=lambda child: child.is_hung):
            with suppress(RpcError):
                topics = self._process_metrics.topics_in_use
                answer = await child.call("store_samples", topics, timeout_s=STORE_SAMPLES_TIMEOUT_S)
                snapshot = msgspec.convert(answer, StoreSnapshot)
                self._process_metrics.update_store(snapshot.samples)
                if snapshot.failure is not None:
                    raise StoreDown(snapshot.failure)
                self._store_read_at = time.monotonic() - snapshot.age_s
                return TickResult(0, None if snapshot.again_in_ms is None else now + snapshot.again_in_ms)
        if up:
            raise RpcError("no process could read the store's metrics")
        return TickResult(0, None)

    # Calls and exits of the children

    def handlers(self, child: Child) -> Handlers:
        return {
            "startup_config": self.on_startup_config,
            "store_open": self.on_store_open,
            "guard_decided": self.on_guard_decided,
            "up": partial(self.on_up, child),
            "stopping": partial(self.on_stopping, child),
            "readiness": self.on_readiness,
            "hung_tickers": self.on_hung_tickers,
            "exposition": self.on_exposition,
            "exit_report": partial(self.on_exit_report, child),
        }

    async def on_startup_config(self, _: None) -> dict[str, Any]:
        config = replace(self._config, store_url=self._backing_store.url, redis_given=True)
        return encode_startup(config, [] if self._port is None else self._port.addresses)

    async def on_store_open(self, tasks: int) -> None:
        """Log how many tasks the last daemon left: the first process says so before any process claims."""
        if self._is_first("store_open"):
            store, processes = self._backing_store.description, self._config.processes
            log.info("store found", store=store, tasks=tasks, processes=processes)

    async def on_guard_decided(self, why_off: str | None) -> None:
        """Log whether the address guard is on: all processes decide alike, so the first one says so."""
        if self._is_first("guard_decided"):
            log_guard(why_off)

    async def on_up(self, child: Child, _: None) -> None:
        child.up = True
        self._have_been_up.add(child.number)
        if self._is_first("up"):
            self._store_ticker.wake()
            if self._port is not None:
                log_listening(self._port.address, self._port.addresses, self._config)
        if self._children.why_not_ready() is None and self._is_first("all up"):
            log.info("all processes are up", processes=self._config.processes)

    async def on_readiness(self, _: None) -> tuple[str | None, str | None]:
        """Return why the embedded store is unavailable, and why not all processes are up."""
        why_not_ready = STOPPING if self._lifecycle.is_stopping else self._children.why_not_ready()
        return self._backing_store.why_unavailable(), why_not_ready

    async def on_hung_tickers(self, _: None) -> list[str]:
        """Return the tickers that hang, of the supervisor and of all processes that answer."""

        async def ask(child: Child) -> list[str]:
            with suppress(RpcError):
                answer: list[str] = await child.call("hung_tickers", timeout_s=HUNG_TICKERS_TIMEOUT_S)
                return answer
            return []

        answers = await asyncio.gather(*map(ask, self._children.up))
        return [*self._metrics.hung_tickers(time.monotonic()), *chain.from_iterable(answers)]

    async def on_exposition(self, accept: str) -> Exposition:
        topics = self._process_metrics.topics_in_use
        await asyncio.gather(*(child.update_samples(topics) for child in self._children.up))
        samples = {child.number: child.samples for child in self._children}
        return self._process_metrics.exposition(samples, accept)

    async def on_stopping(self, child: Child, _: None) -> None:
        child.up = False

    async def on_exit_report(self, child: Child, params: dict[str, Any]) -> None:
        """Stop the daemon if no process can work; a failure of one that was up before is an unexpected exit."""
        report = msgspec.convert(params, ExitReport)
        child.samples = report.samples
        if report.failure is None:
            return
        child.failure_reported = True
        if report.fatal_for_all or child.number not in self._have_been_up:
            self._lifecycle.fail(LaterError(report.failure))
        else:
            log.warning("process cannot be started", process=child.number, reason=report.failure)

    def on_unexpected_exit(self, child: Child) -> None:
        self._metrics.process_deaths.inc()
        self._process_metrics.retire(child.number, child.samples)

    def _is_first(self, event: str) -> bool:
        """Return True the first time: a process that is restarted logs nothing again."""
        first = event not in self._logged_events
        self._logged_events.add(event)
        return first
