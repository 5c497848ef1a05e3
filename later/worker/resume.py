"""Tick function that resumes topics: a user's resume changes only the policy, so the hold in the store remains."""

from __future__ import annotations

import asyncio

import structlog

from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.store.open import Store
from later.worker.shard_selector import ShardSelector
from later.worker.ticker import TickResult

log = structlog.get_logger("later.resume")

RESUME_EVERY_MS = 500
CHECK_EVERY_MS = 3_000
"""How often paused topics are checked while no policy changes."""
CHECK_AFTER_CHANGE_MS = 3_000
"""How long after a policy change each tick checks: an instance that has not seen it yet may hold a topic again."""
TOPICS_PER_TURN = 500
"""Topics that are checked before other tasks of the event loop get a turn."""
RESUME_AFTER_MS = 1100
"""How long a topic with a ramp stays held: until every instance knows that it returns slowly."""


class Resumer:
    """Tick function that ends the holds of topics that are neither paused nor pulled any more."""

    def __init__(self, store: Store, shard_selector: ShardSelector) -> None:
        self._store = store
        self._shard_selector = shard_selector
        self._seen_policies: Policies | None = None
        self._check_until = 0
        """Until then (ms) each tick checks."""
        self._next_at = 0
        self._held: set[str] = set()
        """Topics that these policies keep held. A store may have ten thousand pulled ones."""

    async def tick(self, now: int) -> TickResult:
        policies = await self._store.policies.current()
        if policies is not self._seen_policies:
            self._check_until = now + CHECK_AFTER_CHANGE_MS
            self._held.clear()
        elif now >= self._check_until and self._next_at - CHECK_EVERY_MS <= now < self._next_at:
            return TickResult(0, None)
        times: dict[str, tuple[int, int | None]] = {}
        """When each topic may be claimed again, and when it is at full speed (None: at once)."""
        for topic, policy in (await self._find_ended(policies, now)).items():
            claimed_from = now + RESUME_AFTER_MS
            times[topic] = (claimed_from, claimed_from + policy.ramp_ms) if policy.ramp_ms else (now, None)
        if times:
            await self._store.permits.resume(times, now)
        for topic in times:
            log.info("topic resumed", topic=topic)
        self._seen_policies, self._next_at = policies, now + CHECK_EVERY_MS
        return TickResult(len(times), None)

    async def _find_ended(self, policies: Policies, now: int) -> dict[str, Policy]:
        """Return the topics that are held in the store, but not by their policies any more, with these."""
        ended: list[str] = []
        shards = self._shard_selector.for_upkeep("resume", now)
        for number, topic in enumerate(await self._store.permits.paused_topics(shards) - self._held, 1):
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            if policies.for_topic(topic).is_held:
                self._held.add(topic)
            else:
                ended.append(topic)
        if not ended:
            return {}
        latest = await self._store.policies.read()  # another process may have paused a topic a moment ago
        return {topic: policy for topic in ended if not (policy := latest.for_topic(topic)).is_held}
