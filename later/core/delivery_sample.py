"""The sample of deliveries: some of the attempts of each ten seconds, for people who look for the cause of a fault."""

from __future__ import annotations

import heapq
from itertools import count

import msgspec

from later.core.retry import Outcome, OutcomeKind

MAX_SAMPLED = 20
"""Attempts that a process keeps of a period."""
MAX_OF_A_KIND = 5
"""Failures of one kind that are kept while others may come."""
MIN_SLOWEST = 5
"""The slowest deliveries that were done have this many places before a kind of failure has a second one."""


class SampledDelivery(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One attempt, as the store keeps it. Times are in ms. It has nothing of what was sent but the host's name.

    A later version may add fields at the end: the store may hold what another one wrote.
    """

    id: str
    topic: str
    attempt: int
    due_at: int
    began_at: int
    took_ms: int
    outcome: str
    status: int | None
    host: str
    reason: str = ""


class DeliverySample:
    """The attempts that are kept of a period: failures of each kind, and the slowest deliveries that were done.

    Most deliveries are not: those that were done no slower than `floor_ms` need not be offered.
    """

    def __init__(self) -> None:
        self.floor_ms = -1
        self._failures: dict[tuple[str, int], list[SampledDelivery]] = {}
        self._slowest: list[tuple[int, int, SampledDelivery]] = []
        """A heap: how long each took, and its number, so that two that took equally long are not compared further."""
        self._numbers = count()

    def wants(self, outcome: Outcome, took_ms: int) -> bool:
        """Return True if an attempt with this outcome would be kept."""
        if outcome.kind is OutcomeKind.DONE:
            return took_ms > self.floor_ms
        return len(self._failures.get(_kind_of(outcome.reason, outcome.status), ())) < MAX_OF_A_KIND

    def add(self, delivery: SampledDelivery) -> None:
        """Keep an attempt that is wanted."""
        if delivery.outcome != OutcomeKind.DONE:
            self._failures.setdefault(_kind_of(delivery.reason, delivery.status), []).append(delivery)
            return
        entry = (delivery.took_ms, next(self._numbers), delivery)
        if len(self._slowest) < MAX_SAMPLED:
            heapq.heappush(self._slowest, entry)
        else:
            heapq.heapreplace(self._slowest, entry)
        if len(self._slowest) == MAX_SAMPLED:
            self.floor_ms = self._slowest[0][0]

    def take(self) -> list[SampledDelivery]:
        """End the period: return its sample, the earliest attempt first, and begin the next one."""
        slowest = [delivery for *_, delivery in sorted(self._slowest, reverse=True)]
        first = [failures[0] for failures in self._failures.values()]
        others = [failure for failures in self._failures.values() for failure in failures[1:]]
        chosen = [*first, *slowest[:MIN_SLOWEST], *others, *slowest[MIN_SLOWEST:]][:MAX_SAMPLED]
        self.floor_ms = -1
        self._failures.clear()
        self._slowest.clear()
        return sorted(chosen, key=lambda delivery: delivery.began_at)


def _kind_of(reason: str, status: int | None) -> tuple[str, int]:
    """Return the kind of a failure: its reason, and the class of its status, because receivers choose the number."""
    return reason, min((status or 0) // 100, 9)
