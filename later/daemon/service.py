"""The service of one process, alone or one of several: API, worker and tickers, started and stopped in order."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import structlog

from later.api.callback_check import CallbackCheck
from later.api.health import HealthSource
from later.api.server_connections import connection_limit
from later.config import Config
from later.core.admission_limits import AdmissionLimits
from later.core.audit_event import AuditAction, AuditEvent
from later.core.clock import Clock
from later.core.clock_move import ClockMove, ClockState
from later.core.durability import PRIMARY
from later.core.errors import LaterError, NotAlive, StoreDown, StoreMismatch
from later.core.policy import Sign
from later.daemon.census import Census
from later.daemon.clock_mover import ClockMover
from later.daemon.clock_watch import ClockWatch
from later.daemon.durability_report import build_durable_writes, report_missing_levels
from later.daemon.event_sending import build_event_writer, check_events_url
from later.daemon.guard import build_guard, why_guard_is_off
from later.daemon.heartbeat_sender import HeartbeatSender
from later.daemon.http_server import HttpServer
from later.daemon.lifecycle import wait_for_all
from later.daemon.sending import build_sender, raise_descriptor_limit
from later.daemon.shard_watch import WATCH_EVERY_MS, ShardWatch
from later.daemon.shared_census import SharedCensus
from later.daemon.signing_key import read_masters
from later.daemon.span_export import open_span_provider
from later.daemon.store_metrics import StoreMetrics
from later.metrics import Metrics
from later.store.admission import write_limits
from later.store.open import connect_store
from later.store.schema import Execute
from later.store.settings import StoreSettings
from later.store.shared_read import JointRead
from later.worker.history_recorder import RECORD_EVERY_MS, HistoryRecorder
from later.worker.operator_events import EVENTS_EVERY_MS
from later.worker.ticker import Ticker, TickResult, start_tickers
from later.worker.worker import Worker

log = structlog.get_logger("later.daemon")

REFRESH_EVERY_MS = 1000
KEYS_EVERY_MS = 1000
EVENT_LOOP_EVERY_MS = 500
HEARTBEAT_EVERY_MS = 2000
AUDIT_EVERY_MS = 1000
GRACE_S = 0.5
"""How long a ticker may take to end a tick after a probe has found that it hangs: probes wait for a second or more."""

AskOthers = Callable[[], Awaitable[Sequence[str]]]
"""A function that returns which tickers hang in the other processes of the daemon."""


async def ask_nobody() -> Sequence[str]:
    """Return no tickers, because there is no other process."""
    return ()


class Service:
    """The API, the worker, or both, as the command says, with the tickers that both need.

    The HTTP server answers by `health`; `fail` is called if the store cannot serve us.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        *,
        health: HealthSource,
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
            count_failover=metrics.store_failovers.inc,
            note_clock_jump=metrics.store_clocks.jump.set,
            count_follow_ups=metrics.count_follow_ups,
            moves_clock=config.moves_clock,
            keep_failures=config.keep_failures,
            policy_grace_s=config.policy_grace_ms / 1000,
        )
        metrics.store_clocks.spread.set_function(self._store.clock.spread_s)
        self._clock_watch = ClockWatch()
        self._span_provider = open_span_provider(config, self._instance)
        self._span_recorder = None if self._span_provider is None else self._span_provider.recorder
        self._descriptors = raise_descriptor_limit()
        self._guard = build_guard(config)
        self._sender = build_sender(
            config,
            self._guard,
            metrics,
            self._descriptors,
            key_ring=lambda: self._store.signing.latest,
            moved_ms=lambda: self._store.clock.moved_ms,
        )
        self._durable_writes = build_durable_writes(config, self._store, metrics)
        self._worker = self._build_worker() if config.runs_worker else None
        self._worker_started = False
        self.heartbeat = HeartbeatSender(config, self._store, self._instance, self._worker)
        sample = None if self._worker is None else self._worker.deliveries.sampler.sample
        self._history = HistoryRecorder(self._store, metrics, sample) if config.keeps_history else None
        record_census = None if self._history is None else self._history.record_census
        self.census = SharedCensus(self._store, Census(self._store, metrics), record_census)
        self.store_metrics = StoreMetrics(self.census, metrics)
        self._next_loop_measure: float | None = None
        """When (s, monotonic) the event loop should run `measure_event_loop` next."""
        self.http_server = HttpServer(
            config,
            self._store,
            metrics,
            health,
            guard=self._guard,
            durable_writes=self._durable_writes,
            most_connections=config.connections or connection_limit(self._descriptors, self._slots),
            wake_delay_ticker=self._worker.note_due if self._worker is not None else lambda due_at, ids: None,
            read_snapshot=self.census.look,
            move_clock=self._move_clock if config.moves_clock else None,
            span_recorder=self._span_recorder,
        )
        reads = [self._store.policies.shared_read, self._store.signing.shared_read]
        if self.http_server.authorization.reads_keys:
            reads.append(self._store.key_book.shared_read)
        self._joint_read = JointRead(self._store.client, reads)
        self._events = build_event_writer(config, self._store, metrics, self.store_metrics, self._worker)
        self._tickers = self._build_tickers()
        self._clock_mover: ClockMover | None = None
        if config.moves_clock and self._worker is not None:
            self._clock_mover = ClockMover(self._store, self._worker, self._tickers)

    def _build_worker(self) -> Worker:
        return Worker(
            store=self._store,
            sender=self._sender,
            metrics=self._metrics,
            slots=self._slots,
            tick_ms=self._config.tick_ms,
            lease_ms=self._config.lease_ms,
            random=random.random,
            check_callback=CallbackCheck(self._guard, self._metrics).check,
            instance=self._instance,
            span_recorder=self._span_recorder,
            confirm_settles=self._confirm_settles(),
        )

    def _confirm_settles(self) -> Callable[[], Awaitable[object]] | None:
        """Return a function that waits until all settles so far have their level; None if they have it at once."""
        level, writes = self._config.settle_durability, self._durable_writes
        if level is PRIMARY:
            return None
        return lambda: writes.reach(level, writes.server_changes)

    def _build_tickers(self) -> list[Ticker]:
        build = partial(Ticker.on_local_clock, count_error=self._metrics.count_tick_error)
        tickers = [
            build("refresh", self.refresh, REFRESH_EVERY_MS),
            build("event_loop", self.measure_event_loop, EVENT_LOOP_EVERY_MS),
            build("shards", ShardWatch(self._store, self._metrics).tick, WATCH_EVERY_MS),
        ]
        if self._config.runs_api:
            audit_ticker = build("audit", self.write_audit_events, AUDIT_EVERY_MS)
            self._store.audit_trail.on_record = audit_ticker.wake
            tickers.append(audit_ticker)
        if self._history is not None:
            tickers.append(build("history", self._history.tick, RECORD_EVERY_MS))
        if self._events is not None:
            tickers.append(build("events", self._events.tick, EVENTS_EVERY_MS))
        tickers.append(build("heartbeat", self.heartbeat.tick, HEARTBEAT_EVERY_MS))
        if self.http_server.authorization.reads_keys:
            tickers.append(build("keys", self.note_keys, KEYS_EVERY_MS))
        return tickers

    async def _move_clock(self, move: ClockMove) -> ClockState:
        """Move the clock, as a caller of `later dev` asks. Raises: as `ClockMover.move`."""
        assert self._clock_mover is not None
        return await self._clock_mover.move(move)

    async def open(self) -> int | None:
        """Read the signing key and open the store; return how many tasks it holds.

        None if it is unavailable: the tickers keep trying, and the API answers 503 meanwhile.

        Raises:
            ConfigError: the signing key cannot be read.
            StoreMismatch: the store cannot serve this configuration.
        """
        self._store.signing.use_masters(read_masters(self._config))
        self._report_signing_key()
        try:
            await self._store.client.open()
            await self._report_missing_keys()
            await report_missing_levels(self._config, self._store, self._durable_writes)
            return await self._store.stats.task_count()
        except StoreDown as error:
            log.warning("store unavailable", reason=str(error))
            return None

    def _report_signing_key(self) -> None:
        """Log by which keys deliveries are signed. It does not wait for the store, which may be away."""
        masters = self._store.signing.latest.masters
        if self._worker is None:
            return
        if masters:
            log.info("signing key read", masters=[master.fingerprint for master in masters])
        elif self._config.policy.sign is not Sign.OFF:
            log.warning("deliveries are not signed", reason="no --signing-key; `later secrets init` makes one")

    async def _report_missing_keys(self) -> None:
        """Log which keys deliveries need that are not there, and whether others sign by another. Raises StoreDown."""
        if self._worker is None:
            return
        ring = await self._store.signing.read()
        now = (await self._store.time.now()).low
        for master, scopes in ring.missing_masters(now).items():
            log.warning("signing key missing", master=master, of=scopes)
        await self._store.signing.note_default_master()
        other = await self._store.signing.foreign_default_master()
        if other is not None:
            log.warning("signing key differs", master=other, used=ring.masters[-1].fingerprint)

    async def decide_guard(self) -> str | None:
        """Turn the address guard on or off, and return why it is off. The store must be open."""
        guard = self._config.guard
        why_off = why_guard_is_off(guard, has_keys=guard == "auto" and await self._has_keys())
        self._guard.is_on = why_off is None
        return why_off

    async def _has_keys(self) -> bool:
        """Return True if calls need a key, or --auth off lets those in who have none: others than the operator call."""
        if self.http_server.authorization.asks_for_keys or self._config.root_key is not None:
            return True
        try:
            return (await self._store.key_book.read()).has_had_keys
        except StoreDown:
            return True  # nobody knows

    async def start_work(self) -> None:
        """Start the tickers and the worker.

        Raises:
            ConfigError: the address guard refuses the URL of --events.
        """
        check_events_url(self._config, self._guard, self._metrics)
        if self._config.connections is not None and self._config.connections + self._slots > self._descriptors:
            log.warning("connections may take the descriptors of deliveries", descriptors=self._descriptors)
        start_tickers(self._tickers, self._metrics)
        if self._worker is not None:
            await self._sender.start()
            if self._config.proxy is not None:
                log.info("calls go through a proxy", proxy=self._config.shown_proxy)
            self._worker.start()
            self._worker_started = True

    async def why_store_unavailable(self) -> LaterError | None:
        """Return the error with which the store answers, or does not; None if it serves, and keys can be judged.

        Of a cluster it is enough that one shard answers, and that the policies were ever read.
        """
        try:
            await self._store.stats.ping()
            if not self._store.policies.is_read:
                await self._store.policies.current()
            if self._config.runs_api and self.http_server.authorization.reads_keys:
                await self._store.key_book.current()
        except LaterError as error:
            return error
        return None

    def count_shards_away(self) -> int:
        return len(self._store.away_shards)

    async def why_not_alive(self, ask_others: AskOthers = ask_nobody) -> LaterError | None:
        """Return which tickers hang while the store answers: of this process, and of the others that its daemon has.

        While the store is away, nothing can be done, and a restart would not help. A process that was stopped for a
        minute goes on with the probes that came meanwhile, so it gets `GRACE_S` to show that it works.
        """
        if not (await ask_others() or self.hung_tickers()):
            return None
        try:
            await self._store.stats.ping()
        except LaterError:
            return None
        await asyncio.sleep(GRACE_S)
        hung = sorted({*await ask_others(), *self.hung_tickers()})
        return NotAlive(f"no tick has ended for more than a minute: {', '.join(hung)}") if hung else None

    def hung_tickers(self) -> list[str]:
        """Return the names of the tickers of this process that hang."""
        return self._metrics.hung_tickers(time.monotonic())

    async def stop(self, notice_s: float = 0.0) -> None:
        """Stop requests and claims first, then what they need; whatever fails, everything is stopped and closed.

        The port stays open for `notice_s` after the claims have stopped: meanwhile balancers learn from `/readyz` that
        they should send no more requests.
        """
        async with AsyncExitStack() as stack:
            if self._span_provider is not None:
                stack.push_async_callback(self._span_provider.stop)
            stack.push_async_callback(self._store.aclose)
            stack.push_async_callback(self.heartbeat.remove)
            if self._events is not None:
                stack.push_async_callback(self._events.flush_or_log)
            stack.push_async_callback(self._store.audit_trail.flush_or_log)
            if self._history is not None:
                stack.push_async_callback(self._history.write_last)
            stack.push_async_callback(self.cancel_tickers)
            stack.push_async_callback(self.census.stop)
            await wait_for_all(self.stop_worker(), self.http_server.close(notice_s))

    async def stop_worker(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._sender.close)
            if self._worker is not None and self._worker_started:
                await wait_for_all(self.heartbeat.leave_shards(), self._worker.stop(self._config.drain_ms / 1000))

    async def cancel_tickers(self) -> None:
        await asyncio.gather(*(ticker.cancel() for ticker in self._tickers))

    async def write_admission_limits(self, execute: Execute) -> None:
        """Write the options that decide on a create into the store, for bulk jobs that write to it without an API."""
        config = self._config
        limits = AdmissionLimits(max_body=config.max_body, remember_ms=config.policy.remember_ms, policy=config.policy)
        changed = await write_limits(execute, config.prefix, limits)
        if changed:
            log.warning("admission limits replaced", options=changed)

    async def refresh(self, now: int) -> TickResult:
        """Read the policies, the rotations of secrets and the API keys, and measure the store's time, all at once.

        A store that came back and cannot serve us is first noticed here.
        """
        try:
            await self._joint_read.run()
        except StoreMismatch as error:
            self._fail(error)
        self._clock_watch.check(self._store.clock.spread_s(), time.monotonic())
        return TickResult(0, None)

    async def note_keys(self, now: int) -> TickResult:
        """Write when the keys were used, and record which have ended."""
        book = self._store.key_book
        await book.write_uses()
        if self._config.runs_api:
            for key in await book.note_ended():
                about = {"id": key.id, "name": key.name}
                event = AuditEvent(action=AuditAction.KEY_ENDED, key=None, namespace=key.namespace, details=about)
                self._store.audit_trail.record(event)
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
