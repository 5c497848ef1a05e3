"""What was remembered long enough is forgotten: many of them over many ticks, and none is waited for."""

from __future__ import annotations

import pytest

from later.worker.requeue import TRIM_LIMIT, Trimmer
from tests.builders import NOW
from tests.store_fixture import StoreFixture


@pytest.fixture
def shards() -> int:
    """The limit is that of each shard."""
    return 1


async def remember(store: StoreFixture, count: int) -> None:
    done = store.keys.shards[0].done
    await store.redis.zadd(done.decode(), {f"t{n}": NOW - 1 for n in range(count)})


async def test_where_more_is_to_be_forgotten_it_says_so_until_nothing_is(store: StoreFixture) -> None:
    await remember(store, TRIM_LIMIT + 1)
    trim = Trimmer(store)
    assert [await trim.tick(NOW), await trim.tick(NOW + 100), await trim.tick(NOW + 200)] == [True, False, False]
    assert await store.stats.remembered_ids() == 0


async def test_when_nothing_is_left_the_next_look_is_a_second_later(store: StoreFixture) -> None:
    trim = Trimmer(store)
    await trim.tick(NOW)
    await remember(store, 1)
    await trim.tick(NOW + 999)
    assert await store.stats.remembered_ids() == 1
    await trim.tick(NOW + 1000)
    assert await store.stats.remembered_ids() == 0
