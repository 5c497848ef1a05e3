"""The reasons why due tasks of a topic are held: a limit, a pause, or their receiver."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from later.core.policy import Deliver, Policy


class Held(StrEnum):
    """The reason why due tasks are not claimed. `NO`: nothing, so they wait for a slot, a worker or the store."""

    NO = "no"
    RATE = "rate"
    CONCURRENCY = "concurrency"
    PAUSE = "pause"
    RECEIVER = "receiver"
    ORIGIN = "origin"
    """Other calls to its origin, which held as many slots as one origin may."""
    FAULT = "fault"
    """A fault of later or its machine, which could not make the call."""
    PULL = "pull"
    """Nothing: no consumer has claimed them yet."""


class TopicHold(NamedTuple):
    """A hold of a topic until a time (ms), or until it is resumed (None). `for_rate`: its rate has no more permits."""

    topic: str
    until: int | None
    for_rate: bool


def find_hold(policy: Policy, hold: TopicHold | None, permits_in_use: int, now: int) -> Held:
    """Return what holds a topic at `now` (ms); `hold` is its hold in the store, which may have ended."""
    if policy.deliver is Deliver.PULL and not policy.paused:
        return Held.PULL
    if policy.paused or (hold is not None and hold.until is None):
        return Held.PAUSE
    if hold is not None and hold.until is not None and hold.until > now:
        return Held.RATE if hold.for_rate else Held.RECEIVER
    if policy.concurrency and permits_in_use >= policy.concurrency:
        return Held.CONCURRENCY
    return Held.NO
