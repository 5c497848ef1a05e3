"""Slow start: topics that return to full speed after a pause or a limit that was raised."""

from __future__ import annotations

from typing import NamedTuple

from later.core.policy import Policy
from later.store.policies import PolicyBook

FULL_RATE_PER_SLOT = 10
"""Deliveries a second of one slot: the full speed assumed for a topic without a rate."""
LIMITS_KEPT_MS = 10_000
"""How long a topic's limits are remembered after it was due last: one that was idle may start at higher limits."""
MAX_LIMITS_KEPT = 1000
"""Topics whose limits are remembered before those of idle topics are dropped."""


class Ramp(NamedTuple):
    """The time (ms) over which a topic returns to full speed, and the rate and concurrency that it starts from."""

    since: int
    until: int
    rate: float = 0.0
    concurrency: int = 0

    def progress(self, now: int) -> float:
        """Return the part of the ramp that has passed, 0 to 1."""
        return min(max((now - self.since) / max(self.until - self.since, 1), 0.0), 1.0)

    def allowed_starts(self, now: int, slots: int) -> int:
        """Return how many deliveries of a topic without a rate may have started by now: the rate grows linearly."""
        elapsed_s, length_s = max(now - self.since, 0) / 1000, max(self.until - self.since, 1) / 1000
        return int(1 + self.rate * elapsed_s + slots * FULL_RATE_PER_SLOT * elapsed_s * elapsed_s / (2 * length_s))


class SlowStart:
    """The ramps that this instance knows: from the store, and from limits that it saw raised."""

    def __init__(self, policies: PolicyBook) -> None:
        self._policies = policies
        self.ramps: dict[str, Ramp] = {}
        self._started: dict[str, int] = {}
        """Deliveries that have started during each topic's ramp."""
        self.limited: dict[str, tuple[Policy, int]] = {}
        """The policy of each topic that has limits, and when (ms) it was seen."""

    def concerns(self, topic: str) -> bool:
        """Return True if the topic is on a ramp, or was limited a moment ago. Cheap: called for each due topic."""
        return topic in self.ramps or topic in self.limited or topic in self._policies.ramps

    def is_ramping(self, topic: str) -> bool:
        """Return True if the topic was on a ramp at the last call of `ramp_for`."""
        return topic in self.ramps

    def ramp_for(self, topic: str, policy: Policy, now: int) -> Ramp | None:
        """Return the topic's ramp; None if it runs at full speed. A limit that was raised or lifted starts a ramp."""
        before, seen_at = self.limited.get(topic, (policy, now))
        if policy.rate or policy.concurrency:
            self.limited[topic] = (policy, now)
        else:
            self.limited.pop(topic, None)
        if (
            before is not policy
            and now - seen_at < LIMITS_KEPT_MS
            and policy.ramp_ms
            and (_is_raised(before.rate, policy.rate) or _is_raised(before.concurrency, policy.concurrency))
        ):
            self.start(topic, Ramp(now, now + policy.ramp_ms, before.rate, before.concurrency))
        ramp, until = self.ramps.get(topic), self._policies.ramps.get(topic, 0)
        if until > now and policy.ramp_ms and (ramp is None or ramp.until < until):
            ramp = Ramp(until - policy.ramp_ms, until)
            self.start(topic, ramp)
        if ramp is not None and (ramp.until <= now or not policy.ramp_ms):
            self._end(topic)
            return None
        return ramp

    def start(self, topic: str, ramp: Ramp) -> None:
        self.ramps[topic] = ramp
        self._started[topic] = 0

    def count_started(self, topic: str, deliveries: int) -> None:
        if topic in self._started:
            self._started[topic] += deliveries

    def remaining_starts(self, topic: str, ramp: Ramp, now: int, slots: int) -> int:
        """Return how many more deliveries of a topic without a rate may start."""
        return max(ramp.allowed_starts(now, slots) - self._started.get(topic, 0), 0)

    def forget_finished(self, now: int) -> None:
        for topic in [topic for topic, ramp in self.ramps.items() if ramp.until <= now]:
            self._end(topic)
        if len(self.limited) > MAX_LIMITS_KEPT or not self._policies.latest.has_limits:
            self.limited = {topic: seen for topic, seen in self.limited.items() if now - seen[1] < LIMITS_KEPT_MS}

    def _end(self, topic: str) -> None:
        del self.ramps[topic]
        del self._started[topic]


def _is_raised(before: float, after: float) -> bool:
    """Return True if a limit is higher than it was; 0 means no limit."""
    return before != 0 and (after == 0 or after > before)
