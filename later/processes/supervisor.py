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
from later.daemon.backing_store import ground
from later.daemon.lifecycle import Life, run_in_loop
from later.daemon.listen import cannot_listen, door, may_go_without, say_closed, say_open
from later.metrics import Metrics
from later.processes.child import Child
from later.processes.messages import Leaving, Sight, orders
from later.processes.metrics import Ledger
from later.processes.pool import Children
from later.processes.reserved_port import Reserved, reserve
from later.processes.rpc import Answers, NoAnswer
from later.worker.ticker import Ticked

log = structlog.get_logger("later.processes")

CHECK_EVERY_MS = 1000
COUNT_EVERY_MS = 2000
FIGURES_EVERY_MS = 15_000
GATHER_S = 60.0
"""How long a process may take over a look at the whole store: each call to it has the store's own patience."""
PATIENCE_S = 10.0
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
        self._ledger = Ledger(self._metrics, config.processes)
        self._ground = ground(command, config, self._metrics)
        self._life = Life(leave=self._leave)
        self._children = Children(command, config, answers=self._answers, on_death=self._on_death)
        self._keeping = a_ticker("processes", self._tick_children, CHECK_EVERY_MS, self._metrics)
        self._counting = a_ticker("counts", self._tick_counts, COUNT_EVERY_MS, self._metrics)
        self._looking = a_ticker("figures", self._tick_figures, FIGURES_EVERY_MS, self._metrics)
        self._children.on_exit = self._keeping.nudge
        self._reserved: Reserved | None = None
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
        address = door(self._command, self._config)
        if address is None:
            return
        try:
            self._reserved = await reserve(address)
        except OSError as error:
            if not may_go_without(self._command, self._config, error):
                raise cannot_listen(address, error) from error
            say_closed(address)

    async def _stop(self) -> None:
        """Requests, claims and deliveries first; the store last, whatever went wrong before."""
        log.info("stopping")
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._ground.stop)
            if self._reserved is not None:
                self._reserved.close()
            await self._keeping.stop()  # it may be starting a process: that one is to be stopped, too
            await asyncio.gather(self._counting.cut(), self._looking.cut())
            await self._children.stop(self._config.drain_ms / 1000 + PATIENCE_S)
        log.info("stopped")

    def _leave(self) -> None:
        self._children.kill()
        self._ground.abandon()

    # What goes on beside

    async def _tick_children(self, now: int) -> Ticked:
        return Ticked(0, await self._children.check(now))

    async def _tick_counts(self, now: int) -> Ticked:
        """So that little of what a process has counted is lost when it is killed; and to see which of them hangs."""
        await asyncio.gather(*(child.check() for child in self._children.up))
        return Ticked(0, None)

    async def _tick_figures(self, now: int) -> Ticked:
        """One process looks at the store for all of them; the next one, where that one does not answer."""
        up = self._children.up
        for child in sorted(up, key=lambda child: child.hangs):
            with suppress(NoAnswer):
                self._note(msgspec.convert(await child.ask("gather", within_s=GATHER_S), Sight))
                return Ticked(0, None)
        if up:
            raise NoAnswer("no process could look at the store")
        return Ticked(0, None)

    def _note(self, sight: Sight) -> None:
        """Raises StoreDown: nothing was to be seen; this is counted and logged as it is where one process is alone."""
        self._ledger.note_store(sight.seen)
        if sight.failure is not None:
            raise StoreDown(sight.failure)

    def _on_death(self, child: Child) -> None:
        self._metrics.process_deaths.inc()
        self._ledger.bury(child.number, child.figures)

    # What the processes ask and tell

    def _answers(self, child: Child) -> Answers:
        return {
            "orders": self._orders,
            "found": self._on_found,
            "up": partial(self._on_up, child),
            "stopping": partial(self._on_stopping, child),
            "ready": self._why_not_ready,
            "exposition": self._exposition,
            "leaving": partial(self._on_leaving, child),
        }

    async def _orders(self, _: None) -> dict[str, Any]:
        config = replace(self._config, store_url=self._ground.url, redis_given=True)
        return orders(config, [] if self._reserved is None else self._reserved.bound)

    async def _on_found(self, tasks: int) -> None:
        """Before any process claims: it is the number that was left when the last daemon ended."""
        if self._first("found"):
            log.info("store found", store=self._ground.shown, tasks=tasks, processes=self._config.processes)

    async def _on_up(self, child: Child, _: None) -> None:
        child.up = True
        self._were_up.add(child.number)
        if self._first("up"):
            self._looking.nudge()
            if self._reserved is not None:
                say_open(self._reserved.address, self._reserved.bound)
        if self._children.why_not_ready() is None and self._first("all up"):
            log.info("all processes are up", processes=self._config.processes)

    async def _why_not_ready(self, _: None) -> tuple[str | None, str | None]:
        """Why the embedded store is away, and why not all processes are there."""
        return self._ground.why_away(), self._children.why_not_ready()

    async def _exposition(self, _: None) -> str:
        await asyncio.gather(*(child.count() for child in self._children.up))
        return self._ledger.exposition({child.number: child.figures for child in self._children}).decode()

    async def _on_stopping(self, child: Child, _: None) -> None:
        child.up = False

    async def _on_leaving(self, child: Child, said: dict[str, Any]) -> None:
        leaving = msgspec.convert(said, Leaving)
        child.figures = leaving.figures
        if leaving.failure is None:
            return
        child.said_why = True
        if leaving.of_all or child.number not in self._were_up:
            self._life.fail(LaterError(leaving.failure))
        else:
            log.warning("process cannot be started", process=child.number, reason=leaving.failure)

    def _first(self, what: str) -> bool:
        """Is this to be said now? Everything is said once: not again for a process that was started again."""
        first = what not in self._said
        self._said.add(what)
        return first
