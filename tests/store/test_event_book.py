"""Operator events in the store: the counts of all instances become one event, and each is sent once."""

from __future__ import annotations

import json

from later.core.operator_event import EventCount, EventSubject, EventType
from later.store.event_book import MAX_EVENTS, MAX_SUBJECTS
from tests.builders import NOW
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

MINUTE = 60_000
DEAD = EventSubject(EventType.TASKS_DEAD, "order", "exhausted")
LATE = EventSubject(EventType.TOPIC_LATE, "order")


def deaths(count: int, since: int = NOW, first_id: str = "first") -> EventCount:
    return EventCount(count=count, since=since, first_id=first_id)


async def sent(store: StoreFixture, now: int, **counts: int) -> list[tuple[str, int]]:
    """Count deaths in topics by these names, and return the topic and the count of each event; they are sent."""
    subjects = {EventSubject(EventType.TASKS_DEAD, topic, "exhausted"): deaths(n) for topic, n in counts.items()}
    events = await store.events.record(subjects, now)
    await store.events.remove(events)
    return [(event.subject.topic, event.counted.count) for event in events]


async def test_the_first_death_is_an_event_at_once(store: StoreFixture) -> None:
    [event] = await store.events.record({DEAD: deaths(3, NOW - 500)}, NOW)
    assert event.id.startswith("ev:later.tasks.dead:")
    assert event.id.endswith(f":{NOW // MINUTE}.{NOW % MINUTE}")
    assert (event.subject, event.counted, event.at) == (DEAD, deaths(3, NOW - 500), NOW)


async def test_what_follows_within_a_minute_is_one_event_of_all_instances(store: StoreFixture) -> None:
    assert await sent(store, NOW, order=1) == [("order", 1)]
    for second in range(1, 60):
        assert await sent(store, NOW + 1000 * second, order=10) == []
    assert await sent(store, NOW + MINUTE) == [("order", 590)]
    assert await sent(store, NOW + 2 * MINUTE) == []


async def test_the_first_id_and_the_beginning_are_those_of_the_first_count(store: StoreFixture) -> None:
    await sent(store, NOW, order=1)
    await store.events.record({DEAD: deaths(1, NOW + 1, "a")}, NOW + 1)
    await store.events.record({DEAD: deaths(1, NOW + 2, "b")}, NOW + 2)
    [event] = await store.events.record({}, NOW + MINUTE)
    assert event.counted == deaths(2, NOW + 1, "a")


async def test_topics_and_reasons_have_events_of_their_own(store: StoreFixture) -> None:
    subjects = [DEAD, DEAD._replace(reason="expired"), DEAD._replace(topic="mail")]
    events = await store.events.record(dict.fromkeys(subjects, deaths(1)), NOW)
    assert {event.subject for event in events} == set(subjects)
    assert len({event.id for event in events}) == 3


async def test_an_event_stays_until_its_task_was_created(store: StoreFixture) -> None:
    first = await store.events.record({DEAD: deaths(1)}, NOW)
    assert await store.events.record({}, NOW + 5) == first
    await store.events.remove(first)
    assert await store.events.record({}, NOW + 5) == []


async def test_a_state_that_lasts_is_told_every_ten_minutes(store: StoreFixture) -> None:
    told = []
    for minute in range(25):
        late = EventCount(count=1, since=NOW, details={"lateness_s": 60.0 * minute})
        events = await store.events.record({LATE: late}, NOW + minute * MINUTE)
        await store.events.remove(events)
        told += [(minute, event.counted.count, event.counted.details["lateness_s"]) for event in events]
    assert told == [(0, 1, 0.0), (10, 1, 600.0), (20, 1, 1200.0)]


async def test_a_storm_in_many_topics_takes_bounded_memory_and_is_summed_up(store: StoreFixture) -> None:
    for start in range(0, 1000, 50):
        await sent(store, NOW, **{f"topic-{n}": 1 for n in range(start, start + 50)})
    assert await store.redis.hlen(store.keys.event_counts) == MAX_SUBJECTS + 1
    events = dict(await sent(store, NOW + MINUTE, one=1))
    assert events == {"other": 1000 - MAX_SUBJECTS - 50, "one": 1}
    await sent(store, NOW + 3 * MINUTE)
    assert await store.redis.hlen(store.keys.event_counts) == 0


async def test_while_nothing_is_sent_the_counts_grow_on(store: StoreFixture) -> None:
    minute = 0
    while await store.redis.hlen(store.keys.event_outbox) < MAX_EVENTS:
        subjects = {DEAD._replace(topic=f"{minute}-{n}"): deaths(1) for n in range(100)}
        await store.events.record(subjects, NOW + minute * MINUTE)
        minute += 1
    for _ in range(3):
        await store.events.record({DEAD: deaths(2)}, NOW + minute * MINUTE)
    events = await store.events.record({}, NOW + minute * MINUTE)
    assert len(events) == MAX_EVENTS
    await store.events.remove(events)
    assert await sent(store, NOW + minute * MINUTE) == [("order", 6)]


async def test_a_clock_that_was_set_back_holds_no_event_up(store: StoreFixture) -> None:
    assert await sent(store, NOW, order=1) == [("order", 1)]
    assert await sent(store, NOW - 3_600_000, order=2) == [("order", 2)]


async def test_an_event_after_the_clock_was_set_back_is_not_one_of_before(store: StoreFixture) -> None:
    ids = set[str]()
    for now in (NOW, NOW + MINUTE, NOW + 2 * MINUTE, NOW + 100, NOW + MINUTE + 100):
        ids |= {event.id for event in await store.events.record({DEAD: deaths(1)}, now)}
    assert len(ids) == 5


async def test_an_event_of_a_later_version_is_left_to_that(store: StoreFixture) -> None:
    [event] = await store.events.record({DEAD: deaths(1)}, NOW)
    stored = json.loads(await store.redis.hget(store.keys.event_outbox, event.id) or b"")
    await store.redis.hset(store.keys.event_outbox, "ev:new", json.dumps({**stored, "type": "later.new"}))
    assert await store.events.record({}, NOW + 5) == [event]
    await store.events.remove([event])
    assert await store.redis.hkeys(store.keys.event_outbox) == [b"ev:new"]


async def test_entries_that_cannot_be_read_are_removed(store: StoreFixture) -> None:
    unreadable = ["", "{", "5", "0\0001\0001\0001", "0\0x\0001\0001\0id\0{}", "-1\0001\0001\0001\0id\0{}"]
    for number, text in enumerate(unreadable):
        await store.redis.hset(store.keys.event_counts, f"x{number}", text)
    await store.redis.hset(store.keys.event_counts, "no subject", "0\0001\0001\0001\0id\0{}")
    await store.redis.hset(store.keys.event_outbox, mapping={"ev:x": "{", "ev:y": json.dumps({"type": "x"})})
    assert await sent(store, NOW, order=1) == [("order", 1)]
    assert await store.redis.hkeys(store.keys.event_outbox) == []
    assert len(await store.redis.hkeys(store.keys.event_counts)) == 1


async def test_a_store_that_is_full_still_keeps_counts(store: StoreFixture) -> None:
    await store.client.open()
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        [event] = await store.events.record({DEAD: deaths(1)}, NOW)
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    assert await store.events.record({}, NOW + 5) == [event]


async def test_names_of_topics_are_kept_as_they_are(store: StoreFixture) -> None:
    topic = 'a/"b\\{}\u2028€😀'
    [event] = await store.events.record({DEAD._replace(topic=topic): deaths(1)}, NOW)
    assert event.subject.topic == topic
