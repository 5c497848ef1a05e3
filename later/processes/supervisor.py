"""Several processes that are one daemon: starts them, starts them again, speaks for all of them, stops them in order.

It serves nothing itself, so that nothing that is served can hold it up: signals, the embedded store, the port and one
set of figures are its own.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import structlog

from later.config import Config
from later.core.errors import LaterError, StoreDown
from later.daemon.background import a_ticker
from later.daemon.backing_store import build_backing_store
from later.daemon.lifecycle import Lifecycle, run_in_loop
from later.daemon.listen import listen_address, listen_error, log_listening, log_not_listening, may_skip_listening
from later.metrics import Metrics
from later.processes.child import Child
from later.processes.messages import ExitReport, StoreSnapshot, startup_config
from later.processes.metrics import ProcessMetrics
from later.processes.pool import ProcessPool
from later.processes.reserved_port import ReservedPort, reserve_port
from later.processes.rpc import Handlers, RpcError
from later.worker.ticker import TickResult

log = structlog.get_logger("later.processes")

CHECK_EVERY_MS = 1000
PROCESS_METRICS_EVERY_MS = 2000
STORE_METRICS_EVERY_MS = 15_000
COLLECT_TIMEOUT_S = 60.0
"""How long a process may take over a look at the whole store: each call to it has the store's own patience."""
STOP_GRACE_S = 10.0
"""How much longer than --drain a process may take to stop: to settle, to give back, to say goodbye."""


def run(command: str, config: Config) -> int:
    """`up`, `serve` or `worker` until it is stopped; the exit status. Raises LaterError: why it does not work."""
    return run_in_loop(_Supervisor(command, config).run())


class _Supervisor:
    def __init__(self, command: str, config: Config) -> None:
        self._command = command
        self._config = config
        self._metrics = Metrics()
        self._metrics.processes.set(config.processes)
        self._metrics.processes_up.set_function(lambda: len(self._children.up))
        self._ledger = ProcessMetrics(self._metrics, config.processes)
        self._ground = build_backing_store(command, config, self._metrics)
        self._life = Lifecycle(force_exit=self._leave)
        self._children = ProcessPool(command, config, handlers=self._answers, on_unexpected_exit=self._on_death)
        self._keeping = a_ticker("processes", self._tick_children, CHECK_EVERY_MS, self._metrics)
        self._counting = a_ticker("process_metrics", self._tick_counts, PROCESS_METRICS_EVERY_MS, self._metrics)
        self._looking = a_ticker("store_metrics", self._tick_figures, STORE_METRICS_EVERY_MS, self._metrics)
        self._children.on_exit = self._keeping.wake
        self._reserved: ReservedPort | None = None
        self._said: set[str] = set()
        self._were_up: set[int] = set()

    async def run(self) -> int:
        return await self._life.run(self._start, self._stop)

    async def _start(self) -> None:
        await self._ground.start()
        await self._reserve()
        for ticker in (self._keeping, self._counting, self._looking):
            ticker.start()

    async def _reserve(self) -> None:
        address = listen_address(self._command, self._config)
        if address is None:
            return
        try:
            self._reserved = await reserve_port(address)
        except OSError as error:
            if not may_skip_listening(self._command, self._config, error):
                raise listen_error(address, error) from error
            log_not_listening(address)

    async def _stop(self) -> None:
        """Requests, claims and deliveries first; the store last, whatever went wrong before."""
        log.info("stopping")
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._ground.stop)
            if self._reserved is not None:
                self._reserved.close()
            await self._keeping.stop()  # it may be starting a process: that one is to be stopped, too
            await asyncio.gather(self._counting.cancel(), self._looking.cancel())
            await self._children.stop(self._config.drain_ms / 1000 + STOP_GRACE_S)
        log.info("stopped")

    def _leave(self) -> None:
        self._children.kill()
        self._ground.stop_nowait()

    # What goes on beside

    async def _tick_children(self, now: int) -> TickResult:
        return TickResult(0, await self._children.check(now))

    async def _tick_counts(self, now: int) -> TickResult:
        """So that little of what a process has counted is lost when it is killed; and to see which of them hangs."""
        await asyncio.gather(*(child.check() for child in self._children.up))
        return TickResult(0, None)

    async def _tick_figures(self, now: int) -> TickResult:
        """One process looks at the store for all of them; the next one, where that one does not answer."""
        up = self._children.up
        for child in sorted(up, key=lambda child: child.is_hung):
            with suppress(RpcError):
                self._note(msgspec.convert(await child.call("collect", timeout_s=COLLECT_TIMEOUT_S), StoreSnapshot))
                return TickResult(0, None)
        if up:
            raise RpcError("no process could look at the store")
        return TickResult(0, None)

    def _note(self, sight: StoreSnapshot) -> None:
        """Raises StoreDown: nothing was to be seen; this is counted and logged as it is where one process is alone."""
        self._ledger.update_store(sight.samples)
        if sight.failure is not None:
            raise StoreDown(sight.failure)

    def _on_death(self, child: Child) -> None:
        self._metrics.process_deaths.inc()
        self._ledger.retire(child.number, child.samples)

    # What the processes ask and tell

    def _answers(self, child: Child) -> Handlers:
        return {
            "startup_config": self._orders,
            "store_open": self._on_found,
            "up": partial(self._on_up, child),
            "stopping": partial(self._on_stopping, child),
            "readiness": self._why_not_ready,
            "exposition": self._exposition,
            "exit_report": partial(self._on_leaving, child),
        }

    async def _orders(self, _: None) -> dict[str, Any]:
        config = replace(self._config, store_url=self._ground.url, redis_given=True)
        return startup_config(config, [] if self._reserved is None else self._reserved.addresses)

    async def _on_found(self, tasks: int) -> None:
        """Before any process claims: it is the number that was left when the last daemon ended."""
        if self._first("store_open"):
            log.info("store found", store=self._ground.description, tasks=tasks, processes=self._config.processes)

    async def _on_up(self, child: Child, _: None) -> None:
        child.up = True
        self._were_up.add(child.number)
        if self._first("up"):
            self._looking.wake()
            if self._reserved is not None:
                log_listening(self._reserved.address, self._reserved.addresses)
        if self._children.why_not_ready() is None and self._first("all up"):
            log.info("all processes are up", processes=self._config.processes)

    async def _why_not_ready(self, _: None) -> tuple[str | None, str | None]:
        """Why the embedded store is away, and why not all processes are there."""
        return self._ground.why_unavailable(), self._children.why_not_ready()

    async def _exposition(self, _: None) -> str:
        await asyncio.gather(*(child.update_samples() for child in self._children.up))
        return self._ledger.exposition({child.number: child.samples for child in self._children}).decode()

    async def _on_stopping(self, child: Child, _: None) -> None:
        child.up = False

    async def _on_leaving(self, child: Child, said: dict[str, Any]) -> None:
        leaving = msgspec.convert(said, ExitReport)
        child.samples = leaving.samples
        if leaving.failure is None:
            return
        child.failure_reported = True
        if leaving.fatal_for_all or child.number not in self._were_up:
            self._life.fail(LaterError(leaving.failure))
        else:
            log.warning("process cannot be started", process=child.number, reason=leaving.failure)

    def _first(self, what: str) -> bool:
        """Is this to be said now? Everything is said once: not again for a process that was started again."""
        first = what not in self._said
        self._said.add(what)
        return first
