"""Gauges of the store in /metrics."""

from __future__ import annotations

import time

import pytest

from later.core.clock import Clock
from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.policy_scopes import topic_scope
from later.daemon.store_metrics import StoreMetrics
from later.metrics import MAX_TOPICS, Metrics
from later.store.keys import Bucket
from later.store.open import connect_store
from later.store.permits import PermitRequest
from later.store.settings import StoreSettings
from tests.builders import a_task
from tests.store_fixture import StoreFixture


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def test_permits_in_use_are_shown_for_limited_topics(store: StoreFixture) -> None:
    now = (await store.time.now()).low
    await store.tasks.create([a_task(topic=topic) for topic in ("limited", "plain")])
    await store.new_policy_book().change(topic_scope("limited"), lambda before: before.merge({"concurrency": 5}))
    await store.new_permits().acquire([PermitRequest("limited", 1, 2, 0, now + 60_000, 0.0, 5)], now)
    metrics = Metrics()
    await StoreMetrics(store, metrics).tick(0)
    assert value(metrics, "later_topic_permits", topic="limited") == 3
    assert value(metrics, "later_topic_permits", topic="plain") is None


def test_counters_of_topics_beyond_the_limit_are_summed_as_other() -> None:
    metrics = Metrics()
    for n in range(MAX_TOPICS + 5):
        metrics.count_dead(f"t{n}", "gone")
    metrics.count_delivery_failure("t0", "503")
    metrics.count_throttled("new")
    assert value(metrics, "later_topic_dead_total", topic="other", reason="gone") == 5
    assert value(metrics, "later_delivery_failures_total", topic="t0", code="503") == 1
    assert value(metrics, "later_claims_throttled_total", topic="other") == 1


async def test_tasks_are_counted_by_state_and_topic(store: StoreFixture) -> None:
    now = (await store.time.now()).high
    await store.tasks.create([a_task(topic="mail", created_at=now - 5000, delay=delay) for delay in (0, 0, 3600)])
    metrics = Metrics()
    await StoreMetrics(store, metrics).tick(0)
    assert value(metrics, "later_tasks", state="delay", topic="mail") == 3
    assert value(metrics, "later_tasks_due", topic="mail") == 2
    assert value(metrics, "later_oldest_due_age_seconds", topic="mail") == pytest.approx(5, abs=2)


async def test_an_empty_topic_has_no_series(store: StoreFixture) -> None:
    task, metrics = a_task(topic="gone"), Metrics()
    store_metrics = StoreMetrics(store, metrics)
    await store.tasks.create([task])
    await store_metrics.tick(0)
    await store.edits.delete([task.id])
    await store_metrics.tick(0)
    assert value(metrics, "later_tasks", state="delay", topic="gone") is None


async def test_gauges_of_topics_beyond_200_are_summed_as_other(store: StoreFixture) -> None:
    metrics = Metrics()
    await store.tasks.create([a_task(topic=f"t{n}") for n in range(205)])
    await StoreMetrics(store, metrics).tick(0)
    assert value(metrics, "later_tasks", state=Bucket.DELAY.value, topic="other") == 5


async def test_a_topic_with_its_own_label_keeps_it(store: StoreFixture) -> None:
    metrics = Metrics()
    store_metrics = StoreMetrics(store, metrics)
    await store.tasks.create([a_task(topic=f"t{n}") for n in range(200)])
    await store_metrics.tick(0)
    await store.tasks.create([a_task(topic=f"a{n}") for n in range(10)])
    await store_metrics.tick(0)
    assert value(metrics, "later_tasks", state="delay", topic="t99") == 1
    assert value(metrics, "later_tasks", state="delay", topic="other") == 10


async def test_memory_and_remembered_ids_are_shown(store: StoreFixture) -> None:
    metrics = Metrics()
    await StoreMetrics(store, metrics).tick(0)
    assert value(metrics, "later_remembered_ids") == 0
    assert (value(metrics, "later_store_memory_bytes") or 0) > 100_000
    assert value(metrics, "later_store_up") == 1


async def test_an_unavailable_store_is_shown_as_down() -> None:
    clock, metrics = Clock(time.monotonic, time.time), Metrics()
    settings = StoreSettings(url="unix:///nowhere.sock", prefix="later", timeout_s=1)
    store = connect_store(settings, 1, clock, Policy(), "this", metrics.round_trip_observer)
    with pytest.raises(StoreDown):
        await StoreMetrics(store, metrics).tick(0)
    assert value(metrics, "later_store_up") == 0
