"""The first thing that the overview says: whether all is well, and one sentence about the worst if it is not.

Pure: everything that it depends on is passed in. The sentences about a topic are those of `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from later.core.explain import TopicFacts, explain_topic, format_duration
from later.core.held import Held
from later.core.snapshot import CountedTopic, TopicSums

BAD_MEMORY_SHARE, HIGH_MEMORY_SHARE = 0.95, 0.8
"""How much of its `maxmemory` the store uses if that is bad, and if it is worth a warning."""
OVERDUE_MS, LATE_MS = 60_000, 5000
"""How late tasks are that nothing holds if that is bad, and if it is worth a warning."""
HELD_LATE_MS = {
    Held.RECEIVER: 60_000,
    Held.ORIGIN: 60_000,
    Held.FAULT: 5000,
    Held.PULL: 60_000,
    Held.RATE: 300_000,
    Held.CONCURRENCY: 300_000,
    Held.PAUSE: 0,
}
"""How late held tasks are if that is worth a warning, by what holds them."""
_GRAVITY = (Held.NO, Held.FAULT, Held.RECEIVER, Held.ORIGIN, Held.CONCURRENCY, Held.RATE, Held.PULL, Held.PAUSE)
"""The causes that hold tasks, the least intended first."""


class AlertLevel(StrEnum):
    """How well all is."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


_LEVELS = (AlertLevel.BAD, AlertLevel.WARN)
"""The levels that are not well, the gravest first."""


class Headline(NamedTuple):
    """A level, the sentence that gives the reason, and the topic that it is about, if it is about one."""

    level: AlertLevel
    sentence: str
    topic: str | None = None


class LateTopic(NamedTuple):
    """A topic with due tasks, and what holds them."""

    facts: TopicFacts
    held: Held


class Situation(NamedTuple):
    """The facts of a judgement. `max_memory` is 0 if it is not known, or unlimited.

    `is_counted` is false before the first census.
    `late` are topics with due tasks, the worst first. `others_due_at` is the due time (ms) of the oldest task that
    nothing holds if its topic is only in the sums. `deaths` are the tasks that died in the last slot of the history,
    `deadliest` is the topic with most dead tasks. `last_heartbeat_at` (ms) is that of any worker. `has_pulled` is true
    if consumers claim the tasks of any of these topics.
    """

    sums: TopicSums
    is_counted: bool
    memory: int
    max_memory: int
    workers: int
    last_heartbeat_at: int | None
    has_pulled: bool
    late: Sequence[LateTopic]
    others_due_at: int | None
    deaths: int
    deadliest: str | None


def judge_lateness(held: Held, late_ms: int) -> AlertLevel:
    """Return how bad it is that a topic's oldest due task is so late, if it is held by this."""
    if held is not Held.NO:
        return AlertLevel.WARN if late_ms >= HELD_LATE_MS[held] else AlertLevel.OK
    return AlertLevel.BAD if late_ms >= OVERDUE_MS else AlertLevel.WARN if late_ms >= LATE_MS else AlertLevel.OK


def sort_by_gravity(rows: Iterable[CountedTopic], now: int) -> list[CountedTopic]:
    """Return the topics with the worst at `now` (ms) first.

    These are the late ones, by level, by how little that is intended, and by lateness; then those with most dead tasks.
    """

    def key(row: CountedTopic) -> tuple[int, int, int, int, int, str]:
        late_ms = 0 if row.oldest_due_at is None else now - row.oldest_due_at
        level = AlertLevel.OK if row.oldest_due_at is None else judge_lateness(row.held, late_ms)
        if level is AlertLevel.OK:  # the order must not change with every task that is due for a moment
            return len(_LEVELS), 0, 0, -row.dead, -row.tasks, row.topic
        return _LEVELS.index(level), _GRAVITY.index(row.held), -late_ms, -row.dead, -row.tasks, row.topic

    return sorted(rows, key=key)


def judge_situation(facts: Situation, now: int) -> Headline:
    """Return the gravest judgement at `now` (ms), and of equal ones the first."""
    warning: Headline | None = None
    for judgement in _judge_all(facts, now):
        if judgement.level is AlertLevel.BAD:
            return judgement
        warning = warning or judgement
    return warning or Headline(AlertLevel.OK, _all_is_well(facts.sums))


def _judge_all(facts: Situation, now: int) -> Iterator[Headline]:
    """Yield what is not well, in the order of importance for equal levels."""
    yield from _judge_store(facts)
    yield from _judge_workers(facts, now)
    yield from _judge_topics(facts, now)
    yield from _judge_others(facts, now)
    yield from _judge_deaths(facts)
    if not facts.is_counted:
        yield Headline(
            AlertLevel.WARN, "The tasks are being counted for the first time: whether any is late is not known"
        )


def _judge_store(facts: Situation) -> Iterator[Headline]:
    if not facts.max_memory:
        return
    share = facts.memory / facts.max_memory
    if share >= BAD_MEMORY_SHARE:
        yield Headline(AlertLevel.BAD, f"{share:.0%} of the store's memory is used; at 100% creates are refused")
    elif share >= HIGH_MEMORY_SHARE:
        yield Headline(AlertLevel.WARN, f"The store is nearly full: {share:.0%} of its memory is used")


def _judge_workers(facts: Situation, now: int) -> Iterator[Headline]:
    if facts.workers:
        return
    last = facts.last_heartbeat_at
    missing = "No worker is running" if last is None else f"No worker heartbeat for {format_duration(now - last)}"
    oldest = facts.sums.oldest_due_at(is_held=False)
    if oldest is not None:
        yield Headline(AlertLevel.BAD, f"{missing}; {_due_tasks(facts.sums, oldest, now)}")
    elif not facts.has_pulled:
        yield Headline(AlertLevel.WARN, f"{missing}: nothing is delivered")


def _judge_topics(facts: Situation, now: int) -> Iterator[Headline]:
    """Yield what the lateness of topics means, in the words of `explain`."""
    for topic, held in facts.late:
        if topic.oldest_due_at is None:
            continue
        level = judge_lateness(held, now - topic.oldest_due_at)
        if level is not AlertLevel.OK:
            yield Headline(level, f"{topic.name}: {explain_topic(topic, now).sentence}", topic.name)


def _judge_others(facts: Situation, now: int) -> Iterator[Headline]:
    """Yield what the lateness of topics means that are only in the sums."""
    oldest = facts.others_due_at
    level = AlertLevel.OK if oldest is None else judge_lateness(Held.NO, now - oldest)
    if oldest is not None and level is not AlertLevel.OK:
        yield Headline(level, _due_tasks(facts.sums, oldest, now))


def _due_tasks(sums: TopicSums, oldest_due_at: int, now: int) -> str:
    due = sums.due[Held.NO].due
    tasks = "1 task is" if due == 1 else f"{due:,} tasks are"
    return f"{tasks} due, the oldest for {format_duration(now - oldest_due_at)}"


def _judge_deaths(facts: Situation) -> Iterator[Headline]:
    if facts.deaths:
        died = "1 task has" if facts.deaths == 1 else f"{facts.deaths:,} tasks have"
        most = "" if facts.deadliest is None else f"; {facts.deadliest} has most dead ones"
        yield Headline(AlertLevel.WARN, f"{died} died in the last seconds{most}", facts.deadliest)


def _all_is_well(sums: TopicSums) -> str:
    numbers = ((sums.unack, "in flight"), (sums.error, "between two attempts"), (sums.delay, "waiting"))
    parts = [f"{number:,} {where}" for number, where in numbers if number]
    return f"Nothing is late: {', '.join(parts)}" if parts else "Nothing is late, and no task waits"
