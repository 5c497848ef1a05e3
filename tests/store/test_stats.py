"""Statistics of the whole store; its clock; the shards of ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest

from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.core.task import pack_id
from later.store.client import StoreClient
from later.store.connections import connect
from later.store.keys import Bucket, Keys, glob_escape
from later.store.open import build_store
from later.store.scripts import Command
from later.store.stats import FORGET_WORKER_MS, SLICE
from later.store.topic_counts import NO_TASKS, TopicCounts
from tests.builders import NOW, a_task
from tests.store.inspection import ask, claim_due, died, done, failed
from tests.store_fixture import StoreFixture, hold_topic, open_store


class TestCounts:
    async def test_an_empty_store_has_no_topics(self, store: StoreFixture) -> None:
        assert await store.stats.counts(NOW) == {}
        assert (await store.stats.task_count(), await store.stats.remembered_ids()) == (0, 0)

    async def test_tasks_are_counted_by_topic_and_bucket_over_all_shards(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task() for _ in range(30)])
        claims = await claim_due(store)
        await store.tasks.settle([failed(claim, NOW + 9) for claim in claims[:7]])
        await store.tasks.settle([died(claim) for claim in claims[7:12]])
        await store.tasks.settle([done(claim, NOW + 9) for claim in claims[12:15]])
        await store.tasks.create([a_task(delay=n) for n in range(5, 9)])
        await store.tasks.create([a_task(topic="mail", delay=1)])
        assert await store.stats.counts(NOW + 6000) == {
            "order": TopicCounts(4, 15, 7, 5, due=2, oldest_due_at=NOW + 5000),
            "mail": TopicCounts(1, 0, 0, 0, due=1, oldest_due_at=NOW + 1000),
        }
        assert (await store.stats.task_count(), await store.stats.remembered_ids()) == (32, 3)

    @pytest.mark.parametrize("settlement", [failed, died])
    async def test_a_topic_whose_tasks_all_failed_is_counted(
        self, store: StoreFixture, settlement: Callable[..., Any]
    ) -> None:
        await store.tasks.create([a_task()])
        await store.tasks.settle([settlement(claim, NOW) for claim in await claim_due(store)])
        assert list(await store.stats.counts(NOW)) == ["order"]

    async def test_tasks_are_due_though_their_topics_turn_comes_later(self, store: StoreFixture) -> None:
        """The last worker to claim may be ahead of the time that the statistics use."""
        await store.tasks.create([a_task() for _ in range(40)])
        await claim_due(store, now=NOW + 500, limit=1)
        counts = (await store.stats.counts(NOW))["order"]
        assert (counts.due, counts.oldest_due_at) == (counts.delay, NOW)

    async def test_thousands_of_topics_are_counted(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(2 * SLICE + 100)])
        counts = await store.stats.counts(NOW)
        assert set(counts.values()) == {TopicCounts(1, 0, 0, 0, 1, NOW)}
        assert len(counts) == 2 * SLICE + 100

    async def test_named_topics_are_counted_as_all_are(self, store: StoreFixture) -> None:
        names = [f"t{n}" for n in range(150)]
        await store.tasks.create([a_task(topic=name, delay=n % 3) for n, name in enumerate([*names, *names, "é"])])
        for number, claim in enumerate(await claim_due(store)):
            await store.tasks.settle([(failed(claim, NOW + 9), died(claim), done(claim))[number % 3]])
        await hold_topic(store, "t7", NOW + 60_000)
        found = await store.stats.counts_and_holds([*names, "é", "missing"], NOW + 1000)
        assert {topic: counts for topic, counts in found.items() if counts.tasks} == await store.stats.counts(
            NOW + 1000
        )
        assert found["t7"].hold is not None
        assert found["missing"] == NO_TASKS
        without_holds = {topic: counts._replace(hold=None) for topic, counts in found.items()}
        assert await store.stats.counts_for([*found], NOW + 1000) == without_holds

    async def test_only_buckets_that_have_tasks_of_a_topic_are_counted(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(100)])
        sent = record_commands(store, monkeypatch)
        await store.stats.counts(NOW)
        assert sum(int(command[2]) for command in sent if command[0] == "EVALSHA") == 100


async def names(store: StoreFixture) -> list[set[str]]:
    return [{topic.decode() for topic in topics} async for _, _, topics in store.stats.topics_by_bucket()]


def record_commands(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Record every command that the statistics send."""
    sent = list[Command]()
    original = store.client.execute_each

    async def record(verb: str, commands: Sequence[Command]) -> list[Any]:
        sent.extend(commands)
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", record)
    return sent


class TestNames:
    async def test_an_empty_store_names_none(self, store: StoreFixture) -> None:
        assert set[str]().union(*await names(store)) == set()

    @pytest.mark.parametrize("settlement", [None, failed, died])
    async def test_a_topic_is_named_whatever_bucket_its_tasks_are_in(
        self, store: StoreFixture, settlement: Callable[..., Any] | None
    ) -> None:
        await store.tasks.create([a_task(topic="shop/é")])
        assert set().union(*await names(store)) == {"shop/é"}
        claims = await claim_due(store)
        if settlement is not None:
            await store.tasks.settle([settlement(claim, NOW) for claim in claims])
        assert set().union(*await names(store)) == {"shop/é"}

    async def test_thousands_are_yielded_a_slice_at_a_time(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(topic=f"topic-{n}") for n in range(4 * SLICE)])
        yielded = await names(store)
        assert set().union(*yielded) == {f"topic-{n}" for n in range(4 * SLICE)}
        assert len(yielded) >= 3

    async def test_a_task_on_its_way_from_bucket_to_bucket_is_not_missed(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task()])
        original = store.client.execute_each

        async def claim_after_the_first_answer(verb: str, commands: Sequence[Command]) -> list[Any]:
            answers = await original(verb, commands)
            if commands[0][0] == "ZCARD":
                monkeypatch.undo()
                assert len(await claim_due(store)) == 1
            return answers

        monkeypatch.setattr(store.client, "execute_each", claim_after_the_first_answer)
        assert set().union(*await names(store)) == {"order"}


class TestCountsForTopics:
    async def test_they_are_those_of_all_topics(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task() for _ in range(30)])
        claims = await claim_due(store)
        await store.tasks.settle([failed(claim, NOW + 9) for claim in claims[:7]])
        await store.tasks.settle([died(claim) for claim in claims[7:12]])
        await store.tasks.create([a_task(delay=n) for n in range(5, 9)])
        await store.tasks.create([a_task(topic="shop/é", delay=1), a_task(topic="unasked")])
        assert await store.stats.counts_for(["shop/é", "order", "none"], NOW + 6000) == {
            "shop/é": TopicCounts(1, 0, 0, 0, due=1, oldest_due_at=NOW + 1000),
            "order": TopicCounts(4, 18, 7, 5, due=2, oldest_due_at=NOW + 5000),
            "none": TopicCounts(0, 0, 0, 0, due=0, oldest_due_at=None),
        }

    async def test_of_no_topics_there_are_no_counts(self, store: StoreFixture) -> None:
        assert await store.stats.counts_for([], NOW) == {}

    async def test_a_thousand_are_counted_a_slice_at_a_time(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topics = [f"topic-{n}" for n in range(1000)]
        await store.tasks.create([a_task(topic=topic) for topic in [*topics, "unasked"]])
        sent = record_commands(store, monkeypatch)
        counts = await store.stats.counts_for(topics, NOW)
        assert counts == dict.fromkeys(topics, TopicCounts(1, 0, 0, 0, 1, NOW))
        keys = [int(command[2]) for command in sent]
        assert sum(keys) == 4 * len(topics) * len(store.keys.shards)
        assert max(keys) <= SLICE


class TestWorkers:
    async def test_a_worker_with_a_heartbeat_is_listed(self, store: StoreFixture) -> None:
        await store.stats.heartbeat("one", NOW)
        await store.stats.heartbeat("two", NOW + 1)
        await store.stats.heartbeat("one", NOW + 2)
        assert await store.stats.workers() == {"one": NOW + 2, "two": NOW + 1}

    async def test_a_removed_worker_is_not_listed(self, store: StoreFixture) -> None:
        await store.stats.heartbeat("one", NOW)
        await store.stats.remove_worker("one")
        assert await store.stats.workers() == {}

    async def test_a_worker_without_a_heartbeat_for_long_is_not_listed(self, store: StoreFixture) -> None:
        await store.stats.heartbeat("one", NOW)
        await store.stats.heartbeat("two", NOW + FORGET_WORKER_MS - 1)
        assert len(await store.stats.workers()) == 2
        await store.stats.heartbeat("two", NOW + FORGET_WORKER_MS)
        assert list(await store.stats.workers()) == ["two"]

    async def test_one_whose_heartbeat_is_ahead_of_the_clock_that_was_set_back_is_not_listed(
        self, store: StoreFixture
    ) -> None:
        await store.stats.heartbeat("killed", NOW + FORGET_WORKER_MS)
        await store.stats.heartbeat("one", NOW)
        assert await store.stats.workers() == {"one": NOW}

    async def test_a_store_whose_memory_is_full_takes_heartbeats(self, store: StoreFixture) -> None:
        await store.stats.heartbeat("one", NOW - 1)
        await ask(store, [("CONFIG", "SET", "maxmemory", 1)])
        try:
            await store.stats.heartbeat("one", NOW)
        finally:
            await ask(store, [("CONFIG", "SET", "maxmemory", 0)])
        assert await store.stats.workers() == {"one": NOW}


async def test_server_facts_name_the_server(store: StoreFixture, server_url: str) -> None:
    facts = await store.stats.server_facts()
    assert facts.name.lower() in server_url
    assert facts.version.split(".")[0] in ("7", "9")
    assert facts.memory > 0
    assert facts.max_memory == 0
    assert (await store.stats.persistence()).startswith("snapshots or none")


class TestClock:
    async def test_each_new_connection_measures_the_time(self, server_url: str) -> None:
        wall = [0.0]
        clock = Clock(time.monotonic, lambda: wall[0] + time.monotonic())
        redis = connect(server_url, clock, timeout_s=10)
        for _ in range(2):
            assert not clock.is_steady()
            await redis.ping()
            assert clock.is_steady()
            await redis.ping()
            wall[0] += 60
            await redis.connection_pool.disconnect()
        await redis.aclose()

    async def test_the_stores_time_lies_in_its_interval(self, store: StoreFixture) -> None:
        before = (await store.time.now()).low
        seconds, micros = (await ask(store, [("TIME",)]))[0]
        after = (await store.time.now()).high
        assert before <= seconds * 1000 + micros // 1000 <= after

    @pytest.mark.one_server
    async def test_the_time_is_measured_again_when_this_machines_clocks_disagree(self, store: StoreFixture) -> None:
        wall = [0.0]
        clock = Clock(time.monotonic, lambda: wall[0] + time.monotonic())
        other = build_store(StoreClient(store.redis, clock, timeout_s=10), clock, store.keys, DEFAULT_POLICY)
        before = await other.time.now()
        wall[0] += 60
        assert not clock.is_steady()
        assert before.low <= (await other.time.now()).high
        assert clock.is_steady()
        await other.aclose()


class TestShards:
    @pytest.mark.parametrize("shards", [1, 4, 16, 64])
    async def test_the_shard_of_an_id_is_given_by_its_checksum(self, server_url: str, shards: int) -> None:
        tasks = [a_task(id=id, own_id=True) for id in ("a", "order:1", "3f2504e0-4f89-41d3-9a0c-0305e82c3301")]
        async with open_store(server_url, shards) as store:
            await store.tasks.create(tasks)
            for task in tasks:
                shard_index = crc32(task.id.encode()) % shards
                pools = await ask(store, [("HEXISTS", s.pool, pack_id(task.id)) for s in store.keys.shards])
                assert [bool(there) for there in pools] == [index == shard_index for index in range(shards)]
                assert store.keys.shards[shard_index].pool == b"{later:%d}:pool" % shard_index

    def test_the_checksum_is_that_of_the_ids_text(self) -> None:
        assert Keys("later", 16).shard_of("order-1").index == 0xE0B37FEF % 16

    def test_every_key_of_a_shard_has_its_hash_tag(self) -> None:
        shard = Keys("my:app", 3).shards[2]
        keys = [shard.pool, shard.attempts, shard.outcome, shard.done, shard.jobs, shard.job("j")]
        keys += [*shard.buckets(b"t"), *shard.wakes.values()]
        assert all(key.startswith(b"{my:app:2}:") for key in keys)
        assert len(set(keys)) == len(keys)

    def test_a_buckets_key_names_its_bucket_and_topic(self) -> None:
        shard = Keys("later", 1).shards[0]
        for topic in (b"order", b"a:b", b"delay:x", b"\xff*"):
            assert [shard.parse_bucket_key(key) for key in shard.buckets(topic)] == [
                (bucket, topic) for bucket in Bucket
            ]
        others = [shard.pool, shard.done, shard.jobs, shard.job("delay:x"), *shard.wakes.values()]
        assert [shard.parse_bucket_key(key) for key in others] == [None] * len(others)


def test_glob_characters_match_only_themselves() -> None:
    assert glob_escape(b"a*[b]?\\^") == b"a\\*\\[b\\]\\?\\\\\\^"
