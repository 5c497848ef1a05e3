"""Begins the deliveries of claimed tasks, and puts those back whose origin is full or held."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from later.core.held import Held
from later.core.origin import Origin
from later.core.task import Task
from later.metrics import Metrics
from later.store.open import Store
from later.store.types import Claim, ClaimResult, PutBack
from later.worker.held_origins import HeldOrigins
from later.worker.hold_history import HoldHistory
from later.worker.origin_share import Admission, OriginShare, on_grid
from later.worker.put_back import PutBackQueue

MAX_FOLLOW_MS = 60_000
"""How long a task without a callback of its own waits at most for a held origin: its policy may name another then."""

STARTS_PER_TURN = 32
"""How many deliveries begin in one turn of the event loop. If all of a claim began in one, their answers would come in
one turn as well, and their settles in one round trip, during each of which this process had nothing to do."""


class Dispatched(NamedTuple):
    """How many deliveries of each topic began, and when (ms) the first task that was put back is due again."""

    begun: Counter[str]
    due_again_at: int | None


class Dispatcher:
    """Decides which claimed tasks are delivered now. `start_all` starts deliveries."""

    def __init__(
        self,
        *,
        store: Store,
        origin_share: OriginShare,
        held_origins: HeldOrigins,
        history: HoldHistory,
        put_backs: PutBackQueue,
        start_all: Callable[[Sequence[tuple[Claim, Held, Origin | None]], int], None],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._origin_share = origin_share
        self._held_origins = held_origins
        self._history = history
        self._put_backs = put_backs
        self._start_all = start_all
        self._metrics = metrics
        self._any_held = False
        """True if a hold of a topic was met."""
        self._began_at = 0
        """The time (ms) at which the deliveries of this dispatch begin: after the claim, which took a while."""

    async def dispatch(self, results: Iterable[ClaimResult], now: int) -> Dispatched:
        """Begin deliveries, and put back the other tasks."""
        self._any_held = not self._history.is_empty
        self._began_at = self._store.clock.now().low
        begun: Counter[str] = Counter()
        admissions: dict[str, Admission] = {}
        deliveries: list[tuple[Claim, Held, Origin | None]] = []
        put_back: list[PutBack] = []
        for result in results:
            if not result.claims:
                continue
            topic = result.claims[0].topic
            if not self._origin_share.probes(topic) and topic not in self._held_origins:
                for claim in result.claims:
                    origin = self._origin_of(claim)
                    deliveries.append((claim, self._held_by(claim, origin, now), origin))
                begun[topic] += len(result.claims)
                continue
            admission = admissions.get(topic)
            if admission is None:
                admission = admissions[topic] = self._origin_share.admission(
                    topic, now, self._store.policies.latest.for_topic(topic).timeout_ms
                )
            for claim in result.claims:
                again_at = self._admit(admission, claim, now)
                if again_at is None:
                    begun[topic] += 1
                else:
                    put_back.append(PutBack(claim, again_at))
        for admission in admissions.values():
            admission.end()
        await self._start_in_turns(deliveries)
        for task in await self._put_backs.put_back(put_back, now):
            self._metrics.tasks_put_back.inc(task.claim.topic)
        return Dispatched(begun, min((task.due_at for task in put_back), default=None))

    async def _start_in_turns(self, deliveries: Sequence[tuple[Claim, Held, Origin | None]]) -> None:
        """Begin deliveries, some of them in each turn of the event loop."""
        for start in range(0, len(deliveries), STARTS_PER_TURN):
            if start:
                await asyncio.sleep(0)
            self._start_all(deliveries[start : start + STARTS_PER_TURN], self._began_at)

    def _admit(self, admission: Admission, claim: Claim, now: int) -> int | None:
        """Begin the delivery of a claim and return None, or return when (ms) its task is due again."""
        origin = self._origin_of(claim)
        if origin is not None:
            at_latest = None if _has_callback(claim) else on_grid(now + MAX_FOLLOW_MS)
            held_until = self._held_origins.waits_until(claim.topic, origin, now, at_latest)
            if held_until is not None:
                admission.pass_over()
                return held_until
            if admission.is_topic_full:
                return claim.due_at
            if not admission.admit(origin):
                return admission.put_back_at(origin)
            self._held_origins.count_started(claim.topic, origin)
        self._start_all([(claim, self._held_by(claim, origin, now), origin)], self._began_at)
        return None

    def _held_by(self, claim: Claim, origin: Origin | None, now: int) -> Held:
        """Return what held a task until it was claimed."""
        held = self._history.held_by(claim.topic, claim.due_at, now) if self._any_held else Held.NO
        if held is not Held.NO or claim.put_back_for is None:
            return held
        if claim.put_back_for is Held.ORIGIN and origin is not None and self._held_origins.holds(claim.topic, origin):
            return Held.RECEIVER
        return claim.put_back_for

    def _origin_of(self, claim: Claim) -> Origin | None:
        """Return the origin of a claimed task's own callback, or its policy's; None if there is none to call."""
        task = claim.task
        if not isinstance(task, Task):
            return None
        callback = task.callback or self._store.policies.latest.for_topic(claim.topic).called_by_default
        try:
            return Origin.of(callback) if callback else None
        except ValueError:
            return None


def _has_callback(claim: Claim) -> bool:
    """Return True if a claimed task has a callback of its own."""
    return isinstance(claim.task, Task) and bool(claim.task.callback)
