"""Throttling of topics: pauses, rates, limits of concurrency and slow start.

A topic for which none of these is set costs nothing here.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from later.core.errors import LaterError, NodeDown, StoreDown
from later.core.held import Held, TopicHold
from later.core.policy_scopes import Policies
from later.metrics import Metrics
from later.store.open import Store
from later.store.permits import SAVED_MS, PermitGrant, PermitRequest
from later.store.types import ClaimRequest, DueTopic
from later.worker.fair_share import FairShare
from later.worker.hold_history import HoldHistory
from later.worker.slow_start import Ramp, SlowStart

log = structlog.get_logger("later.throttle")

RATE_POLL_MS = 10
"""The shortest pause between two requests for permits of a topic with a rate. It makes deliveries even."""
PERMIT_POLL_MS = 100
"""The first pause of a topic whose permits are all with other instances, which do not say when they return them. It
doubles with each request that gets none, up to `MAX_POLL_MS`."""
RAMP_POLL_MS = 500
"""The longest pause of a topic on a ramp: by then its rate has changed."""
MAX_POLL_MS = 1000
"""The longest pause of any topic: by then its policy may have changed."""
MAX_DENIED_TOPICS = 10_000
"""Topics whose denials are counted before all counts start over."""
MIN_RAMP_FRACTION = 0.05
"""The part of its rate that a topic has at the start of its ramp."""


class _Limits(NamedTuple):
    """A topic's limits at one moment; 0 means no limit."""

    rate: float
    concurrency: int


class Throttle:
    """The limits on how much of each due topic may be claimed, and the permits taken for it.

    `lease_ms` is how long permits last if this instance is lost.
    """

    def __init__(self, *, store: Store, fair_share: FairShare, lease_ms: int, metrics: Metrics) -> None:
        self._store = store
        self._fair_share = fair_share
        self._lease_ms = lease_ms
        self._metrics = metrics
        self._slow_start = SlowStart(store.policies)
        self.history = HoldHistory()
        self._blocked: dict[str, int] = {}
        """The time (ms) before which a topic is passed over."""
        self._denied: dict[str, int] = {}
        """How often in a row a topic got no permits."""
        self._claiming: dict[str, int] = {}
        """Permits of the claim under way, by topic: they count as in use until its results are known."""
        self._ended_topics: set[str] = set()
        """Topics of deliveries that ended and whose permits are still to be returned."""
        self._report_task: asyncio.Task[None] | None = None
        self._request_lock = asyncio.Lock()

    # Before a claim

    def is_idle(self, policies: Policies) -> bool:
        """Return True if no topic has limits, a pause or a ramp, which is so most of the time."""
        slow = self._slow_start
        return not (policies.has_limits or slow.ramps or slow.limited or self._store.policies.ramps)

    def observe(self, policies: Policies, holds: Sequence[TopicHold], now: int) -> None:
        """Remember what holds topics: pauses that ended, and holds in the store, which any instance may have set."""
        self.history.add_ended_pauses(policies, now)
        for topic, until, for_rate in holds:
            if until is not None and until > now:
                after_pause = self.history.current(topic, now) is Held.PAUSE
                kind = Held.RATE if for_rate else Held.PAUSE if after_pause else Held.RECEIVER
                self.history.add(topic, kind, now, until)

    async def hold_paused(self, due: list[DueTopic], policies: Policies) -> list[DueTopic]:
        """Return the entries of topics that are neither paused nor pulled; hold the others until they are resumed."""
        self._slow_start.forget_finished(self._store.clock.now().low)
        if not policies.can_hold:
            return due
        held = {entry for entry in due if self._store.policies.latest.for_topic(entry.topic).is_held}
        if not held:
            return due
        await self._store.permits.hold_paused([(entry.topic, entry.shard) for entry in held])
        return [entry for entry in due if entry not in held]

    def claim_limit(self, topic: str, policies: Policies, now: int) -> int | None:
        """Return how many tasks of the topic may be claimed, as far as this instance knows; None means no limit."""
        if not (policies.has_limits or self._slow_start.concerns(topic)):
            return None
        if self._blocked.get(topic, 0) > now:
            return 0
        self._blocked.pop(topic, None)
        limits, ramp = self._current_limits(topic, policies, now)
        limit = math.inf
        if limits.concurrency:
            limit = max(limits.concurrency - self._fair_share.in_use(topic), 0)
        if limits.rate:
            limit = min(limit, max(1, int(limits.rate * SAVED_MS / 1000)))
        elif ramp is not None:
            limit = min(limit, self._slow_start.remaining_starts(topic, ramp, now, self._fair_share.slots))
        if not limit:
            until = self._blocked[topic] = now + (RATE_POLL_MS if ramp is not None else PERMIT_POLL_MS)
            kind = self.history.current(topic, now)
            if limits.concurrency:
                kind = Held.CONCURRENCY
            elif kind is Held.NO:  # a slow start that another instance began
                kind = Held.PAUSE
            self.history.add(topic, kind, now, until)
        return None if limit == math.inf else int(limit)

    async def acquire_permits(
        self, requests: Sequence[ClaimRequest], due: Sequence[DueTopic], policies: Policies, now: int
    ) -> list[ClaimRequest]:
        """Cut each claim request to the permits granted.

        If a topic's rate is used up, claim nothing of it in any shard in which it is due, and hold it there.

        Raises:
            StoreDown: no permits can be requested.
        """
        self._claiming = {}  # those of a claim that failed may have been used or not
        wanted: Counter[str] = Counter()
        for request in requests:
            if request.limit and policies.has_limits:
                limits, _ = self._current_limits(request.topic, policies, now)
                if limits.rate or limits.concurrency:
                    wanted[request.topic] += request.limit
        if not wanted:
            return list(requests)
        grants = await self._request_permits(wanted, policies, now)
        used_up = {topic for topic, grant in grants.items() if grant.again_at is not None}
        requested = {(request.topic, request.shard) for request in requests}
        to_hold = [
            ClaimRequest(entry.topic, entry.shard, 0)
            for entry in due
            if entry.at <= now and entry.topic in used_up and (entry.topic, entry.shard) not in requested
        ]
        return self._distribute_permits([*requests, *to_hold], grants, now)

    def count_blocked(self, now: int) -> int:
        """Return how many topics are passed over now: a snapshot must have room for others, too."""
        if self._blocked:
            self._blocked = {topic: until for topic, until in self._blocked.items() if now < until <= now + MAX_POLL_MS}
        if len(self._denied) > MAX_DENIED_TOPICS:
            self._denied.clear()
        return len(self._blocked)

    def blocked_until(self, topic: str) -> int:
        """Return the time (ms) before which the topic is passed over; 0 if it is not."""
        return self._blocked.get(topic, 0)

    # After a claim

    async def on_claim_end(self, begun: Mapping[str, int]) -> None:
        """Count the deliveries that have begun on a ramp, by topic, and return the permits that none of them needs.

        Call it after every claim, also if no topic was limited before: a ramp may have started during the claim.
        """
        if not (self._claiming or self._slow_start.ramps):
            return
        for topic, deliveries in begun.items():
            self._slow_start.count_started(topic, deliveries)
            if topic in self._claiming:
                self._claiming[topic] -= deliveries
        unused = {topic: permits for topic, permits in self._claiming.items() if permits > 0}
        self._claiming = {}
        if unused:
            await self._return_permits(unused)

    def on_delivery_end(self, topic: str) -> bool:
        """Have the permit of a delivery that ended returned. Returns True if its topic was passed over until now."""
        policies = self._store.policies.latest
        if policies.has_limits and policies.for_topic(topic).concurrency:
            self._ended_topics.add(topic)
            if self._report_task is None:
                self._report_task = asyncio.create_task(self._report_ended())
        self._denied.pop(topic, None)
        return self._blocked.pop(topic, None) is not None

    async def stop(self) -> None:
        """Wait until all permits are returned, or cannot be."""
        if self._report_task is not None:
            await asyncio.wait({self._report_task})

    # Permits

    def _current_limits(self, topic: str, policies: Policies, now: int) -> tuple[_Limits, Ramp | None]:
        """Return the topic's limits at this moment, and the ramp that it is on."""
        policy = policies.for_topic(topic)
        ramp = self._slow_start.ramp_for(topic, policy, now)
        if ramp is None:
            return _Limits(policy.rate, policy.concurrency), None
        progress = ramp.progress(now)
        rate = 0.0
        if policy.rate:
            rate = max(ramp.rate + (policy.rate - ramp.rate) * progress, policy.rate * MIN_RAMP_FRACTION)
        concurrency = policy.concurrency
        if not concurrency and ramp.concurrency:  # the limit was lifted: ramp up to all slots
            concurrency = ramp.concurrency + self._fair_share.slots
        if concurrency:
            concurrency = max(1, math.ceil(ramp.concurrency + (concurrency - ramp.concurrency) * progress))
        return _Limits(rate, concurrency), ramp

    async def _request_permits(self, wanted: Mapping[str, int], policies: Policies, now: int) -> dict[str, PermitGrant]:
        """Request permits of each topic; a topic whose permits cannot be read gets none. Raises StoreDown."""
        async with self._request_lock:
            requests = [
                self._build_permit_request(topic, policies, now, wanted=count) for topic, count in wanted.items()
            ]
            answers = await self._store.permits.acquire(requests, now)
        grants: dict[str, PermitGrant] = {}
        for request, answer in zip(requests, answers, strict=True):
            topic = request.topic
            if isinstance(answer, NodeDown):
                grants[topic], self._blocked[topic] = PermitGrant(0, None), now + MAX_POLL_MS
                continue
            if isinstance(answer, StoreDown):
                raise answer
            if isinstance(answer, LaterError):
                log.error("permits unavailable", topic=topic, reason=str(answer))
            grant = PermitGrant(0, None) if isinstance(answer, LaterError) else answer
            grants[topic] = grant
            self._claiming[topic] = grant.permits
            is_throttled = grant.permits < request.wanted
            self._metrics.claims_throttled.inc(topic, count=is_throttled)
            if is_throttled and grant.again_at is None:
                denied = self._denied[topic] = self._denied.get(topic, 0) + 1
                until = self._blocked[topic] = now + min(PERMIT_POLL_MS << min(denied - 1, 10), MAX_POLL_MS)
                self.history.add(topic, Held.CONCURRENCY, now, until)
            if grant.permits:
                self._denied.pop(topic, None)
        return grants

    def _build_permit_request(
        self, topic: str, policies: Policies, now: int, *, wanted: int = 0, returned: int = 0
    ) -> PermitRequest:
        limits, _ = self._current_limits(topic, policies, now)
        lease_end = now + self._lease_ms + policies.for_topic(topic).timeout_ms - policies.daemon.timeout_ms
        in_flight = self._fair_share.in_use(topic) + self._claiming.get(topic, 0)
        return PermitRequest(topic, in_flight, wanted, returned, lease_end, limits.rate, limits.concurrency)

    def _distribute_permits(
        self, requests: Sequence[ClaimRequest], grants: Mapping[str, PermitGrant], now: int
    ) -> list[ClaimRequest]:
        """Distribute each topic's permits among its claim requests, first come, first served."""
        permits_left = {topic: grant.permits for topic, grant in grants.items()}
        granted: list[ClaimRequest] = []
        for request in requests:
            topic = request.topic
            if topic not in grants:
                granted.append(request)
                continue
            limit = min(request.limit, permits_left[topic])
            permits_left[topic] -= limit
            hold_until = grants[topic].again_at
            if hold_until is not None:
                latest = now + (RAMP_POLL_MS if self._slow_start.is_ramping(topic) else MAX_POLL_MS)
                hold_until = max(min(hold_until, latest), now + RATE_POLL_MS)
                self.history.add(topic, Held.RATE, now, hold_until)
            granted.append(request._replace(limit=limit, hold_until=hold_until, has_permits=limit > 0))
        return granted

    async def _return_permits(self, unused: Mapping[str, int]) -> None:
        policies, now = self._store.policies.latest, self._store.clock.now().low
        try:
            async with self._request_lock:
                requests = [
                    self._build_permit_request(topic, policies, now, returned=permits)
                    for topic, permits in unused.items()
                ]
                await self._store.permits.acquire(requests, now)
        except LaterError as error:  # they end with their lease
            log.debug("permits not returned", reason=str(error))
        except Exception:  # a fault of later's own: the next delivery that ends reports again
            log.exception("permits not returned")

    async def _report_ended(self) -> None:
        """Report how many deliveries are still in flight; those that end meanwhile are reported together."""
        try:
            while self._ended_topics:
                topics, self._ended_topics = self._ended_topics, set()
                await self._return_permits(dict.fromkeys(topics, 0))
        finally:
            self._report_task = None  # whatever went wrong: otherwise nothing would ever be returned again
