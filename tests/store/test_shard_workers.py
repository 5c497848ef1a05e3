"""The workers that look at shards: who looked lately is listed, and nobody else."""

from __future__ import annotations

import pytest

from later.core.errors import NodeDown
from later.core.shard_owners import CensusBacklog
from later.store.keys import hash_tag
from later.store.shard_workers import AHEAD_MS, FORGET_MS, LOOKS_MS, encode_backlog
from tests.builders import NOW
from tests.store.away import shards_away, tags_away
from tests.store_fixture import StoreFixture


async def workers_at(store: StoreFixture, now: int) -> set[str]:
    """Return the workers that one sees which has never looked itself."""
    return set((await store.shard_workers.tell("watcher", None, now)).workers)


async def test_workers_that_looked_lately_are_listed(store: StoreFixture) -> None:
    await store.shard_workers.tell("a", NOW, NOW)
    assert (await store.shard_workers.tell("b", NOW - 100, NOW)).workers == ["b", "a"]
    assert await workers_at(store, NOW + LOOKS_MS) == {"a"}
    assert await workers_at(store, NOW + LOOKS_MS + 1) == set()


async def test_workers_whose_slots_are_full_are_listed_apart_until_one_is_free(store: StoreFixture) -> None:
    await store.shard_workers.tell("a", NOW, NOW)
    read = await store.shard_workers.tell("a", NOW, NOW, is_full=True)
    assert (read.workers, read.full) == ([], ["a"])
    read = await store.shard_workers.tell("a", NOW, NOW)
    assert (read.workers, read.full) == (["a"], [])


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_worker_that_stops_is_removed_whether_its_slots_are_full_or_not(
    store: StoreFixture, is_full: bool
) -> None:
    await store.shard_workers.tell("a", NOW, NOW, is_full=is_full)
    await store.shard_workers.remove("a")
    assert await store.redis.zcard(store.keys.shard_workers) == 0


@pytest.mark.parametrize("looked_at", [None, NOW - LOOKS_MS, NOW + AHEAD_MS])
async def test_a_worker_that_beats_but_has_not_looked_lately_is_removed(
    store: StoreFixture, looked_at: int | None
) -> None:
    await store.shard_workers.tell("a", NOW, NOW)
    await store.shard_workers.tell("a", looked_at, NOW)
    assert await workers_at(store, NOW) == set()


async def test_looks_before_the_clock_was_set_back_count_for_nothing(store: StoreFixture) -> None:
    await store.shard_workers.tell("a", NOW, NOW)
    assert await workers_at(store, NOW - AHEAD_MS - 1) == set()
    await store.shard_workers.tell("b", NOW - FORGET_MS - 1, NOW - FORGET_MS - 1)
    assert await store.redis.zrange(store.keys.shard_workers, 0, -1) == [b"b"]


async def test_workers_that_were_killed_are_forgotten(store: StoreFixture) -> None:
    await store.shard_workers.tell("a", NOW, NOW)
    await store.shard_workers.tell("b", NOW + FORGET_MS, NOW + FORGET_MS)
    assert await store.redis.zrange(store.keys.shard_workers, 0, -1) == [b"b"]


@pytest.mark.parametrize("backlog", [CensusBacklog(NOW, NOW - 5000), CensusBacklog(NOW, None)])
async def test_the_backlog_of_the_last_census_is_read_with_it(store: StoreFixture, backlog: CensusBacklog) -> None:
    await store.redis.hset(store.keys.snapshot, "oldest", encode_backlog(backlog))
    assert (await store.shard_workers.tell("a", NOW, NOW)).backlog == backlog


@pytest.mark.parametrize("stored", [b"", b"soon", b"1 2 3", b"\xff"])
async def test_a_backlog_that_cannot_be_read_is_none(store: StoreFixture, stored: bytes) -> None:
    await store.redis.hset(store.keys.snapshot, "oldest", stored)
    assert (await store.shard_workers.tell("a", NOW, NOW)).backlog is None


async def test_while_the_census_is_away_the_workers_are_read_all_the_same(store: StoreFixture) -> None:
    with tags_away(store.client, [hash_tag(store.keys.snapshot)]):
        assert await store.shard_workers.tell("a", NOW, NOW) == (["a"], [], None)


@pytest.mark.one_server
async def test_a_worker_whose_shards_are_all_away_has_looked_well(store: StoreFixture) -> None:
    with shards_away(store, *store.keys.shards):
        assert (await store.tasks.worker_snapshot(1, shards=[0])).delay.topics == []
        with pytest.raises(NodeDown):
            await store.tasks.worker_snapshot(1)
