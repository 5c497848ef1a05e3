"""Which shards are away, in the metrics and in the log."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from later.core.errors import NodeDown
from later.daemon.census import Census
from later.daemon.shard_watch import ShardWatch
from later.daemon.shared_census import SharedCensus
from later.daemon.store_metrics import StoreMetrics
from later.metrics import Metrics
from tests.builders import a_task
from tests.store.away import policies_away, shards_away
from tests.store_fixture import StoreFixture

SHARDS = 4


@pytest.fixture
def shards() -> int:
    """Return a few: a node of a cluster has many."""
    return SHARDS


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.store.registry.get_sample_value(name)


async def test_shards_that_are_away_are_shown_and_logged_once(store: StoreFixture) -> None:
    watch = ShardWatch(store, metrics := Metrics())
    with capture_logs() as logs:
        with shards_away(store, *store.keys.shards[:2]):
            for _ in range(3):
                await store.tasks.worker_snapshot(1)
                await watch.tick(0)
            assert value(metrics, "later_shards_away") == 2
        for _ in range(2):
            await watch.tick(0)
    assert value(metrics, "later_shards_away") == 0
    events = [(entry["event"], entry["count"]) for entry in logs if entry["event"].startswith("shards")]
    assert events == [("shards away", 2), ("shards back", 2)]


async def test_nothing_is_asked_while_all_are_there(store: StoreFixture) -> None:
    with shards_away(store, *store.keys.shards) as connections:
        await ShardWatch(store, Metrics()).tick(0)
    assert connections.refused == []


async def test_a_census_counts_the_shards_that_are_there_and_says_so(store: StoreFixture) -> None:
    await store.tasks.create([a_task() for _ in range(100)])
    census = Census(store, Metrics())
    whole = await census.count()
    with shards_away(store, store.keys.shards[0]):
        part = await census.count()
    assert (whole.partial, whole.total.delay) == (False, 100)
    assert part.partial
    assert 0 < part.total.delay < 100


async def test_each_instance_counts_for_itself_while_the_snapshots_node_is_away(store: StoreFixture) -> None:
    await store.tasks.create([a_task()])
    store.policies.shared_read.grace_s = 30.0
    await store.policies.read()
    census = SharedCensus(store, Census(store, metrics := Metrics()))
    shown = StoreMetrics(census, metrics)
    with policies_away(store):
        await shown.tick(0)
    assert census.latest is not None
    assert census.latest.total.delay == 1
    assert value(metrics, "later_store_up") == 1


async def test_a_store_of_which_a_node_is_away_is_up(store: StoreFixture) -> None:
    """Without a grace no census can be made."""
    shown = StoreMetrics(SharedCensus(store, Census(store, metrics := Metrics())), metrics)
    with policies_away(store), pytest.raises(NodeDown):
        await shown.tick(0)
    assert value(metrics, "later_store_up") == 1
