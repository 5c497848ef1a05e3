"""What the store says of itself as a whole; its clock; where ids live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest

from later.core.clock import Clock
from later.core.task import pack_id
from later.store.client import connect
from later.store.keys import Bucket, Keys, glob_escape
from later.store.scripts import Command
from later.store.stats import FORGET_WORKER_MS, SLICE, TopicCounts
from later.store.tasks import Tasks
from tests.builders import NOW, a_task
from tests.house import House, a_house
from tests.store.sight import ask, died, done, failed, take


class TestCounts:
    async def test_an_empty_store_has_no_topics(self, house: House) -> None:
        assert await house.census.counts(NOW) == {}
        assert (await house.census.task_count(), await house.census.remembered_ids()) == (0, 0)

    async def test_tasks_are_counted_by_topic_and_bucket_over_all_shards(self, house: House) -> None:
        await house.store.create([a_task() for _ in range(30)])
        claims = await take(house)
        await house.store.settle([failed(claim, NOW + 9) for claim in claims[:7]])
        await house.store.settle([died(claim) for claim in claims[7:12]])
        await house.store.settle([done(claim, NOW + 9) for claim in claims[12:15]])
        await house.store.create([a_task(delay=n) for n in range(5, 9)])
        await house.store.create([a_task(topic="mail", delay=1)])
        assert await house.census.counts(NOW + 6000) == {
            "order": TopicCounts(4, 15, 7, 5, due=2, oldest_due_at=NOW + 5000),
            "mail": TopicCounts(1, 0, 0, 0, due=1, oldest_due_at=NOW + 1000),
        }
        assert (await house.census.task_count(), await house.census.remembered_ids()) == (32, 3)

    @pytest.mark.parametrize("settlement", [failed, died])
    async def test_a_topic_whose_tasks_all_failed_is_one(self, house: House, settlement: Callable[..., Any]) -> None:
        await house.store.create([a_task()])
        await house.store.settle([settlement(claim, NOW) for claim in await take(house)])
        assert list(await house.census.counts(NOW)) == ["order"]

    async def test_tasks_are_due_though_their_topics_turn_comes_later(self, house: House) -> None:
        """Whoever claimed last may be ahead of the time that the census goes by."""
        await house.store.create([a_task() for _ in range(40)])
        await take(house, now=NOW + 500, limit=1)
        counts = (await house.census.counts(NOW))["order"]
        assert (counts.due, counts.oldest_due_at) == (counts.delay, NOW)

    async def test_thousands_of_topics_are_counted(self, house: House) -> None:
        await house.store.create([a_task(topic=f"topic-{n}") for n in range(2 * SLICE + 100)])
        counts = await house.census.counts(NOW)
        assert set(counts.values()) == {TopicCounts(1, 0, 0, 0, 1, NOW)}
        assert len(counts) == 2 * SLICE + 100

    async def test_a_topic_costs_only_where_it_is(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        await house.store.create([a_task(topic=f"topic-{n}") for n in range(100)])
        asked = listening(house, monkeypatch)
        await house.census.counts(NOW)
        assert sum(int(command[2]) for command in asked if command[0] == "EVALSHA") == 100


async def names(house: House) -> list[set[str]]:
    return [piece async for piece in house.census.topic_names()]


def listening(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Every command that the census sends from now on."""
    asked = list[Command]()
    run = house.client.execute_each

    async def listen(verb: str, commands: Sequence[Command]) -> list[Any]:
        asked.extend(commands)
        return await run(verb, commands)

    monkeypatch.setattr(house.client, "execute_each", listen)
    return asked


class TestNames:
    async def test_an_empty_store_names_none(self, house: House) -> None:
        assert set[str]().union(*await names(house)) == set()

    @pytest.mark.parametrize("settlement", [None, failed, died])
    async def test_a_topic_is_named_whatever_bucket_its_tasks_are_in(
        self, house: House, settlement: Callable[..., Any] | None
    ) -> None:
        await house.store.create([a_task(topic="shop/é")])
        assert set().union(*await names(house)) == {"shop/é"}
        claims = await take(house)
        if settlement is not None:
            await house.store.settle([settlement(claim, NOW) for claim in claims])
        assert set().union(*await names(house)) == {"shop/é"}

    async def test_thousands_come_in_pieces(self, house: House) -> None:
        await house.store.create([a_task(topic=f"topic-{n}") for n in range(4 * SLICE)])
        pieces = await names(house)
        assert set().union(*pieces) == {f"topic-{n}" for n in range(4 * SLICE)}
        assert len(pieces) >= 3

    async def test_a_task_on_its_way_from_bucket_to_bucket_is_not_missed(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await house.store.create([a_task()])
        run = house.client.execute_each

        async def let_a_worker_in_between(verb: str, commands: Sequence[Command]) -> list[Any]:
            answers = await run(verb, commands)
            if commands[0][0] == "ZCARD":
                monkeypatch.undo()
                assert len(await take(house)) == 1
            return answers

        monkeypatch.setattr(house.client, "execute_each", let_a_worker_in_between)
        assert set().union(*await names(house)) == {"order"}


class TestCountsOf:
    async def test_they_are_those_of_all_topics(self, house: House) -> None:
        await house.store.create([a_task() for _ in range(30)])
        claims = await take(house)
        await house.store.settle([failed(claim, NOW + 9) for claim in claims[:7]])
        await house.store.settle([died(claim) for claim in claims[7:12]])
        await house.store.create([a_task(delay=n) for n in range(5, 9)])
        await house.store.create([a_task(topic="shop/é", delay=1), a_task(topic="unasked")])
        assert await house.census.counts_for(["shop/é", "order", "none"], NOW + 6000) == {
            "shop/é": TopicCounts(1, 0, 0, 0, due=1, oldest_due_at=NOW + 1000),
            "order": TopicCounts(4, 18, 7, 5, due=2, oldest_due_at=NOW + 5000),
            "none": TopicCounts(0, 0, 0, 0, due=0, oldest_due_at=None),
        }

    async def test_of_no_topics_there_are_none(self, house: House) -> None:
        assert await house.census.counts_for([], NOW) == {}

    async def test_a_thousand_are_counted_a_slice_at_a_time(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topics = [f"topic-{n}" for n in range(1000)]
        await house.store.create([a_task(topic=topic) for topic in [*topics, "unasked"]])
        asked = listening(house, monkeypatch)
        counts = await house.census.counts_for(topics, NOW)
        assert counts == dict.fromkeys(topics, TopicCounts(1, 0, 0, 0, 1, NOW))
        keys = [int(command[2]) for command in asked]
        assert sum(keys) == 4 * len(topics) * len(house.keys.shards)
        assert max(keys) <= SLICE


class TestWorkers:
    async def test_a_worker_that_beats_is_alive(self, house: House) -> None:
        await house.census.heartbeat("one", NOW)
        await house.census.heartbeat("two", NOW + 1)
        await house.census.heartbeat("one", NOW + 2)
        assert await house.census.workers() == {"one": NOW + 2, "two": NOW + 1}

    async def test_a_worker_that_left_is_gone(self, house: House) -> None:
        await house.census.heartbeat("one", NOW)
        await house.census.remove_worker("one")
        assert await house.census.workers() == {}

    async def test_a_worker_that_has_not_beaten_for_long_is_not_shown(self, house: House) -> None:
        await house.census.heartbeat("one", NOW)
        await house.census.heartbeat("two", NOW + FORGET_WORKER_MS - 1)
        assert len(await house.census.workers()) == 2
        await house.census.heartbeat("two", NOW + FORGET_WORKER_MS)
        assert list(await house.census.workers()) == ["two"]


async def test_the_server_says_what_it_is(house: House, server_url: str) -> None:
    facts = await house.census.server_facts()
    assert facts.name.lower() in server_url
    assert facts.version.split(".")[0] in ("7", "9")
    assert facts.memory > 0
    assert facts.max_memory == 0
    assert facts.persistence.startswith("snapshots or none")


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

    async def test_the_stores_time_lies_in_its_interval(self, house: House) -> None:
        before = (await house.store.now()).low
        seconds, micros = (await ask(house, [("TIME",)]))[0]
        after = (await house.store.now()).high
        assert before <= seconds * 1000 + micros // 1000 <= after

    async def test_the_time_is_measured_again_when_this_machines_clocks_disagree(self, house: House) -> None:
        wall = [0.0]
        clock = Clock(time.monotonic, lambda: wall[0] + time.monotonic())
        store = Tasks(house.client, house.keys, clock)
        before = await store.now()
        wall[0] += 60
        assert not clock.is_steady()
        assert before.low <= (await store.now()).high
        assert clock.is_steady()


class TestShards:
    @pytest.mark.parametrize("shards", [1, 4, 16, 64])
    async def test_an_id_lives_where_its_checksum_says(self, server_url: str, shards: int) -> None:
        tasks = [a_task(id=id, own_id=True) for id in ("a", "order:1", "3f2504e0-4f89-41d3-9a0c-0305e82c3301")]
        async with a_house(server_url, shards) as house:
            await house.store.create(tasks)
            for task in tasks:
                home = crc32(task.id.encode()) % shards
                pools = await ask(house, [("HEXISTS", s.pool, pack_id(task.id)) for s in house.keys.shards])
                assert [bool(there) for there in pools] == [index == home for index in range(shards)]
                assert house.keys.shards[home].pool == b"{later:%d}:pool" % home

    def test_the_checksum_is_that_of_the_ids_text(self) -> None:
        assert Keys("later", 16).shard_of("order-1").index == 0xE0B37FEF % 16

    def test_every_key_of_a_shard_has_its_hash_tag(self) -> None:
        shard = Keys("my:app", 3).shards[2]
        keys = [shard.pool, shard.fence, shard.attempts, shard.outcome, shard.done, shard.jobs, shard.job("j")]
        keys += [*shard.buckets(b"t"), *shard.wakes.values()]
        assert all(key.startswith(b"{my:app:2}:") for key in keys)
        assert len(set(keys)) == len(keys)

    def test_a_buckets_key_tells_its_place_whatever_its_topic(self) -> None:
        shard = Keys("later", 1).shards[0]
        for topic in (b"order", b"a:b", b"delay:x", b"\xff*"):
            assert [shard.locate(key) for key in shard.buckets(topic)] == [(bucket, topic) for bucket in Bucket]
        others = [shard.pool, shard.done, shard.jobs, shard.job("delay:x"), *shard.wakes.values()]
        assert [shard.locate(key) for key in others] == [None] * len(others)


def test_glob_characters_are_taken_for_themselves() -> None:
    assert glob_escape(b"a*[b]?\\^") == b"a\\*\\[b\\]\\?\\\\\\^"
