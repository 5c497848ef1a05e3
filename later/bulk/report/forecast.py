"""Forecast of the tasks due in the next hours, and of the backlog that the topics' rates leave.

Times are ms since the Unix epoch; hours are UTC. Within an hour, tasks count as evenly spread. Retries of failed
deliveries are not forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from later.core.forecast import BacklogStep, follow_backlog

HOUR_MS = 3_600_000
DAY_HOURS = 24
OVERDUE = -1
"""The hour of overdue tasks. The window's hours count from 0; tasks due later have the hour after the last."""


class ReportWindow(NamedTuple):
    """The hours of a report, counted from 0. The first is the current one, of which only the rest counts."""

    now: int
    hours: int

    @property
    def first_hour(self) -> int:
        """The current hour, counted from the epoch."""
        return self.now // HOUR_MS

    @property
    def end(self) -> int:
        return (self.first_hour + self.hours) * HOUR_MS

    def hour_start(self, hour: int) -> int:
        """Return the time when an hour begins."""
        return (self.first_hour + hour) * HOUR_MS

    def remaining_start(self, hour: int) -> int:
        """Return the time when the rest of an hour begins: for the current hour that is now."""
        return max(self.hour_start(hour), self.now)

    def remaining_seconds(self, hour: int) -> float:
        """Return the length of the rest of an hour, in seconds."""
        return (self.hour_start(hour + 1) - self.remaining_start(hour)) / 1000


def window_from_days(now: int, days: int) -> ReportWindow:
    return ReportWindow(now, days * DAY_HOURS)


class Load(NamedTuple):
    """The numbers of tasks of a topic, or of several: those overdue, those due in each hour, and those due later."""

    topic: str
    overdue: int
    due_per_hour: tuple[int, ...]
    later: int

    @property
    def in_window(self) -> int:
        return sum(self.due_per_hour)

    @property
    def to_deliver(self) -> int:
        """Tasks to deliver by the end of the last hour."""
        return self.overdue + self.in_window

    @property
    def tasks(self) -> int:
        return self.to_deliver + self.later

    @property
    def busiest_hour(self) -> int:
        """The hour with the most due tasks, the first of several."""
        return max(range(len(self.due_per_hour)), key=self.due_per_hour.__getitem__)


def loads_from_counts(counts: Iterable[tuple[str, int, int]], window: ReportWindow) -> list[Load]:
    """Return the loads that make up these counts of (topic, hour, tasks), the largest first."""
    hours_by_topic: dict[str, list[int]] = {}
    for topic, hour, count in counts:
        hours_by_topic.setdefault(topic, [0] * (window.hours + 2))[hour - OVERDUE] += count
    loads = [Load(topic, due[0], tuple(due[1:-1]), due[-1]) for topic, due in hours_by_topic.items()]
    return sorted(loads, key=lambda load: (-load.to_deliver, -load.later, load.topic))


def empty_load(topic: str, window: ReportWindow) -> Load:
    """Return the load of a topic without due tasks."""
    return Load(topic, 0, (0,) * window.hours, 0)


def sum_loads(topic: str, loads: Sequence[Load], window: ReportWindow) -> Load:
    """Return the sum of loads, under a name of its own."""
    hours = [sum(due) for due in zip(*(load.due_per_hour for load in loads), strict=True)] or [0] * window.hours
    return Load(topic, sum(load.overdue for load in loads), tuple(hours), sum(load.later for load in loads))


class TopicLimit(NamedTuple):
    """The limit of a topic: deliveries per second (0: no limit). While the topic is paused, nothing is delivered."""

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
        capacity = [self.limit.per_second * self.window.remaining_seconds(hour) for hour in range(self.window.hours)]
        return [max(0.0, due - limit) for due, limit in zip(self.load.due_per_hour, capacity, strict=True)]

    @property
    def hours_over_rate(self) -> list[int]:
        """The hours in which more tasks fall due than can be delivered."""
        return [hour for hour, excess in enumerate(self.excess_per_hour) if excess]

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
        """The time when the last backlog is worked off; None without a backlog, or if it outlasts the window."""
        if self.limit is None or self.final_backlog:
            return None
        ends = [(hour, step.emptied_at) for hour, step in enumerate(_follow(self.window, self.load, self.limit))]
        worked_off = [(hour, part) for hour, part in ends if part is not None]
        if not worked_off:
            return None
        hour, part = worked_off[-1]
        return self.window.remaining_start(hour) + math.ceil(part * self.window.remaining_seconds(hour) * 1000)


def forecast_topic(window: ReportWindow, load: Load, limit: TopicLimit | None) -> TopicForecast:
    """Return the forecast of a topic: tasks that an hour cannot deliver are carried over to the next."""
    if limit is None:
        return TopicForecast(window, load, None, ())
    return TopicForecast(window, load, limit, tuple(step.after for step in _follow(window, load, limit)))


def _follow(window: ReportWindow, load: Load, limit: TopicLimit) -> Iterator[BacklogStep]:
    """Yield the hours of a topic's backlog."""
    capacities = (limit.per_second * window.remaining_seconds(hour) for hour in range(window.hours))
    return follow_backlog(load.overdue, load.due_per_hour, capacities)


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
        """Return the first topics, without those that have no due tasks."""
        return tuple(topic for topic in self.topics[:limit] if topic.load.tasks)

    def sum_after(self, count: int) -> Load | None:
        """Return the sum of all topics after the first `count`; None if they have no due tasks."""
        rest = [topic.load for topic in self.topics[count:] if topic.load.tasks]
        if not rest and not self.other_topics:
            return None
        return sum_loads("others", [*rest, self.others], self.window)

    @property
    def has_limits(self) -> bool:
        """True if any topic's limit is known."""
        return any(topic.limit is not None for topic in self.topics)

    def backlog(self, hour: int) -> float:
        """Return the backlog at the end of an hour, of all topics with a known limit."""
        return sum(topic.backlog[hour] for topic in self.topics if topic.backlog)


class DueCounts(NamedTuple):
    """Counts of due tasks: the loads of the largest topics, and the sum and the number of the others."""

    window: ReportWindow
    topics: tuple[Load, ...]
    others: Load
    other_topics: int


def forecast_topics(due: DueCounts, limits: Mapping[str, TopicLimit]) -> DueForecast:
    """Return the forecasts for these counts. Topics that are missing in `limits` have an unknown limit."""
    topics = tuple(forecast_topic(due.window, load, limits.get(load.topic)) for load in due.topics)
    return DueForecast(due.window, topics, due.others, due.other_topics)
