"""A node of a cluster that is away stops its shards, and no others."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from later.core.clock import Interval
from later.core.errors import NodeDown, StoreDown
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import topic_scope
from later.core.task import Task
from later.store.away_shards import MAX_DRAWS
from later.store.away_tags import AwayTags, key_of
from later.store.client import StoreClient
from later.store.key_book import KeyBook
from later.store.keys import Bucket, Shard, hash_tag
from later.store.policies import PolicyBook
from later.store.pull_plan import PullRequest, PullResult, PullTopic
from later.store.scripts import CREATE, KEYS_SINCE
from later.store.session_secret import SessionSecret
from later.store.shared_read import FRESH_S
from later.store.signing_book import SigningBook
from later.store.types import ClaimRequest, ClaimResult, DeadTask, ReleaseResult
from tests.builders import NOW, a_task
from tests.store.away import policies_away, shards_away, tags_away
from tests.store.inspection import LEASE_MS, claim_due, died, done, no_names
from tests.store_fixture import StoreFixture, open_store

SHARDS = 4


@pytest.fixture
async def store(server_url: str) -> AsyncIterator[StoreFixture]:
    """An empty store of several shards."""
    async with open_store(server_url, SHARDS) as opened:
        yield opened


def tasks_of(store: StoreFixture, shard: Shard, count: int = 1, **changes: Any) -> list[Task]:
    """Return new tasks of a shard."""
    ids = (f"id-{n}" for n in itertools.count())
    mine = itertools.islice((id for id in ids if store.keys.shard_of(id) is shard), count)
    return [a_task(id=id, own_id=True, **changes) for id in mine]


async def one_task_in_each_shard(store: StoreFixture, **changes: Any) -> list[Task]:
    """Create a task in each shard; the first one is in the first shard."""
    tasks = [tasks_of(store, shard, **changes)[0] for shard in store.keys.shards]
    assert await store.tasks.create(tasks) == [True] * SHARDS
    return tasks


class TestTags:
    def test_a_tag_is_what_stands_in_the_first_braces(self) -> None:
        assert hash_tag(b"{later:3}:pool") == b"{later:3}"
        assert hash_tag(b"later:flow:{x}") == hash_tag(b"later:meta") == b""

    def test_a_script_has_its_first_key_behind_their_number(self) -> None:
        assert key_of(CREATE.call([b"{later:1}:pool"], ["x"])) == b"{later:1}:pool"
        assert key_of(KEYS_SINCE.read([b"{later:auth}:keys"], ["x"])) == b"{later:auth}:keys"
        assert key_of(("ZCARD", b"{later:1}:done")) == b"{later:1}:done"
        assert key_of(("TIME",)) == b""

    def test_a_tag_is_away_while_one_of_its_commands_is_answered_so(self) -> None:
        tags, commands = AwayTags(), [("GET", b"{a}"), ("GET", b"{a}"), ("GET", b"{b}")]
        tags.note(commands, [b"1", NodeDown("gone"), b"1"])
        assert b"{a}" in tags
        assert b"{b}" not in tags
        tags.note(commands[:1], [b"1"])
        assert not tags


class TestClient:
    async def test_answers_of_nodes_that_are_away_are_replaced(self, store: StoreFixture) -> None:
        first, second = store.keys.shards[:2]
        with shards_away(store, first):
            commands = [("ZCARD", shard.done) for shard in (first, second)]
            assert await store.client.execute_available("stats", commands, missing=7) == [7, 0]

    async def test_if_all_nodes_are_away_that_is_an_error(self, store: StoreFixture) -> None:
        with shards_away(store, *store.keys.shards), pytest.raises(NodeDown):
            await store.client.execute_available("stats", [("ZCARD", s.done) for s in store.keys.shards], missing=0)

    async def test_any_other_error_is_raised(self, store: StoreFixture) -> None:
        first, failing = store.keys.shards[0], ("EVAL", "return redis.error_reply('MISCONF no writes')", 0)
        with shards_away(store, first), pytest.raises(StoreDown, match="writes"):
            await store.client.execute_available("stats", [("ZCARD", first.done), failing], missing=0)

    async def test_what_needs_all_shards_fails_while_one_is_away(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        with shards_away(store, store.keys.shards[0]):
            for needing_all in (
                store.topic_index.names("default"),
                store.topic_index.complete(),
                store.schedules.count(),
                store.stats.counts_for(["order"], NOW),
            ):
                with pytest.raises(NodeDown):
                    await needing_all


class TestTasks:
    async def test_a_create_fails_for_the_tasks_of_the_shard_alone(self, store: StoreFixture) -> None:
        tasks = [tasks_of(store, shard)[0] for shard in store.keys.shards]
        with shards_away(store, store.keys.shards[0]):
            first, *others = await store.tasks.create(tasks)
        assert isinstance(first, NodeDown)
        assert others == [True] * (SHARDS - 1)

    async def test_the_tasks_of_the_other_shards_are_seen_claimed_and_settled(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        with shards_away(store, store.keys.shards[0]):
            snapshot = await store.tasks.worker_snapshot(10)
            assert sorted(topic.shard for topic in snapshot.delay.topics) == [1, 2, 3]
            requests = [ClaimRequest("order", shard.index, 1) for shard in store.keys.shards]
            away, *claimed = await store.tasks.claim(requests, NOW, NOW + LEASE_MS)
            assert isinstance(away, NodeDown)
            claims = [claim for result in claimed if isinstance(result, ClaimResult) for claim in result.claims]
            assert await store.tasks.settle([done(claim) for claim in claims]) == [True] * 3

    async def test_leases_that_have_ended_are_released_in_the_other_shards(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        await claim_due(store, NOW)
        with shards_away(store, store.keys.shards[0]):
            due = await store.tasks.due_topics(Bucket.UNACK, 10)
            released = await store.tasks.release(Bucket.UNACK, due.topics, NOW + LEASE_MS)
        assert [result.moved for result in released if isinstance(result, ReleaseResult)] == [1, 1, 1]

    async def test_consumers_get_what_the_other_shards_have(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store, callback="")
        wanted = PullRequest([PullTopic("order", 10, LEASE_MS)], 10)
        with shards_away(store, store.keys.shards[0]):
            [result] = await store.pulls.claim([wanted], Interval(NOW, NOW))
            assert await store.pulls.due_topics(["order"], NOW) == []
        assert isinstance(result, PullResult)
        assert len(result.tasks) == SHARDS - 1

    async def test_a_consumer_gets_an_error_if_all_shards_of_its_topic_are_away(self, store: StoreFixture) -> None:
        wanted = PullRequest([PullTopic("order", 10, LEASE_MS)], 10)
        with shards_away(store, *store.keys.shards):
            [result] = await store.pulls.claim([wanted], Interval(NOW, NOW))
        assert isinstance(result, NodeDown)


class TestUpkeep:
    async def test_ttls_end_in_the_other_shards(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store, ttl=10)
        with shards_away(store, store.keys.shards[0]):
            expired = await store.expiry.expired_tasks(NOW + 10_000)
        assert sorted(task.shard for task in expired) == [1, 2, 3]

    async def test_the_dead_are_swept_in_the_other_shards(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        await store.tasks.settle([died(claim) for claim in await claim_due(store, NOW)])
        with shards_away(store, store.keys.shards[0]):
            found = await store.expiry.topics_with_dead(NOW, 10)
            assert sorted(topic.shard for topic in found.topics) == [1, 2, 3]
            with pytest.raises(NodeDown):
                await store.expiry.dead_tasks(found.topics[0]._replace(shard=0), NOW, NOW, DEFAULT_POLICY)
            [answer] = await store.expiry.sweep([DeadTask("id", "order", 0)], NOW)
        assert isinstance(answer, NodeDown)

    async def test_ids_are_forgotten_in_the_other_shards(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        await store.tasks.settle([done(claim, NOW + 1) for claim in await claim_due(store, NOW)])
        with shards_away(store, store.keys.shards[0]):
            assert await store.maintenance.trim(NOW + 2, 100) == SHARDS - 1
        assert await store.maintenance.trim(NOW + 2, 100) == 1

    async def test_the_check_of_names_passes_a_shard_that_is_away_over(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        commands = []
        with shards_away(store, store.keys.shards[0]):
            for _ in range(6):
                commands.append(store.topic_index.next_check()[1])
                await store.maintenance.trim(NOW, 100)
        assert len(set(commands)) == 6

    async def test_a_topic_is_resumed_where_it_can_be_and_found_elsewhere_later(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        with shards_away(store, store.keys.shards[0]):
            await store.permits.hold_paused([("order", shard.index) for shard in store.keys.shards])
        await store.permits.hold_paused([("order", 0)])
        with shards_away(store, store.keys.shards[0]):
            await store.permits.resume({"order": (NOW, None)}, NOW)
            assert await store.permits.paused_topics() == set()
        assert await store.permits.paused_topics() == {"order"}


class TestCounts:
    async def test_topics_are_counted_in_the_other_shards(self, store: StoreFixture) -> None:
        await one_task_in_each_shard(store)
        misses = store.client.away_tags.misses
        with shards_away(store, store.keys.shards[0]):
            assert (await store.stats.counts(NOW))["order"].delay == SHARDS - 1
            assert (await store.stats.counts_and_holds(["order"], NOW))["order"].delay == SHARDS - 1
            assert (await store.topic_index.page(no_names, NOW, limit=10))["order"].delay == SHARDS - 1
            assert (await store.stats.topic_state("order", NOW)).counts.delay == SHARDS - 1
            assert await store.stats.task_count() == SHARDS - 1
        assert store.client.away_tags.misses > misses

    async def test_a_round_trip_may_be_to_shards_that_are_away_only(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("later.store.stats.READ_AT_ONCE", 1)
        monkeypatch.setattr("later.store.stats.SLICE", 1)
        await one_task_in_each_shard(store)
        with shards_away(store, store.keys.shards[0]):
            assert (await store.stats.counts_and_holds(["order"], NOW))["order"].delay == SHARDS - 1
            assert (await store.stats.counts(NOW))["order"].delay == SHARDS - 1
            assert await store.permits.in_use([], NOW) == {}

    async def test_the_store_is_there_while_one_shard_is(self, store: StoreFixture) -> None:
        meta = [b"{later:meta}"]  # a key without a tag lies on a node of its own
        store.keys.meta, before = b"{later:meta}:meta", store.keys.meta
        try:
            with tags_away(store.client, [*meta, *(hash_tag(shard.pool) for shard in store.keys.shards[1:])]):
                await store.stats.ping()
            all_tags = [*meta, *(hash_tag(shard.pool) for shard in store.keys.shards)]
            with tags_away(store.client, all_tags), pytest.raises(NodeDown):
                await store.stats.ping()
        finally:
            store.keys.meta = before


class TestAwayShards:
    async def test_shards_are_away_until_they_are_asked_again_and_answer(self, store: StoreFixture) -> None:
        first = store.keys.shards[0]
        with shards_away(store, first):
            await store.tasks.worker_snapshot(1)
            await store.away_shards.ask_again()
            assert len(store.away_shards) == 1
            assert first in store.away_shards
        await store.away_shards.ask_again()
        assert len(store.away_shards) == 0

    async def test_ids_are_drawn_again_until_they_fall_into_a_shard_that_is_there(self, store: StoreFixture) -> None:
        away, there = store.keys.shards[0], store.keys.shards[1]
        drawn = [*tasks_of(store, away, 3), *tasks_of(store, there)]
        with shards_away(store, away):
            await store.tasks.worker_snapshot(1)
            draws = iter(drawn)
            assert store.away_shards.draw(lambda: next(draws)) is drawn[-1]

    async def test_ids_are_drawn_no_more_than_so_often(self, store: StoreFixture) -> None:
        drawn = tasks_of(store, store.keys.shards[0], MAX_DRAWS)
        with shards_away(store, store.keys.shards[0]):
            await store.tasks.worker_snapshot(1)
            draws = iter(drawn)
            assert store.away_shards.draw(lambda: next(draws)) is drawn[-1]

    async def test_an_id_that_its_caller_chose_is_not_drawn_again(self, store: StoreFixture) -> None:
        [task] = tasks_of(store, store.keys.shards[0])
        drawn = iter([task, replace(task), *tasks_of(store, store.keys.shards[1])])
        with shards_away(store, store.keys.shards[0]):
            await store.tasks.worker_snapshot(1)
            assert store.away_shards.draw(lambda: next(drawn)) == task


class _Time:
    def __init__(self, s: float = 1000.0) -> None:
        self.s = s

    def __call__(self) -> float:
        return self.s


def a_book(client: StoreClient, store: StoreFixture, time: _Time, grace_s: float) -> PolicyBook:
    return PolicyBook(client, store.keys, DEFAULT_POLICY, time, grace_s)


class TestPolicies:
    async def test_those_read_last_are_good_for_the_grace_while_their_node_is_away(self, store: StoreFixture) -> None:
        book = a_book(store.client, store, time := _Time(), 30.0)
        await book.change(topic_scope("order"), lambda settings: settings.merge({"paused": True}))
        with policies_away(store) as connections:
            time.s += FRESH_S
            assert (await book.current()).for_topic("order").is_held
            assert (await book.look()).for_topic("order").is_held
            assert (await book.reread()).for_topic("order").is_held
            asked = len(connections.refused)
            time.s += 30.0 - FRESH_S - 0.1
            await book.current()
            assert len(connections.refused) == asked  # it is known to be away, and others ask
            time.s += 0.1
            with pytest.raises(NodeDown):
                await book.current()
        assert (await book.current()).for_topic("order").is_held

    async def test_without_a_grace_they_must_be_read_anew(self, store: StoreFixture) -> None:
        book = a_book(store.client, store, time := _Time(), 0.0)
        await book.current()
        with policies_away(store):
            time.s += FRESH_S
            with pytest.raises(NodeDown):
                await book.current()

    @pytest.mark.parametrize("up_s", [2.0, 1000.0])
    async def test_those_that_were_never_read_are_good_for_nothing(self, store: StoreFixture, up_s: float) -> None:
        """Also on a machine that was started a moment ago: monotonic time begins there."""
        book = a_book(store.client, store, _Time(up_s), 30.0)
        with policies_away(store):
            for _ in range(2):
                with pytest.raises(NodeDown):
                    await book.current()
            with pytest.raises(NodeDown):
                await book.look()

    async def test_they_cannot_be_changed_meanwhile(self, store: StoreFixture) -> None:
        book = a_book(store.client, store, _Time(), 30.0)
        await book.current()
        with policies_away(store), pytest.raises(NodeDown):
            await book.change(topic_scope("order"), lambda settings: settings.merge({"paused": True}))


class TestWhatElseLiesOnOneNode:
    async def test_keys_secrets_and_sessions_are_good_for_the_grace(self, store: StoreFixture) -> None:
        time = _Time()
        keys = KeyBook(store.client, store.keys, time, grace_s=30.0)
        session = SessionSecret(store.client, store.keys, time, 30.0)
        signing = SigningBook(store.client, store.keys, time, store.time.now, 30.0)
        secret, known = await session.make(), await keys.current()
        await signing.refresh()
        with tags_away(store.client, [hash_tag(store.keys.api_keys), hash_tag(store.keys.signing)]):
            time.s += 29
            assert await session.make() == secret
            assert await keys.current() is known
            await signing.refresh()
            time.s += 1
            for read in (session.read, keys.current, signing.refresh):
                with pytest.raises(NodeDown):
                    await read()

    async def test_keys_and_secrets_that_were_never_read_are_good_for_nothing(self, store: StoreFixture) -> None:
        """Otherwise a daemon on a machine that was started a moment ago would let calls in without a key."""
        keys = KeyBook(store.client, store.keys, time := _Time(2.0), grace_s=30.0)
        signing = SigningBook(store.client, store.keys, time, store.time.now, 30.0)
        with tags_away(store.client, [hash_tag(store.keys.api_keys), hash_tag(store.keys.signing)]):
            for read in (keys.current, signing.refresh):
                with pytest.raises(NodeDown):
                    await read()
