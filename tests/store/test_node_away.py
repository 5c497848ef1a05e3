"""A node of a real cluster that is killed, or hangs, and has no replica: the others go on, and do not wait for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from later.address_types import Address
from later.core.errors import NodeDown, StoreDown
from later.core.policy_scopes import topic_scope
from later.core.task import Task
from later.store.keys import Shard
from later.store.types import ClaimRequest, ClaimResult
from tests.builders import NOW, a_task
from tests.cluster_service import ClusterService, run_cluster
from tests.store.inspection import LEASE_MS, done
from tests.store_fixture import StoreFixture, open_store

SHARDS = 16
TIMEOUT_S = 10.0
"""Patient commands are tried again for most of it, so what ends within `SOON_S` has not been."""
SOON_S = 4.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterService]:
    """A cluster of three nodes without replicas, which goes on without one of them."""
    with run_cluster(tmp_path, 3, replicas=0, options=["--cluster-require-full-coverage", "no"]) as service:
        yield service


@pytest.fixture
async def store(cluster: ClusterService) -> AsyncIterator[StoreFixture]:
    async with open_store(cluster.url, SHARDS, timeout_s=TIMEOUT_S) as opened:
        yield opened


def shards_of(cluster: ClusterService, store: StoreFixture, node: Address) -> list[Shard]:
    return [shard for shard in store.keys.shards if cluster.owner_of(cluster.slot_of(shard.pool)) == node]


def one_task_in_each_shard(store: StoreFixture, prefix: str) -> list[Task]:
    """Return a new task of each shard, in their order."""
    found: dict[int, Task] = {}
    for number in itertools.count():
        id = f"{prefix}-{number}"
        found.setdefault(store.keys.shard_of(id).index, a_task(id=id, own_id=True))
        if len(found) == SHARDS:
            return [found[index] for index in range(SHARDS)]
    raise AssertionError


async def look_until_known(store: StoreFixture, away: list[Shard]) -> None:
    """Look until it is known which shards are away."""
    while len(store.away_shards) != len(away):
        await asyncio.sleep(0.02)
        await store.tasks.worker_snapshot(10)


@pytest.mark.parametrize("with_policies", [True, False])
async def test_the_shards_of_others_go_on_and_nothing_waits_for_a_node_that_was_killed(
    cluster: ClusterService, store: StoreFixture, with_policies: bool
) -> None:
    tasks = one_task_in_each_shard(store, "before")
    assert await store.tasks.create(tasks) == [True] * SHARDS
    store.policies.shared_read.grace_s = 60.0
    await store.policies.read()
    home = cluster.owner_of(cluster.slot_of(store.keys.policies))
    killed = home if with_policies else next(node for node in cluster.slot_owners() if node != home)
    away = shards_of(cluster, store, killed)
    cluster.kill(killed)
    async with asyncio.timeout(SOON_S):
        await look_until_known(store, away)
        seen = await store.tasks.worker_snapshot(100)
        assert {topic.shard for topic in seen.delay.topics} == {s.index for s in store.keys.shards if s not in away}
        requests = [ClaimRequest("order", shard.index, 10) for shard in store.keys.shards]
        results = await store.tasks.claim(requests, NOW, NOW + LEASE_MS)
        assert [isinstance(result, NodeDown) for result in results] == [s in away for s in store.keys.shards]
        claims = [claim for result in results if isinstance(result, ClaimResult) for claim in result.claims]
        assert await store.tasks.settle([done(claim) for claim in claims]) == [True] * (SHARDS - len(away))
        assert (await store.stats.counts(NOW)) == {}
        await store.stats.ping()
        await store.policies.current()
        await store.time.measure()
    if with_policies:
        with pytest.raises(NodeDown):
            await store.policies.change(topic_scope("order"), lambda before: before.merge({"paused": True}))


async def test_a_create_fails_for_the_shards_of_the_node_alone(cluster: ClusterService, store: StoreFixture) -> None:
    await store.client.open()
    [killed, *_] = cluster.slot_owners()
    away = shards_of(cluster, store, killed)
    cluster.kill(killed)
    results = await store.tasks.create(one_task_in_each_shard(store, "after"))
    assert [isinstance(result, NodeDown) for result in results] == [s in away for s in store.keys.shards]
    assert [result for result in results if not isinstance(result, NodeDown)] == [True] * (SHARDS - len(away))
    drawn = [store.away_shards.draw(a_task) for _ in range(50)]
    assert all(store.keys.shard_of(task.id) not in away for task in drawn)


async def test_a_process_that_only_creates_knows_all_shards_of_a_node_that_is_away(
    cluster: ClusterService, store: StoreFixture
) -> None:
    """It looks at none. Otherwise a create would have to fail for each of them."""
    await store.client.open()
    [killed, *_] = cluster.slot_owners()
    away = shards_of(cluster, store, killed)
    cluster.kill(killed)
    for _ in range(int(SOON_S / 0.02)):
        if len(store.away_shards) == len(away):
            break
        await asyncio.sleep(0.02)
    drawn = [store.away_shards.draw(a_task) for _ in range(50)]
    assert all(store.keys.shard_of(task.id) not in away for task in drawn)


async def test_a_node_that_hangs_is_not_waited_for_by_looks_and_is_back_when_it_answers(
    cluster: ClusterService, store: StoreFixture
) -> None:
    await store.tasks.create(one_task_in_each_shard(store, "before"))
    [hanging, *_] = cluster.slot_owners()
    away = shards_of(cluster, store, hanging)
    with cluster.pause(hanging):
        async with asyncio.timeout(SOON_S):
            await look_until_known(store, away)
            assert len((await store.tasks.worker_snapshot(100)).delay.topics) == SHARDS - len(away)
    while len(store.away_shards):
        await asyncio.sleep(0.02)
        await store.away_shards.ask_again()
    assert len((await store.tasks.worker_snapshot(100)).delay.topics) == SHARDS


async def test_a_node_that_takes_no_writes_is_away_until_it_takes_some_whatever_it_answers_to_looks(
    cluster: ClusterService, store: StoreFixture
) -> None:
    await store.client.open()
    [refusing, *_] = cluster.slot_owners()
    away = shards_of(cluster, store, refusing)
    cluster.run(refusing, "CONFIG", "SET", "min-replicas-to-write", 1)  # answers NOREPLICAS, as a full disk MISCONF
    results = await store.tasks.create(one_task_in_each_shard(store, "refused"))
    assert [isinstance(result, NodeDown) for result in results] == [shard in away for shard in store.keys.shards]
    for _ in range(2):
        await store.tasks.worker_snapshot(10)
        await store.away_shards.ask_again()
        assert len(store.away_shards) == len(away)
    assert all(store.keys.shard_of(store.away_shards.draw(a_task).id) not in away for _ in range(50))
    cluster.run(refusing, "CONFIG", "SET", "min-replicas-to-write", 0)
    await store.away_shards.ask_again()
    assert not store.client.away_tags


async def test_if_all_nodes_are_away_the_store_is(cluster: ClusterService, store: StoreFixture) -> None:
    for node in cluster.slot_owners():
        cluster.kill(node)
    with pytest.raises(StoreDown) as raised:
        await store.tasks.worker_snapshot(10)
    assert not isinstance(raised.value, NodeDown)
