"""The errand that resumes topics: they are held in the store, and whoever resumes them changes their policy alone."""

from __future__ import annotations

import structlog

from later.core.policy_scopes import Policies
from later.store.open import Store
from later.worker.ticker import TickResult

log = structlog.get_logger("later.holds")

RESUME_EVERY_MS = 500
RECONCILE_EVERY_MS = 3_000
"""How often those that are held for a pause are looked through, though no policy has changed."""
SETTLED_MS = 3_000
"""How long after a change they are looked through each time: who did not know of it yet may have held one once more."""
RESUME_AFTER_MS = 1100
"""How long a topic that has a ramp is held still: until every instance knows that it comes back slowly."""


class Resumer:
    """delay stays delay: a topic that is not paused any more is claimed again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: Policies | None = None
        self._settled_at = 0
        self._next_at = 0

    async def tick(self, now: int) -> TickResult:
        policies = await self._store.policies.current()
        if policies is not self._seen:
            self._settled_at = now + SETTLED_MS
        elif now >= self._settled_at and self._next_at - RECONCILE_EVERY_MS <= now < self._next_at:
            return TickResult(0, None)
        paused = await self._store.permits.paused_topics()
        resumed = [topic for topic in paused if not policies.for_topic(topic).paused]
        if resumed:
            await self._store.permits.resume(
                {topic: _back(policies.for_topic(topic).ramp_ms, now) for topic in resumed}, now
            )
        for topic in resumed:
            log.info("topic resumed", topic=topic)
        self._seen, self._next_at = policies, now + RECONCILE_EVERY_MS
        return TickResult(len(resumed), None)


def _back(ramp_ms: int, now: int) -> tuple[int, int | None]:
    """From when on a topic is claimed again, and when it is at full speed (None: at once)."""
    return (now + RESUME_AFTER_MS, now + RESUME_AFTER_MS + ramp_ms) if ramp_ms else (now, None)
