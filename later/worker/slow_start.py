"""Topics on their way back to full speed: after a pause, a wait that was asked for, a limit that was raised."""

from __future__ import annotations

from typing import NamedTuple

from later.core.policy import Policy
from later.store.policies import PolicyBook

FULL_RATE_PER_HAND = 10
"""How many deliveries a second a hand makes, for a ramp of a topic that has no rate to ramp up to."""
KNOWN_MS = 10_000
"""How long after a topic was due last its limits are remembered: one that rested needs no ramp to higher ones."""
MANY = 1000


class Ramp(NamedTuple):
    """Since when, until when (ms), and from what rate and concurrency on."""

    since: int
    until: int
    rate: float = 0.0
    concurrency: int = 0

    def progress(self, now: int) -> float:
        """Of the way that lies behind it, 0 to 1."""
        return min(max((now - self.since) / max(self.until - self.since, 1), 0.0), 1.0)

    def allowed_starts(self, now: int, hands: int) -> int:
        """How many deliveries may have begun where the topic has no rate: one, then more and more a second."""
        elapsed_s, whole_s = max(now - self.since, 0) / 1000, max(self.until - self.since, 1) / 1000
        return int(1 + self.rate * elapsed_s + hands * FULL_RATE_PER_HAND * elapsed_s * elapsed_s / (2 * whole_s))


class SlowStart:
    """Those that this instance knows of: from the store, from its own receivers, from limits that it saw raised."""

    def __init__(self, policies: PolicyBook) -> None:
        self._policies = policies
        self._ramps: dict[str, Ramp] = {}
        self._begun: dict[str, int] = {}
        self._limited: dict[str, tuple[Policy, int]] = {}
        """With when (ms) it was seen."""

    @property
    def is_active(self) -> bool:
        """Is any topic on its way, or was any limited?"""
        return bool(self._ramps or self._limited or self._policies.ramps)

    def concerns(self, topic: str) -> bool:
        """Is the topic on its way, or was it limited? Asked of each topic that is due, so it must cost nothing."""
        return topic in self._ramps or topic in self._limited or topic in self._policies.ramps

    def is_ramping(self, topic: str) -> bool:
        """Was the topic on its way when it was looked at last?"""
        return topic in self._ramps

    def ramp_for(self, topic: str, policy: Policy, now: int) -> Ramp | None:
        """The way that it is on; None: it is at full speed."""
        self._note_raise(topic, policy, now)
        ramp, until = self._ramps.get(topic), self._policies.ramps.get(topic, 0)
        if until > now and policy.ramp_ms and (ramp is None or ramp.until < until):
            ramp = self.start(topic, Ramp(until - policy.ramp_ms, until))
        if ramp is not None and (ramp.until <= now or not policy.ramp_ms):
            self._arrive(topic)
            return None
        return ramp

    def start(self, topic: str, ramp: Ramp) -> Ramp:
        self._ramps[topic] = ramp
        self._begun[topic] = 0
        return ramp

    def count_started(self, topic: str, deliveries: int) -> None:
        if topic in self._begun:
            self._begun[topic] += deliveries

    def remaining(self, topic: str, ramp: Ramp, now: int, hands: int) -> int:
        """How many more deliveries, where the topic has no rate."""
        return max(ramp.allowed_starts(now, hands) - self._begun.get(topic, 0), 0)

    def forget_finished(self, now: int) -> None:
        for topic in [topic for topic, ramp in self._ramps.items() if ramp.until <= now]:
            self._arrive(topic)
        if len(self._limited) > MANY or not self._policies.latest.has_limits:
            self._limited = {topic: seen for topic, seen in self._limited.items() if now - seen[1] < KNOWN_MS}

    def _arrive(self, topic: str) -> None:
        del self._ramps[topic]
        del self._begun[topic]

    def _note_raise(self, topic: str, policy: Policy, now: int) -> None:
        """A limit that was raised, or lifted, is the start of a ramp from what it was."""
        before, seen_at = self._limited.get(topic, (policy, now))
        if policy.rate or policy.concurrency:
            self._limited[topic] = (policy, now)
        else:
            self._limited.pop(topic, None)
        if before is policy or now - seen_at >= KNOWN_MS or not policy.ramp_ms:
            return
        if _raised(before.rate, policy.rate) or _raised(before.concurrency, policy.concurrency):
            self.start(topic, Ramp(now, now + policy.ramp_ms, before.rate, before.concurrency))


def _raised(before: float, after: float) -> bool:
    """Is a limit higher than it was? 0 is none."""
    return before != 0 and (after == 0 or after > before)
