"""What the overview says first: the level and the sentence follow from the facts, the gravest first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.explain import TopicFacts
from later.core.held import Held
from later.core.overview import (
    HELD_LATE_MS,
    LATE_MS,
    OVERDUE_MS,
    AlertLevel,
    Headline,
    LateTopic,
    Situation,
    judge_lateness,
    judge_situation,
    sort_by_gravity,
)
from later.core.policy import Policy
from later.core.snapshot import CountedTopic, TopicSums, sum_rows
from tests.builders import NOW
from tests.core.test_snapshot import many_rows, topic_rows

WELL = Situation(
    sums=TopicSums(), is_counted=True, memory=0, max_memory=0, workers=1, last_heartbeat_at=NOW, has_pulled=False,
    late=(), others_due_at=None, deaths=0, deadliest=None,
)  # fmt: skip
GRAVEST = (AlertLevel.BAD, AlertLevel.WARN, AlertLevel.OK)


def a_row(topic: str = "order", *, late_ms: int | None = None, held: Held = Held.NO, dead: int = 0) -> CountedTopic:
    """Return a topic with one task that is due for so long, if any."""
    due_at = None if late_ms is None else NOW - late_ms
    return CountedTopic(topic, 1, 0, 0, dead, int(late_ms is not None), due_at, held, held is Held.PAUSE, False)


def late(row: CountedTopic, policy: Policy | None = None) -> LateTopic:
    facts = TopicFacts(
        name=row.topic, policy=policy or Policy(), delay=row.delay, unack=row.unack, error=row.error, dead=row.dead,
        due=row.due, oldest_due_at=row.oldest_due_at, next_due_at=None, paused=row.is_paused, held_until=None,
        full_speed_at=None, workers=1, last_heartbeat_at=NOW,
    )  # fmt: skip
    return LateTopic(facts, row.held)


def judge(**facts: Any) -> Headline:
    return judge_situation(WELL._replace(**facts), NOW)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    rows = draw(many_rows)
    return Situation(
        sums=sum_rows(rows),
        is_counted=draw(st.booleans()),
        memory=draw(st.integers(0, 100)),
        max_memory=draw(st.sampled_from([0, 100])),
        workers=draw(st.integers(0, 1)),
        last_heartbeat_at=draw(st.none() | st.integers(NOW - 100_000, NOW)),
        has_pulled=draw(st.booleans()),
        late=[late(row) for row in sort_by_gravity(rows, NOW) if row.due],
        others_due_at=None,
        deaths=draw(st.integers(0, 2)),
        deadliest=max((row.topic for row in rows if row.dead), default=None),
    )


@given(situations(), st.integers(NOW, NOW + 600_000))
def test_there_is_always_one_sentence_and_a_named_topic_is_in_it(facts: Situation, now: int) -> None:
    judgement = judge_situation(facts, now)
    assert judgement.sentence
    assert "\n" not in judgement.sentence
    assert judgement.topic is None or judgement.topic in judgement.sentence


@given(situations(), st.integers(NOW, NOW + 600_000))
def test_all_is_well_only_if_nothing_is_wrong(facts: Situation, now: int) -> None:
    levels = [judge_lateness(one.held, now - (one.facts.oldest_due_at or now)) for one in facts.late]
    is_wrong = (
        facts.deaths or (not facts.workers and not facts.has_pulled) or facts.memory >= 80 * facts.max_memory / 100
    )
    if facts.max_memory == 0:
        is_wrong = facts.deaths or (not facts.workers and not facts.has_pulled)
    level = judge_situation(facts, now).level
    is_wrong = is_wrong or not facts.is_counted
    if is_wrong or AlertLevel.WARN in levels or AlertLevel.BAD in levels:
        assert level is not AlertLevel.OK
    elif facts.workers:
        assert level is AlertLevel.OK


@given(situations(), st.integers(0, 600_000), st.integers(0, 600_000))
def test_nothing_gets_better_by_waiting(facts: Situation, first: int, second: int) -> None:
    early, late_ = sorted((first, second))
    levels = [GRAVEST.index(judge_situation(facts, NOW + ms).level) for ms in (early, late_)]
    assert levels[1] <= levels[0]


@given(situations(), situations())
def test_a_second_fault_never_makes_the_level_better(facts: Situation, other: Situation) -> None:
    both = facts._replace(late=[*facts.late, *other.late])
    assert GRAVEST.index(judge_situation(both, NOW).level) <= GRAVEST.index(judge_situation(facts, NOW).level)


@given(many_rows, st.integers(NOW, NOW + 600_000))
def test_topics_are_listed_by_level(rows: list[CountedTopic], now: int) -> None:
    listed = sort_by_gravity(rows, now)
    levels = [
        AlertLevel.OK if row.oldest_due_at is None else judge_lateness(row.held, now - row.oldest_due_at)
        for row in listed
    ]
    assert levels == sorted(levels, key=GRAVEST.index)
    assert sorted(row.topic for row in listed) == sorted(row.topic for row in rows)


@given(topic_rows())
def test_a_topic_that_is_due_for_a_moment_does_not_change_its_place(row: CountedTopic) -> None:
    others = [a_row("a", dead=3), a_row("z", dead=1)]
    idle = CountedTopic(row.topic, row.delay, row.unack, row.error, row.dead, 0, None, Held.NO, False, False)
    moment = CountedTopic(row.topic, row.delay, row.unack, row.error, row.dead, 1, NOW - 9, Held.NO, False, False)
    places = [[one.topic for one in sort_by_gravity([*others, some], NOW)] for some in (idle, moment)]
    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("late_ms", "level"),
    [
        (0, AlertLevel.OK),
        (LATE_MS - 1, AlertLevel.OK),
        (LATE_MS, AlertLevel.WARN),
        (OVERDUE_MS - 1, AlertLevel.WARN),
        (OVERDUE_MS, AlertLevel.BAD),
    ],
)
def test_tasks_that_nothing_holds_are_worse_the_later_they_are(late_ms: int, level: AlertLevel) -> None:
    assert judge(late=[late(a_row(late_ms=late_ms))]).level is level


@pytest.mark.parametrize("held", HELD_LATE_MS)
def test_tasks_that_are_held_are_never_more_than_a_warning(held: Held) -> None:
    assert judge_lateness(held, HELD_LATE_MS[held]) is AlertLevel.WARN
    assert judge_lateness(held, HELD_LATE_MS[held] - 1) is AlertLevel.OK
    assert judge_lateness(held, 10**12) is AlertLevel.WARN


def test_every_hold_has_its_threshold() -> None:
    assert HELD_LATE_MS.keys() == {*Held} - {Held.NO}


def test_a_paused_topic_is_told_although_a_busy_one_is_due_for_a_moment() -> None:
    rows = [a_row("busy", late_ms=5), a_row("parked", late_ms=90_000, held=Held.PAUSE)]
    topics = [late(rows[0]), late(rows[1], Policy(paused=True))]
    assert judge(late=topics) == Headline(
        AlertLevel.WARN, "parked: its topic is paused; 1 task is due, the oldest for 90 s", "parked"
    )


def test_a_store_that_is_full_comes_before_all_else() -> None:
    found = judge(memory=99, max_memory=100, late=[late(a_row(late_ms=OVERDUE_MS))])
    assert found.level is AlertLevel.BAD
    assert found.sentence == "99% of the store's memory is used; at 100% creates are refused"


def test_due_tasks_without_a_worker_are_told_with_their_number() -> None:
    row = a_row(late_ms=120_000)
    found = judge(workers=0, last_heartbeat_at=NOW - 130_000, sums=sum_rows([row]), late=[late(row)])
    assert found == Headline(AlertLevel.BAD, "No worker heartbeat for 2 min; 1 task is due, the oldest for 2 min", None)


def test_late_tasks_of_topics_that_are_only_in_the_sums_are_told() -> None:
    sums = sum_rows([a_row(late_ms=OVERDUE_MS)])
    found = judge(sums=sums, others_due_at=NOW - OVERDUE_MS)
    assert found == Headline(AlertLevel.BAD, "1 task is due, the oldest for 60 s")
    assert judge(sums=sums, others_due_at=NOW - LATE_MS + 1).level is AlertLevel.OK


def test_no_worker_is_needed_where_consumers_claim() -> None:
    assert judge(workers=0, last_heartbeat_at=None).level is AlertLevel.WARN
    assert judge(workers=0, last_heartbeat_at=None, has_pulled=True).level is AlertLevel.OK


def test_tasks_that_died_just_now_are_told() -> None:
    found = judge(deaths=2, deadliest="order")
    assert (found.level, found.topic) == (AlertLevel.WARN, "order")
    assert found.sentence == "2 tasks have died in the last seconds; order has most dead ones"


def test_nothing_is_called_well_before_it_was_counted() -> None:
    sentence = "The tasks are being counted for the first time: whether any is late is not known"
    assert judge(is_counted=False) == Headline(AlertLevel.WARN, sentence)


def test_all_is_well() -> None:
    assert judge() == Headline(AlertLevel.OK, "Nothing is late, and no task waits")
    assert judge(sums=sum_rows([a_row()])).sentence == "Nothing is late: 1 waiting"
