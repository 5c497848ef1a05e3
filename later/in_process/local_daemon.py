"""A daemon within the process of an application: the API without a listener, and the upkeep, but no deliveries."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing, suppress

from later.address_types import default_shards
from later.api.application.app import CLAIMS, ApiSettings, build_app
from later.api.authorization import Authorization
from later.api.claims import ClaimHandlers
from later.api.cross_site import CrossSiteProtection
from later.api.durable_writes import DurableWrites
from later.api.health import HealthSource
from later.api.in_process_calls import InProcessCalls
from later.core.address_guard import AddressGuard
from later.core.admission_limits import AdmissionLimits
from later.core.audit_event import AuditAction, AuditEvent
from later.core.clock import Clock
from later.core.errors import LaterError
from later.core.policy import DEFAULT_POLICY, Deliver
from later.core.policy_scopes import Level, Policies, namespace_from_topic, topic_scope
from later.daemon.census import Census
from later.daemon.shared_census import SharedCensus
from later.metrics import Exposition, Metrics
from later.store.admission import read_limits
from later.store.cluster_client import connect_client, is_cluster
from later.store.keys import Bucket
from later.store.open import connect_store
from later.store.policies import Replacement
from later.store.schema import stored_layout
from later.store.settings import StoreSettings
from later.store.shared_read import JointRead
from later.worker.firing import FIRING_EVERY_MS, ScheduleFirer
from later.worker.history_recorder import RECORD_EVERY_MS, HistoryRecorder
from later.worker.shard_selector import ShardSelector
from later.worker.ticker import Ticker, TickFunction, TickResult, start_tickers
from later.worker.upkeep import Upkeep

TICK_MS = 100
"""How often tasks are looked for whose backoff is over or whose lease has ended: as often as a daemon looks."""
REFRESH_EVERY_MS = 1000
HEARTBEAT_EVERY_MS = 2000
AUDIT_EVERY_MS = 1000
MAX_PENDING_WRITES = 10_000
MAX_WAITERS = 10_000
LEASE_MARGIN_MS = 15_000
DURABILITY_TIMEOUT_MS = 1000
"""How long a write waits for its durability, as in a daemon by default."""
DEFAULT_LIMITS = AdmissionLimits(max_body=1024 * 1024, remember_ms=DEFAULT_POLICY.remember_ms)
"""The limits where no daemon has written its own. They are the defaults of a daemon's options."""


async def open_local_daemon(settings: StoreSettings) -> LocalDaemon:
    """Open a store, and run what its tasks need. It has the shards of its data, and its daemons' limits of admission.

    Raises:
        StoreDown: the store cannot be reached.
        StoreMismatch: its data is of another version, or is not safe there.
    """
    clock = Clock(time.monotonic, time.time)
    async with aclosing(connect_client(settings, clock)) as client:
        layout = await stored_layout(client.execute_each, settings.prefix, in_cluster=is_cluster(settings.url))
        limits = await read_limits(client.execute_each, settings.prefix)
    shards = default_shards(settings.url) if layout is None else layout.shards
    daemon = LocalDaemon(settings, shards, limits or DEFAULT_LIMITS)
    try:
        await daemon.start()
    except BaseException:
        await daemon.stop()
        raise
    return daemon


class LocalDaemon:
    """A store, its API for calls of this process, and the tickers that every store needs.

    Others may run on the same store: any number of applications and of daemons.
    """

    def __init__(self, settings: StoreSettings, shards: int, limits: AdmissionLimits) -> None:
        self._metrics = Metrics()
        self._instance = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self.store = store = connect_store(
            settings,
            shards,
            Clock(time.monotonic, time.time),
            limits.policy,
            self._instance,
            self._metrics.round_trip_observer,
            count_failover=self._metrics.store_failovers.inc,
            note_clock_jump=self._metrics.store_clocks.jump.set,
            count_follow_ups=self._metrics.count_follow_ups,
        )
        self._census = SharedCensus(store, Census(store, self._metrics))
        app = build_app(
            ApiSettings(
                max_body=limits.max_body,
                max_pending_writes=MAX_PENDING_WRITES,
                remember_ms=limits.remember_ms,
                lease_ms=limits.policy.timeout_ms + LEASE_MARGIN_MS,
                max_waiters=MAX_WAITERS,
                base_path="",
                keeps_trace_context=False,
                keeps_history=True,
            ),
            store=store,
            metrics=self._metrics,
            durable_writes=DurableWrites(store, self._metrics, timeout_ms=DURABILITY_TIMEOUT_MS, own_level=None),
            guard=AddressGuard(is_own=lambda address: False, is_on=False),  # that of the daemon which calls them judges
            authorization=Authorization(),  # code that runs here can open the store, too
            cross_site_protection=CrossSiteProtection(),
            health=HealthSource(why_not_ready=self.why_not_ready, exposition=self.exposition),
            wake_delay_ticker=lambda due_at, ids: None,
            read_snapshot=self._census.look,
        )
        self.claims: ClaimHandlers = app[CLAIMS]
        self._calls = InProcessCalls(app)
        self.exchange = self._calls.exchange
        shard_selector = ShardSelector(len(store.keys.shards))  # which selects all
        self._upkeep = Upkeep(
            store=store,
            metrics=self._metrics,
            tick_ms=TICK_MS,
            requeue_every_ms=TICK_MS,
            on_requeued=lambda: None,
            shard_selector=shard_selector,
        )
        firer = ScheduleFirer(
            store=store,
            metrics=self._metrics,
            check_callback=lambda callback: None,
            on_created=lambda due_at, ids: self._signal_claims(due_at),
            shard_selector=shard_selector,
        )
        self._schedule_ticker = self._upkeep.build_ticker("schedules", firer.tick, FIRING_EVERY_MS)
        self._joint_read = JointRead(store.client, [store.policies.shared_read])
        self._heartbeat_ticker = self._build_ticker("heartbeat", self.send_heartbeat, HEARTBEAT_EVERY_MS)
        audit_ticker = self._build_ticker("audit", self.write_audit_events, AUDIT_EVERY_MS)
        store.audit_trail.on_record = audit_ticker.wake
        self._history = HistoryRecorder(store, self._metrics)
        self._tickers = [
            self._build_ticker("refresh", self.refresh, REFRESH_EVERY_MS),
            audit_ticker,
            self._build_ticker("history", self._history.tick, RECORD_EVERY_MS),
        ]
        self._claimed_topics: dict[str, None] = {}

    def _build_ticker(self, name: str, tick: TickFunction, interval_ms: int) -> Ticker:
        return Ticker.on_local_clock(name, tick, interval_ms, self._metrics.count_tick_error)

    async def start(self) -> None:
        """Check the store, and start the tickers. Raises StoreDown, StoreMismatch."""
        await self.store.client.open()
        await self._calls.open()
        start_tickers(self._tickers, self._metrics)
        self._upkeep.start()
        start_tickers([self._schedule_ticker], self._metrics)

    async def stop(self) -> None:
        """End the calls that wait, then the tickers; whatever fails, the store is closed."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.aclose)
            stack.push_async_callback(self._remove_heartbeat)
            stack.push_async_callback(self.store.audit_trail.flush_or_log)
            stack.push_async_callback(self._history.write_last)
            for ticker in self._tickers:
                stack.push_async_callback(ticker.cancel)
            stack.push_async_callback(self._upkeep.stop)
            stack.push_async_callback(self._schedule_ticker.stop)
            stack.push_async_callback(self._census.stop)
            await self._calls.close()

    def note_claims(self, topics: Sequence[str]) -> None:
        """Note that tasks of these topics are claimed here: this process counts among the workers of the store then."""
        if not self._claimed_topics:
            self._tickers.append(self._heartbeat_ticker)
            start_tickers([self._heartbeat_ticker], self._metrics)
        self._claimed_topics.update(dict.fromkeys(topics))

    def _signal_claims(self, due_at: int) -> None:
        """Let claims that wait look at `due_at` (ms): this process has made tasks due, of whatever topics."""
        for topic in self._claimed_topics:
            self.claims.queues.signal(topic, due_at)

    async def pull_topic(self, topic: str) -> str | None:
        """Let the tasks of a topic be claimed, unless somebody wants them to be called; return why they are not.

        Nobody does if neither the topic nor its namespace says how its tasks are delivered, or names a callback, and
        if it has no tasks yet. Each of those would be called by daemons.

        Raises:
            Conflict: other policies were set each time.
            StoreDown: the store is away.
        """
        scope, why_not = topic_scope(topic), None

        async def decide(policies: Policies) -> Replacement | None:
            nonlocal why_not
            policy, why_not = policies.for_topic(topic), None
            if policy.deliver is Deliver.PULL:
                return None
            if policies.level_of(scope, "deliver") is not Level.DAEMON:
                why_not = "its policy says so"
            elif policy.callback:
                why_not = "its policy names a callback"
            elif any((await self.store.stats.counts_for([topic], 0))[topic][: len(Bucket)]):
                why_not = "it has tasks already, which may have callbacks"
            return None if why_not else Replacement(policies.settings_at(scope).merge({"deliver": Deliver.PULL.value}))

        before = self.store.policies.latest.settings_at(scope)
        after = (await self.store.policies.replace(scope, decide)).settings_at(scope)
        if after != before and why_not is None:
            details = {"topic": topic, "before": before.loggable_fields, "after": after.loggable_fields}
            namespace = namespace_from_topic(topic)
            event = AuditEvent(action=AuditAction.POLICY_CHANGED, key=None, namespace=namespace, details=details)
            self.store.audit_trail.record(event)
        return why_not

    # What the API asks for

    async def why_not_ready(self) -> LaterError | None:
        """Return the error with which the store answers, or does not; None if it serves."""
        try:
            await self.store.stats.ping()
        except LaterError as error:
            return error
        return None

    async def exposition(self, accept: str) -> Exposition:
        """Return all metrics."""
        return self._metrics.exposition(accept)

    # Tick functions

    async def refresh(self, now: int) -> TickResult:
        """Read the policies, and measure the store's time."""
        await self._joint_read.run()
        return TickResult(0, None)

    async def write_audit_events(self, now: int) -> TickResult:
        return TickResult(await self.store.audit_trail.flush(), None)

    async def send_heartbeat(self, now: int) -> TickResult:
        await self.store.stats.heartbeat(self._instance, (await self.store.time.now()).low)
        return TickResult(0, None)

    async def _remove_heartbeat(self) -> None:
        if self._claimed_topics:
            with suppress(LaterError):
                await self.store.stats.remove_worker(self._instance)
