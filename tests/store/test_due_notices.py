"""Notices of due tasks, and a process that listens for those of another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from later.core.clock import Interval
from later.store.pull_plan import PullRequest, PullResult, PullTopic
from later.store.scripts import Command
from tests.builders import NOW, a_task
from tests.store.inspection import ask
from tests.store.test_cost import commands_of
from tests.store_fixture import StoreFixture, open_as_it_is


class Listener:
    """A process that listens."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.subscribed: asyncio.Queue[None] = asyncio.Queue()

    async def next(self) -> tuple[str, int]:
        async with asyncio.timeout(10):
            return await self.heard.get()

    async def until_subscribed(self, connections: int = 1) -> None:
        async with asyncio.timeout(10):
            for _ in range(connections):
                await self.subscribed.get()


def node_count(store: StoreFixture) -> int:
    """Return how many servers have shards: a process listens over a connection to each."""
    return len({store.client.node_of(shard.due_notices) for shard in store.keys.shards})


@asynccontextmanager
async def listen(store: StoreFixture) -> AsyncIterator[Listener]:
    await store.client.open()
    listener = Listener()
    task = asyncio.create_task(
        store.due_notices.listen(
            lambda topic, due_at: listener.heard.put_nowait((topic, due_at)),
            lambda: listener.subscribed.put_nowait(None),
        )
    )
    try:
        await listener.until_subscribed(node_count(store))
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def other(store: StoreFixture, store_url: str) -> AsyncIterator[StoreFixture]:
    """The same store in another process."""
    async with open_as_it_is(store_url, len(store.keys.shards)) as opened:
        yield opened


async def test_a_create_of_another_process_is_heard_and_its_own_are_not(
    store: StoreFixture, other: StoreFixture
) -> None:
    async with listen(store) as listener:
        await store.tasks.create([a_task(callback="", topic="own")])
        await other.tasks.create([a_task(callback="", topic="shop/ä b", delay=n) for n in (3, 2, 90)])
        assert await listener.next() == ("shop/ä b", NOW + 2000)
        await store.tasks.create([a_task(callback="", topic="own")])
        await other.tasks.create([a_task(callback="", topic="own")])
        assert await listener.next() == ("own", NOW)
        assert listener.heard.empty()


async def test_a_release_of_another_process_is_heard(store: StoreFixture, other: StoreFixture) -> None:
    await store.tasks.create([a_task(callback="")])
    request = PullRequest([PullTopic("order", 1, 1000)], 1)
    async with listen(store) as listener:
        [result] = await other.pulls.claim([request], Interval(NOW, NOW))
        assert isinstance(result, PullResult)
        assert await other.pulls.release([pulled.lease for pulled in result.tasks]) == [True]
        assert await listener.next() == ("order", NOW)


@pytest.mark.one_server
async def test_nothing_is_published_of_tasks_with_a_callback_or_due_much_later(store: StoreFixture) -> None:
    tasks = [a_task() for _ in range(10)] + [a_task(topic="jobs", callback="", delay=60.001) for _ in range(10)]
    assert "publish" not in await commands_of(store, lambda: store.tasks.create(tasks))
    tasks = [a_task(topic="jobs", callback="", delay=60) for _ in range(100)]
    assert (await commands_of(store, lambda: store.tasks.create(tasks)))["publish"] == 1


async def test_the_subscription_is_made_again_after_its_connection_was_lost(
    store: StoreFixture, other: StoreFixture
) -> None:
    async with listen(store) as listener:
        await ask(store, [("CLIENT", "KILL", "TYPE", "pubsub")])
        await listener.until_subscribed(node_count(store))
        await other.tasks.create([a_task(callback="")])
        assert await listener.next() == ("order", NOW)


async def test_a_message_that_is_no_notice_is_ignored(store: StoreFixture, other: StoreFixture) -> None:
    async with listen(store) as listener:
        for text in (b"", b"x order", b"5", b"-1 order", b"\xff\xff"):
            await ask(store, [_publish(store, text)])
        await other.tasks.create([a_task(callback="")])
        assert await listener.next() == ("order", NOW)


def _publish(store: StoreFixture, text: bytes) -> Command:
    if store.client.is_cluster:
        return ("SPUBLISH", store.keys.shards[0].due_notices, text)
    return ("PUBLISH", store.keys.due_notices, text)


async def test_a_silent_connection_is_checked_and_goes_on(
    store: StoreFixture, other: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("later.store.subscriptions.CHECK_EVERY_S", 0.001)
    async with listen(store) as listener:
        await asyncio.gather(*(store.stats.ping() for _ in range(20)))
        await other.tasks.create([a_task(callback="")])
        assert await listener.next() == ("order", NOW)
        assert listener.subscribed.empty()
