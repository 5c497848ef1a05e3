"""Notices in a cluster: under the tags of shards, over one connection to each node, wherever their slots move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from later.core.task import new_id
from later.store.client import StoreClient
from tests.builders import NOW, a_task
from tests.cluster_service import run_cluster
from tests.store.inspection import ask
from tests.store.test_due_notices import listen
from tests.store_fixture import StoreFixture, open_as_it_is

pytestmark = pytest.mark.one_server


class Nodes:
    """The nodes of a cluster that have slots, by their names. All of them are the one server of the test.

    It takes SPUBLISH and SSUBSCRIBE outside a cluster, too. A shard's index modulo the number of nodes is its node.
    """

    def __init__(self, store: StoreFixture) -> None:
        self._shards = {shard.due_notices: shard.index for shard in store.keys.shards}
        self.names = ["a"]
        self.asked_for: list[str] = []
        """The nodes to which connections were made."""

    def node_of(self, channel: bytes) -> str | None:
        return self.names[self._shards[channel] % len(self.names)] if self.names else None


@pytest.fixture
def nodes(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes, new_connection = Nodes(store), StoreClient.new_connection

    def connect(client: StoreClient, key: bytes) -> AbstractConnection:
        nodes.asked_for.append(str(nodes.node_of(key)))
        return new_connection(client, key)

    monkeypatch.setattr(StoreClient, "is_cluster", True)
    monkeypatch.setattr(StoreClient, "node_of", lambda client, key: nodes.node_of(key))
    monkeypatch.setattr(StoreClient, "new_connection", connect)
    monkeypatch.setattr("later.store.subscriptions.REGROUP_EVERY_S", 0.01)
    return nodes


@pytest.fixture
async def other(store: StoreFixture, nodes: Nodes, server_url: str) -> AsyncIterator[StoreFixture]:
    """The same store in another process."""
    async with open_as_it_is(server_url, len(store.keys.shards)) as opened:
        yield opened


async def channels_heard(store: StoreFixture) -> list[bytes]:
    [channels] = await ask(store, [("PUBSUB", "SHARDCHANNELS")])
    return sorted(channels)


async def connections(store: StoreFixture) -> int:
    [clients] = await ask(store, [("CLIENT", "LIST", "TYPE", "PUBSUB")])
    return int(clients.count(b"\n"))


class TestChannelsOfShards:
    async def test_a_create_in_any_shard_is_heard_and_its_own_are_not(
        self, store: StoreFixture, other: StoreFixture
    ) -> None:
        async with listen(store) as listener:
            await store.tasks.create([a_task(callback="", topic="own") for _ in range(10)])
            for number in range(20):
                await other.tasks.create([a_task(callback="", topic=f"t{number}")])
                assert await listener.next() == (f"t{number}", NOW)
            assert listener.heard.empty()

    async def test_one_connection_has_the_channels_of_all_shards_of_a_node(
        self, store: StoreFixture, nodes: Nodes
    ) -> None:
        async with listen(store):
            assert await channels_heard(store) == sorted(shard.due_notices for shard in store.keys.shards)
            assert await connections(store) == 1

    async def test_moves_of_tasks_are_heard_by_the_process_that_made_them(
        self, store: StoreFixture, nodes: Nodes
    ) -> None:
        async with listen(store) as listener:
            await store.due_notices.send(["x", "y"], NOW)
            assert {await listener.next(), await listener.next()} == {("x", NOW), ("y", NOW)}

    async def test_the_subscription_is_made_again_after_its_connection_was_lost(
        self, store: StoreFixture, other: StoreFixture
    ) -> None:
        async with listen(store) as listener:
            await ask(store, [("CLIENT", "KILL", "TYPE", "pubsub")])
            await listener.until_subscribed()
            await other.tasks.create([a_task(callback="")])
            assert await listener.next() == ("order", NOW)


class TestNodes:
    async def test_each_node_that_has_shards_gets_one_connection(self, store: StoreFixture, nodes: Nodes) -> None:
        nodes.names = ["a", "b", "c"]
        used = min(3, len(store.keys.shards))
        async with listen(store):
            assert await connections(store) == used
            assert await channels_heard(store) == sorted(shard.due_notices for shard in store.keys.shards)
        assert sorted(nodes.asked_for) == nodes.names[:used]

    async def test_shards_that_move_are_heard_from_the_node_that_has_them(
        self, store: StoreFixture, other: StoreFixture, nodes: Nodes
    ) -> None:
        async with listen(store) as listener:
            nodes.names = ["b"]
            await listener.until_subscribed()
            await other.tasks.create([a_task(callback="")])
            assert await listener.next() == ("order", NOW)
            assert await connections(store) == 1
        assert nodes.asked_for == ["a", "b"]

    async def test_shards_that_nobody_serves_are_heard_once_somebody_does(
        self, store: StoreFixture, other: StoreFixture, nodes: Nodes
    ) -> None:
        async with listen(store) as listener:
            nodes.names = []
            while await connections(store):
                pass
            nodes.names = ["a"]
            await listener.until_subscribed()
            await other.tasks.create([a_task(callback="")])
            assert await listener.next() == ("order", NOW)
            assert listener.subscribed.empty()

    async def test_a_node_whose_connections_fail_is_tried_again_until_the_listener_ends(
        self, store: StoreFixture, other: StoreFixture, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with listen(store) as listener:
            reached, connect = asyncio.Event(), StoreClient.new_connection

            def refuse(client: StoreClient, key: bytes) -> Any:
                reached.set()
                raise OSError("refused")

            with monkeypatch.context() as patch:
                patch.setattr(StoreClient, "new_connection", refuse)
                await ask(store, [("CLIENT", "KILL", "TYPE", "pubsub")])
                await reached.wait()
            assert StoreClient.new_connection is connect
            await listener.until_subscribed()
            await other.tasks.create([a_task(callback="")])
            assert await listener.next() == ("order", NOW)


@pytest.mark.system
class TestSlotThatMoves:
    async def test_notices_of_its_shard_are_heard_from_its_new_node(self, tmp_path: Path) -> None:
        with run_cluster(tmp_path, 2, replicas=0) as service:
            async with open_as_it_is(service.url, 16) as store, open_as_it_is(service.url, 16) as other:
                source, target = service.first_primaries
                shard = store.keys.shards[0]
                slot = service.slot_of(shard.pool)
                assert service.owner_of(slot) == source
                async with listen(store) as listener:
                    await other.tasks.create([a_task(id=other.keys.fit_id(new_id(), shard), callback="")])
                    assert await listener.next() == ("order", NOW)
                    await asyncio.to_thread(service.migrate_slots, source, target, [(slot, slot)])
                    await listener.until_subscribed(2)
                    await other.tasks.create(
                        [a_task(id=other.keys.fit_id(new_id(), shard), callback="", topic="moved")]
                    )
                    assert await listener.next() == ("moved", NOW)
                    assert store.client.node_of(shard.due_notices) == target
