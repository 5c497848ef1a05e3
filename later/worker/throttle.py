"""What a topic's deliveries must wait for, beyond hands and lanes: a pause, its rate, its concurrency, its receiver.

A topic for which none of these is set costs nothing here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from later.core.errors import LaterError, StoreDown
from later.core.policy_scopes import Policies
from later.metrics import Metrics
from later.store.open import Store
from later.store.permits import SAVED_MS, PermitGrant, PermitRequest
from later.store.types import ClaimRequest, ClaimResult, DueTopic
from later.worker.fair_share import FairShare
from later.worker.slow_start import Ramp, SlowStart

log = structlog.get_logger("later.gate")

AGAIN_MS = 10
"""How soon a topic's rate is asked again, at the soonest: so even are its deliveries."""
POLL_MS = 100
"""How soon one is whose permits are all with other instances: they do not say when they hand them back. Twice as late
with each time that it finds none, up to `LOOK_MS`."""
RAMP_LOOK_MS = 500
"""How soon one is on a ramp: by then its rate is another."""
LOOK_MS = 1000
"""How soon one is at the latest: its policy may be another."""
MANY = 10_000
LEAST_PART = 0.05
"""Of its rate, that a topic has from the start of its ramp on."""
HOLD_GRID_MS = 250
"""Waits end at multiples of this, so that a hundred busy answers of the same moment are one wait."""


class _Limits(NamedTuple):
    """What holds for a topic at one moment, on a ramp a part of what will. 0: no limit."""

    rate: float
    concurrency: int


class Throttle:
    """Says how much of each due topic may be claimed, and keeps account of what it was granted.

    `lease_ms` is how long permits last if their instance is lost.
    """

    def __init__(
        self,
        *,
        store: Store,
        fair_share: FairShare,
        lease_ms: int,
        metrics: Metrics,
    ) -> None:
        self._lanes = fair_share
        self._store = store
        self._lease_ms = lease_ms
        self._metrics = metrics
        self._ramps = SlowStart(store.policies)
        self._blocked: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        """How often in a row a topic found no permits."""
        self._waits: dict[str, int] = {}
        self._granted: dict[str, int] = {}
        self._returning: set[str] = set()
        self._return: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()

    # Before a claim

    def is_idle(self, policies: Policies) -> bool:
        """Is there nothing that any topic must wait for? Then nobody need ask, which is most of the time."""
        return not (policies.has_limits or self._ramps.is_active)

    async def hold_paused(self, wakes: list[DueTopic], policies: Policies) -> list[DueTopic]:
        """Those whose topics are not paused. The others are held, and not seen again before they are resumed."""
        self._ramps.forget_finished(self._store.clock.now().low)
        if not policies.has_limits:
            return wakes
        paused = {wake for wake in wakes if self._store.policies.latest.for_topic(wake.topic).paused}
        if not paused:
            return wakes
        await self._store.permits.hold_paused([(wake.topic, wake.shard) for wake in paused])
        return [wake for wake in wakes if wake not in paused]

    def limit(self, topic: str, policies: Policies, now: int) -> int | None:
        """How many deliveries of it may begin now, for all that is known here; None: there is no limit."""
        if not (policies.has_limits or self._ramps.concerns(topic)):
            return None
        if self._blocked.get(topic, 0) > now:
            return 0
        self._blocked.pop(topic, None)
        limits, ramp = self._limits(topic, policies, now)
        most = math.inf
        if limits.concurrency:
            most = max(limits.concurrency - self._lanes.in_use(topic), 0)
        if limits.rate:
            most = min(most, max(1, int(limits.rate * SAVED_MS / 1000)))
        elif ramp is not None:
            most = min(most, self._ramps.remaining(topic, ramp, now, self._lanes.slots))
        if not most:
            self._blocked[topic] = now + (AGAIN_MS if ramp is not None else POLL_MS)
        return None if most == math.inf else int(most)

    async def acquire_permits(
        self, wants: Sequence[ClaimRequest], wakes: Sequence[DueTopic], policies: Policies, now: int
    ) -> list[ClaimRequest]:
        """The wants, cut to the permits that there are; where a rate has no more, its topic is wanted none of wherever

        else it is due, and held there too. Raises StoreDown.
        """
        self._granted.clear()  # of a claim that failed: nobody knows what became of them
        asked: dict[str, int] = {}
        for want in wants:
            if want.limit and policies.has_limits and any(self._limits(want.topic, policies, now)[0]):
                asked[want.topic] = asked.get(want.topic, 0) + want.limit
        if not asked:
            return list(wants)
        granted = await self._ask(asked, policies, now)
        spent = {topic for topic, found in granted.items() if found.again_at is not None}
        met = {(want.topic, want.shard) for want in wants}
        others = [ClaimRequest(wake.topic, wake.shard, 0) for wake in wakes if wake.at <= now and wake.topic in spent]
        wants = [*wants, *(want for want in others if (want.topic, want.shard) not in met)]
        return [self._cut(want, granted, now) for want in wants]

    def count_blocked(self, now: int) -> int:
        """How many topics must wait here, and are passed over: a look that stopped at these would see no other."""
        if self._blocked:
            self._blocked = {topic: until for topic, until in self._blocked.items() if now < until <= now + LOOK_MS}
        if len(self._refused) > MANY:
            self._refused.clear()
        return len(self._blocked)

    def blocked_until(self, topic: str) -> int:
        """When a topic that must wait here is to be looked at again; 0: it need not."""
        return self._blocked.get(topic, 0)

    # After a claim

    async def return_unused(self, wants: Sequence[ClaimRequest], answers: Sequence[ClaimResult | LaterError]) -> None:
        """Hand back what was granted and found no task."""
        if not (self._granted or self._ramps.is_active):
            return
        for want, answer in zip(wants, answers, strict=True):
            begun = len(answer.claims) if isinstance(answer, ClaimResult) else 0
            self._ramps.count_started(want.topic, begun)
            if want.topic in self._granted:
                self._granted[want.topic] -= begun
        unused = {topic: permits for topic, permits in self._granted.items() if permits > 0}
        self._granted.clear()
        if unused:
            await self._hand_back(unused)

    def on_delivery_end(self, topic: str) -> bool:
        """A delivery of it has ended; may another begin that could not before?"""
        policies = self._store.policies.latest
        if policies.has_limits and policies.for_topic(topic).concurrency:
            self._returning.add(topic)
            if self._return is None:
                self._return = asyncio.create_task(self._return_all())
        self._refused.pop(topic, None)
        return self._blocked.pop(topic, None) is not None

    async def hold(self, topic: str, until: int) -> None:
        """Its receiver asked for a pause: no instance begins a delivery before `until` (ms)."""
        until = -(-until // HOLD_GRID_MS) * HOLD_GRID_MS
        if self._waits.get(topic, 0) >= until:
            return
        now, ramp_ms = self._store.clock.now().low, self._store.policies.latest.for_topic(topic).ramp_ms
        self._waits = {name: ends for name, ends in self._waits.items() if ends > now} | {topic: until}
        if ramp_ms:
            self._ramps.start(topic, Ramp(until, until + ramp_ms))
        try:
            await self._store.permits.hold(topic, until, until + ramp_ms if ramp_ms else None, now)
        except LaterError as error:
            self._waits.pop(topic, None)
            log.debug("topic not held", topic=topic, reason=str(error))

    async def stop(self) -> None:
        """Let what is being handed back be handed back."""
        if self._return is not None:
            await self._return

    # Permits

    def _limits(self, topic: str, policies: Policies, now: int) -> tuple[_Limits, Ramp | None]:
        """What holds now, and the ramp that the topic is on."""
        policy = policies.for_topic(topic)
        ramp = self._ramps.ramp_for(topic, policy, now)
        if ramp is None:
            return _Limits(policy.rate, policy.concurrency), None
        part = ramp.progress(now)
        rate = max(ramp.rate + (policy.rate - ramp.rate) * part, policy.rate * LEAST_PART) if policy.rate else 0.0
        concurrency = policy.concurrency or (ramp.concurrency and ramp.concurrency + self._lanes.slots)
        if concurrency:
            concurrency = max(1, math.ceil(ramp.concurrency + (concurrency - ramp.concurrency) * part))
        return _Limits(rate, concurrency), ramp

    async def _ask(self, asked: dict[str, int], policies: Policies, now: int) -> dict[str, PermitGrant]:
        async with self._asking:
            asks = [self._ask_of(topic, policies, now, want=want) for topic, want in asked.items()]
            answers = await self._store.permits.acquire(asks, now)
        granted: dict[str, PermitGrant] = {}
        for ask, answer in zip(asks, answers, strict=True):
            got = self._none(ask.topic, answer) if isinstance(answer, LaterError) else answer
            granted[ask.topic] = got
            self._granted[ask.topic] = got.permits
            if got.permits < ask.wanted:
                self._metrics.count_throttled(ask.topic)
                if got.again_at is None:
                    self._block(ask.topic, now)
            if got.permits:
                self._refused.pop(ask.topic, None)
        return granted

    def _none(self, topic: str, error: LaterError) -> PermitGrant:
        """No permits for a topic whose are not to be had: what is amiss with one must not stop all.

        Raises:
            StoreDown: it is amiss with the store.
        """
        if isinstance(error, StoreDown):
            raise error
        log.error("permits cannot be had", topic=topic, reason=str(error))
        return PermitGrant(0, None)

    def _block(self, topic: str, now: int) -> None:
        refused = self._refused[topic] = self._refused.get(topic, 0) + 1
        self._blocked[topic] = now + min(POLL_MS << min(refused - 1, 10), LOOK_MS)

    def _ask_of(self, topic: str, policies: Policies, now: int, *, want: int = 0, back: int = 0) -> PermitRequest:
        limits, _ = self._limits(topic, policies, now)
        lease_end = now + self._lease_ms + policies.for_topic(topic).timeout_ms - policies.daemon.timeout_ms
        held = self._lanes.in_use(topic) + self._granted.get(topic, 0)  # what was granted is about to be held
        return PermitRequest(topic, held, want, back, lease_end, limits.rate, limits.concurrency)

    def _cut(self, want: ClaimRequest, granted: dict[str, PermitGrant], now: int) -> ClaimRequest:
        """A want's part of its topic's permits: who is first in line takes first."""
        found = granted.get(want.topic)
        if found is None:
            return want
        limit = min(want.limit, found.permits)
        granted[want.topic] = PermitGrant(found.permits - limit, found.again_at)
        if found.again_at is None:
            return want._replace(limit=limit, has_permits=limit > 0)
        latest = now + (RAMP_LOOK_MS if self._ramps.is_ramping(want.topic) else LOOK_MS)
        hold_until = max(min(found.again_at, latest), now + AGAIN_MS)
        return want._replace(limit=limit, hold_until=hold_until, has_permits=limit > 0)

    async def _hand_back(self, unused: dict[str, int]) -> None:
        policies, now = self._store.policies.latest, self._store.clock.now().low
        try:
            async with self._asking:
                asks = [self._ask_of(topic, policies, now, back=permits) for topic, permits in unused.items()]
                await self._store.permits.acquire(asks, now)
        except LaterError as error:  # they come back with their lease
            log.debug("permits not handed back", reason=str(error))

    async def _return_all(self) -> None:
        """Say what is under way still; deliveries that end meanwhile are said together."""
        try:
            while self._returning:
                topics, self._returning = self._returning, set()
                await self._hand_back(dict.fromkeys(topics, 0))
        finally:
            self._return = None  # whatever went wrong: or nothing would ever be handed back again
