"""Topics by name: a page reads what it shows, and shows every topic that has tasks, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from later.core.policy_scopes import namespace_from_topic
from later.store import topic_index
from later.store.keys import Bucket
from later.store.schema import INDEX_IS_COMPLETE
from later.store.scripts import Command
from later.store.topic_counts import NO_TASKS, TopicCounts
from tests.builders import NOW, a_task
from tests.store.inspection import (
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    names_of,
    no_names,
    read_contents,
    release_due,
)
from tests.store_fixture import StoreFixture, hold_topic

ONE_TASK = TopicCounts(1, 0, 0, 0, 1, NOW)
ROUND = 1 + len(Bucket)
"""Calls that check all names of a shard, if there are few."""


async def create(store: StoreFixture, *topics: str) -> None:
    await store.tasks.create([a_task(id=f"of-{topic}", own_id=True, topic=topic) for topic in topics])


async def page(store: StoreFixture, limit: int = 1000, declared: Sequence[str] = (), **options: Any) -> list[str]:
    return [*await store.topic_index.page(names_of(declared), NOW, limit=limit, **options)]


async def indexed(store: StoreFixture) -> set[str]:
    return {topic for _, topic in (await read_contents(store)).topics}


@pytest.fixture
def sent(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Command, Any]]:
    """Record every command, and its answer."""
    recorded: list[tuple[Command, Any]] = []
    original = store.client.execute_each

    async def record(verb: str, commands: Sequence[Command]) -> list[Any]:
        answers = await original(verb, commands)
        recorded.extend(zip(commands, answers, strict=True))
        return answers

    monkeypatch.setattr(store.client, "execute_each", record)
    return recorded


class TestScripts:
    """The scripts keep the index."""

    async def test_a_topic_is_in_it_from_its_first_task_to_its_last(self, store: StoreFixture) -> None:
        await create(store, "order", "mail")
        assert await indexed(store) == {"order", "mail"}
        [claim] = await claim_due(store, topics=["order"])
        assert await indexed(store) == {"order", "mail"}
        await store.tasks.settle([failed(claim, NOW + 9)])
        assert await indexed(store) == {"order", "mail"}
        await release_due(store, Bucket.ERROR, NOW + 9)
        [claim] = await claim_due(store, NOW + 9, topics=["order"])
        await store.tasks.settle([done(claim)])
        assert await indexed(store) == {"mail"}

    async def test_a_topic_with_a_dead_task_stays(self, store: StoreFixture) -> None:
        await create(store, "order")
        await store.tasks.settle([died(claim) for claim in await claim_due(store)])
        await store.tasks.create([a_task(id="of-order-2", own_id=True)])
        await store.tasks.settle([done(claim) for claim in await claim_due(store)])
        assert await indexed(store) == {"order"}

    async def test_of_many_topics_in_a_call_those_stay_that_have_tasks(self, store: StoreFixture) -> None:
        await create(store, *(f"t{n}" for n in range(40)))
        claims = await claim_due(store, limit=1)
        await store.tasks.create([a_task(topic=f"t{n}", id=f"of-t{n}-2", delay=9) for n in range(10)])
        settlements = [failed(claim, NOW + 9) if int(claim.topic[1:]) < 20 else done(claim) for claim in claims]
        await store.tasks.settle(settlements)
        assert await indexed(store) == {f"t{n}" for n in range(20)}
        await assert_sound(store)

    async def test_a_late_settle_of_a_topic_changes_nothing(self, store: StoreFixture) -> None:
        await create(store, "order")
        [claim] = await claim_due(store)
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
        assert await store.tasks.settle([done(claim)]) == [False]
        assert await indexed(store) == {"order"}

    async def test_a_topic_that_was_held_without_tasks_is_listed_when_it_gets_one(self, store: StoreFixture) -> None:
        await hold_topic(store, "order", NOW + 60_000)
        assert await page(store) == []
        await create(store, "order")
        assert await page(store) == ["order"]


class TestPages:
    async def test_it_has_the_first_topics_after_a_name_with_their_counts(self, store: StoreFixture) -> None:
        await create(store, "e", "a", "é", "b", "😀", "c")
        found = await store.topic_index.page(no_names, NOW, limit=3, after="a")
        assert found == {"b": ONE_TASK, "c": ONE_TASK, "e": ONE_TASK}
        assert await page(store, after="e") == ["é", "😀"]

    async def test_declared_topics_are_on_it_also_without_tasks(self, store: StoreFixture) -> None:
        await create(store, "b", "d")
        assert await page(store, declared=["a", "c", "d", "e"]) == ["a", "b", "c", "d", "e"]
        assert await page(store, 2, declared=["a", "c", "d", "e"], after="b") == ["c", "d"]
        assert (await store.topic_index.page(names_of(["a"]), NOW, limit=1))["a"] == NO_TASKS

    async def test_no_more_names_and_buckets_are_read_than_it_shows(
        self, store: StoreFixture, shards: int, sent: list[tuple[Command, Any]]
    ) -> None:
        await create(store, *(f"t{n:04}" for n in range(1000)))
        sent.clear()
        assert await page(store, 20, declared=[f"t{n:04}" for n in range(0, 1000, 3)], after="t0499") == [
            f"t{n:04}" for n in range(500, 520)
        ]
        names = [answer for command, answer in sent if command[0] == "ZRANGE"]
        assert [len(some) <= 20 for some in names] == [True] * shards
        counted = [int(command[2]) for command, _ in sent if command[0] == "EVALSHA"]
        assert len(counted) <= shards
        assert sum(counted) == len(Bucket) * (len(counted) + 20)  # the wake sets of shards, and each topic in its one
        assert len(sent) == 1 + shards + len(counted)

    async def test_declared_topics_without_tasks_cost_nothing_more(
        self, store: StoreFixture, shards: int, sent: list[tuple[Command, Any]]
    ) -> None:
        declared = [f"t{n:02}" for n in range(20)]
        assert await page(store, 20, declared=declared) == declared
        assert len(sent) == 1 + shards  # names, and nothing to count

    async def test_topics_whose_tasks_were_deleted_leave_no_gap_and_are_forgotten(self, store: StoreFixture) -> None:
        names = [f"t{n:03}" for n in range(100)]
        await create(store, *names)
        await store.edits.delete([f"of-{name}" for name in names[5:95]])
        assert len(await indexed(store)) == 100
        assert await page(store, 8) == [*names[:5], *names[95:98]]
        assert await indexed(store) == {*names[:5], *names[95:]}
        await assert_sound(store)

    async def test_pages_have_every_topic_that_stays_while_others_come_and_go(self, store: StoreFixture) -> None:
        random = Random(7)
        staying = [f"s{n:03}" for n in range(60)]
        await create(store, *staying)
        shown: list[str] = []
        after = ""
        for turn in range(1000):
            await create(store, *(f"{random.choice('rst')}{random.randrange(60):03}-{turn}-{n}" for n in range(5)))
            passing = [claim for claim in await claim_due(store) if "-" in claim.topic]
            await store.tasks.settle([done(claim) for claim in passing])
            some = await page(store, 7, after=after)
            shown += some
            if len(some) < 7:
                break
            after = some[-1]
        assert [name for name in shown if "-" not in name] == staying
        assert shown == sorted(set(shown))

    @pytest.mark.parametrize("shards", [16])
    async def test_a_topic_whose_only_task_makes_the_next_one_meanwhile_is_on_it(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next one is in another shard, whose index did not have the topic when it was read."""
        read_names, ids = store.topic_index._read_names, iter(range(100))
        await create(store, "a", "z")
        await store.tasks.create([a_task(id=str(next(ids)), own_id=True)])

        async def read_before_the_next_task(*bounds: Any) -> Any:
            found = await read_names(*bounds)
            before = str(id := next(ids) - 1)
            while store.keys.shard_of(str(id)) == store.keys.shard_of(before):
                id = next(ids)
            await store.tasks.create([a_task(id=str(id), own_id=True)])
            await store.edits.delete([before])
            return found

        monkeypatch.setattr(store.topic_index, "_read_names", read_before_the_next_task)
        assert await store.topic_index.page(no_names, NOW, limit=3) == dict.fromkeys(["a", "order", "z"], ONE_TASK)


class TestNamespaces:
    NAMES = ("a", "shop", "shop/a", "shop/b/c", "shop0", "shopping/a", "default/x/y", "z")

    @pytest.mark.parametrize(
        ("namespace", "topics"),
        [
            ("shop", ["shop/a", "shop/b/c", "shop/z"]),
            ("shopping", ["shopping/a"]),
            ("default", ["a", "default/x/y", "shop", "shop0", "z"]),
            ("nobody", []),
        ],
    )
    async def test_a_namespace_has_its_own_topics(self, store: StoreFixture, namespace: str, topics: list[str]) -> None:
        await create(store, *self.NAMES)
        assert await page(store, declared=["shop/z", "shopping/a"], namespace=namespace) == topics
        for n, name in enumerate(topics):
            assert await page(store, 1, declared=["shop/z"], namespace=namespace, after=name) == topics[n + 1 : n + 2]

    async def test_all_names_of_a_namespace_are_read_a_few_at_a_time(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topic_index, "SLICE", 2)
        names = (*self.NAMES, *(f"shop/{n}" for n in range(9)), *(f"topic{n}" for n in range(9)))
        await create(store, *names)
        for namespace in ("shop", "shopping", "default", "nobody"):
            own = {name for name in names if namespace_from_topic(name) == namespace}
            assert await store.topic_index.names(namespace) == own

    async def test_a_large_namespace_is_passed_over_in_a_step(
        self, store: StoreFixture, sent: list[tuple[Command, Any]]
    ) -> None:
        await create(store, "a", "z", *(f"shop/{n}" for n in range(900)))
        sent.clear()
        assert await page(store, 5, namespace="default") == ["a", "z"]
        assert sum(len(answer) for command, answer in sent if command[0] == "ZRANGE") <= 15 * len(store.keys.shards)

    async def test_many_small_namespaces_are_passed_over_in_few_round_trips(
        self, store: StoreFixture, shards: int, sent: list[tuple[Command, Any]]
    ) -> None:
        await create(store, "z", *(f"team{n:03}/{topic}" for n in range(200) for topic in range(5)))
        sent.clear()
        assert await page(store, 5, declared=["team100/9", "y"], namespace="default") == ["y", "z"]
        assert sum(command[0] == "ZRANGE" for command, _ in sent) <= 9 * shards


class TestUpkeep:
    async def test_the_topics_of_a_store_that_an_older_version_wrote_are_listed(self, store: StoreFixture) -> None:
        await create(store, *(f"t{n}" for n in range(600)))
        await ask(store, [("DEL", shard.topics) for shard in store.keys.shards])
        await ask(store, [("HDEL", store.keys.meta, INDEX_IS_COMPLETE)])
        assert len(await page(store)) == 600
        await assert_sound(store)
        assert await store.redis.hget("later:meta", INDEX_IS_COMPLETE) == b"1"

    async def test_names_without_tasks_are_forgotten_a_few_at_a_time(self, store: StoreFixture, shards: int) -> None:
        await create(store, *(f"t{n}" for n in range(1200)))
        await store.edits.delete([f"of-t{n}" for n in range(1, 1200)])
        left = []
        for _ in range(ROUND * shards + 4):
            await store.maintenance.trim(0, 1)
            left.append(len(await indexed(store)))
        assert left == sorted(left, reverse=True)
        assert (left[0] > 1, left[-1]) == (True, 1)
        assert await page(store) == ["t0"]

    async def test_topics_that_a_daemon_of_an_older_version_creates_are_added(
        self, store: StoreFixture, shards: int
    ) -> None:
        await create(store, "known", "waits", "retries", "died", "runs")
        claims = {claim.topic: claim for claim in await claim_due(store, topics=["retries", "died", "runs"])}
        await store.tasks.settle([failed(claims["retries"], NOW + 9), died(claims["died"])])
        await ask(
            store,
            [("ZREM", shard.topics, "waits", "retries", "died", "runs") for shard in store.keys.shards],
        )
        for _ in range(ROUND * shards):
            await store.maintenance.trim(0, 1)
        assert await indexed(store) == {"known", "waits", "retries", "died", "runs"}
        await assert_sound(store)

    async def test_to_check_an_index_that_is_right_writes_nothing(self, store: StoreFixture, shards: int) -> None:
        await create(store, *(f"t{n}" for n in range(100)))
        before = await store.redis.info("persistence")
        for _ in range(ROUND * shards):
            await store.maintenance.trim(0, 1)
        assert await page(store, declared=["unused"]) == sorted({*await indexed(store), "unused"})
        after = await store.redis.info("persistence")
        assert after["rdb_changes_since_last_save"] == before["rdb_changes_since_last_save"]

    async def test_a_store_at_maxmemory_is_listed_and_forgets_names(self, store: StoreFixture) -> None:
        await create(store, "a", "b", "c")
        await store.edits.delete(["of-b"])
        await page(store, 1)  # loads the scripts
        await store.redis.config_set("maxmemory", 1)
        try:
            assert await page(store) == ["a", "c"]
        finally:
            await store.redis.config_set("maxmemory", 0)
