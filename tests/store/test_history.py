"""The history in the store: counts add up over processes, gauges replace, topics are bounded, past slots read once."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.delivery_sample import SampledDelivery
from later.core.history import (
    COUNT_FIELDS,
    DEAD_FIELDS,
    DURATION_BUCKETS,
    GAUGE_FIELDS,
    HELD_LATENESS_BUCKETS,
    LATENESS_BUCKETS,
    LONG,
    MAX_TOPICS,
    SETTLED_AFTER_MS,
    SHORT,
    TOPIC_COUNTS,
    TOPIC_KEPT_MS,
)
from later.store.history import MAX_DELIVERIES, HistoryEntry, HistoryStore
from tests.builders import NOW
from tests.servers import shared_server
from tests.store_fixture import StoreFixture, open_store

AT = LONG.slot_of(NOW)
"""The beginning of a slot of each length."""
AFTER_SHORT = AT + SHORT.length_ms + SETTLED_AFTER_MS
AFTER_LONG = AT + LONG.length_ms + SETTLED_AFTER_MS


def a_delivery(number: int) -> SampledDelivery:
    return SampledDelivery(
        id=f"n{number}", topic="order", attempt=1, due_at=NOW, began_at=NOW + number, took_ms=3, outcome="failed",
        status=500, host="a.example", reason="status",
    )  # fmt: skip


async def test_counts_of_several_processes_add_up_in_both_slots(store: StoreFixture) -> None:
    await store.history.add(AT + 1, NOW, HistoryEntry(counts={"c": 2, "l0": 1}))
    await store.history.add(AT + 9999, NOW, HistoryEntry(counts={"c": 3, "xe": 1}))
    await store.history.add(AT + SHORT.length_ms, NOW, HistoryEntry(counts={"c": 10}))
    [short] = await store.history.read(SHORT, AT, AT + SHORT.length_ms + 3000)
    [long] = await store.history.read(LONG, AT, AFTER_LONG)
    assert short == {"c": 5, "l0": 1, "xe": 1, "p": 2}
    assert long == {"c": 15, "l0": 1, "xe": 1, "p": 3}


async def test_of_gauges_the_last_value_counts(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(gauges={"D": 5, "M": 7}))
    await store.history.add(AT, NOW, HistoryEntry(gauges={"D": 4}))
    assert await store.history.read(LONG, AT, AFTER_LONG) == [{"D": 4, "M": 7, "p": 2}]


async def test_a_slot_in_which_nobody_wrote_is_none(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry())
    read = await store.history.read(SHORT, AT - SHORT.length_ms, AT + 2 * SHORT.length_ms + 3000)
    assert read == [None, {"p": 1}, None]


async def test_the_last_full_slot_is_that_before_the_running_one(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(counts={"c": 1}))
    assert await store.history.read_last(AT + SHORT.length_ms + 2999) == (AT - SHORT.length_ms, None)
    assert await store.history.read_last(AT + SHORT.length_ms + 3000) == (AT, {"c": 1, "p": 1})


async def test_every_key_has_a_ttl(store: StoreFixture) -> None:
    entry = HistoryEntry(counts={"c": 1}, topics={"order": [1, 0, 0, 0, 0]}, deliveries=[a_delivery(1)])
    await store.history.add(AT, AT, entry)
    lives = {key: await store.redis.pttl(key) for key in await store.redis.keys("*history*")}
    assert len(lives) == 4
    assert all(0 < life <= LONG.kept_ms + LONG.length_ms for life in lives.values())
    assert lives[store.keys.history(10_000, AT)] <= SHORT.kept_ms + SHORT.length_ms


async def test_a_slot_whose_time_is_over_is_not_written_again(store: StoreFixture) -> None:
    """A clock that is moved by days, as that of `later dev`, must not leave slots behind."""
    entry = HistoryEntry(counts={"c": 1}, topics={"order": [1, 0, 0, 0, 0]})
    await store.history.add(AT, AT + SHORT.kept_ms + SHORT.length_ms, entry)
    assert len(await store.redis.keys("*history*")) == 2
    await store.redis.flushall()
    await store.history.add(AT, AT + 30 * TOPIC_KEPT_MS, entry)
    assert await store.redis.keys("*history*") == []


async def test_the_busiest_topics_of_all_processes_are_kept(store: StoreFixture) -> None:
    for process in range(3):
        topics = {f"t{process}-{number}": [number, 0, 0, 0, 0] for number in range(60)}
        await store.history.add(AT, NOW, HistoryEntry(topics=topics))
    written = await store.redis.hgetall(store.keys.history_topics(AT))
    assert len(written) == MAX_TOPICS + 1
    events = sorted(int(row.split()[0]) for topic, row in written.items() if topic)
    assert events == sorted([*range(44, 60), *range(43, 60), *range(43, 60)])


async def test_a_topics_counts_add_up_and_its_due_tasks_replace(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(topics={"order": [1, 2, 0, 0, 0], "é/x": [1, 0, 0, 0, 0]}))
    await store.history.add(AT, NOW, HistoryEntry(due_tasks={"order": 7, "late": 3}))
    await store.history.add(AT, NOW, HistoryEntry(topics={"order": [0, 5, 1, 0, 2]}))
    rows = {
        topic: (await store.history.read_topic(topic, AT, AFTER_LONG))[0] for topic in ("order", "late", "é/x", "x")
    }
    assert rows == {
        "order": ([1, 7, 1, 0, 2], 7),
        "late": ([0, 0, 0, 0, 0], 3),
        "é/x": ([1, 0, 0, 0, 0], 0),
        "x": ([0, 0, 0, 0, 0], 0),
    }


async def test_where_nobody_has_counted_due_tasks_they_are_not_known(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(topics={"order": [1, 2, 0, 0, 0]}))
    assert await store.history.read_topic("order", AT, AFTER_LONG) == [([1, 2, 0, 0, 0], None)]


async def test_a_topic_that_is_not_among_the_busiest_is_not_known(store: StoreFixture) -> None:
    full = {f"t{number}": [1, 0, 0, 0, 0] for number in range(MAX_TOPICS)}
    await store.history.add(AT, NOW, HistoryEntry(topics=full))
    assert await store.history.read_topic("other", AT - LONG.length_ms, AFTER_LONG) == [None, None]


async def test_a_past_slot_is_read_once(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(counts={"c": 1}, topics={"order": [1, 0, 0, 0, 0]}))
    now = AT + LONG.length_ms + SETTLED_AFTER_MS
    first = AT - 10 * LONG.length_ms
    read = await store.history.read(LONG, first, now), await store.history.read_topic("order", first, now)
    with patch.object(store.client, "execute_all", side_effect=AssertionError("it was read again")):
        again = await store.history.read(LONG, first, now), await store.history.read_topic("order", first, now)
    assert read == again


async def test_a_slot_that_was_past_before_the_clock_was_set_back_is_read_again(store: StoreFixture) -> None:
    await store.history.read(SHORT, AT, AFTER_SHORT + 1_000_000)
    await store.history.read(SHORT, AT, AT + SHORT.length_ms + 3000)
    await store.history.add(AT, NOW, HistoryEntry(counts={"c": 1}))
    assert await store.history.read(SHORT, AT, AFTER_SHORT) == [{"c": 1, "p": 1}, None, None]


async def test_a_slot_that_may_still_be_written_is_read_again(store: StoreFixture) -> None:
    now = AT + SHORT.length_ms + 3000
    await store.history.add(AT, NOW, HistoryEntry(counts={"c": 1}))
    assert await store.history.read(SHORT, AT, now) == [{"c": 1, "p": 1}]
    await store.history.add(AT, NOW, HistoryEntry(counts={"c": 1}))
    assert await store.history.read(SHORT, AT, now) == [{"c": 2, "p": 2}]


async def test_the_sample_is_bounded_and_the_last_comes_first(store: StoreFixture) -> None:
    for start in range(0, MAX_DELIVERIES + 40, 20):
        deliveries = [a_delivery(number) for number in range(start, start + 20)]
        await store.history.add(AT, NOW, HistoryEntry(deliveries=deliveries))
    numbers = [delivery.began_at - NOW async for some in store.history.deliveries() for delivery in some]
    assert numbers == [*range(MAX_DELIVERIES + 39, 39, -1)]


async def test_a_delivery_that_others_move_on_meanwhile_is_read_once(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(deliveries=[a_delivery(number) for number in range(600)]))
    found: list[int] = []
    async for some in store.history.deliveries():
        found += [delivery.began_at - NOW for delivery in some]
        await store.history.add(AT, NOW, HistoryEntry(deliveries=[a_delivery(number) for number in range(600, 620)]))
    assert found == [*range(599, -1, -1)]


async def test_what_another_version_has_written_in_another_form_is_passed_over(store: StoreFixture) -> None:
    await store.history.add(AT, NOW, HistoryEntry(counts={"c": 1}, deliveries=[a_delivery(1)]))
    await store.redis.hset(store.keys.history(LONG.length_ms, AT), mapping={"Z": "1.5", "z": "x", "c2": "\xff"})
    await store.redis.lpush(store.keys.sampled_deliveries, b"\xc1", b"\x81\xa1a\x01", b"\x91\xa1\xff")
    assert await store.history.read(LONG, AT, AFTER_LONG) == [{"c": 1, "p": 1}]
    assert [some async for some in store.history.deliveries()] == [[a_delivery(1)]]


@pytest.mark.parametrize("row", ["1 0 0 0 0", "1 0 0 0 0 0 7", "a 0 0 0 0 7", "", "1 0 0 0 0 -"])
async def test_a_topics_row_of_another_form_is_not_known_and_is_written_over(store: StoreFixture, row: str) -> None:
    topics = store.keys.history_topics(AT)
    await store.redis.hset(topics, "order", row)
    assert await store.history.read_topic("order", AT, AT + LONG.length_ms + 3000) == [None]
    await store.history.add(AT, NOW, HistoryEntry(topics={"order": [1, 0, 0, 0, 0]}, deliveries=[a_delivery(1)]))
    assert await store.redis.llen(store.keys.sampled_deliveries) == 1


async def test_the_memory_of_a_full_history_is_bounded(store: StoreFixture) -> None:
    """The bytes of one key of each kind, times their number when all days are full: docs/history.md has the limit."""
    counts = [*COUNT_FIELDS.values(), *DEAD_FIELDS.values()]
    buckets = [*LATENESS_BUCKETS.fields, *HELD_LATENESS_BUCKETS.fields, *DURATION_BUCKETS.fields]
    topics = [f"customer-{number:03}/notifications" for number in range(MAX_TOPICS)]
    entry = HistoryEntry(
        counts=dict.fromkeys([*counts, *buckets], 100_000),
        gauges=dict.fromkeys(GAUGE_FIELDS.values(), 1_000_000),
        topics={topic: [12_345] * len(TOPIC_COUNTS) for topic in topics},
        due_tasks=dict.fromkeys(topics, 12_345),
        deliveries=[a_delivery(number) for number in range(MAX_DELIVERIES)],
    )
    await store.history.add(AT, AT, entry)
    keys = {
        store.keys.history(SHORT.length_ms, AT): SHORT.kept_ms // SHORT.length_ms,
        store.keys.history(LONG.length_ms, AT): LONG.kept_ms // LONG.length_ms,
        store.keys.history_topics(AT): TOPIC_KEPT_MS // LONG.length_ms,
        store.keys.sampled_deliveries: 1,
    }
    assert {*keys} == {*await store.redis.keys("*history*")}
    memory = [(await store.redis.memory_usage(key, samples=0) or 0) * number for key, number in keys.items()]
    assert 2_000_000 < sum(memory) < 4_000_000


writes = st.lists(
    st.tuples(
        st.integers(0, 5).map(lambda slot: AT + slot * SHORT.length_ms),
        st.dictionaries(st.sampled_from(["c", "d", "xe", "l0"]), st.integers(1, 2**40)),
    ),
    max_size=20,
)


@given(writes)
async def test_whatever_is_written_no_count_is_lost_or_doubled(written: list[tuple[int, dict[str, int]]]) -> None:
    async with open_store(shared_server()) as store:
        for at, counts in written:
            await store.history.add(at, NOW, HistoryEntry(counts=counts))
        now = AT + LONG.length_ms + SETTLED_AFTER_MS
        reader = HistoryStore(store.client, store.keys)
        slots = await reader.read(SHORT, AT, now), await reader.read(LONG, AT, now)
    for read in slots:
        for field in ("c", "d", "xe", "l0"):
            assert sum((slot or {}).get(field, 0) for slot in read) == sum(
                counts.get(field, 0) for _, counts in written
            )
