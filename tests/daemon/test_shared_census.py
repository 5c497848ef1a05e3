"""One census for all daemons on a store: one counts, the others read what it has counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from unittest.mock import AsyncMock

import msgspec
import pytest

from later.core.errors import StoreDown
from later.core.held import Held
from later.core.history import GAUGE_FIELDS, LONG, SHORT
from later.core.snapshot import MAX_AHEAD_MS, MAX_ROWS, Snapshot
from later.daemon import shared_census
from later.daemon.census import Census
from later.daemon.shared_census import PERIOD_MS, TOO_OLD_MS, WATCHED_PERIOD_MS, SharedCensus
from later.daemon.store_metrics import StoreMetrics
from later.metrics import OTHER, Metrics
from later.store.open import Store
from later.store.topic_tallies import TopicTallies
from later.worker.history_recorder import HistoryRecorder
from later.worker.ticker import HANGS_AFTER_S, Ticker, TickResult, start_tickers
from tests.builders import a_task
from tests.cases import each_case
from tests.round_trips import count_round_trips
from tests.store_fixture import StoreFixture, hold_topic, open_as_it_is


@dataclass(frozen=True, kw_only=True, slots=True)
class Daemon:
    """One daemon's share in the census, and its metrics."""

    store: Store
    metrics: Metrics
    census: SharedCensus
    store_metrics: StoreMetrics

    @classmethod
    def on(cls, store: Store) -> Daemon:
        metrics = Metrics()
        census = SharedCensus(store, Census(store, metrics))
        return cls(store=store, metrics=metrics, census=census, store_metrics=StoreMetrics(census, metrics))

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def sum(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def latest(self) -> Snapshot:
        assert self.census.latest is not None
        return self.census.latest


@asynccontextmanager
async def two_daemons(store: StoreFixture, url: str) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Run the share of two daemons on one store, each with its own connections."""
    async with open_as_it_is(url, len(store.keys.shards)) as other:
        yield Daemon.on(store), Daemon.on(other)


async def make_older(store: StoreFixture, ms: int) -> None:
    """Let the snapshot in the store be older than it is."""
    snapshot = await store.snapshots.read(None)
    assert snapshot is not None
    assert await store.snapshots.take_lock("test")
    assert await store.snapshots.publish("test", msgspec.structs.replace(snapshot, at=snapshot.at - ms))


async def test_what_one_daemon_has_counted_the_other_only_reads(store: StoreFixture, server_url: str) -> None:
    await store.tasks.create([a_task(topic=f"t{n}") for n in range(300)])
    async with two_daemons(store, server_url) as (one, two):
        await one.store_metrics.tick(0)
        await two.store.client.open()
        async with count_round_trips(two.store) as round_trips:
            await two.store_metrics.tick(0)
        assert [command[0] for commands in round_trips for command in commands] == ["HGET", "HGET"]
        assert two.latest() == one.latest()
        assert two.sum("later_tasks") == one.sum("later_tasks") == 300


async def test_a_snapshot_that_is_known_is_not_read_again(store: StoreFixture) -> None:
    daemon = Daemon.on(store)
    await daemon.store_metrics.tick(0)
    async with count_round_trips(store) as round_trips:
        await daemon.store_metrics.tick(0)
    assert [command[0] for commands in round_trips for command in commands] == ["HGET"]


async def test_a_topic_that_was_held_counts_as_held_in_the_next_census_however_long_one_takes(
    store: StoreFixture,
) -> None:
    """A permit lets a topic go for a moment, in which the next census, of very many topics, may look at it."""
    now = (await store.time.now()).low
    await store.tasks.create([a_task(topic="order", created_at=now - 400_000)])
    daemon = Daemon.on(store)
    await daemon.census.update()
    [row] = daemon.latest().rows
    assert row.held is Held.NO
    held = msgspec.structs.replace(row, held=Held.RATE)
    slow = msgspec.structs.replace(daemon.latest(), at=now - 300_000, took_ms=160_000, rows=[held])
    daemon.census._census.adopt(slow)
    [row] = (await daemon.census._census.count()).rows
    assert row.held is Held.RATE


async def test_two_daemons_that_need_a_census_at_once_make_one(store: StoreFixture, server_url: str) -> None:
    await store.tasks.create([a_task(topic="order")])
    async with two_daemons(store, server_url) as (one, two):
        async with count_round_trips(one.store) as of_one, count_round_trips(two.store) as of_two:
            again_in_ms = await asyncio.gather(one.census.update(), two.census.update())
        censuses = [
            trips for trips in (of_one, of_two) if any("ZSCAN" in command for some in trips for command in some)
        ]
        assert len(censuses) == 1
        assert sorted(again_in_ms)[0] == shared_census.RETRY_MS
        await asyncio.gather(one.census.update(), two.census.update())
        assert one.latest() == two.latest()


async def test_a_census_that_ended_before_the_lock_was_taken_is_not_made_again(
    store: StoreFixture, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_daemons(store, server_url) as (one, two):
        take = two.store.snapshots.take_lock

        async def take_late(token: str) -> bool:
            await one.census.update()
            return await take(token)

        monkeypatch.setattr(two.store.snapshots, "take_lock", take_late)
        monkeypatch.setattr(two.store.stats, "counts", AsyncMock(side_effect=AssertionError("counted again")))
        await two.census.update()
        assert two.latest() == one.latest()
        assert not await store.redis.exists(store.keys.counting)


async def test_the_next_census_is_due_after_the_period(store: StoreFixture, server_url: str) -> None:
    async with two_daemons(store, server_url) as (one, two):
        await one.census.update()
        await make_older(store, PERIOD_MS - 1000)
        again_in_ms = await two.census.update()
        assert 0 < again_in_ms <= 1000
        first = two.latest()
        await make_older(store, 1000)
        await one.census.update()
        assert one.latest().at > first.at + PERIOD_MS - 1000


async def test_somebody_who_looks_has_it_counted_sooner(store: StoreFixture, server_url: str) -> None:
    async with two_daemons(store, server_url) as (one, two):
        await one.census.update()
        await make_older(store, WATCHED_PERIOD_MS)
        await two.census.update()
        old = two.latest()
        assert await two.census.look() == old
        await two.census.update()
        assert two.latest().at > old.at


@each_case(("took_ms", "period_ms"), [(1, 2000), (60, 6000), (500, WATCHED_PERIOD_MS)])
async def test_a_census_is_made_the_sooner_for_those_who_look_the_less_time_it_takes(
    store: StoreFixture, took_ms: int, period_ms: int
) -> None:
    daemon = Daemon.on(store)
    await daemon.census.update()
    now = (await store.time.now()).low
    for age_ms, is_due in ((period_ms - 1000, False), (period_ms, True)):
        kept = msgspec.structs.replace(daemon.latest(), at=now - age_ms, took_ms=took_ms)
        assert await store.snapshots.take_lock("test")
        assert await store.snapshots.publish("test", kept)
        daemon.census.latest = kept
        counted = AsyncMock(wraps=daemon.census._census.count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(daemon.census._census, "count", counted)
            assert await daemon.census.look() == kept
            await daemon.census.update()  # the one that the look has begun, if any
        assert counted.await_count == is_due


async def test_a_look_waits_for_a_census_if_the_last_one_is_too_old(store: StoreFixture) -> None:
    await Daemon.on(store).census.update()
    await make_older(store, TOO_OLD_MS)
    looked = await Daemon.on(store).census.look()
    assert looked is not None
    assert (await store.time.now()).low - looked.at < TOO_OLD_MS


async def test_a_look_does_not_wait_for_the_next_census_of_a_store_whose_census_takes_minutes(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon.on(store)
    await daemon.census.update()
    took_ms = 2 * TOO_OLD_MS
    daemon.census.latest = slow = msgspec.structs.replace(
        daemon.latest(), at=daemon.latest().at - took_ms - WATCHED_PERIOD_MS * 16, took_ms=took_ms
    )
    monkeypatch.setattr(store.snapshots, "read", AsyncMock(return_value=None))
    monkeypatch.setattr(store.stats, "counts", AsyncMock(side_effect=asyncio.Event().wait))
    assert await asyncio.wait_for(daemon.census.look(), 5) == slow
    await daemon.census.stop()


async def test_the_census_of_a_holder_that_was_killed_is_made_by_another(store: StoreFixture) -> None:
    daemon = Daemon.on(store)
    assert await store.snapshots.take_lock("killed")
    assert await daemon.census.look() is None
    await store.redis.pexpireat(store.keys.counting, 1)
    assert await daemon.census.look() is not None


async def test_the_lock_lasts_for_30_s_and_is_held_for_longer_while_counting(store: StoreFixture) -> None:
    assert await store.snapshots.take_lock("one")
    await store.redis.pexpire(store.keys.counting, 1000)
    assert not await store.snapshots.take_lock("two")
    assert await store.snapshots.take_lock("one")
    assert 29_000 < await store.redis.pttl(store.keys.counting) <= 30_000


async def test_a_census_that_takes_long_holds_the_lock(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    census, renewed = Census(store, Metrics()), asyncio.Event()
    count = census.count

    async def count_slowly() -> Snapshot:
        await renewed.wait()
        return await count()

    async def take_lock(token: str) -> bool:
        taken = await take(token)
        if await store.redis.pttl(store.keys.counting) > 1000:
            calls.append(token)
        if len(calls) == 2:
            renewed.set()
        return taken

    calls: list[str] = []
    take = store.snapshots.take_lock
    monkeypatch.setattr(shared_census, "RENEW_S", 0.001)
    monkeypatch.setattr(census, "count", count_slowly)
    monkeypatch.setattr(store.snapshots, "take_lock", take_lock)
    await SharedCensus(store, census).update()
    assert len(set(calls)) == 1
    assert not await store.redis.exists(store.keys.counting)
    assert await store.snapshots.read(None) is not None


class TestLongCensus:
    """A census that takes minutes: the ticker that waits for it must not look like one that hangs."""

    @dataclass(frozen=True, slots=True)
    class Count:
        """A count that lasts until it `may_end`."""

        store: Store
        may_end: asyncio.Event
        goes_on: bool

        async def tally(self, now: int, pace: Callable[[int], Awaitable[None]]) -> TopicTallies:
            while not self.may_end.is_set():
                await asyncio.sleep(0.001)
                if self.goes_on:
                    await pace(1)
            return await type(self.store.stats).tally(self.store.stats, now, pace)

    @pytest.fixture(autouse=True)
    def _short_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_census, "LONG_CENSUS_S", 0.01)
        monkeypatch.setattr(shared_census, "LOOK_S", 0.01)

    async def test_while_it_goes_on_ticks_end_and_the_census_is_shown_at_last(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task()])
        count = self.Count(store, asyncio.Event(), goes_on=True)
        monkeypatch.setattr(store.stats, "tally", count.tally)
        daemon = Daemon.on(store)
        for _ in range(3):
            assert await daemon.store_metrics.tick(1000) == TickResult(0, 1000 + shared_census.RETRY_MS)
        assert daemon.value("later_store_up") == 1
        assert daemon.sum("later_tasks") == 0
        count.may_end.set()
        while not daemon.sum("later_tasks"):
            await daemon.store_metrics.tick(1000)

    async def test_a_look_does_not_wait_for_its_end_even_if_it_is_the_first(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = self.Count(store, asyncio.Event(), goes_on=True)
        monkeypatch.setattr(store.stats, "tally", count.tally)
        daemon = Daemon.on(store)
        assert await asyncio.wait_for(daemon.census.look(), 10) is None
        monkeypatch.setattr(shared_census, "LOOK_S", 900)
        daemon.census._update_began_s -= 900  # others that wait for the same census have waited long enough
        assert await asyncio.wait_for(daemon.census.look(), 10) is None
        count.may_end.set()
        while await daemon.census.look() is None:
            pass

    @pytest.mark.parametrize("goes_on", [True, False])
    async def test_its_ticker_hangs_only_if_it_gets_nothing_done(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch, goes_on: bool
    ) -> None:
        count = self.Count(store, asyncio.Event(), goes_on)
        monkeypatch.setattr(store.stats, "tally", count.tally)
        daemon, interval_ms, tick_ended = Daemon.on(store), 1000, asyncio.Event()

        async def tick(now: int) -> TickResult:
            result = await daemon.store_metrics.tick(now)
            tick_ended.set()
            return result

        ticker = Ticker.on_local_clock("store_metrics", tick, interval_ms, daemon.metrics.count_tick_error)
        start_tickers([ticker], daemon.metrics)
        started_at, success_at = time.monotonic(), ticker.last_success_at()
        with suppress(TimeoutError):
            await asyncio.wait_for(tick_ended.wait(), 10 if goes_on else 0.05)
        hung = daemon.metrics.hung_tickers(started_at + HANGS_AFTER_S + interval_ms / 1000 + 0.002)
        assert hung == ([] if goes_on else ["store_metrics"])
        assert (ticker.last_success_at() > success_at) == goes_on
        await ticker.cancel()
        await daemon.census.stop()


async def test_a_census_that_lost_its_lock_writes_nothing(store: StoreFixture) -> None:
    snapshot = await Census(store, Metrics()).count()
    assert await store.snapshots.take_lock("late")
    await store.redis.delete(store.keys.counting)
    assert await store.snapshots.take_lock("other")
    assert not await store.snapshots.publish("late", snapshot)
    await store.snapshots.release_lock("late")
    assert await store.snapshots.read(None) is None
    assert await store.redis.hget(store.keys.counting, "by") == b"other"


async def test_a_census_that_fails_gives_the_lock_back(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    census = Census(store, Metrics())
    monkeypatch.setattr(census, "count", AsyncMock(side_effect=StoreDown("away")))
    with pytest.raises(StoreDown, match="away"):
        await SharedCensus(store, census).update()
    assert not await store.redis.exists(store.keys.counting)


async def test_a_stop_gives_the_lock_back(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    census, began = Census(store, Metrics()), asyncio.Event()

    async def count_forever() -> Snapshot:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(census, "count", count_forever)
    shared = SharedCensus(store, census)
    update = asyncio.create_task(shared.update())
    await began.wait()
    await shared.stop()
    assert not await store.redis.exists(store.keys.counting)
    update.cancel()


@pytest.mark.parametrize("is_ahead", [True, False])
async def test_a_snapshot_from_the_future_or_of_another_form_counts_as_none(
    store: StoreFixture, is_ahead: bool
) -> None:
    await store.tasks.create([a_task(topic="order")])
    await Daemon.on(store).census.update()
    if is_ahead:
        await make_older(store, -MAX_AHEAD_MS - 60_000)
    else:
        await store.redis.hset(store.keys.snapshot, mapping={"at": "1", "data": b'{"at": 1, "rows": 7}'})
    daemon = Daemon.on(store)
    await daemon.census.update()
    assert daemon.latest().at <= (await store.time.now()).high
    assert daemon.census.age_s == pytest.approx(0, abs=5)
    assert (await store.snapshots.read(None)) == daemon.latest()


async def test_a_store_that_takes_no_writes_is_counted_by_each_daemon(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.tasks.create([a_task(topic="order")])
    for write in ("take_lock", "publish"):
        monkeypatch.setattr(store.snapshots, write, AsyncMock(side_effect=StoreDown("read only")))
    daemon = Daemon.on(store)
    await daemon.store_metrics.tick(0)
    assert daemon.value("later_tasks", state="delay", topic="order") == 1


async def test_the_census_is_shared_in_a_store_whose_memory_is_full(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic="order")])
    daemon = Daemon.on(store)
    await store.redis.config_set("maxmemory", 1)
    try:
        await daemon.store_metrics.tick(0)
    finally:
        await store.redis.config_set("maxmemory", 0)
    assert await store.snapshots.read(None) == daemon.latest()


class TestLabels:
    """The topics with a label of their own differ by process: what is shown must be the whole all the same."""

    async def test_a_daemon_that_reads_shows_the_labels_of_the_one_that_counts(
        self, store: StoreFixture, server_url: str
    ) -> None:
        await store.tasks.create([a_task(topic=f"t{n}") for n in range(MAX_ROWS + 50)])
        async with two_daemons(store, server_url) as (one, two):
            for number in range(MAX_ROWS):
                two.metrics.topics.label(f"t{MAX_ROWS + 49 - number}")
            await one.store_metrics.tick(0)
            await two.store_metrics.tick(0)
            for daemon in (one, two):
                assert daemon.sum("later_tasks", state="delay") == MAX_ROWS + 50
                assert daemon.value("later_tasks", state="delay", topic=OTHER) == 50
            assert {*one.metrics.topics.in_use} == {*two.metrics.topics.in_use}

    async def test_the_labels_stay_when_another_daemon_counts(self, store: StoreFixture, server_url: str) -> None:
        await store.tasks.create([a_task(topic=f"t{n}") for n in range(MAX_ROWS + 50)])
        async with two_daemons(store, server_url) as (one, two):
            await one.store_metrics.tick(0)
            await two.store_metrics.tick(0)
            before = {row.topic for row in one.latest().rows if row.has_label}
            await make_older(store, PERIOD_MS)
            await two.census.update()
            assert {row.topic for row in two.latest().rows if row.has_label} == before

    async def test_a_topic_that_another_daemon_found_held_still_counts_as_held(
        self, store: StoreFixture, server_url: str
    ) -> None:
        now = (await store.time.now()).high
        await store.tasks.create([a_task(created_at=now - 5000)])
        async with two_daemons(store, server_url) as (one, two):
            await hold_topic(store, "order", now + 60_000)
            await one.store_metrics.tick(0)
            await two.store_metrics.tick(0)
            await hold_topic(store, "order", 1)
            await make_older(store, PERIOD_MS)
            await two.store_metrics.tick(0)
            assert two.value("later_tasks_due", topic="order", held=Held.RECEIVER.value) == 1


async def test_who_counts_for_all_sets_the_gauges_of_the_history(store: StoreFixture) -> None:
    metrics = Metrics()
    recorder = HistoryRecorder(store, metrics)
    census = SharedCensus(store, Census(store, metrics), recorder.record_census)
    now = store.clock.now().low
    await store.tasks.create([a_task(created_at=now - 1000), a_task(created_at=now, delay=60)])
    await census.update()
    assert census.latest is not None
    at = SHORT.slot_of(census.latest.at)
    [fields] = await store.history.read(SHORT, at, at + SHORT.length_ms + 3000)
    assert fields is not None
    assert {series: fields[field] for series, field in GAUGE_FIELDS.items() if series != "memory"} == {
        "due": 1, "delay": 2, "unack": 0, "error": 0, "dead_tasks": 0,
    }  # fmt: skip
    assert fields[GAUGE_FIELDS["memory"]] > 0
    slot = LONG.slot_of(at)
    [row] = await store.history.read_topic("order", slot, slot + LONG.length_ms + 3000)
    assert row is not None
    assert row.due == 1
    await census.update()
    assert await store.history.read(SHORT, at, at + SHORT.length_ms + 3000) == [fields]
