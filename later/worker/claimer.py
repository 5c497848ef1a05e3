"""The delay ticker's errand: claims what is due, as much as there are free hands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from later.core.errors import LaterError
from later.core.policy_scopes import Policies
from later.metrics import Metrics
from later.store.open import Store
from later.store.types import Claim, ClaimRequest, ClaimResult, DueTopics, WorkerSnapshot
from later.worker.fair_share import FairShare
from later.worker.throttle import Throttle
from later.worker.ticker import TickResult

HELD_EVERY_MS = 100
"""How often topics that are held are looked for, at least; or when the next hold ends that is known of."""


class Claimer:
    """Topics take turns; a lane that is full is passed over.

    `lease_ms` is for the daemon's own timeout; a topic's lease is longer or shorter as its timeout is.

    `on_look` is told when unack and error are to be looked at: this ticker looks for all three.
    """

    def __init__(
        self,
        *,
        store: Store,
        throttle: Throttle,
        fair_share: FairShare,
        lease_ms: int,
        deliver: Callable[[Claim], None],
        on_snapshot: Callable[[WorkerSnapshot], None],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._gate = throttle
        self._lanes = fair_share
        self._lease_ms = lease_ms
        self._take = deliver
        self._on_look = on_snapshot
        self._metrics = metrics
        self._looked_for_held_at = 0
        self._hold_ends_at: int | None = None
        self.needs_slot = False
        """Was due work left behind for want of a hand? Then a hand that comes free ends the sleep."""

    async def tick(self, now: int) -> TickResult:
        self.needs_slot = True
        policies = await self._store.policies.current()
        around = await self._look(now)
        self._on_look(around)
        if not self._lanes.free:
            return TickResult(0, None)
        look, wants = await self._wants(around.delay, policies, now)
        answers = await self._store.tasks.claim(wants, now, now + self._lease_ms)
        moved = sum(self._begin(answer) for answer in answers if isinstance(answer, ClaimResult))
        await self._gate.return_unused(wants, answers)
        self._note_holds(want.hold_until for want in wants if want.hold_until is not None)
        for answer in answers:
            if isinstance(answer, LaterError):
                raise answer
        return TickResult(moved, self._next_due(look, wants, answers, now))

    async def _look(self, now: int) -> WorkerSnapshot:
        """All that is to be seen; topics that are held not in each of many ticks one after the other."""
        lately = self._looked_for_held_at <= now < self._looked_for_held_at + HELD_EVERY_MS
        held = not lately or (self._hold_ends_at is not None and now >= self._hold_ends_at)
        limit = self._lanes.active_topics + self._lanes.free + self._gate.count_blocked(now)
        around = await self._store.tasks.worker_snapshot(limit, held=held)
        if held:
            self._looked_for_held_at, self._hold_ends_at = now, None
            self._note_holds(at for at in around.hold_ends if at > now)
        return around

    def _note_holds(self, ends: Iterable[int]) -> None:
        """The ticker must not sleep beyond the first of them."""
        known = [] if self._hold_ends_at is None else [self._hold_ends_at]
        self._hold_ends_at = min([*known, *ends], default=None)

    async def _wants(self, look: DueTopics, policies: Policies, now: int) -> tuple[DueTopics, list[ClaimRequest]]:
        """What to claim, and of what was seen what counts."""
        if self._gate.is_idle(policies):
            return look, self._leased(self._lanes.plan(look.topics, now), policies)
        look = look._replace(topics=await self._gate.hold_paused(look.topics, policies))
        planned = self._lanes.plan(look.topics, now, lambda topic: self._gate.limit(topic, policies, now))
        leased = self._leased(planned, policies)
        return look, await self._gate.acquire_permits(leased, look.topics, policies, now)

    def _leased(self, wants: list[ClaimRequest], policies: Policies) -> list[ClaimRequest]:
        if not policies.settings:
            return wants
        usual_ms = policies.daemon.timeout_ms
        return [want._replace(lease_extra_ms=policies.for_topic(want.topic).timeout_ms - usual_ms) for want in wants]

    def _begin(self, answer: ClaimResult) -> int:
        for claim in answer.claims:
            self._take(claim)
        if answer.orphans:
            self._metrics.orphan_entries.inc(answer.orphans)
        return len(answer.claims)

    def _next_due(
        self, look: DueTopics, wants: list[ClaimRequest], answers: list[ClaimResult | LaterError], now: int
    ) -> int | None:
        """When the next task that may be claimed is due: a full lane waits for a hand, not for the clock."""
        wakes = {(wake.topic, wake.shard): wake.at for wake in look.topics}
        for want, answer in zip(wants, answers, strict=True):
            del wakes[want.topic, want.shard]
            if isinstance(answer, ClaimResult) and answer.wake_at is not None:
                wakes[want.topic, want.shard] = answer.wake_at
        times = [
            max(at, self._gate.blocked_until(topic) or 0)
            for (topic, _), at in wakes.items()
            if self._lanes.share(topic)
        ]
        self.needs_slot = len(times) < len(wakes)
        times += [at for at in (look.more_at, self._hold_ends_at) if at is not None]
        return min(times, default=None)
