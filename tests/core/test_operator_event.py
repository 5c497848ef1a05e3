"""Events for operators: their bodies, their tasks, and what no event is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from later.core.operator_event import (
    EVENTS_REMEMBERED_MS,
    EVENTS_TOPIC,
    EventCount,
    EventSubject,
    EventType,
    OperatorEvent,
    encode_event,
    event_task,
)
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies, Settings, topic_scope
from later.metrics.labels import EVENT_TYPES
from tests.builders import NOW
from tests.cases import each_case

ROOT = Path(__file__).parents[2]
URL = "https://ops.example/later?key=1"
TIME = "2027-01-15T08:00:00.000Z"
SINCE = {"since": "2027-01-15T07:59:00.000Z"}

DOCUMENTED = {
    example["type"]: {*example["data"]}
    for text in re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "events.md").read_text(), re.DOTALL)
    for example in [json.loads(text)]
}
"""The fields of each type of event, as documented."""


def an_event(subject: EventSubject, **details: Any) -> OperatorEvent:
    counted = EventCount(count=7, since=NOW - 60_000, first_id="order-1", details=details)
    return OperatorEvent("ev:x", subject, counted, NOW)


@each_case(
    ("subject", "details", "data"),
    [
        (
            EventSubject(EventType.TASKS_DEAD, "order", "gone"),
            {},
            {"topic": "order", "reason": "gone", "count": 7, "first_id": "order-1"},
        ),
        (
            EventSubject(EventType.TOPIC_LATE, "order"),
            {"lateness_s": 61.5, "due": 3},
            {"topic": "order", "lateness_s": 61.5, "due": 3},
        ),
        (EventSubject(EventType.TOPIC_PAUSED, "order"), {}, {"topic": "order"}),
        (
            EventSubject(EventType.TOPIC_PAUSED, "", "shop"),
            {"topic": None, "namespace": "shop"},
            {"topic": None, "namespace": "shop"},
        ),
        (EventSubject(EventType.STORE_FULL), {"memory": 81, "max_memory": 100}, {"memory": 81, "max_memory": 100}),
    ],
)
def test_a_body_has_the_type_the_time_and_the_data(
    subject: EventSubject, details: dict[str, Any], data: dict[str, Any]
) -> None:
    body = json.loads(encode_event(an_event(subject, **details)))
    assert body == {"type": subject.type.value, "timestamp": TIME, "data": {**data, **SINCE}}
    assert "namespace" in data or DOCUMENTED[subject.type] == {*body["data"]}


def test_a_topic_is_text_whatever_its_name_is() -> None:
    topic = '"},"type":"x\u2028\ud7ff€😀'
    assert json.loads(encode_event(an_event(EventSubject(EventType.TOPIC_PAUSED, topic))))["data"]["topic"] == topic


def test_a_task_has_the_policy_of_its_topic_and_an_id_that_is_remembered() -> None:
    event = an_event(EventSubject(EventType.STORE_FULL))
    task = event_task(event, URL, Policies(DEFAULT_POLICY), NOW)
    assert (task.id, task.own_id, task.remember_ms) == ("ev:x", True, EVENTS_REMEMBERED_MS)
    assert (task.topic, task.callback, task.content) == (EVENTS_TOPIC, URL, encode_event(event))
    assert (task.max_retry, task.execute_at, task.expires_at) == (DEFAULT_POLICY.retry, NOW, None)
    own = Policies(DEFAULT_POLICY, {topic_scope(EVENTS_TOPIC): Settings({"retry": 9, "ttl": 60})})
    task = event_task(event, URL, own, NOW)
    assert (task.max_retry, task.expires_at) == (9, NOW + 60_000)


@each_case(
    ("topic", "is_reserved"), [("later/events", True), ("later/x", True), ("later", False), ("laters/events", False)]
)
def test_the_namespace_later_is_reserved(topic: str, is_reserved: bool) -> None:
    assert EventSubject(EventType.TOPIC_LATE, topic).is_reserved == is_reserved


def test_each_type_has_a_series_from_the_start() -> None:
    assert [*EVENT_TYPES] == [*EventType]
