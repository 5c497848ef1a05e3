"""Trimming of remembered ids: many over several ticks, otherwise once a second."""

from __future__ import annotations

import pytest

from later.worker.shard_selector import ShardSelector
from later.worker.trim import TRIM_LIMIT, Trimmer
from tests.builders import NOW, a_task
from tests.store_fixture import StoreFixture


@pytest.fixture
def shards() -> int:
    """The limit is that of each shard."""
    return 1


async def remember(store: StoreFixture, count: int) -> None:
    done = store.keys.shards[0].done
    await store.redis.zadd(done.decode(), {f"t{n}": NOW - 1 for n in range(count)})


async def test_a_tick_reports_whether_more_ids_are_left_to_forget(store: StoreFixture) -> None:
    await remember(store, TRIM_LIMIT + 1)
    trimmer = Trimmer(store, ShardSelector(len(store.keys.shards)))
    more = [await trimmer.tick(now) for now in (NOW, NOW + 100, NOW + 200)]
    assert more == [True, False, False]
    assert await store.stats.remembered_ids() == 0


async def test_ids_are_trimmed_again_after_a_second(store: StoreFixture) -> None:
    trimmer = Trimmer(store, ShardSelector(len(store.keys.shards)))
    await trimmer.tick(NOW)
    await remember(store, 1)
    await trimmer.tick(NOW + 999)
    assert await store.stats.remembered_ids() == 1
    await trimmer.tick(NOW + 1000)
    assert await store.stats.remembered_ids() == 0


async def test_topics_without_tasks_are_forgotten_a_slice_at_a_time(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n}", own_id=True, topic=f"topic-{n}") for n in range(900)])
    await store.edits.delete([f"t{n}" for n in range(1, 900)])
    index = store.keys.shards[0].topics.decode()
    trimmer = Trimmer(store, ShardSelector(len(store.keys.shards)))
    await trimmer.tick(NOW)
    assert 1 < await store.redis.zcard(index) < 900
    for second in range(1, 5):
        await trimmer.tick(NOW + second * 1000)
    assert await store.redis.zrange(index, 0, -1) == [b"topic-0"]


async def test_a_trim_that_finds_nothing_takes_one_round_trip(store: StoreFixture) -> None:
    await Trimmer(store, ShardSelector(len(store.keys.shards))).tick(NOW)  # loads the script
    before = (await store.redis.info("stats"))["total_reads_processed"]
    await Trimmer(store, ShardSelector(len(store.keys.shards))).tick(NOW)
    after = (await store.redis.info("stats"))["total_reads_processed"]
    assert after - before == 2  # the second is that of the count
