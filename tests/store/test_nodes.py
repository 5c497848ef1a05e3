"""The wire to a cluster: redirects, refusals, lost answers, and maps that are old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from later.address_types import Address
from later.core.clock import Clock
from later.core.errors import NodeDown, StoreDown, StoreMismatch
from later.core.hash_slots import SLOTS, key_slot
from later.store.cluster_client import ClusterClient, connect_client
from later.store.keys import Keys
from later.store.scripts import CREATE, SPLIT
from later.store.settings import StoreSettings
from later.store.slot_map import command_slot, parse_map, shard_tags
from tests.store.scripted_cluster import CLOSED, SILENT, ScriptedCluster, in_turn, run_scripted_cluster

TIMEOUT_S = 2.0
KEY = b"{b}x"
SLOT = 3300
"""The slot of the key: the first of two nodes has it."""
GET = ("GET", KEY)
WRITE = ("HSET", KEY, "field", 1)
OTHER = ("GET", b"{a}x")
"""A command whose key the last node has."""


@pytest.fixture(autouse=True)
def _patient_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node of this very process take its time: on a busy machine that may be long."""
    monkeypatch.setattr("later.store.cluster_map.ANSWER_TIMEOUT_S", TIMEOUT_S)


@asynccontextmanager
async def a_client(
    cluster: ScriptedCluster, timeout_s: float = TIMEOUT_S, url: str = ""
) -> AsyncIterator[ClusterClient]:
    settings = StoreSettings(url=url or cluster.url, prefix="later", timeout_s=timeout_s)
    client = connect_client(settings, Clock(time.monotonic, time.time))
    assert isinstance(client, ClusterClient)
    async with aclosing(client):
        yield client


@asynccontextmanager
async def a_checked_client(cluster: ScriptedCluster) -> AsyncIterator[ClusterClient]:
    """A client that checks servers, and nothing besides."""

    async def check(execute: Any) -> str:
        return "any"

    settings = StoreSettings(url=cluster.url, prefix="later", timeout_s=TIMEOUT_S)
    client = connect_client(settings, Clock(time.monotonic, time.time), check=check)
    assert isinstance(client, ClusterClient)
    async with aclosing(client):
        yield client


class TestSlots:
    def test_the_slot_is_that_of_the_hash_tag(self) -> None:
        assert key_slot(b"123456789") == 0x31C3
        assert key_slot(KEY) == key_slot(b"b") == SLOT
        assert key_slot(b"foo{}{bar}") == 8363
        assert key_slot(b"foo{{bar}}zap") == key_slot(b"{bar")

    def test_the_key_of_a_script_is_its_first_and_some_commands_name_none(self) -> None:
        assert command_slot(CREATE.call([KEY, b"other"], [1])) == SLOT
        assert command_slot(SPLIT.read([KEY], [])) == SLOT
        assert command_slot(("HGET", "{b}y", "x")) == SLOT
        assert command_slot(("TIME",)) is None

    @pytest.mark.parametrize("shards", [16, 64, 256])
    @pytest.mark.parametrize("nodes", [3, 6, 12])
    def test_shards_of_chosen_tags_fall_evenly_on_equal_nodes(self, shards: int, nodes: int) -> None:
        slots = [key_slot(shard.pool) for shard in Keys("later", shards, tags=2).shards]
        counts = [sum(i * SLOTS // nodes <= slot < (i + 1) * SLOTS // nodes for slot in slots) for i in range(nodes)]
        assert sum(counts) == shards
        assert max(counts) - min(counts) <= 2
        assert len(set(slots)) == shards

    def test_their_tags_never_change(self) -> None:
        assert shard_tags("later", 256)[:4] == ("later:0.40", "later:1.65", "later:2.217", "later:3.273")

    def test_after_a_failover_the_owner_is_the_primary_that_is_online(self) -> None:
        """A primary that failed is still listed as one, in the same shard."""
        failed = [b"port", 1, b"ip", b"", b"role", b"master", b"health", b"fail"]
        online = [b"port", 2, b"endpoint", b"?", b"role", b"master", b"health", b"online"]
        replica = [b"port", 3, b"ip", b"h3", b"role", b"slave", b"health", b"online"]
        shards = [[b"slots", [0, SLOTS - 1], b"nodes", [failed, replica, online]]]
        found = parse_map(shards, None, b"cluster_state:ok\r\n", Address("asked", 9), uses_tls=False)
        assert set(found.owners) == {Address("asked", 2)}
        assert set(found.nodes) == {Address("asked", 1), Address("asked", 2), Address("h3", 3)}


async def test_commands_go_to_the_nodes_of_their_keys_and_the_answers_come_in_order() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        for number, node in enumerate(cluster.nodes):
            node.answer = in_turn(number)
        assert await client.execute_all("get", [OTHER, GET, OTHER]) == [1, 0, 1]
        assert [len(node.received) for node in cluster.nodes] == [1, 2]


async def test_a_moved_slot_is_looked_for_where_the_node_says_and_remembered() -> None:
    async with run_scripted_cluster(3) as cluster, a_client(cluster) as client:
        first, second, third = cluster.nodes
        cluster.owners = [first, second]
        first.answer = lambda command: Exception(f"MOVED {SLOT} 127.0.0.1:{third.address.port}")
        for node in cluster.nodes:
            node.epoch = 0  # the nodes' maps are as old as the client's
        third.answer = lambda command: b"here"
        assert await client.execute("get", GET) == b"here"
        assert third.received == [(False, [b"GET", KEY])], "MOVED is not followed behind ASKING"
        assert await client.execute("get", GET) == b"here"


async def test_nodes_that_name_each_other_end_the_tries_with_their_reason() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        first.answer = lambda command: Exception(f"MOVED {SLOT} 127.0.0.1:{second.address.port}")
        second.answer = lambda command: Exception(f"MOVED {SLOT} 127.0.0.1:{first.address.port}")
        with pytest.raises(StoreDown, match="do not agree") as failed:
            await client.execute("set", WRITE)
        assert not failed.value.unknown
        assert len(first.received) + len(second.received) < 100, "they are not asked without a pause"


async def test_a_slot_that_is_being_moved_is_asked_for_and_its_owner_stays() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        first.answer = lambda command: Exception(f"ASK {SLOT} 127.0.0.1:{second.address.port}")
        second.answer = lambda command: b"there"
        assert await client.execute_all("get", [GET, GET]) == [b"there", b"there"]
        assert [asked for asked, _ in second.received] == [True, True]
        assert await client.execute("get", GET) == b"there"
        assert len(first.received) == 3


async def test_a_script_is_loaded_where_it_is_unknown_also_behind_asking() -> None:
    script = SPLIT.call([KEY], [])
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        first.answer = lambda command: Exception(f"ASK {SLOT} 127.0.0.1:{second.address.port}")
        second.answer = in_turn(Exception("NOSCRIPT No matching script."), b"done")
        assert await client.execute("split", script) == b"done"
        assert [(asked, command[0]) for asked, command in second.received] == [
            (True, b"EVALSHA"), (False, b"SCRIPT"), (True, b"EVALSHA"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "refusal",
    ["TRYAGAIN Multiple keys", "CLUSTERDOWN The cluster is down", "READONLY You can't write",
     "LOADING Redis is loading", "MASTERDOWN Link with MASTER is down"],
)  # fmt: skip
async def test_a_command_that_a_node_refuses_for_now_is_sent_again(refusal: str) -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        cluster.nodes[0].answer = in_turn(Exception(refusal), Exception(refusal), b"1")
        cluster.nodes[1].answer = lambda command: b"2"
        assert await client.execute_all("set", [WRITE, OTHER]) == [b"1", b"2"]
        assert len(cluster.nodes[0].received) == 3
        assert len(cluster.nodes[1].received) == 1


async def test_a_refusal_for_longer_than_the_tries_last_is_that_commands_answer_and_nobody_elses() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        cluster.nodes[0].answer = lambda command: Exception("TRYAGAIN Multiple keys")
        started = time.monotonic()
        refused, answer = await client.execute_each("set", [WRITE, OTHER])
        assert time.monotonic() - started < TIMEOUT_S
        assert isinstance(refused, StoreDown)
        assert not refused.unknown
        assert answer == b"OK"


async def test_a_script_is_loaded_also_where_the_last_try_finds_a_new_primary() -> None:
    """A failover may take as long as the tries last. Then the new primary must get the script that it lacks."""
    script = SPLIT.call([KEY], [])
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        started = time.monotonic()

        def answer_in_failover(command: Sequence[bytes]) -> Exception:
            if time.monotonic() - started < 0.7 * TIMEOUT_S:
                return Exception("CLUSTERDOWN The cluster is down")
            time.sleep(0.1 * TIMEOUT_S)  # the answer to the last try comes when the tries are over
            return Exception(f"MOVED {SLOT} 127.0.0.1:{second.address.port}")

        first.answer = answer_in_failover
        second.answer = in_turn(Exception("NOSCRIPT No matching script."), b"done")
        assert await client.execute("split", script) == b"done"
        assert second.names == [b"EVALSHA", b"SCRIPT", b"EVALSHA"]


@pytest.mark.parametrize("lost", [CLOSED, SILENT], ids=["closed", "silent"])
async def test_a_command_whose_answer_is_lost_is_never_sent_again(lost: object) -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        first.answer = in_turn(lost, b"1")
        written, read = await client.execute_each("set", [WRITE, OTHER])
        assert isinstance(written, StoreDown)
        assert written.unknown
        assert read == b"OK"
        assert first.names == [b"HSET"]
        assert len(second.received) == 1
        assert await client.execute("set", WRITE) == b"1"


async def test_a_command_that_could_not_be_sent_is_sent_where_the_slot_is_then() -> None:
    async with run_scripted_cluster(3) as cluster, a_client(cluster) as client:
        first, second, third = cluster.nodes
        cluster.owners = [first, second]
        await client.execute("get", GET)
        await first.stop()
        await asyncio.sleep(0.05)  # its connections are seen to be closed

        async def fail_over() -> None:
            await asyncio.sleep(0.2)
            cluster.owners, cluster.epoch = [third, second], 2

        failover = asyncio.create_task(fail_over())
        await client.execute("set", WRITE)
        await failover
        assert [node.names for node in cluster.nodes] == [[b"GET"], [], [b"HSET"]]


async def test_the_map_of_a_node_that_is_cut_off_does_not_count() -> None:
    async with run_scripted_cluster(3) as cluster:
        first, second, third = cluster.nodes
        cluster.owners, cluster.epoch = [third, second], 7
        first.owners, first.epoch, first.is_cut_off = [first, second], 9, True
        async with a_client(cluster) as client:
            await client.execute("get", GET)
            assert third.names == [b"GET"]
            assert first.names == []


async def test_of_two_maps_that_serve_the_later_one_counts() -> None:
    async with run_scripted_cluster(2) as cluster:
        first, second = cluster.nodes
        first.owners, first.epoch, second.owners, second.epoch = [first], 3, [second], 4
        async with a_client(cluster) as client:
            await client.execute("get", GET)
            assert (first.names, second.names) == ([], [b"GET"])


async def test_impatient_calls_wait_neither_for_a_refusal_to_end_nor_for_a_node_that_is_away() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first = cluster.nodes[0]
        first.answer = lambda command: Exception("CLUSTERDOWN The cluster is down")
        refused, answer = await client.execute_each("due_topics", [GET, OTHER])
        assert isinstance(refused, StoreDown)
        assert answer == b"OK"
        assert len(first.received) == 1
        first.answer = lambda command: SILENT
        started = time.monotonic()
        late, answer = await client.execute_each("due_topics", [GET, OTHER])
        assert time.monotonic() - started < TIMEOUT_S / 2
        assert isinstance(late, StoreDown)
        assert answer == b"OK"


async def test_an_impatient_call_follows_redirects_beside_a_refusal() -> None:
    """Slots that move one after the other: a part of the node's shards is elsewhere, of one it has only some keys."""
    other = ("GET", b"{b1}x")
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        moved = Exception(f"MOVED {key_slot(b'b1')} 127.0.0.1:{second.address.port}")
        first.answer = lambda command: moved if command[1] == other[1] else Exception("TRYAGAIN Multiple keys")
        refused, answer = await client.execute_each("due_topics", [GET, other])
        assert isinstance(refused, StoreDown)
        assert answer == b"OK"


async def test_looks_past_a_node_that_is_away_read_the_map_now_and_then() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        await client.execute_all("get", [GET, OTHER])
        await first.stop()
        started, reads = time.monotonic(), second.map_reads
        while time.monotonic() - started < 1:
            away, answer = await client.execute_each("due_topics", [GET, OTHER])
            assert isinstance(away, NodeDown)
            assert answer == b"OK"
            await asyncio.sleep(0.01)
        assert 2 <= second.map_reads - reads <= 9


async def test_it_raises_only_where_no_node_can_be_asked() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        first, second = cluster.nodes
        await client.execute_all("get", [GET, OTHER])
        await first.stop()
        await asyncio.sleep(0.05)  # its connections are seen to be closed
        away, answer = await client.execute_each("get", [GET, OTHER])
        assert isinstance(away, StoreDown)
        assert answer == b"OK"
        await second.stop()
        with pytest.raises(StoreDown, match="cannot be reached"):
            await client.execute_each("get", [GET, OTHER])


async def test_connections_to_a_node_that_left_are_closed() -> None:
    async with run_scripted_cluster(3) as cluster, a_client(cluster) as client:
        first, second, third = cluster.nodes
        await client.execute_all("get", [GET, OTHER])
        assert first._writers
        cluster.owners, cluster.epoch = [second, third], 2
        await client.nodes.map.read()
        await asyncio.sleep(0.05)
        assert len(first._writers) == 0
        assert await client.execute("get", GET) == b"OK"
        assert second.names == [b"GET"]


async def test_a_command_after_the_end_leaves_no_connection_open() -> None:
    """A settle that was under way when the daemon stopped is still carried out."""
    async with run_scripted_cluster(2) as cluster:
        async with a_client(cluster) as client:
            await client.execute_all("get", [GET, OTHER])
        assert await client.execute_all("settle", [GET, OTHER]) == [b"OK", b"OK"]
        for _ in range(int(TIMEOUT_S / 0.01)):
            if not any(node._writers for node in cluster.nodes):
                return
            await asyncio.sleep(0.01)
    raise AssertionError("connections are still open")


async def test_each_server_is_asked_and_a_command_without_a_key_goes_where_it_is_told_to() -> None:
    async with run_scripted_cluster(2) as cluster, a_client(cluster) as client:
        for number, node in enumerate(cluster.nodes):
            node.answer = in_turn(number)
        told = await client.execute_on_each_server("stats", [("KEYS", "*"), ("KEYS", "*")])
        assert told == [(str(node.address), [number, number]) for number, node in enumerate(cluster.nodes)]
        assert await client.execute_at("doctor", KEY, ("KEYS", "*")) == 0
        assert await client.execute_at("doctor", b"{a}", ("KEYS", "*")) == 1
        assert (client.node_of(KEY), client.node_of(b"{a}")) == tuple(node.address for node in cluster.nodes)


async def test_a_replica_is_not_written_to() -> None:
    checked = list[str]()

    async def check(execute: Any) -> str:
        checked.append("store")
        return "any"

    async with run_scripted_cluster(2) as cluster:
        first = cluster.nodes[0]
        first.role = "slave"
        settings = StoreSettings(url=cluster.url, prefix="later", timeout_s=TIMEOUT_S)
        async with aclosing(connect_client(settings, Clock(time.monotonic, time.time), check=check)) as client:
            refused, answer = await client.execute_each("set", [WRITE, OTHER])
            assert isinstance(refused, StoreDown)
            assert answer == b"OK"
            assert first.names == []
            first.role = "master"
            assert await client.execute("set", WRITE) == b"OK"
    assert checked == ["store"]


async def test_a_start_is_refused_if_any_primary_may_evict() -> None:
    async with run_scripted_cluster(3) as cluster:
        last = cluster.nodes[-1]
        last.eviction = "allkeys-lru"
        async with a_checked_client(cluster) as client:
            with pytest.raises(StoreMismatch, match=f"{last.address}: .* allkeys-lru"):
                await client.open()
            with pytest.raises(StoreMismatch):
                await client.execute("set", WRITE)
    assert [node.names for node in cluster.nodes] == [[], [], []]


async def test_a_new_primary_that_may_evict_stops_only_its_shards_until_that_is_mended() -> None:
    async with run_scripted_cluster(3) as cluster, a_checked_client(cluster) as client:
        first, second, third = cluster.nodes
        cluster.owners = [first, second]
        await client.execute_all("set", [WRITE, OTHER])
        third.eviction = "allkeys-lru"
        cluster.owners, cluster.epoch = [third, second], 2
        await client.nodes.map.read()
        with capture_logs() as logged:
            for verb in ("set", "snapshot"):
                refused, answer = await client.execute_each(verb, [WRITE, OTHER])
                assert isinstance(refused, NodeDown)
                assert not refused.unknown
                assert "allkeys-lru" in str(refused)
                assert answer == b"OK"
        assert [line["node"] for line in logged if line["log_level"] == "warning"] == [str(third.address)]
        assert third.names == []
        third.eviction = "noeviction"
        assert await client.execute("set", WRITE) == b"OK"


async def test_a_server_that_is_not_in_a_cluster_is_refused_in_words() -> None:
    async with run_scripted_cluster(1) as cluster, a_client(cluster) as client:
        [node] = cluster.nodes
        node._cluster_answer = lambda what: Exception("ERR This instance has cluster support disabled")  # type: ignore[method-assign]  # a server's
        with pytest.raises(StoreMismatch, match="is not in a cluster: name it by redis://"):
            await client.execute("get", GET)


async def test_a_cluster_of_which_no_seed_answers_is_down() -> None:
    async with run_scripted_cluster(1) as cluster, a_client(cluster, url="redis+cluster://127.0.0.1:1") as client:
        with pytest.raises(StoreDown, match="cannot be reached"):
            await client.execute("get", GET)
