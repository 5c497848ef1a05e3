"""Operator events: what they are made of, that each is one task, and that they never disturb the work."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from structlog.testing import capture_logs

from later.core.audit_event import AuditAction, AuditEvent, AuditOutcome
from later.core.errors import LaterError, StoreDown
from later.core.held import Held
from later.core.operator_event import EVENTS_TOPIC, EventSubject, EventType, OperatorEvent
from later.core.snapshot import CountedTopic, Snapshot, StoreFacts, TopicSums
from later.core.task import Task
from later.store.event_book import EventBook
from later.store.keys import Bucket
from later.store.types import TaskRecord
from later.worker import operator_events
from later.worker.operator_events import LOOK_EVERY_MS, MAX_SUBJECTS, EventCollector, EventWriter
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.store.inspection import ask, read_contents
from tests.store_fixture import StoreFixture
from tests.worker.workers import GONE, MAX_LATE_MS, FakeSender, ManualWorker

URL = "http://127.0.0.1:9/ops"


def an_instance(store: StoreFixture, sender: FakeSender | None = None) -> tuple[ManualWorker, EventWriter]:
    """Return a worker, and the writer of what it counts."""
    worker = ManualWorker(store, sender or FakeSender())
    collector = EventCollector(lambda: worker.at / 1000)
    worker.metrics.on_death = collector.note_death
    writer = EventWriter(
        store=worker.store, metrics=worker.metrics, collector=collector, url=URL, on_created=lambda due_at: None
    )
    return worker, writer


def noted(collector: EventCollector) -> list[tuple[str, str, str, int]]:
    taken = collector.take(NOW)
    return [(subject.type.value, subject.topic, subject.reason, count.count) for subject, count in taken.items()]


async def event_tasks(store: StoreFixture) -> list[Task]:
    """Return the tasks of events that wait."""
    entries = (await read_contents(store)).buckets
    ids = [
        id for (bucket, topic), ids in entries.items() if (bucket, topic) == (Bucket.DELAY, EVENTS_TOPIC) for id in ids
    ]
    records = await store.lookup.query(ids)
    return [record.task for record in records if isinstance(record, TaskRecord) and isinstance(record.task, Task)]


async def events_of(store: StoreFixture) -> list[dict[str, Any]]:
    """Return the contents of the events' tasks that wait."""
    return [json.loads(task.content) for task in await event_tasks(store)]


async def test_a_task_that_dies_is_an_event(store: StoreFixture) -> None:
    worker, writer = an_instance(store, FakeSender(GONE))
    await store.tasks.create([a_task(id="order-1", own_id=True)])
    await worker.work()
    assert (await writer.tick(0)).moved == 1
    [event] = await events_of(store)
    since = event["data"].pop("since")
    assert event == {
        "type": "later.tasks.dead",
        "timestamp": since,
        "data": {"topic": "order", "reason": "gone", "count": 1, "first_id": "order-1"},
    }


async def test_an_event_is_one_task_whichever_instances_write_it(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = [an_instance(store)[1] for _ in range(3)]
    subject = EventSubject(EventType.TASKS_DEAD, "order", "gone")
    for writer in instances:
        writer._collector.note(subject)
    with monkeypatch.context() as patch:  # as if each instance were killed before it has removed what it created
        patch.setattr(EventBook, "remove", AsyncMock())
        for writer in instances:
            await writer.tick(0)
    assert [event["data"]["count"] for event in await events_of(store)] == [1]
    worker, writer = an_instance(store, sender := FakeSender())
    worker.at += MAX_LATE_MS
    await worker.work()
    await writer.tick(0)
    worker.at += MAX_LATE_MS
    await worker.work()
    assert len(sender.calls) == 1
    worker.at += 60_000
    await writer.tick(LOOK_EVERY_MS)
    assert [event["data"]["count"] for event in await events_of(store)] == [2]


async def test_deaths_of_events_make_no_events(store: StoreFixture) -> None:
    worker, writer = an_instance(store, FakeSender(GONE, GONE))
    await store.tasks.create([a_task()])
    await worker.work()
    await writer.tick(0)
    worker.at += MAX_LATE_MS
    await worker.work()
    assert worker.metrics.registry.get_sample_value("later_topic_dead_total",
        {"topic": EVENTS_TOPIC, "reason": "gone"}) == 1  # fmt: skip
    assert writer._collector.is_empty


async def test_a_process_in_which_nothing_happens_asks_the_store_now_and_then(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def record(self: EventBook, counts: object, now: int) -> list[object]:
        asked.append(now)
        return []

    _, writer = an_instance(store)
    monkeypatch.setattr(EventBook, "record", record)
    for now in range(0, LOOK_EVERY_MS + 1000, 1000):
        await writer.tick(now)
    assert len(asked) == 2


async def test_what_the_store_did_not_take_is_counted_later(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, writer = an_instance(store)
    writer._collector.note_death("order", "gone", "first")

    async def fail(self: EventBook, counts: object, now: int) -> list[object]:
        writer._collector.note_death("order", "gone", "second")
        raise StoreDown("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(EventBook, "record", fail)
        with pytest.raises(StoreDown):
            await writer.tick(0)
    worker.at += 5000
    await writer.tick(1000)
    [event] = await events_of(store)
    assert (event["data"]["count"], event["data"]["first_id"]) == (2, "first")
    assert event["data"]["since"] == "2027-01-15T08:00:00.000Z"
    assert event["timestamp"] == "2027-01-15T08:00:05.000Z"


async def test_events_that_a_stop_cannot_keep_are_logged(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer = an_instance(store)
    writer._collector.note_death("order", "gone", "a")
    writer._collector.note_death("mail", "gone", "b")

    async def fail(self: EventBook, counts: object, now: int) -> list[object]:
        raise StoreDown("it is away")

    monkeypatch.setattr(EventBook, "record", fail)
    with capture_logs() as logs:
        await writer.flush_or_log()
    assert [(line["event"], line["count"], line["topics"]) for line in logs] == [
        ("operator events lost", 2, ["mail", "order"])
    ]


async def test_a_stop_leaves_the_counts_to_other_instances(store: StoreFixture) -> None:
    _, stopped = an_instance(store)
    stopped._collector.note_death("order", "gone", "a")
    await stopped.flush_or_log()
    _, other = an_instance(store)
    await other.tick(0)
    assert len(await events_of(store)) == 1


async def test_an_event_whose_task_was_not_created_is_created_by_the_next_tick(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer = an_instance(store)
    writer._collector.note_death("order", "gone", "a")

    async def fail(self: object, tasks: list[object]) -> list[LaterError]:
        return [StoreDown("the store is full")] * len(tasks)

    with monkeypatch.context() as patch:
        patch.setattr(type(store.tasks), "create", fail)
        with pytest.raises(StoreDown):
            await writer.tick(0)
    await writer.tick(LOOK_EVERY_MS)
    assert len(await events_of(store)) == 1


async def test_a_stop_in_the_middle_of_a_write_counts_nothing_twice(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer = an_instance(store)
    writer._collector.note_death("order", "gone", "a")
    record, is_writing, may_end = EventBook.record, asyncio.Event(), asyncio.Event()

    async def record_slowly(self: EventBook, counts: Any, now: int) -> list[OperatorEvent]:
        is_writing.set()
        await may_end.wait()
        return await record(self, counts, now)

    monkeypatch.setattr(EventBook, "record", record_slowly)
    tick = asyncio.create_task(writer.tick(0))
    await is_writing.wait()
    tick.cancel()
    writer._collector.note_death("mail", "gone", "b")
    flush = asyncio.create_task(writer.flush_or_log())
    may_end.set()
    await flush
    events = await store.events.record({}, NOW)
    assert {event.subject.topic: event.counted.count for event in events} == {"order": 1, "mail": 1}


@pytest.mark.parametrize(("bucket", "limit"), [("delay", "MAX_WAITING"), ("dead", "MAX_DEAD")])
async def test_while_too_many_events_are_there_none_is_created_and_the_counts_grow_on(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, bucket: str, limit: str
) -> None:
    monkeypatch.setattr(operator_events, limit, 1)
    worker, writer = an_instance(store, FakeSender(GONE))
    note = writer._collector.note_death
    note("order", "gone", "a")
    await writer.tick(0)
    if bucket == "dead":
        worker.at += MAX_LATE_MS
        await worker.work()
    with capture_logs() as logs:
        for second in range(3):
            note("mail", "gone", "b")
            await writer.tick(second)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["operator events held up"]
    assert len(await event_tasks(store)) == (0 if bucket == "dead" else 1)
    monkeypatch.setattr(operator_events, limit, 10)
    await writer.tick(LOOK_EVERY_MS)
    worker.at += 60_000
    await writer.tick(2 * LOOK_EVERY_MS)
    counts = [event["data"]["count"] for event in await events_of(store) if event["data"]["topic"] == "mail"]
    assert sorted(counts) == [1, 2]


async def test_while_the_store_is_full_events_wait_for_room(store: StoreFixture) -> None:
    _, writer = an_instance(store)
    writer._collector.note_death("order", "gone", "a")
    await store.client.open()
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        with pytest.raises(StoreDown, match="full"):
            await writer.tick(0)
        assert writer._collector.is_empty
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    await writer.tick(1000)
    assert len(await events_of(store)) == 1


async def test_an_event_is_counted_where_its_task_was_created(store: StoreFixture) -> None:
    worker, writer = an_instance(store)
    other, second = an_instance(store)
    for one in (writer, second):
        one._collector.note_death("order", "gone", "a")
        await one.tick(0)
    values = [
        some.metrics.registry.get_sample_value("later_operator_events_total", {"type": "later.tasks.dead"})
        for some in (worker, other)
    ]
    assert values == [1, 0]


async def test_in_a_pulled_topic_consumers_claim_the_events(store: StoreFixture) -> None:
    worker, writer = an_instance(store)
    await worker.set_policy(EVENTS_TOPIC, deliver="pull")
    writer._collector.note_death("order", "gone", "a")
    await writer.tick(0)
    assert [task.callback for task in await event_tasks(store)] == [""]


def test_a_storm_takes_bounded_memory_and_the_rest_is_summed() -> None:
    collector = EventCollector(lambda: 0.0)
    for number in range(10_000):
        collector.note_death(f"topic-{number}", "gone", "a")
    counted = noted(collector)
    assert len(counted) == MAX_SUBJECTS + 1
    assert counted[-1] == ("later.tasks.dead", "other", "other", 10_000 - MAX_SUBJECTS)


@each_case(
    ("topic", "reason", "is_noted"),
    [("order", "gone", True), ("later", "gone", True), ("later/events", "gone", False), ("later/x", "gone", False)],
)
def test_nothing_in_the_reserved_namespace_is_noted(topic: str, reason: str, is_noted: bool) -> None:
    collector = EventCollector(lambda: 0.0)
    collector.note_death(topic, reason, "a")
    assert collector.is_empty != is_noted


def a_change(before: bool | None, after: bool | None, topic: str | None = "shop/order", **fields: Any) -> AuditEvent:
    settings = [{} if value is None else {"paused": value} for value in (before, after)]
    details = {"before": settings[0], "after": settings[1], **({} if topic is None else {"topic": topic})}
    action = AuditAction.POLICY_CHANGED
    return AuditEvent(**{"action": action, "key": None, "namespace": "shop", "details": details} | fields)


PAUSED = "later.topic.paused"


@each_case(
    ("change", "expected"),
    [
        (a_change(None, True), (PAUSED, "shop/order", "", 1)),
        (a_change(False, True), (PAUSED, "shop/order", "", 1)),
        (a_change(None, True, action=AuditAction.TOPIC_PAUSED), (PAUSED, "shop/order", "", 1)),
        (a_change(True, None), None),
        (a_change(None, False), None),
        (a_change(None, True, details={}), None),
        (a_change(None, True, None), (PAUSED, "", "shop", 1)),
        (a_change(True, True), None),
        (a_change(False, None), None),
        (a_change(None, True, outcome=AuditOutcome.REFUSED), None),
        (a_change(None, True, action=AuditAction.SCHEDULE_PAUSED), None),
        (a_change(None, True, "later/events", namespace="later"), None),
    ],
)
def test_pauses_are_noted(change: AuditEvent, expected: tuple[str, str, str, int] | None) -> None:
    collector = EventCollector(lambda: 0.0)
    collector.note_change(change)
    assert noted(collector) == ([] if expected is None else [expected])


def a_snapshot(*rows: CountedTopic, memory: int = 1, max_memory: int = 0) -> Snapshot:
    facts = StoreFacts(name="x", version="1", memory=memory, max_memory=max_memory, workers=1, remembered_ids=0)
    sums = TopicSums()
    return Snapshot(at=NOW, took_ms=1, total=sums, others=sums, namespaces={}, rows=list(rows), store=facts)


def a_late_topic(topic: str, late_ms: int, held: Held = Held.NO) -> CountedTopic:
    return CountedTopic(topic, 5, 0, 0, 0, 5, NOW - late_ms, held, held is Held.PAUSE, True)


def test_late_topics_are_those_that_nothing_holds() -> None:
    collector = EventCollector(lambda: 0.0)
    held = [a_late_topic(f"held-{kind}", 3_600_000, kind) for kind in Held if kind is not Held.NO]
    collector.note_snapshot(
        a_snapshot(*held, a_late_topic("late", 60_001), a_late_topic("slow", 60_000), a_late_topic("later/x", 70_000)),
        age_s=2.0,
    )
    [(subject, count)] = collector.take(NOW).items()
    assert subject == EventSubject(EventType.TOPIC_LATE, "late")
    assert (count.since, count.details) == (NOW - 62_001, {"lateness_s": 60.001, "due": 5})


@each_case(
    ("took_ms", "age_s", "is_noted"),
    [
        (10, 0.0, True),
        (10, 60.0, True),
        (10, 60.1, False),
        (59_500, 61.0, True),
        (119_500, 135.0, True),
        (70_000, 129.9, True),
        (70_000, 130.0, False),
    ],
)
def test_a_snapshot_from_before_everything_was_down_is_no_event(took_ms: int, age_s: float, is_noted: bool) -> None:
    collector = EventCollector(lambda: 0.0)
    snapshot = msgspec.structs.replace(a_snapshot(a_late_topic("late", 70_000)), took_ms=took_ms)
    collector.note_snapshot(snapshot, age_s)
    assert collector.is_empty != is_noted


@each_case(("memory", "max_memory", "is_noted"), [(81, 100, True), (80, 100, False), (10**12, 0, False)])
def test_a_store_is_nearly_full_above_four_fifths(memory: int, max_memory: int, is_noted: bool) -> None:
    collector = EventCollector(lambda: 0.0)
    collector.note_snapshot(a_snapshot(memory=memory, max_memory=max_memory), age_s=0.0)
    assert noted(collector) == ([("later.store.full", "", "", 1)] if is_noted else [])
