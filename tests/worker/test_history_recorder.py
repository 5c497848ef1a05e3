"""The recorder of the history: each process writes what its counters grew by, once, into the slot where it happened."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from later.core.errors import StoreDown, StoreFull
from later.core.history import LONG, SETTLED_AFTER_MS, SHORT, TOPIC_COUNTS, Fields
from later.metrics import Metrics
from later.store.history import HistoryEntry
from later.worker.history_recorder import HistoryRecorder, read_counts
from tests.builders import NOW
from tests.store_fixture import StoreFixture

START = LONG.slot_of(NOW)


class Clocked:
    """A recorder on a clock that the test sets."""

    def __init__(self, store: StoreFixture, metrics: Metrics) -> None:
        self.recorder = HistoryRecorder(store, metrics)
        self._store = store

    async def tick(self, at: int) -> int | None:
        """Tick at this time of the store; return in how many ms the next tick is due."""
        self._set(at)
        return (await self.recorder.tick(1_000_000)).next_due

    async def stop(self, at: int) -> None:
        self._set(at)
        await self.recorder.write_last()

    def _set(self, at: int) -> None:
        clock = self._store.clock
        clock.set_moved(0)
        clock.set_moved(at - clock.now().low)


async def slots(store: StoreFixture, count: int = 6) -> list[Fields | None]:
    """Return the first slots, those that nobody has read before."""
    return await store.history.read(SHORT, START, START + count * SHORT.length_ms + 5000)


async def test_what_was_counted_is_written_into_the_slot_where_it_was_counted(store: StoreFixture) -> None:
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    await clocked.tick(START + 4000)
    metrics.count_created(["order", "order"])
    await clocked.tick(START + 10_050)
    metrics.count_created(["order"])
    metrics.count_deliveries("order", "failed", 1)
    await clocked.tick(START + 20_050)
    assert await slots(store, 3) == [{"c": 2, "p": 1}, {"c": 1, "f": 1, "p": 1}, None]
    [row] = await store.history.read_topic("order", START, START + LONG.length_ms + SETTLED_AFTER_MS)
    assert row is not None
    assert dict(zip(TOPIC_COUNTS, row.counts, strict=True)) == {
        "created": 3, "done": 0, "failed": 1, "busy": 0, "dead": 0,
    }  # fmt: skip


async def test_the_next_tick_is_due_when_the_slot_ends(store: StoreFixture) -> None:
    clocked = Clocked(store, Metrics())
    due = await clocked.tick(START + 4000)
    assert due is not None
    assert 1_005_900 <= due <= 1_006_100


async def test_nothing_is_written_twice_within_a_slot(store: StoreFixture) -> None:
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    for at in (1, 5000, 9000, 10_001, 10_002, 12_000, 20_000):
        metrics.count_created(["order"])
        await clocked.tick(START + at)
    assert await slots(store, 3) == [{"c": 4, "p": 1}, {"c": 3, "p": 1}, None]


async def test_an_idle_process_writes_only_that_it_was_there(store: StoreFixture) -> None:
    clocked = Clocked(store, Metrics())
    await clocked.tick(START)
    await clocked.tick(START + 10_000)
    assert await slots(store, 1) == [{"p": 1}]
    before = await store.redis.keys("*history*")
    await clocked.stop(START + 15_000)
    assert await store.redis.keys("*history*") == before


async def test_a_stop_writes_what_was_counted_since(store: StoreFixture) -> None:
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    await clocked.tick(START)
    metrics.count_death("order", "expired", "a")
    await clocked.stop(START + 5000)
    assert await slots(store, 1) == [{"xp": 1, "p": 1}]


async def test_a_process_that_stops_before_its_first_tick_writes_what_it_counted(store: StoreFixture) -> None:
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    metrics.count_created(["order"])
    await clocked.stop(START + 5000)
    assert await slots(store, 1) == [{"c": 1, "p": 1}]


@pytest.mark.parametrize("error", [StoreDown("gone", unknown=True), StoreDown("gone"), StoreFull("full")])
async def test_a_write_that_failed_is_lost_and_never_repeated(store: StoreFixture, error: StoreDown) -> None:
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    await clocked.tick(START)
    metrics.count_created(["order"])
    with patch.object(type(store.history), "add", side_effect=error), capture_logs() as logs:
        await clocked.tick(START + 10_000)
        metrics.count_created(["order"])
        await clocked.tick(START + 20_000)
    assert [entry["log_level"] for entry in logs if entry["event"] == "history not written"] == ["warning", "debug"]
    metrics.count_created(["order"])
    await clocked.tick(START + 30_000)
    assert await slots(store, 3) == [None, None, {"c": 1, "p": 1}]


async def test_a_clock_that_jumps_leaves_what_was_counted_where_it_was(store: StoreFixture) -> None:
    """As that of `later dev` does, by days."""
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    await clocked.tick(START)
    metrics.count_created(["order"])
    later_on = START + 7 * LONG.length_ms
    await clocked.tick(later_on)
    metrics.count_deliveries("order", "done", 1)
    await clocked.tick(later_on + 30 * 86_400_000)
    [first, *_] = await store.history.read(LONG, START, later_on + LONG.length_ms + 5000)
    assert first == {"c": 1, "p": 1}
    assert await store.redis.exists(store.keys.history(10_000, SHORT.slot_of(later_on))) == 0


async def test_a_clock_that_is_set_back_loses_nothing(store: StoreFixture) -> None:
    metrics = Metrics()
    clocked = Clocked(store, metrics)
    await clocked.tick(START + 20_000)
    metrics.count_created(["order"])
    await clocked.tick(START)
    metrics.count_created(["order"])
    await clocked.tick(START + 10_000)
    assert await slots(store, 3) == [{"c": 1, "p": 1}, None, {"c": 1, "p": 1}]


async def test_a_store_whose_time_is_not_known_is_asked_again_soon(store: StoreFixture) -> None:
    recorder = HistoryRecorder(store, Metrics())
    with patch.object(store.time, "now", side_effect=StoreDown("gone")):
        assert (await recorder.tick(0)).next_due == 1000
        await recorder.write_last()
    assert await store.redis.keys("*history*") == []


async def test_every_counter_has_its_field(store: StoreFixture) -> None:
    metrics = Metrics()
    metrics.observe_lateness["no"](0.002)
    metrics.observe_lateness["rate"](0.002)
    metrics.observe_lateness["pause"](4000)
    metrics.delivery_duration.observe(0.3)
    metrics.retries.inc()
    metrics.tasks_refused.inc(2)
    metrics.tasks_duplicate.inc(3)
    metrics.activity.count_consumed("order", "done")
    metrics.activity.count_consumed("order", "busy")
    metrics.count_deliveries("order", "done", 2)
    metrics.count_deliveries("order", "gone", 1)
    metrics.count_death("order", "no callback", "a")
    counted = {field: count for field, count in read_counts(metrics).items() if count}
    assert counted == {
        "l1": 1, "h1": 1, "hl": 1, "t8": 1, "y": 1, "r": 2, "u": 3, "d": 3, "b": 1, "g": 1, "xn": 1,
    }  # fmt: skip
    await store.history.add(START, START, HistoryEntry(counts=counted))
    assert await slots(store, 1) == [{**counted, "p": 1}]
