"""The forecast of a topic: when its waiting tasks fall due, and how late its rate will make them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from later.core.snapshot import CountedTopic, Snapshot

MAX_STEPS = 288
"""Steps of one forecast: five minutes each make a day."""
MAX_HOURS = 168
DEFAULT_HOURS = 6
DEFAULT_STEP_S = 300
MAX_FORECAST_TOPICS = 50
"""Topics of the forecast of all."""
BEHIND_MS = 1000
"""The shortest wait that counts as behind: a few tasks are always due for a moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastWindow:
    """The time that a forecast covers, in steps. The first begins at `start` (ms), before `now`, or at it.

    Steps begin at multiples of their length (Unix time), so that a wave at a full hour stays in its step from one
    forecast to the next.
    """

    now: int
    start: int
    step_ms: int
    steps: int

    @classmethod
    def of(cls, now: int, *, hours: int, step_s: int) -> ForecastWindow:
        """Return the window from `now` (ms)."""
        step_ms = step_s * 1000
        return cls(now=now, start=now - now % step_ms, step_ms=step_ms, steps=math.ceil(hours * 3600 / step_s))

    @property
    def ends(self) -> list[int]:
        """The end of each step (ms). A task that is due then belongs to the next one."""
        return [self.start + step * self.step_ms for step in range(1, self.steps + 1)]


def default_step_s(hours: int) -> int:
    """Return the step for so many hours: the usual one, or whole minutes if those would be too many steps."""
    return max(DEFAULT_STEP_S, math.ceil(hours * 60 / MAX_STEPS) * 60)


class WaitingTasks(NamedTuple):
    """The tasks of a topic in delay and error: those `due` by now, and of each step those that fall due in it."""

    due: int
    counts: list[int]


class Simulation(NamedTuple):
    """The result of delivering a topic's tasks at a rate. `worst_ms` is the longest wait of any task.

    A task waits from when it is due, or from now if it is due already.

    `behind_from` and `caught_up_at` (ms) are the beginning and the end of the period in which that task waits.
    Both are None if it waits for less than a second; `caught_up_at` also if the period does not end in the window.
    """

    behind_from: int | None
    caught_up_at: int | None
    worst_ms: float


class BacklogStep(NamedTuple):
    """A step in which a backlog of `before` tasks grows by so many more than can be delivered, or shrinks."""

    before: float
    growth: float

    @property
    def after(self) -> float:
        return max(self.before + self.growth, 0.0)

    @property
    def emptied_at(self) -> float | None:
        """The part of the step after which a backlog is worked off; None if there was none, or some is left."""
        if self.before <= 0 or self.before + self.growth > 0:
            return None
        return self.before / -self.growth


def follow_backlog(backlog: float, counts: Iterable[int], capacities: Iterable[float]) -> Iterator[BacklogStep]:
    """Yield the steps of a backlog: to each come so many tasks, evenly, and each can deliver so many."""
    for count, capacity in zip(counts, capacities, strict=True):
        step = BacklogStep(backlog, count - capacity)
        yield step
        backlog = step.after


def simulate(tasks: WaitingTasks, window: ForecastWindow, rate: float) -> Simulation:
    """Return what a rate (deliveries a second, above 0) makes of these tasks, the first to be due first.

    The tasks of a step are taken to fall due evenly over it, and those that are due already to be delivered from now
    on: the first of them waits for nothing. However those of a step really come, the longest wait is not shorter, and
    longer by the length of a step at most.
    """
    per_ms = rate / 1000
    begins = [window.now, *window.ends[:-1]]
    capacities = [per_ms * (end - begin) for begin, end in zip(begins, window.ends, strict=True)]
    first = worst = float(max(tasks.due - 1, 0))
    began = behind_from = window.now
    caught_up_at: int | None = None
    for at, end, step in zip(begins, window.ends, follow_backlog(first, tasks.counts, capacities), strict=True):
        if step.before == 0 and step.growth > 0:
            began = at
        if step.after > worst:
            worst, behind_from, caught_up_at = step.after, began, None
        if step.emptied_at is not None and began == behind_from:
            caught_up_at = at + math.ceil((end - at) * step.emptied_at)
    if worst < BEHIND_MS * per_ms:
        return Simulation(None, None, worst / per_ms)
    return Simulation(behind_from, caught_up_at, worst / per_ms)


def busiest_topics(snapshot: Snapshot | None, namespace: str | None) -> tuple[list[str], int]:
    """Return the topics of a namespace, or of all, with most tasks in delay and error, and how many are left out.

    Those of which no task waited are not counted, as far as the snapshot says so.
    """
    if snapshot is None:
        return [], 0
    rows = snapshot.rows_of(namespace)
    waiting = [row for row in rows if _waiting(row)]
    waiting.sort(key=lambda row: (-_waiting(row), row.topic))
    chosen = [row.topic for row in waiting[:MAX_FORECAST_TOPICS]]
    idle = len(rows) - len(waiting)
    return chosen, max(snapshot.sums_of(namespace).topics - idle - len(chosen), 0)


def add_up(forecasts: Sequence[WaitingTasks], steps: int) -> WaitingTasks:
    """Return the sums over several topics."""
    counts = [0] * steps
    for forecast in forecasts:
        counts = [total + count for total, count in zip(counts, forecast.counts, strict=True)]
    return WaitingTasks(sum(forecast.due for forecast in forecasts), counts)


def _waiting(row: CountedTopic) -> int:
    return row.delay + row.error
