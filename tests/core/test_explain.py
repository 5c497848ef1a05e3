"""Explanations of why a task has not run yet, with the greatest obstacle first."""

from __future__ import annotations

from typing import Any

from later.core.explain import TaskFacts, TopicFacts, explain_task, explain_topic, format_duration, format_time
from later.core.policy import Deliver, Policy
from later.core.retry import Failure, judge_uncallable
from later.core.task import Death
from tests.builders import NOW, a_task
from tests.cases import each_case

FAILURE = Failure(2, "status", 503, "answered 503", NOW - 1000, None, 2)
AT = NOW + 245_000  # 08:04:05
IDLE = TopicFacts(
    "order", Policy(), delay=1, unack=0, error=0, dead=0, due=0, oldest_due_at=None, next_due_at=None,
    paused=False, held_until=None, full_speed_at=None, workers=1, last_heartbeat_at=NOW - 400,
)  # fmt: skip
NO_WORKER: dict[str, Any] = {"workers": 0, "last_heartbeat_at": None}
SILENT_WORKER: dict[str, Any] = {"workers": 0, "last_heartbeat_at": NOW - 40_000}
DUE = IDLE._replace(due=1, oldest_due_at=NOW - 12_000)


def facts(state: str, score: int, **changes: Any) -> TaskFacts:
    return TaskFacts("a", state, score, 0, None, a_task(id="a", max_retry=5), 30_000)._replace(**changes)


def explain(task: TaskFacts, topic: TopicFacts = IDLE) -> str:
    return explain_task(task, topic, NOW).sentence


DUE_TASK = facts("delay", NOW - 12_000)
REFUSED = "this host's address may not be called: private"
PAUSED = Policy(paused=True)
PULLED = Policy(deliver=Deliver.PULL)
DEATH = Death("order", "exhausted", 500, "6 failures, the last: answered 500", NOW, 6, None)
DEATH_BY_ADDRESS = Death("order", "address", None, f"1 failure: {REFUSED}", NOW, 1, None)


@each_case(
    ("topic", "sentence"),
    [
        (DUE, "due for 12 s"),
        (DUE._replace(due=1234, oldest_due_at=NOW - 600_000),
         "due for 12 s; 1,234 tasks of its topic are due, the oldest for 10 min"),
        (DUE._replace(**SILENT_WORKER), "no worker heartbeat for 40 s; due for 12 s"),
        (DUE._replace(**NO_WORKER), "no worker is running; due for 12 s"),
        (DUE._replace(last_heartbeat_at=NOW - 9_000), "due for 12 s"),
        (DUE._replace(policy=PAUSED), "its topic is paused; due for 12 s"),
        (DUE._replace(policy=Policy(rate=10), held_until=NOW + 90),
         "its topic has used up its rate of 10/s; due for 12 s"),
        (DUE._replace(policy=Policy(rate=0.1), held_until=NOW + 9_000),
         "its topic has used up its rate of 0.1/s; due for 12 s"),
        (DUE._replace(held_until=AT), "its topic is held until 08:04:05Z, as its receiver asked; due for 12 s"),
        (DUE._replace(policy=Policy(rate=10), held_until=AT),
         "its topic is held until 08:04:05Z, as its receiver asked; due for 12 s"),
        (DUE._replace(held_until=NOW + 800),
         "its topic is held for another 0.8 s, because its receiver asked or it was just resumed; due for 12 s"),
        (DUE._replace(held_until=NOW), "due for 12 s"),
        (DUE._replace(policy=Policy(concurrency=128), unack=128),
         "128 of its topic's deliveries are in flight: it has no free slot; due for 12 s"),
        (DUE._replace(policy=Policy(concurrency=128), unack=127), "due for 12 s"),
        (DUE._replace(full_speed_at=AT), "its topic is in slow start until 08:04:05Z; due for 12 s"),
        (DUE._replace(**NO_WORKER, policy=Policy(paused=True, concurrency=1), unack=1, held_until=AT),
         "no worker is running; its topic is paused; due for 12 s"),
        (DUE._replace(**NO_WORKER, policy=PULLED, paused=True, unack=1),
         "waits for a consumer (its topic has deliver pull); due for 12 s"),
        (DUE._replace(policy=Policy(deliver=Deliver.PULL, paused=True), paused=True),
         "its topic is paused; due for 12 s"),
        (DUE._replace(unack=128, oldest_due_at=NOW - 12_000),
         "128 of its topic's deliveries are in flight: it has no free slot; due for 12 s"),
        (DUE._replace(unack=128, oldest_due_at=NOW - 900), "due for 12 s"),
        (DUE._replace(**NO_WORKER, policy=Policy(concurrency=1), unack=1, held_until=AT),
         "no worker is running; its topic is held until 08:04:05Z, as its receiver asked; "
         "1 of its topic's deliveries is in flight: it has no free slot; due for 12 s"),
    ],
)  # fmt: skip
def test_a_due_task_is_explained(topic: TopicFacts, sentence: str) -> None:
    assert explain(DUE_TASK, topic) == sentence


@each_case(
    ("task", "topic", "sentence"),
    [
        (facts("delay", NOW + 10_800_000), IDLE, "due in 3 h"),
        (facts("delay", NOW + 10_800_000), IDLE._replace(policy=PAUSED), "due in 3 h; its topic is paused"),
        (facts("delay", NOW + 60_000), IDLE._replace(**NO_WORKER), "due in 60 s; no worker is running"),
        (facts("delay", NOW + 60_000), IDLE._replace(held_until=NOW + 50_000), "due in 60 s"),
        (facts("delay", NOW + 60_000), IDLE._replace(policy=PULLED, paused=True), "due in 60 s"),
        (facts("unack", NOW + 28_000, attempts=3), IDLE._replace(policy=PULLED),
         "claimed by a consumer, on attempt 3: its lease ends in 28 s"),
        (facts("unack", NOW - 5000, attempts=3), IDLE._replace(policy=PULLED, **NO_WORKER),
         "the lease of attempt 3 expired 5 s ago: it will be retried; no worker is running"),
        (facts("error", AT, failure=FAILURE), IDLE._replace(policy=PULLED, **SILENT_WORKER),
         "retry 2 of 5 at 08:04:05Z, last answer 503; no worker heartbeat for 40 s"),
        (facts("dead", NOW, failure=Failure(1, "rejected", None, "no such order", NOW, None, 1)), IDLE,
         "dead because its consumer rejected it: no such order"),
        (facts("dead", NOW, failure=judge_uncallable(1, None, NOW).failure), IDLE,
         "dead because it has no callback, and its topic's tasks are delivered (deliver push)"),
        (facts("delay", NOW - 12_000, task=a_task(max_retry=5, death=DEATH)), DUE._replace(policy=PULLED),
         "waits for a consumer (its topic has deliver pull); due for 12 s; "
         "it came from order, where it died because its 5 retries were exhausted: answered 500"),
        (facts("dead", NOW, failure=judge_uncallable(1, None, NOW).failure, task=a_task(death=DEATH_BY_ADDRESS)), IDLE,
         "dead because it has no callback, and its topic's tasks are delivered (deliver push); "
         f"it came from order, where it died because {REFUSED}; its operator can allow it with --guard-allow"),
        (facts("delay", NOW + 60_000), IDLE._replace(held_until=AT),
         "due in 60 s; its topic is held until 08:04:05Z, as its receiver asked"),
        (facts("delay", NOW + 60_000), IDLE._replace(paused=True),
         "due in 60 s; its topic was just resumed, and continues within a few seconds"),
        (facts("delay", NOW - 2000, failure=Failure(0, "status", 429, "answered 429", NOW, NOW, 1)), DUE,
         "due for 2 s; its receiver was busy, last answer 429"),
        (facts("error", AT, failure=Failure(1, "code", 200, "answered code 1", NOW, None, 1)), IDLE,
         "retry 1 of 5 at 08:04:05Z, last error: answered code 1"),
        (facts("delay", NOW + 60_000, task=a_task(ttl=59)), IDLE,
         "due in 60 s; its ttl ends before that, at 08:00:59Z: it will not be delivered"),
        (facts("delay", NOW + 60_000, task=a_task(ttl=61)), IDLE, "due in 60 s"),
        (facts("delay", NOW - 2000, task=a_task(created_at=NOW - 9000, ttl=5)), DUE._replace(due=0),
         "due for 2 s; its ttl ended 4 s ago: it will not be delivered"),
        (facts("delay", NOW - 2000, failure=FAILURE, attempts=2), DUE,
         "due for 2 s; retry 2 of 5, last answer 503"),
        (facts("delay", NOW - 2000, task=None), DUE,
         "due for 2 s; its body cannot be read: it will be moved to dead"),
        (facts("error", AT, failure=FAILURE), IDLE, "retry 2 of 5 at 08:04:05Z, last answer 503"),
        (facts("error", AT, failure=FAILURE, task=None), IDLE,
         "retry 2 at 08:04:05Z, last answer 503; its body cannot be read: it will be moved to dead"),
        (facts("error", AT, failure=FAILURE), IDLE._replace(policy=PAUSED, **SILENT_WORKER),
         "retry 2 of 5 at 08:04:05Z, last answer 503; no worker heartbeat for 40 s; its topic is paused"),
        (facts("error", NOW - 3000, failure=FAILURE), IDLE._replace(held_until=AT),
         "retry 2 of 5 due for 3 s, last answer 503; its topic is held until 08:04:05Z, as its receiver asked"),
        (facts("error", AT, failure=Failure(1, "timeout", None, "no answer within 15 s", NOW, None, 1)), IDLE,
         "retry 1 of 5 at 08:04:05Z, last error: no answer within 15 s"),
        (facts("error", AT, failure=Failure(0, "status", 429, "answered 429", NOW, NOW, 1)), IDLE,
         "its receiver was busy: next attempt at 08:04:05Z, last answer 429"),
        (facts("error", AT), IDLE, "its next attempt is at 08:04:05Z"),
        (facts("error", AT + 86_400_000, failure=FAILURE), IDLE,
         "retry 2 of 5 at 2027-01-16T08:04:05Z, last answer 503"),
        (facts("unack", NOW + 28_000, attempts=3), IDLE, "in flight for 2 s on attempt 3"),
        (facts("unack", NOW + 99_000, attempts=3), IDLE, "in flight for 0 s on attempt 3"),
        (facts("unack", NOW - 5000, attempts=3), IDLE,
         "the lease of attempt 3 expired 5 s ago: it will be retried"),
        (facts("unack", NOW - 5000, attempts=3), IDLE._replace(**NO_WORKER),
         "the lease of attempt 3 expired 5 s ago: it will be retried; no worker is running"),
        (facts("dead", NOW, failure=Failure(4, "exhausted", 500, "4 failures, the last: answered 500", NOW, None, 4),
                 task=a_task(max_retry=3)), IDLE, "dead because its 3 retries were exhausted: answered 500"),
        (facts("dead", NOW, failure=Failure(2, "exhausted", 500, "2 failures, the last: answered 500", NOW, None, 2),
                 task=a_task(max_retry=1)), IDLE, "dead because its 1 retry was exhausted: answered 500"),
        (facts("dead", NOW, failure=Failure(1, "exhausted", 500, "1 failure: answered 500", NOW, None, 1),
                 task=a_task(max_retry=0)), IDLE, "dead because it failed and had no retries: answered 500"),
        (facts("dead", NOW, failure=Failure(2, "exhausted", 500, "2 failures, the last: 3 failures: x", NOW, None, 2),
                 task=a_task(max_retry=1)), IDLE, "dead because its 1 retry was exhausted: 3 failures: x"),
        (facts("dead", NOW, failure=Failure(4, "address", None, f"4 failures, the last: {REFUSED}", NOW, None, 4)),
         IDLE, f"dead because {REFUSED}; its operator can allow it with --guard-allow"),
        (facts("error", AT, failure=Failure(1, "address", None, REFUSED, NOW, None, 1)), IDLE,
         f"retry 1 of 5 at 08:04:05Z, last error: {REFUSED}; its operator can allow it with --guard-allow"),
        (facts("error", AT, failure=Failure(1, "status", 500, "KeyError: 'amount'", NOW, None, 1)), IDLE,
         "retry 1 of 5 at 08:04:05Z, last answer 500: KeyError: 'amount'"),
        (facts("error", AT, failure=Failure(1, "status", 307, "answered 307, which points to /x/", NOW, None, 1)), IDLE,
         "retry 1 of 5 at 08:04:05Z, last answer 307, which points to /x/"),
        (facts("dead", NOW, failure=Failure(1, "gone", 410, "answered 410", NOW, None, 1)), IDLE,
         "dead because its receiver is gone: answered 410"),
        (facts("dead", NOW, failure=Failure(0, "expired", None, "its ttl ended before it was done", NOW, None, 0)),
         IDLE, "dead because its ttl ended before it was done"),
        (facts("dead", NOW), IDLE._replace(**NO_WORKER), "dead for an unknown reason"),
    ],
)  # fmt: skip
def test_a_task_in_each_state_is_explained(task: TaskFacts, topic: TopicFacts, sentence: str) -> None:
    assert explain(task, topic) == sentence


EMPTY = IDLE._replace(delay=0)


@each_case(
    ("topic", "sentence"),
    [
        (EMPTY, "it has no tasks"),
        (IDLE._replace(next_due_at=NOW + 60_000), "none of its tasks is due: the next is due in 60 s"),
        (EMPTY._replace(unack=3, error=1),
         "none of its tasks is due: 3 tasks are in flight, 1 task is between two attempts"),
        (EMPTY._replace(error=1, dead=2), "none of its tasks is due: 1 task is between two attempts, 2 tasks are dead"),
        (EMPTY._replace(dead=2), "none of its tasks is due: 2 tasks are dead"),
        (EMPTY._replace(policy=PAUSED), "it has no tasks; its topic is paused"),
        (DUE._replace(due=120), "120 tasks are due, the oldest for 12 s"),
        (DUE._replace(**SILENT_WORKER, policy=PAUSED),
         "no worker heartbeat for 40 s; its topic is paused; 1 task is due, the oldest for 12 s"),
        (DUE._replace(held_until=AT),
         "its topic is held until 08:04:05Z, as its receiver asked; 1 task is due, the oldest for 12 s"),
    ],
)  # fmt: skip
def test_a_topic_is_explained(topic: TopicFacts, sentence: str) -> None:
    assert explain_topic(topic, NOW).sentence == sentence


def test_the_details_of_a_task() -> None:
    topic = DUE._replace(policy=Policy(rate=10), held_until=AT, next_due_at=NOW - 12_000, workers=2)
    task = facts("delay", NOW - 12_000, attempts=2, failure=FAILURE, task=a_task(ttl=60, max_retry=5))
    assert explain_task(task, topic, NOW).details == {
        "id": "a", "topic": "order", "state": "delay", "due_at": "2027-01-15T07:59:48.000Z", "due_in_s": -12,
        "attempts": 2, "failures": 2, "max_retry": 5, "origin": None, "origin_held_until": None,
        "expires_at": "2027-01-15T08:01:00.000Z",
        "counts": {"delay": 1, "unack": 0, "error": 0, "dead": 0}, "due": 1, "oldest_lateness_s": 12,
        "next_due_at": "2027-01-15T07:59:48.000Z", "paused": False, "held_until": "2027-01-15T08:04:05.000Z",
        "workers": 2, "last_beat_s": 0.4,
        "policy": {
            "paused": False, "rate": 10, "concurrency": 0, "delay_mode": "honor", "max_delay": 0, "ttl": 0,
            "timeout": 15, "retry_base": 10, "retry_cap": 3600,
        },
    }  # fmt: skip


def test_the_details_of_a_dead_and_unreadable_task() -> None:
    details = explain_task(facts("dead", NOW - 3000, task=None), EMPTY._replace(**NO_WORKER), NOW).details
    assert (details["died_at"], details["dead_for_s"]) == ("2027-01-15T07:59:57.000Z", 3)
    assert (details["max_retry"], details["expires_at"], details["last_beat_s"]) == (None, None, None)
    assert "due_at" not in details


def test_the_details_of_a_topic() -> None:
    details = explain_topic(EMPTY, NOW).details
    assert (details["topic"], details["next_due_at"], details["oldest_lateness_s"]) == ("order", None, None)


@each_case(
    ("ms", "text"),
    [
        (-5, "0 s"), (0, "0 s"), (40, "0.04 s"), (400, "0.4 s"), (1000, "1 s"), (119_000, "119 s"), (120_000, "2 min"),
        (7_199_000, "120 min"), (7_200_000, "2 h"), (172_800_000, "2 d"), (31_536_000_000, "365 d"),
    ],
)  # fmt: skip
def test_durations_are_rounded_for_people(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_a_date_is_shown_unless_it_is_today() -> None:
    assert format_time(AT, NOW) == "08:04:05Z"
    assert format_time(AT - 86_400_000, NOW) == "2027-01-14T08:04:05Z"


SHOP_TASK = facts("delay", NOW + 4000, first_due_at=NOW - 12_000, origin="shop.example")


@each_case(
    ("task", "topic", "sentence"),
    [
        (SHOP_TASK, DUE._replace(unack=144), "waits for other calls to shop.example to end; due for 12 s"),
        (SHOP_TASK, DUE._replace(**NO_WORKER),
         "no worker is running; waits for other calls to shop.example to end; due for 12 s"),
        (SHOP_TASK._replace(score=AT, origin_held_until=AT), DUE,
         "calls to shop.example are held until 08:04:05Z, as it asked; due for 12 s"),
        (SHOP_TASK, DUE._replace(policy=PULLED, paused=True),
         "waits for a consumer (its topic has deliver pull); due for 12 s"),
        (SHOP_TASK._replace(score=NOW - 12_000, first_due_at=None, origin_held_until=AT), DUE,
         "calls to shop.example are held until 08:04:05Z, as it asked; due for 12 s"),
        (SHOP_TASK._replace(score=NOW + 60_000, first_due_at=None, origin_held_until=AT), IDLE,
         "due in 60 s; calls to shop.example are held until 08:04:05Z, as it asked"),
        (SHOP_TASK._replace(score=NOW + 60_000, first_due_at=None, origin_held_until=NOW + 50_000), IDLE,
         "due in 60 s"),
        (SHOP_TASK._replace(origin_held_until=NOW - 1), DUE,
         "waits for other calls to shop.example to end; due for 12 s"),
    ],
)  # fmt: skip
def test_a_task_that_waits_for_its_origin(task: TaskFacts, topic: TopicFacts, sentence: str) -> None:
    assert explain(task, topic) == sentence
    assert explain_task(task, topic, NOW).details["origin"] == "shop.example"


@each_case(
    ("topic", "sentence"),
    [
        (IDLE._replace(waiting_for_origins={"shop.example": 99}, next_due_at=NOW + 50),
         "at least 99 tasks wait for other calls to shop.example to end"),
        (DUE._replace(waiting_for_origins={"shop.example": 1, "mail.example": 2}),
         "at least 2 tasks wait for other calls to mail.example to end, as do tasks of 1 other origin; "
         "1 task is due, the oldest for 12 s"),
        (IDLE._replace(waiting_for_origins={"shop.example": 3}, origin_holds={"shop.example": AT, "mail.example": NOW}),
         "calls to shop.example are held until 08:04:05Z, as it asked (2 origins are held)"),
    ],
)  # fmt: skip
def test_a_topic_whose_tasks_wait_for_their_origins(topic: TopicFacts, sentence: str) -> None:
    assert explain_topic(topic, NOW).sentence == sentence
