"""Gauges of the store in /metrics."""

from __future__ import annotations

import platform
import time

import pytest

from later import __version__
from later.core.clock import Clock
from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.policy_scopes import namespace_scope, topic_scope
from later.daemon.census import Census
from later.daemon.shared_census import SharedCensus
from later.daemon.store_metrics import StoreMetrics
from later.metrics import Metrics
from later.store.keys import Bucket
from later.store.open import Store, connect_store
from later.store.permits import PermitRequest
from later.store.settings import StoreSettings
from later.store.types import ClaimRequest
from tests.builders import a_task
from tests.store_fixture import StoreFixture, hold_topic


def store_metrics_of(store: Store, metrics: Metrics) -> StoreMetrics:
    return StoreMetrics(SharedCensus(store, Census(store, metrics)), metrics)


class Counter:
    """An instance that counts, and shows what it has counted."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._census = Census(store, metrics)
        self._store_metrics = store_metrics_of(store, metrics)

    async def count_and_show(self) -> None:
        self._store_metrics.show(await self._census.count())


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def test_permits_in_use_are_shown_for_limited_topics(store: StoreFixture) -> None:
    now = (await store.time.now()).low
    await store.tasks.create([a_task(topic=topic) for topic in ("limited", "plain")])
    await store.new_policy_book().change(topic_scope("limited"), lambda before: before.merge({"concurrency": 5}))
    await store.new_permits().acquire([PermitRequest("limited", 1, 2, 0, now + 60_000, 0.0, 5)], now)
    metrics = Metrics()
    await Counter(store, metrics).count_and_show()
    assert value(metrics, "later_topic_permits", topic="limited") == 3
    assert value(metrics, "later_topic_permits", topic="plain") is None


async def test_tasks_are_counted_by_state_and_topic(store: StoreFixture) -> None:
    now = (await store.time.now()).high
    await store.tasks.create([a_task(topic="mail", created_at=now - 5000, delay=delay) for delay in (0, 0, 3600)])
    metrics = Metrics()
    await Counter(store, metrics).count_and_show()
    assert value(metrics, "later_tasks", state="delay", topic="mail") == 3
    assert value(metrics, "later_tasks_due", topic="mail", held="no") == 2
    assert value(metrics, "later_oldest_due_age_seconds", topic="mail", held="no") == pytest.approx(5, abs=2)


async def test_an_empty_topic_has_no_series(store: StoreFixture) -> None:
    task, metrics = a_task(topic="gone"), Metrics()
    counter = Counter(store, metrics)
    await store.tasks.create([task])
    await counter.count_and_show()
    await store.edits.delete([task.id])
    await counter.count_and_show()
    assert value(metrics, "later_tasks", state="delay", topic="gone") is None


async def test_gauges_of_topics_beyond_200_are_summed_as_other(store: StoreFixture) -> None:
    metrics = Metrics()
    await store.tasks.create([a_task(topic=f"t{n}") for n in range(205)])
    await Counter(store, metrics).count_and_show()
    assert value(metrics, "later_tasks", state=Bucket.DELAY.value, topic="other") == 5


async def test_a_topic_with_its_own_label_keeps_it(store: StoreFixture) -> None:
    metrics = Metrics()
    counter = Counter(store, metrics)
    await store.tasks.create([a_task(topic=f"t{n}") for n in range(200)])
    await counter.count_and_show()
    await store.tasks.create([a_task(topic=f"a{n}") for n in range(10)])
    await counter.count_and_show()
    assert value(metrics, "later_tasks", state="delay", topic="t99") == 1
    assert value(metrics, "later_tasks", state="delay", topic="other") == 10


class TestHeld:
    async def held(self, store: StoreFixture, **policy: object) -> dict[str, float]:
        """Return the number of due tasks by what holds them, after two counts of a topic with this policy."""
        await store.policies.change(topic_scope("order"), lambda before: before.merge(policy))  # type: ignore[arg-type]  # as written
        metrics = Metrics()
        counter = Counter(store, metrics)
        for _ in range(2):
            await counter.count_and_show()
        return {
            sample.labels["held"]: sample.value
            for metric in metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "later_tasks_due" and sample.labels["topic"] == "order"
        }

    async def create_due(self, store: StoreFixture) -> int:
        now = (await store.time.now()).high
        await store.tasks.create([a_task(created_at=now - 5000) for _ in range(3)])
        return now

    async def test_tasks_of_a_topic_without_limits_are_not_held(self, store: StoreFixture) -> None:
        await self.create_due(store)
        assert await self.held(store) == {"no": 3}

    async def test_tasks_of_a_paused_topic_are_held_by_the_pause(self, store: StoreFixture) -> None:
        await self.create_due(store)
        assert await self.held(store, paused=True) == {"pause": 3}

    async def test_tasks_of_a_topic_that_is_not_resumed_yet_are_held_by_the_pause(self, store: StoreFixture) -> None:
        await self.create_due(store)
        await store.permits.hold_paused([("order", shard.index) for shard in store.keys.shards])
        assert await self.held(store) == {"pause": 3}

    async def test_tasks_of_a_topic_that_has_used_up_its_rate_are_held_by_it(self, store: StoreFixture) -> None:
        now = await self.create_due(store)
        for shard in store.keys.shards:
            request = ClaimRequest("order", shard.index, 0, hold_until=now + 60_000)
            await store.tasks.claim([request], now, now + 30_000)
        assert await self.held(store, rate=0.01) == {"rate": 3}

    async def test_tasks_of_a_topic_whose_permits_are_in_use_are_held_by_its_concurrency(
        self, store: StoreFixture
    ) -> None:
        now = await self.create_due(store)
        await store.permits.acquire([PermitRequest("order", 2, 0, 0, now + 60_000, 0.0, 2)], now)
        assert await self.held(store, concurrency=2) == {"concurrency": 3}

    async def test_tasks_of_a_topic_whose_receiver_asked_for_a_pause_are_held_by_it(self, store: StoreFixture) -> None:
        now = await self.create_due(store)
        await hold_topic(store, "order", now + 60_000)
        assert await self.held(store) == {"receiver": 3}

    async def test_tasks_of_a_topic_in_slow_start_are_held_by_the_pause_before(self, store: StoreFixture) -> None:
        now = await self.create_due(store)
        await store.permits.resume({"order": (now, now + 60_000)}, now)
        assert await self.held(store) == {"pause": 3}

    async def test_a_topic_that_a_permit_has_just_let_go_is_still_held(self, store: StoreFixture) -> None:
        now = await self.create_due(store)
        metrics = Metrics()
        counter = Counter(store, metrics)
        await hold_topic(store, "order", now + 60_000)
        await counter.count_and_show()
        await hold_topic(store, "order", 1)
        await counter.count_and_show()
        assert value(metrics, "later_tasks_due", topic="order", held="receiver") == 3


async def test_topics_paused_topics_and_workers_are_counted(store: StoreFixture) -> None:
    now = (await store.time.now()).high
    await store.tasks.create([a_task(topic=topic, delay=60) for topic in ("order", "mail", "shop/a", "shop/b")])
    for scope in (topic_scope("order"), namespace_scope("shop"), topic_scope("without tasks")):
        await store.policies.change(scope, lambda before: before.merge({"paused": True}))
    for worker, at in (("one", now), ("two", now - 5000), ("lost", now - 60_000)):
        await store.stats.heartbeat(worker, at)
    metrics = Metrics()
    await Counter(store, metrics).count_and_show()
    assert value(metrics, "later_topics") == 4
    assert value(metrics, "later_topics_paused") == 3
    assert value(metrics, "later_workers") == 2


async def test_the_versions_are_shown(store: StoreFixture) -> None:
    metrics = Metrics()
    await Counter(store, metrics).count_and_show()
    [info] = [s for m in metrics.registry.collect() for s in m.samples if s.name == "later_build_info"]
    server = await store.stats.server_facts()
    assert info.value == 1
    assert info.labels == {
        "version": __version__,
        "python": platform.python_version(),
        "store": f"{server.name} {server.version}",
    }


async def test_memory_and_remembered_ids_are_shown(store: StoreFixture) -> None:
    metrics = Metrics()
    await Counter(store, metrics).count_and_show()
    assert value(metrics, "later_remembered_ids") == 0
    assert (value(metrics, "later_store_memory_bytes") or 0) > 100_000


async def test_an_unavailable_store_is_shown_as_down() -> None:
    clock, metrics = Clock(time.monotonic, time.time), Metrics()
    settings = StoreSettings(url="unix:///nowhere.sock", prefix="later", timeout_s=1)
    store = connect_store(settings, 1, clock, Policy(), "this", metrics.round_trip_observer)
    with pytest.raises(StoreDown):
        await store_metrics_of(store, metrics).tick(0)
    assert value(metrics, "later_store_up") == 0


async def test_a_store_that_answers_is_shown_as_up(store: StoreFixture) -> None:
    metrics = Metrics()
    await store_metrics_of(store, metrics).tick(0)
    assert value(metrics, "later_store_up") == 1
