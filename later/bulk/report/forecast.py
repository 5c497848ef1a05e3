"""What falls due in the next hours, and whether the topics' rates can deliver it.

Times are ms since the Unix epoch, hours are those of UTC. Within an hour tasks count as due evenly; tries that fail
and are made again are not foreseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

HOUR_MS = 3_600_000
DAY_HOURS = 24
OVERDUE = -1
"""The slot of what is due already. The hours' slots count from 0; after the last comes that of what is due later."""


class ReportWindow(NamedTuple):
    """The hours looked at: so many from the one of `now` on, whose past part does not count."""

    now: int
    hours: int

    @property
    def first(self) -> int:
        """The hour of `now`, counted from the epoch."""
        return self.now // HOUR_MS

    @property
    def end(self) -> int:
        return (self.first + self.hours) * HOUR_MS

    def begins(self, slot: int) -> int:
        """When an hour begins, by the clock."""
        return (self.first + slot) * HOUR_MS

    def starts(self, slot: int) -> int:
        """When what is left of an hour begins."""
        return max(self.begins(slot), self.now)

    def seconds(self, slot: int) -> float:
        """How much is left of an hour."""
        return (self.begins(slot + 1) - self.starts(slot)) / 1000


def days_from(now: int, days: int) -> ReportWindow:
    return ReportWindow(now, days * DAY_HOURS)


class Load(NamedTuple):
    """How many tasks of a topic (or of several) fall due: before now, in each hour, after the last."""

    topic: str
    overdue: int
    hours: tuple[int, ...]
    later: int

    @property
    def in_window(self) -> int:
        return sum(self.hours)

    @property
    def soon(self) -> int:
        """All that is to be delivered by the end of the last hour."""
        return self.overdue + self.in_window

    @property
    def tasks(self) -> int:
        return self.soon + self.later

    @property
    def busiest_hour(self) -> int:
        """The first of the hours with most to do."""
        return max(range(len(self.hours)), key=self.hours.__getitem__)


def loads_from_counts(counts: Iterable[tuple[str, int, int]], window: ReportWindow) -> list[Load]:
    """Of counts by (topic, slot), the topic with most to do first."""
    slots: dict[str, list[int]] = {}
    for topic, slot, count in counts:
        slots.setdefault(topic, [0] * (window.hours + 2))[slot - OVERDUE] += count
    loads = [Load(topic, due[0], tuple(due[1:-1]), due[-1]) for topic, due in slots.items()]
    return sorted(loads, key=lambda load: (-load.soon, -load.later, load.topic))


def empty_load(topic: str, window: ReportWindow) -> Load:
    """Of a topic of which nothing falls due."""
    return Load(topic, 0, (0,) * window.hours, 0)


def sum_loads(topic: str, loads: Sequence[Load], window: ReportWindow) -> Load:
    """Several loads as one."""
    hours = [sum(due) for due in zip(*(load.hours for load in loads), strict=True)] or [0] * window.hours
    return Load(topic, sum(load.overdue for load in loads), tuple(hours), sum(load.later for load in loads))


class TopicLimit(NamedTuple):
    """What a topic's policy allows: deliveries a second, 0 for no limit; none while it is paused."""

    rate: float
    paused: bool = False

    @property
    def per_second(self) -> float:
        if self.paused:
            return 0.0
        return self.rate or math.inf


class TopicForecast(NamedTuple):
    """A topic's load beside what it is allowed (None: nobody knows), and the backlog at the end of each hour."""

    window: ReportWindow
    load: Load
    limit: TopicLimit | None
    backlog: tuple[float, ...]

    @property
    def is_limited(self) -> bool:
        """Is there anything that it could fall behind?"""
        return self.limit is not None and self.limit.per_second < math.inf

    @property
    def excess_per_hour(self) -> list[float]:
        """How many more fall due in each hour than can be delivered in it."""
        if self.limit is None:
            return [0.0] * self.window.hours
        a_second = self.limit.per_second
        return [max(0.0, due - _within(self.window, slot, a_second)) for slot, due in enumerate(self.load.hours)]

    @property
    def hours_over_rate(self) -> list[int]:
        """The hours in which more falls due than can be delivered."""
        return [slot for slot, more in enumerate(self.excess_per_hour) if more]

    @property
    def peak_backlog(self) -> float:
        """The largest backlog at the end of an hour."""
        return max(self.backlog, default=0.0)

    @property
    def final_backlog(self) -> float:
        """The backlog at the end of the last hour."""
        return self.backlog[-1] if self.backlog else 0.0

    @property
    def worked_off_at(self) -> int | None:
        """When the last backlog of these hours is gone; None where there is none, or it stays beyond them."""
        if self.limit is None or self.final_backlog:
            return None
        carried = (self.load.overdue, *self.backlog)
        behind = [slot for slot in range(self.window.hours) if carried[slot]]
        if not behind:
            return None
        slot = behind[-1]
        # It shrinks by what the rate delivers and grows by what falls due meanwhile.
        by_a_second = self.limit.per_second - self.load.hours[slot] / self.window.seconds(slot)
        return self.window.starts(slot) + math.ceil(carried[slot] / by_a_second * 1000)


def forecast_topic(window: ReportWindow, load: Load, allowed: TopicLimit | None) -> TopicForecast:
    """Carry what an hour cannot deliver over to the next."""
    return TopicForecast(window, load, allowed, () if allowed is None else _backlog(window, load, allowed.per_second))


def _backlog(window: ReportWindow, load: Load, a_second: float) -> tuple[float, ...]:
    backlog: list[float] = []
    left: float = load.overdue
    for slot, due in enumerate(load.hours):
        left = max(0.0, left + due - _within(window, slot, a_second))
        backlog.append(left)
    return tuple(backlog)


def _within(window: ReportWindow, slot: int, a_second: float) -> float:
    """How many can be delivered in an hour."""
    return a_second * window.seconds(slot)


class DueForecast(NamedTuple):
    """The topics with most to do, and the others as one."""

    window: ReportWindow
    topics: tuple[TopicForecast, ...]
    others: Load
    other_topics: int

    @property
    def total(self) -> Load:
        return sum_loads("all topics", [*(topic.load for topic in self.topics), self.others], self.window)

    def busiest(self, limit: int) -> tuple[TopicForecast, ...]:
        """The first topics, of those of which anything falls due."""
        return tuple(topic for topic in self.topics[:limit] if topic.load.tasks)

    def remaining(self, skip: int) -> Load | None:
        """All topics but the busiest ones, as one; None where of no other anything falls due."""
        rest = [topic.load for topic in self.topics[skip:] if topic.load.tasks]
        if not rest and not self.other_topics:
            return None
        return sum_loads("others", [*rest, self.others], self.window)

    @property
    def has_limits(self) -> bool:
        """Is anything known of what any topic is allowed?"""
        return any(topic.limit is not None for topic in self.topics)

    def backlog(self, slot: int) -> float:
        """What all topics whose limits are known are behind by at the end of an hour."""
        return sum(topic.backlog[slot] for topic in self.topics if topic.backlog)


class DueCounts(NamedTuple):
    """What was counted: the topics with most to do, the others as one, and how many these are."""

    window: ReportWindow
    topics: tuple[Load, ...]
    others: Load
    other_topics: int


def forecast_topics(due: DueCounts, allowed: Mapping[str, TopicLimit]) -> DueForecast:
    """The forecasts for what was counted."""
    topics = tuple(forecast_topic(due.window, load, allowed.get(load.topic)) for load in due.topics)
    return DueForecast(due.window, topics, due.others, due.other_topics)
