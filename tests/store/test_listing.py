"""Pages of a bucket: in order over all shards, full, stable while tasks come and go, fast among many entries."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from later.core.errors import StoreDown, UnreadableBody
from later.core.task import Task, pack_id
from later.store.codec import MAX_BODIES
from later.store.cursor import BucketCursor
from later.store.keys import Bucket
from later.store.types import BucketRange, TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import LEASE_MS, ask, claim_due, died, failed, list_page
from tests.store_fixture import StoreFixture

DELAYED = BucketRange("order", Bucket.DELAY)


async def create(store: StoreFixture, delays: Sequence[float], **changes: Any) -> list[Task]:
    """Create tasks with these delays; return them in the order of the listing."""
    tasks = [a_task(delay=delay, **changes) for delay in delays]
    await store.tasks.create(tasks)
    return sorted(tasks, key=lambda task: (task.execute_at, pack_id(task.id)))


async def pages(store: StoreFixture, bucket_range: BucketRange, limit: int) -> AsyncIterator[list[TaskRecord]]:
    while True:
        page = await list_page(store, bucket_range, limit)
        yield page.tasks
        if not page.more:
            return
        assert len(page.tasks) == limit
        bucket_range = bucket_range._replace(after=(page.tasks[-1].score, page.tasks[-1].id))


async def ids(store: StoreFixture, bucket_range: BucketRange, limit: int = 1000) -> list[str]:
    return [task.id async for page in pages(store, bucket_range, limit) for task in page]


def ids_of(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


async def test_an_unknown_topic_is_an_empty_page(store: StoreFixture) -> None:
    assert await list_page(store, DELAYED, 10) == ([], False)


async def test_tasks_are_listed_as_a_query_returns_them(store: StoreFixture) -> None:
    [task] = await create(store, [15], ttl=60, headers={"X-A": "b"})
    page = await list_page(store, DELAYED, 10)
    assert page.tasks == await store.lookup.query([task.id])


@pytest.mark.parametrize("limit", [1, 2, 7, 99, 100, 101, 250, 1000])
async def test_pages_are_in_order_over_all_shards_and_full(store: StoreFixture, limit: int) -> None:
    rng = random.Random(limit)
    count = 30 if limit == 1 else 250
    tasks = await create(store, [rng.randrange(60) for _ in range(count)])
    await create(store, [5], topic="mail")
    assert await ids(store, DELAYED, limit) == ids_of(tasks)


async def test_ids_of_callers_are_ordered_by_their_bytes_among_those_of_later(store: StoreFixture) -> None:
    own = [a_task(id=id, delay=1) for id in ("a", "A", "a-", "a.b", "~", "ab", "9", "a" * 128)]
    await store.tasks.create(own)
    await create(store, [1] * 20)
    tasks = sorted([found.id for found in (await list_page(store, DELAYED, 100)).tasks], key=pack_id)
    assert await ids(store, DELAYED, 3) == tasks
    assert len(tasks) == 28


async def test_a_last_page_that_is_full_says_that_it_is_the_last(store: StoreFixture) -> None:
    await create(store, range(10))
    assert not (await list_page(store, DELAYED, 10)).more
    assert (await list_page(store, DELAYED, 9)).more


async def test_bounds_are_from_and_below(store: StoreFixture) -> None:
    tasks = await create(store, [1, 2, 2, 3, 4])
    bucket_range = DELAYED._replace(since=NOW + 2000, before=NOW + 4000)
    assert await ids(store, bucket_range) == ids_of(tasks[1:4])
    assert await ids(store, bucket_range, 1) == ids_of(tasks[1:4])
    assert await ids(store, bucket_range._replace(before=NOW + 2000)) == []


async def test_a_cursor_before_the_first_bound_does_not_lower_it(store: StoreFixture) -> None:
    tasks = await create(store, [1, 2, 3])
    after = (tasks[0].execute_at, tasks[0].id)
    assert await ids(store, DELAYED._replace(since=NOW + 3000, after=after)) == [tasks[2].id]


class TestStates:
    async def test_tasks_in_flight_are_listed_by_the_end_of_their_lease(self, store: StoreFixture) -> None:
        tasks = await create(store, [0, 1])
        await claim_due(store, lease_end=NOW + LEASE_MS)
        await claim_due(store, NOW + 1000, lease_end=NOW + LEASE_MS - 1)
        page = await list_page(store, BucketRange("order", Bucket.UNACK), 10)
        assert [(found.id, found.score, found.attempts) for found in page.tasks] == [
            (tasks[1].id, NOW + LEASE_MS - 1, 1),
            (tasks[0].id, NOW + LEASE_MS, 1),
        ]

    async def test_failed_tasks_are_listed_by_the_end_of_their_pause_and_dead_ones_by_their_deaths(
        self, store: StoreFixture
    ) -> None:
        tasks = await create(store, [0] * 6)
        claims = {claim.id: claim for claim in await claim_due(store)}
        errors, dead = tasks[:3], tasks[3:]
        await store.tasks.settle([failed(claims[task.id], NOW + 9 - n) for n, task in enumerate(errors)])
        await store.tasks.settle([died(claims[task.id], NOW + 9 - n) for n, task in enumerate(dead)])
        assert await ids(store, BucketRange("order", Bucket.ERROR), 2) == ids_of(errors[::-1])
        assert await ids(store, BucketRange("order", Bucket.DEAD), 2) == ids_of(dead[::-1])
        assert await ids(store, BucketRange("order", Bucket.DEAD, before=NOW + 8)) == [dead[2].id]

    async def test_a_body_that_cannot_be_read_is_listed_too(self, store: StoreFixture) -> None:
        [task] = await create(store, [1])
        await ask(store, [("HSET", store.keys.shard_of(task.id).pool, pack_id(task.id), b"\xc1")])
        [found] = (await list_page(store, DELAYED, 10)).tasks
        assert (found.id, found.state) == (task.id, Bucket.DELAY)
        assert isinstance(found.task, UnreadableBody)


class TestChanges:
    @pytest.mark.parametrize("same_time", [True, False])
    async def test_a_task_that_stays_is_listed_once(self, store: StoreFixture, same_time: bool) -> None:
        rng = random.Random(7)
        delays = [60 if same_time else rng.randrange(120) for _ in range(300)]
        staying_tasks = await create(store, delays)
        others = await create(store, delays)
        seen: list[str] = []
        async for page in pages(store, DELAYED, 10):
            seen += [found.id for found in page]
            await store.edits.delete([task.id for task in others[:20]])
            others = others[20:] + await create(store, [60 if same_time else rng.randrange(120) for _ in range(10)])
            if len(seen) > 1200:
                break
        staying = {task.id for task in staying_tasks}
        assert [id for id in seen if id in staying] == ids_of(staying_tasks)
        assert len(set(seen)) == len(seen)

    async def test_a_cursor_outlives_its_task(self, store: StoreFixture) -> None:
        tasks = await create(store, [5] * 40)
        cursor = tasks[19]
        bucket_range = DELAYED._replace(after=(cursor.execute_at, cursor.id))
        await store.edits.delete([cursor.id])
        assert await ids(store, bucket_range, 3) == ids_of(tasks[20:])

    @pytest.mark.parametrize("limit", [10, 200])
    async def test_a_task_that_moved_since_its_entry_was_read_is_not_listed_and_the_page_stays_full(
        self, store: StoreFixture, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        due = await create(store, [0] * 150)
        later = await create(store, [60] * 300)
        run_once_after_fetch(monkeypatch, lambda: claim_due(store))
        page = await list_page(store, DELAYED, limit)
        assert [found.id for found in page.tasks] == ids_of(later[:limit])
        assert {found.state for found in page.tasks} == {Bucket.DELAY}
        assert page.more
        assert await ids(store, BucketRange("order", Bucket.UNACK)) == ids_of(due)

    async def test_if_all_tasks_left_meanwhile_the_last_page_is_empty(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tasks = await create(store, [0] * 150)
        run_once_after_fetch(monkeypatch, lambda: store.edits.delete(ids_of(tasks)))
        assert await list_page(store, DELAYED, 10) == ([], False)


def run_once_after_fetch(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Run `act` once, after entries of the bucket were read and before their bodies are."""
    original, done = BucketCursor.fetch, list[bool]()

    async def then_act(cursor: BucketCursor, count: int) -> Any:
        entries = await original(cursor, count)
        if not done:
            done.append(True)
            await act()
        return entries

    monkeypatch.setattr(BucketCursor, "fetch", then_act)


async def test_no_more_bodies_are_read_at_once_than_fit_into_memory(store: StoreFixture, reads: list[int]) -> None:
    await create(store, [1] * 450)
    assert len((await list_page(store, DELAYED, 420)).tasks) == 420
    assert max(reads) <= MAX_BODIES


@pytest.fixture
def reads(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many bodies each round trip asks for."""
    counts: list[int] = []
    original = store.client.execute_each

    async def counted(verb: str, commands: Any) -> Any:
        counts.append(sum(len(command) - 12 for command in commands if verb != "create" and command[2] == 8))
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", counted)
    return counts


async def test_a_shard_that_cannot_be_read_does_not_pass_for_an_empty_one(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(store, [1] * 50)
    original = store.client.execute_each

    async def broken(verb: str, commands: Any) -> Any:
        answers = await original(verb, commands)
        return [StoreDown("away"), *answers[1:]]

    monkeypatch.setattr(store.client, "execute_each", broken)
    with pytest.raises(StoreDown):
        await list_page(store, DELAYED, 10)


async def test_a_page_takes_few_steps_among_many_entries_of_one_time(store: StoreFixture) -> None:
    """Binary search: twenty thousand entries before a position are skipped in at most fifteen steps in each shard."""
    tasks = await create(store, [60] * 20_000)
    cursor = tasks[15_000]
    await store.redis.config_resetstat()
    page = await list_page(store, DELAYED._replace(after=(cursor.execute_at, cursor.id)), 10)
    assert [found.id for found in page.tasks] == ids_of(tasks[15_001:15_011])
    stats: dict[str, dict[str, int]] = await store.redis.info("commandstats")
    assert stats["cmdstat_zrange"]["calls"] <= 2 * 17 * len(store.keys.shards)


async def test_a_caller_that_leaves_many_out_gets_larger_slices(store: StoreFixture) -> None:
    tasks = await create(store, [1] * 250)
    async with aclosing(store.listing.slices([DELAYED], 2)) as slices:
        sizes = [len(found) async for found, _, _ in slices]
    assert sum(sizes) == len(tasks)
    assert sizes[0] == 3
    assert len(sizes) <= 4
