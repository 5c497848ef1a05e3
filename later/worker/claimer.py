"""Tick function of the delay ticker: claims as many due tasks as there are free slots."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from later.core.errors import LaterError, first_fault
from later.core.held import Held
from later.core.origin import Origin
from later.core.policy_scopes import Policies
from later.metrics import Metrics
from later.store.open import Store
from later.store.scripts import MAX_TOPICS
from later.store.tasks import MAX_CLAIM_BYTES
from later.store.types import Claim, ClaimRequest, ClaimResult, DueTopics, WorkerSnapshot
from later.worker.dispatcher import Dispatcher
from later.worker.fair_share import FairShare
from later.worker.held_origins import HeldOrigins
from later.worker.origin_share import OriginShare
from later.worker.put_back import PutBackQueue
from later.worker.shard_selector import ShardSelector
from later.worker.throttle import Throttle
from later.worker.ticker import TickResult

HELD_EVERY_MS = 100
"""How often, at most, a snapshot includes held topics; sooner if a hold that is known ends sooner."""
CLAIMS_AT_ONCE = 2
"""One that the store carries out, and one whose deliveries begin. More would keep settles from their connections."""
FORGET_EVERY_MS = 1000
"""How often origins without calls are forgotten."""


class Claimer:
    """Claims tasks of due topics in turn, and passes over topics that have used up their share.

    `lease_ms` is the lease with the daemon's own timeout; a topic's lease is longer or shorter by the same time as its
    timeout is.
    `wake_unack`, `wake_error` and `wake_schedules` are called with the time (ms) at which something of theirs is due:
    one snapshot shows it.
    """

    def __init__(
        self,
        *,
        store: Store,
        throttle: Throttle,
        fair_share: FairShare,
        origin_share: OriginShare,
        held_origins: HeldOrigins,
        put_backs: PutBackQueue,
        shard_selector: ShardSelector,
        lease_ms: int,
        start_all: Callable[[Sequence[tuple[Claim, Held, Origin | None]], int], None],
        wake_unack: Callable[[int], None],
        wake_error: Callable[[int], None],
        wake_schedules: Callable[[int], None],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._throttle = throttle
        self._fair_share = fair_share
        self._origin_share = origin_share
        self._held_origins = held_origins
        self._shard_selector = shard_selector
        self._lease_ms = lease_ms
        self._dispatcher = Dispatcher(
            store=store,
            origin_share=origin_share,
            held_origins=held_origins,
            history=throttle.history,
            put_backs=put_backs,
            start_all=start_all,
            metrics=metrics,
        )
        self.wake_unack = wake_unack
        self.wake_error = wake_error
        self.wake_schedules = wake_schedules
        self._metrics = metrics
        self._passed_over: int | None = None
        """How many due entries of the last snapshot were of topics that could take no slot; None: too few were read."""
        self._held_read_at = 0
        self._hold_ends_at = math.inf
        """The first end (ms) of a hold that is known."""
        self._forget_at = 0

    async def tick(self, now: int) -> TickResult:
        self._fair_share.tasks_wait = True
        free = self._fair_share.free
        snapshot, is_whole = await self._read_snapshot(now)  # first: unack and error depend on it, and on nothing else
        policies = await self._store.policies.current()
        await self._store.signing.refresh()  # before the first delivery, and after a suspend: a secret may have ended
        self._throttle.observe(policies, snapshot.holds, now)
        if not self._fair_share.free:
            self._shard_selector.note_look(now)
            return TickResult(0, None)
        due, requests = await self._plan(snapshot.delay, policies, now)
        results, begun, due_again_at = await self._claim(requests, now)
        claimed = [result for result in results if isinstance(result, ClaimResult)]
        self._metrics.orphan_entries.inc(sum(result.orphans for result in claimed))
        await self._throttle.on_claim_end(begun)
        self._forget_idle_origins(now)
        hold_ends = [request.hold_until for request in requests if request.hold_until is not None]
        self._hold_ends_at = min([self._hold_ends_at, *hold_ends])
        if (error := first_fault(results)) is not None:
            raise error
        self._note_shards(requests, results, now)
        next_due = self._next_due(due, requests, results, due_again_at, now)
        more_due = due.more_at is not None and due.more_at <= now
        if more_due and not is_whole and sum(request.limit for request in requests) < free:
            self._passed_over, next_due = None, now + 1
        return TickResult(sum(len(result.claims) for result in claimed), next_due)

    async def _read_snapshot(self, now: int) -> tuple[WorkerSnapshot, bool]:
        """Read a snapshot. True means that it has a topic for each free slot, if as many are due.

        It has an entry for each free slot, and further ones for due topics that can take no slot: as many as the last
        snapshot had of them. There may be one for each topic that holds a slot, but mostly there are none. So all of
        them are read only if the last snapshot had too few topics, or if held topics are read, too.
        """
        with_held = not self._held_read_at <= now < min(self._held_read_at + HELD_EVERY_MS, self._hold_ends_at)
        free = self._fair_share.free
        shards = self._shard_selector.for_delay(now, has_free_slots=free > 0)
        with_held = with_held or self._shard_selector.takes_turn  # or no turn might ever read others' held topics
        further = most = len(self._fair_share.in_use_by_topic) + self._throttle.count_blocked(now)
        if self._passed_over is not None and not with_held:
            further = min(self._passed_over, most)
        snapshot = await self._store.tasks.worker_snapshot(max(free + further, 1), held=with_held, shards=shards)
        if with_held:
            self._held_read_at = now
            ends = [hold.until for hold in snapshot.holds if hold.until is not None]
            self._hold_ends_at = min((end for end in ends if end > now), default=math.inf)
        if snapshot.unack_at is not None:
            self.wake_unack(snapshot.unack_at)
        if snapshot.error_at is not None:
            self.wake_error(snapshot.error_at)
        if snapshot.firing_at is not None:
            self.wake_schedules(snapshot.firing_at)
        return snapshot, further == most

    async def _plan(self, due: DueTopics, policies: Policies, now: int) -> tuple[DueTopics, list[ClaimRequest]]:
        """Return the due topics that are neither paused nor pulled, and how much to claim of each."""
        self._origin_share.start_plan()
        limit_by_origin = partial(self._origin_share.claim_limit, now=now)
        await self._held_origins.refresh((entry.topic for entry in due.topics if entry.at <= now), now)
        is_idle = self._throttle.is_idle(policies)
        if policies.has_pulled or not is_idle:
            due = due._replace(topics=await self._throttle.hold_paused(due.topics, policies))
        if is_idle:
            requests = self._fair_share.plan(due.topics, now, limit_by_origin=limit_by_origin)
        else:
            planned = self._fair_share.plan(
                due.topics, now, lambda topic: self._throttle.claim_limit(topic, policies, now), limit_by_origin
            )
            requests = await self._throttle.acquire_permits(planned, due.topics, policies, now)
        if policies.settings:
            requests = [_with_lease_of_topic(request, policies) for request in requests]
        return due, requests

    async def _claim(
        self, requests: Sequence[ClaimRequest], now: int
    ) -> tuple[list[ClaimResult | LaterError], Counter[str], int | None]:
        """Claim, and begin deliveries; return the results, and what `Dispatched` has.

        A script call takes a hundred topics. The deliveries of each call begin while the store carries out the next.

        Raises:
            StoreDown: whether some of it was claimed is not known. The deliveries of the rest have begun.
        """
        parts = deque(split_by_topic(requests, MAX_TOPICS))
        lease_end, max_bytes = now + self._lease_ms, MAX_CLAIM_BYTES // len(parts)
        under_way: deque[asyncio.Future[list[ClaimResult | LaterError]]] = deque()
        results: list[ClaimResult | LaterError] = []
        begun: Counter[str] = Counter()
        due_times: list[int] = []
        failure: Exception | None = None
        while under_way or (parts and failure is None):
            while parts and failure is None and len(under_way) < CLAIMS_AT_ONCE:
                claim = self._store.tasks.claim(parts.popleft(), now, lease_end, max_bytes)
                under_way.append(asyncio.ensure_future(claim))
            try:
                results += (answers := await under_way.popleft())
                claimed = [answer for answer in answers if isinstance(answer, ClaimResult)]
                dispatched = await self._dispatcher.dispatch(claimed, now)
            except Exception as error:  # what else was claimed would wait until its leases end
                failure = failure or error
                continue
            begun.update(dispatched.begun)
            due_times += [] if dispatched.due_again_at is None else [dispatched.due_again_at]
        if failure is not None:
            raise failure
        return results, begun, min(due_times, default=None)

    def _note_shards(
        self, requests: Sequence[ClaimRequest], results: Sequence[ClaimResult | LaterError], now: int
    ) -> None:
        """Note in which shards this tick has claimed tasks, and in which due ones are left."""
        claimed, left = set[int](), set[int]()
        if self._shard_selector.is_restricted:
            for request, result in zip(requests, results, strict=True):
                if isinstance(result, ClaimResult) and result.claims:
                    claimed.add(request.shard)
                    if result.wake_at is not None and result.wake_at <= now:
                        left.add(request.shard)
        self._shard_selector.note_end(now, claimed=claimed, left=left)

    def _forget_idle_origins(self, now: int) -> None:
        if not self._forget_at - FORGET_EVERY_MS <= now < self._forget_at:
            self._forget_at = now + FORGET_EVERY_MS
            self._origin_share.forget_idle(now)
            self._metrics.origins_full.set(self._origin_share.count_full(now))

    def _next_due(
        self,
        due: DueTopics,
        requests: list[ClaimRequest],
        results: list[ClaimResult | LaterError],
        due_again_at: int | None,
        now: int,
    ) -> int | None:
        """Return when (ms) the next task that may be claimed is due.

        A topic that has used up its share waits for a slot, not for a time. `due_again_at` is when the first task is
        due again that was put back.
        """
        times = {(topic, shard): at for at, topic, shard in due.topics}
        self._passed_over = max(sum(at <= now for at in times.values()) - len(requests), 0)
        for request, result in zip(requests, results, strict=True):
            times.pop((request.topic, request.shard), None)  # a large claim of a topic is made in several parts
            if isinstance(result, ClaimResult) and result.wake_at is not None:
                times[request.topic, request.shard] = result.wake_at
        earliest: dict[str, int] = {}
        for (topic, _), at in times.items():
            earliest[topic] = min(at, earliest.get(topic, at))
        next_times = [] if due_again_at is None else [due_again_at]
        self._fair_share.tasks_wait = False
        for topic, at in earliest.items():
            open_slots = self._fair_share.share(topic)
            closed_until = self._origin_share.closed_until(topic, open_slots, now) if open_slots else 0
            self._fair_share.tasks_wait |= not open_slots or closed_until > at
            if open_slots:
                next_times.append(max(at, self._throttle.blocked_until(topic), closed_until))
        if due.more_at is not None:
            next_times.append(due.more_at)
        next_at = min([self._hold_ends_at, *next_times])
        return None if next_at == math.inf else int(next_at)


def _with_lease_of_topic(request: ClaimRequest, policies: Policies) -> ClaimRequest:
    extra_ms = policies.for_topic(request.topic).timeout_ms - policies.daemon.timeout_ms
    return request._replace(lease_extra_ms=extra_ms)


def split_by_topic(requests: Sequence[ClaimRequest], topics: int) -> list[list[ClaimRequest]]:
    """Return the requests in order, in at least one list, each of at most so many topics; none is in two of them."""
    parts: list[list[ClaimRequest]] = [[]]
    names = set[str]()
    for request in requests:
        if len(names) == topics and request.topic not in names:
            parts.append([])
            names.clear()
        parts[-1].append(request)
        names.add(request.topic)
    return parts
