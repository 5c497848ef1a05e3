"""Schedules that are declared at handlers: which there are, and how they differ from those that are put."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from later.application import Later
from later.client.answers import AppliedField, AppliedPolicy, ScheduleInfo
from later.core.errors import Refused
from later.core.policy_scopes import Level
from later.handlers.declared_schedules import ScheduleChange, schedule_changes
from later.handlers.handler import Handler
from later.handlers.registry import Handlers
from later.handlers.task import Task
from tests.cases import each_case
from tests.handlers.tasks import task_of

CALLBACK = "http://app.example/later"
AT = datetime(2027, 1, 15, 8, tzinfo=UTC)
NAIVE = AT.replace(tzinfo=None)


@dataclass
class Remind:
    order: int


def pushed_or(deliver: str) -> AppliedPolicy:
    return AppliedPolicy(fields={"deliver": AppliedField(value=deliver, level=Level.TOPIC)})


async def report() -> None: ...
async def remind(reminder: Remind) -> None: ...
async def default(reminder: Remind | None = None) -> None: ...


def test_a_schedule_is_declared_at_a_handler_or_at_a_function_that_becomes_one() -> None:
    tasks = Later(callback=CALLBACK, namespace="shop")
    alone = tasks.every("1h")(report)
    composed = tasks.cron("0 9  * * 1-5", zone="Europe/Berlin", start=AT, jitter="5m", catch_up="all")(
        tasks.handler("mail", concurrency=3)(report)
    )
    assert (alone.topic, composed.topic, composed.concurrency) == ("shop/report", "shop/mail", 3)
    assert tasks.declared_schedules() == {
        "shop:report": {"topic": "shop/report", "content": "", "every": 3600.0, "callback": CALLBACK},
        "shop:mail": {
            "topic": "shop/mail", "content": "", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "start": AT,
            "jitter": 300.0, "catch_up": "all", "callback": CALLBACK,
        },
    }  # fmt: skip


def test_a_handler_may_have_several_schedules_each_with_an_id_and_a_payload() -> None:
    tasks = Later()
    decorated = tasks.every(60, id="first", payload=Remind(1))(tasks.handler("remind")(remind))
    assert tasks.cron("@daily", id="second", payload=Remind(2))(decorated) is decorated
    declared = tasks.declared_schedules()
    assert {id: fields["content"] for id, fields in declared.items()} == {
        "first": '{"order":1}',
        "second": '{"order":2}',
    }
    with pytest.raises(ValueError, match="remind: two schedules have the id first"):
        tasks.every(60, id="first", payload=Remind(3))(decorated)


def test_the_schedules_of_included_handlers_are_declared_too_and_none_twice() -> None:
    tasks, shop = Later(), Handlers(namespace="shop")
    shop.every(60)(report)
    tasks.include(shop)
    assert [*tasks.declared_schedules()] == ["shop:report"]
    tasks.every(60, id="shop:report")(tasks.handler("other")(report))
    with pytest.raises(ValueError, match="shop:report is declared at two handlers, of shop/report and other"):
        tasks.declared_schedules()


@each_case(
    ("declare", "error", "text"),
    [
        (lambda tasks: tasks.every("soon"), Refused, "every: expected a duration"),
        (lambda tasks: tasks.every(0.9), ValueError, r"report: every: expected 1 s or more, got 0\.9"),
        (lambda tasks: tasks.every(60, id="a b"), ValueError, "report: id: expected 1 to 100 characters"),
        (lambda tasks: tasks.every(60, id="a" * 101), ValueError, "report: id: expected 1 to 100 characters"),
        (lambda tasks: tasks.cron("@daily", jitter="x"), Refused, "jitter: expected a duration"),
        (lambda tasks: tasks.every(60, start=NAIVE), Refused, "start: expected a time with its zone"),
    ],
)  # fmt: skip
def test_a_wrong_schedule_is_refused_where_it_is_declared(
    declare: Callable[[Later], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        declare(Later())(report)


def test_a_payload_that_its_handler_cannot_read_or_misses_is_found_by_the_check() -> None:
    for payload in ({}, {"payload": "x"}, {"payload": None}):
        tasks = Later()
        tasks.every(60, **payload)(remind)
        with pytest.raises(TypeError, match=r"remind: its handler (takes a payload|cannot read this payload)"):
            tasks.check()
    tasks = Later()
    tasks.every(60)(default)
    tasks.check()
    assert tasks.declared_schedules()["default"]["content"] == ""


def test_what_differs_from_the_schedule_that_is_put_is_a_change() -> None:
    tasks = Later(callback=CALLBACK)
    tasks.every(60)(report)
    fields = tasks.declared_schedules()["report"]
    found = ScheduleInfo(id="report", topic="report", every=60, callback=CALLBACK, start=AT, paused=True, next=[AT])
    push, pull = pushed_or("push"), pushed_or("pull")
    assert schedule_changes("report", fields, found, push) == []
    assert schedule_changes("report", fields, None, push) == [
        ScheduleChange("report", "every", None, 60.0),
        ScheduleChange("report", "callback", None, CALLBACK),
        ScheduleChange("report", "topic", None, "report"),
    ]
    assert schedule_changes("report", fields, found, pull) == [ScheduleChange("report", "callback", CALLBACK, None)]
    other = ScheduleInfo(id="report", topic="report", cron="@daily", zone="Europe/Berlin", headers=["x"], retry=5)
    assert {change.field for change in schedule_changes("report", fields, other, push)} == {
        *("every", "cron", "zone", "callback", "headers", "retry"),
    }
    moved = {**fields, "start": AT + timedelta(hours=1)}
    assert schedule_changes("report", moved, found, push) == [
        ScheduleChange("report", "start", AT, AT + timedelta(hours=1))
    ]


def test_a_task_says_for_which_time_it_was_created_and_how_late() -> None:
    def seen(headers: dict[str, str], created_at: datetime | None = AT) -> Task[Any]:
        return task_of("report", headers=headers, created_at=created_at)

    late = seen({"later-scheduled": "2027-01-15T07:55:00.000Z"})
    assert (late.scheduled_at, late.lateness) == (AT - timedelta(minutes=5), timedelta(minutes=5))
    on_time = seen({"later-scheduled": "2027-01-15T08:00:00.000Z"})
    assert on_time.lateness == timedelta()
    assert seen({"later-scheduled": "2027-01-15T08:00:00.000Z"}, None).lateness is None
    for headers in ({}, {"later-scheduled": ""}, {"later-scheduled": "soon"}):
        assert (seen(headers).scheduled_at, seen(headers).lateness) == (None, None)


def test_a_decorated_handler_is_called_as_the_function_itself() -> None:
    @Later().every("1h")
    def double(number: int = 1) -> int:
        return 2 * number

    assert isinstance(double, Handler)
    assert double(4) == 8
