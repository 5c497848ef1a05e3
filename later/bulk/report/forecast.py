"""Forecast of the tasks due in the next hours, and of the backlog that the topics' rates leave.

Times are ms since the Unix epoch; hours are UTC. Within an hour, tasks count as evenly spread. Retries of failed
deliveries are not forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

HOUR_MS = 3_600_000
DAY_HOURS = 24
OVERDUE = -1
"""The slot of overdue tasks. Hours have the slots from 0 on; tasks due later have the one after the last hour's."""


class ReportWindow(NamedTuple):
    """The hours of a report, from the current one on, of which only the rest counts."""

    now: int
    hours: int

    @property
    def first_hour(self) -> int:
        """The current hour, counted from the epoch."""
        return self.now // HOUR_MS

    @property
    def end(self) -> int:
        return (self.first_hour + self.hours) * HOUR_MS

    def hour_start(self, slot: int) -> int:
        """Return when an hour begins."""
        return (self.first_hour + slot) * HOUR_MS

    def remaining_start(self, slot: int) -> int:
        """Return when the rest of an hour begins: for the current hour that is now."""
        return max(self.hour_start(slot), self.now)

    def remaining_seconds(self, slot: int) -> float:
        """Return the length of the rest of an hour."""
        return (self.hour_start(slot + 1) - self.remaining_start(slot)) / 1000


def days_from(now: int, days: int) -> ReportWindow:
    return ReportWindow(now, days * DAY_HOURS)


class Load(NamedTuple):
    """The number of tasks of a topic, or of several, that fell due before now, fall due in each hour, or later."""

    topic: str
    overdue: int
    hours: tuple[int, ...]
    later: int

    @property
    def in_window(self) -> int:
        return sum(self.hours)

    @property
    def to_deliver(self) -> int:
        """Tasks to deliver by the end of the last hour."""
        return self.overdue + self.in_window

    @property
    def tasks(self) -> int:
        return self.to_deliver + self.later

    @property
    def busiest_hour(self) -> int:
        """The slot of the hour with the most due tasks, the first of several."""
        return max(range(len(self.hours)), key=self.hours.__getitem__)


def loads_from_counts(counts: Iterable[tuple[str, int, int]], window: ReportWindow) -> list[Load]:
    """Return the loads of counts by (topic, slot), the largest first."""
    slots: dict[str, list[int]] = {}
    for topic, slot, count in counts:
        slots.setdefault(topic, [0] * (window.hours + 2))[slot - OVERDUE] += count
    loads = [Load(topic, due[0], tuple(due[1:-1]), due[-1]) for topic, due in slots.items()]
    return sorted(loads, key=lambda load: (-load.to_deliver, -load.later, load.topic))


def empty_load(topic: str, window: ReportWindow) -> Load:
    """Return the load of a topic of which nothing falls due."""
    return Load(topic, 0, (0,) * window.hours, 0)


def sum_loads(topic: str, loads: Sequence[Load], window: ReportWindow) -> Load:
    """Return the sum of loads, under a name of its own."""
    hours = [sum(due) for due in zip(*(load.hours for load in loads), strict=True)] or [0] * window.hours
    return Load(topic, sum(load.overdue for load in loads), tuple(hours), sum(load.later for load in loads))


class TopicLimit(NamedTuple):
    """The limit of a topic's policy: deliveries a second, 0 for no limit; nothing is delivered while it is paused."""

    rate: float
    paused: bool = False

    @property
    def per_second(self) -> float:
        if self.paused:
            return 0.0
        return self.rate or math.inf


class TopicForecast(NamedTuple):
    """A topic's load, its limit (None if unknown), and the backlog at the end of each hour."""

    window: ReportWindow
    load: Load
    limit: TopicLimit | None
    backlog: tuple[float, ...]

    @property
    def is_limited(self) -> bool:
        """True if the limit is known and there is one."""
        return self.limit is not None and self.limit.per_second < math.inf

    @property
    def excess_per_hour(self) -> list[float]:
        """The tasks of each hour beyond those that can be delivered in it."""
        if self.limit is None:
            return [0.0] * self.window.hours
        capacity = [self.limit.per_second * self.window.remaining_seconds(slot) for slot in range(self.window.hours)]
        return [max(0.0, due - limit) for due, limit in zip(self.load.hours, capacity, strict=True)]

    @property
    def hours_over_rate(self) -> list[int]:
        """The slots of hours in which more falls due than can be delivered."""
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
        """The time when the last backlog is worked off; None without a backlog, or if one outlasts the window."""
        if self.limit is None or self.final_backlog:
            return None
        carried = (self.load.overdue, *self.backlog)
        behind = [slot for slot in range(self.window.hours) if carried[slot]]
        if not behind:
            return None
        slot = behind[-1]
        # The backlog shrinks by the rate and grows by the tasks that fall due meanwhile.
        per_second = self.limit.per_second - self.load.hours[slot] / self.window.remaining_seconds(slot)
        return self.window.remaining_start(slot) + math.ceil(carried[slot] / per_second * 1000)


def forecast_topic(window: ReportWindow, load: Load, limit: TopicLimit | None) -> TopicForecast:
    """Return the forecast of a topic: tasks that an hour cannot deliver are carried over to the next."""
    if limit is None:
        return TopicForecast(window, load, None, ())
    backlog: list[float] = []
    left: float = load.overdue
    for slot, due in enumerate(load.hours):
        left = max(0.0, left + due - limit.per_second * window.remaining_seconds(slot))
        backlog.append(left)
    return TopicForecast(window, load, limit, tuple(backlog))


class DueForecast(NamedTuple):
    """The forecasts of the largest topics, and the sum of the others."""

    window: ReportWindow
    topics: tuple[TopicForecast, ...]
    others: Load
    other_topics: int

    @property
    def total(self) -> Load:
        return sum_loads("all topics", [*(topic.load for topic in self.topics), self.others], self.window)

    def busiest(self, limit: int) -> tuple[TopicForecast, ...]:
        """Return the first topics, without those of which nothing falls due."""
        return tuple(topic for topic in self.topics[:limit] if topic.load.tasks)

    def remaining(self, skip: int) -> Load | None:
        """Return the sum of all topics after the first `skip`; None if there are none with due tasks."""
        rest = [topic.load for topic in self.topics[skip:] if topic.load.tasks]
        if not rest and not self.other_topics:
            return None
        return sum_loads("others", [*rest, self.others], self.window)

    @property
    def has_limits(self) -> bool:
        """True if any topic's limit is known."""
        return any(topic.limit is not None for topic in self.topics)

    def backlog(self, slot: int) -> float:
        """Return the backlog at the end of an hour, of all topics with a known limit."""
        return sum(topic.backlog[slot] for topic in self.topics if topic.backlog)


class DueCounts(NamedTuple):
    """The counts: the loads of the largest topics, the sum of the others, and the number of these."""

    window: ReportWindow
    topics: tuple[Load, ...]
    others: Load
    other_topics: int


def forecast_topics(due: DueCounts, limits: Mapping[str, TopicLimit]) -> DueForecast:
    """Return the forecasts of counts, with the limits of the topics that have a known one."""
    topics = tuple(forecast_topic(due.window, load, limits.get(load.topic)) for load in due.topics)
    return DueForecast(due.window, topics, due.others, due.other_topics)
