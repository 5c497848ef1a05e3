"""Follow-up tasks: the step that ends a task makes the task that its topic's policy asks for, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from later.core.clock import Interval
from later.core.errors import LaterError, StoreDown
from later.core.ordered_ids import order_id
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies, Settings, namespace_scope, topic_scope
from later.core.retry import Failure, Nack, SettleTarget, Verdict, expiry_failure
from later.core.task import Task, encode_task, is_uuid, new_id, pack_id
from later.core.task_view import task_view
from later.store.fanout import MAX_READ_BYTES
from later.store.keys import Bucket, Keys
from later.store.pulls import LeaseNack
from later.store.scripts import MAX_TASKS
from later.store.types import Claim, Settlement, TaskRecord
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.store.inspection import (
    LEASE_MS,
    PAUSED,
    ask,
    assert_sound,
    claim_due,
    done,
    failed,
    read_contents,
    release_due,
)
from tests.store.test_cost import commands_of
from tests.store.test_dead_letter_topics import find
from tests.store.test_pulls import a_request, pull
from tests.store_fixture import StoreFixture

EXHAUSTED = Failure(4, "exhausted", 500, "4 failures, the last: answered 500", NOW, None, 1)
SOON, LATER = NOW + 5000, NOW + 10 * LEASE_MS
EVENTS: dict[str, Any] = {"on_dead": "events", "on_done": "events"}


def policies(**fields: Any) -> Policies:
    """Return the policies of a store in which the ends of tasks of the topic `order` make tasks in `events`."""
    scopes = {topic_scope("order"): Settings({**EVENTS, **fields}), topic_scope("events"): Settings({"ttl": 60})}
    return Policies(DEFAULT_POLICY, scopes)


async def set_policies(store: StoreFixture, topic: str = "order", **fields: Any) -> None:
    """Set these fields, or `EVENTS`, in the store's policy of a topic."""
    await store.policies.change(topic_scope(topic), lambda before: before.merge(fields or EVENTS))


def ended(store: StoreFixture, settlement: Settlement, rules: Policies | None = None) -> Settlement:
    """Return a settlement with all that its task leaves, as a worker plans it."""
    verdict = store.dead_letter_topics.plan(settlement.claim, settlement.verdict, rules or policies())
    return settlement._replace(verdict=verdict)


def died(claim: Claim) -> Settlement:
    return Settlement(claim, Verdict(SettleTarget.DEAD, NOW, EXHAUSTED), None)


async def settle(store: StoreFixture, settlements: Sequence[Settlement]) -> list[bool | LaterError]:
    return await store.dead_letter_topics.settle(settlements)


async def follow_ups(store: StoreFixture, topic: str = "events") -> list[TaskRecord]:
    """Return the follow-up tasks that wait in a topic, in the order of the tasks that have ended."""
    contents = await read_contents(store)
    records = await store.lookup.query([*contents.buckets.get((Bucket.DELAY, topic), {})])
    found = [record for record in records if isinstance(record, TaskRecord)]
    return sorted(found, key=lambda record: str(content_of(record)["id"]))


def content_of(record: TaskRecord) -> dict[str, Any]:
    assert isinstance(record.task, Task)
    content: dict[str, Any] = json.loads(record.task.content)
    return content


async def expire(store: StoreFixture, now: int = SOON, rules: Policies | None = None) -> list[str]:
    """Let tasks expire as a worker does; return the ids of those that died."""
    found = await store.expiry.expired_tasks(now)
    deaths = [(task, expiry_failure(task.failure, now)) for task in found]
    answers = await store.dead_letter_topics.expire(deaths, now, rules or policies())
    return sorted(task.id for task, answer in zip(found, answers, strict=True) if answer is True)


def lose_settles_after_the_first(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store go away before the second settle."""
    original = store.client.execute_each
    settles = 0

    async def execute_each(verb: str, commands: Any) -> Any:
        nonlocal settles
        settles += verb == "settle"
        if verb == "settle" and settles > 1:
            raise StoreDown("gone")
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", execute_each)


async def ends_of(store: StoreFixture, topic: str = "events") -> list[tuple[str, str]]:
    """Return which tasks have ended by the follow-ups in a topic, and their states then."""
    contents = [content_of(record) for record in await follow_ups(store, topic)]
    return [(content["id"], content["state"]) for content in contents]


async def test_each_end_makes_one_task_in_the_shard_of_the_task_that_ended(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"t{n:02}") for n in range(40)] + [a_task(id="z", topic="mail")])
    claims = sorted(await claim_due(store), key=lambda claim: claim.id)
    settlements = [ended(store, (done if n % 2 else died)(claim)) for n, claim in enumerate(claims)]
    assert await settle(store, settlements) == [True] * 41
    assert await ends_of(store) == [(f"t{n:02}", "done" if n % 2 else "dead") for n in range(40)]
    made = await follow_ups(store)
    shards = {record.id: store.keys.shard_of(content_of(record)["id"]) for record in made}
    assert {id: store.keys.shard_of(id) for id in shards} == shards
    contents = await assert_sound(store)
    assert contents.expiry == {("events", record.id): NOW + 60_000 for record in made}
    assert (len(contents.buckets[Bucket.DEAD, "order"]), len(contents.buckets[Bucket.DEAD, "mail"])) == (20, 1)


async def test_it_is_due_at_once_and_has_the_settings_of_its_topic(store: StoreFixture) -> None:
    rules = policies()
    fields: dict[str, Any] = {"retry": 7, "ttl": 60, "default_delay": 90, "delays": False}
    rules = rules.with_settings(topic_scope("events"), Settings(fields))
    task = a_task(id="a", own_id=True, headers={"X-A": "1"}, content='{"a": "ü\\u0001"}')
    await store.tasks.create([task])
    [claim] = await claim_due(store)
    assert await settle(store, [ended(store, done(claim, NOW + 999), rules)]) == [True]
    [record] = await follow_ups(store)
    made = record.task
    assert isinstance(made, Task)
    assert (record.score, made.execute_at, made.created_at, made.expires_at) == (NOW, NOW, NOW, NOW + 60_000)
    assert (made.callback, made.headers, made.max_retry, made.own_id, made.is_follow_up) == ("", {}, 7, False, True)
    content = content_of(record)
    assert (content["content"], content["headers"], content["callback"]) == (task.content, ["X-A"], task.callback)
    assert (content["state"], content["done_at"]) == ("done", "2027-01-15T08:00:00.000Z")
    assert (content["attempts"], content["last_error"], "died_at" in content) == (1, None, False)


async def test_the_content_of_a_death_is_what_a_query_answers_then(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", ttl=60, max_retry=1)])
    [claim] = await claim_due(store)
    await store.tasks.settle([failed(claim, SOON)])
    await release_due(store, Bucket.ERROR, SOON)
    [claim] = await claim_due(store, SOON)
    failure = msgspec.structs.replace(EXHAUSTED, failures=2, attempt=2)
    assert await settle(store, [ended(store, Settlement(claim, Verdict(SettleTarget.DEAD, SOON, failure), None))])
    [record] = await follow_ups(store)
    assert isinstance(record.task, Task)
    assert record.task.content.encode() == msgspec.json.encode(task_view(await find(store, "a")))
    assert (content_of(record)["attempts"], content_of(record)["has_retry"]) == (2, 1)


async def test_an_end_that_is_settled_twice_or_whose_lease_was_lost_makes_no_other(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="b")])
    claims = {claim.id: claim for claim in await claim_due(store)}
    first, again = ended(store, done(claims["a"])), ended(store, done(claims["a"]))
    assert await settle(store, [first, again]) == [True, False]
    assert await settle(store, [first, again]) == [False, False]
    assert await release_due(store, Bucket.UNACK, NOW + LEASE_MS) == 1
    assert await settle(store, [ended(store, died(claims["b"]))]) == [False]
    assert await ends_of(store) == [("a", "done")]
    await assert_sound(store, NOW + LEASE_MS)


@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
async def test_an_end_may_be_sent_again(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, answer_lost: bool
) -> None:
    await store.tasks.create([a_task(id="a")])
    [claim] = await claim_due(store)
    settlement, original = ended(store, done(claim)), store.client.execute_each

    async def be_cut(verb: str, commands: Any) -> Any:
        if answer_lost:
            await original(verb, commands)
        raise StoreDown("the connection is cut")

    monkeypatch.setattr(store.client, "execute_each", be_cut)
    with pytest.raises(StoreDown):
        await settle(store, [settlement])
    monkeypatch.undo()
    assert await settle(store, [settlement]) == [not answer_lost]
    assert await ends_of(store) == [("a", "done")]


async def test_its_own_end_makes_no_task_whatever_the_policies_say(store: StoreFixture) -> None:
    scopes = {namespace_scope("default"): Settings(EVENTS), topic_scope("events"): Settings({"on_done": "order"})}
    rules = Policies(DEFAULT_POLICY, scopes)
    await store.tasks.create([a_task(id="a"), a_task(id="b"), a_task(id="c", topic="events", delay=9)])
    assert await settle(store, [ended(store, done(claim), rules) for claim in await claim_due(store)]) == [True] * 2
    own = [ended(store, (done, died)[n](claim), rules) for n, claim in enumerate(await claim_due(store))]
    assert [settlement.verdict.follow_up for settlement in own] == [None, None]
    assert await settle(store, own) == [True, True]
    [claim] = await claim_due(store, NOW + 9000)
    assert ended(store, died(claim), rules).verdict.follow_up is None  # the topic of a whole namespace
    made = ended(store, done(claim), rules).verdict.follow_up
    assert made is not None
    assert made.topic == "order"


async def test_a_task_that_moves_when_it_dies_makes_one_too(store: StoreFixture) -> None:
    rules = policies(dead_to="failed")
    await store.tasks.create([a_task(id=id) for id in "abc"] + [a_task(id="d", ttl=5, delay=9)])
    claims = sorted(await claim_due(store), key=lambda claim: claim.id)
    deaths = [ended(store, died(claim), rules) for claim in claims[:2]]
    settlements = [*deaths, deaths[0], ended(store, done(claims[2]), rules)]
    assert await settle(store, settlements) == [True, True, False, True]
    assert await expire(store, rules=rules) == ["d"]
    assert await ends_of(store) == [("a", "dead"), ("b", "dead"), ("c", "done"), ("d", "dead")]
    contents = [content_of(record) for record in await follow_ups(store)]
    assert {content["topic"] for content in contents} == {"order"}
    assert [content["last_error"]["reason"] for content in contents if content["last_error"]] == [
        "exhausted", "exhausted", "expired",
    ]  # fmt: skip
    assert {(await find(store, id)).topic for id in "abd"} == {"failed"}
    await assert_sound(store, SOON)


class TestExpired:
    @pytest.fixture
    async def waiting(self, store: StoreFixture) -> None:
        """Tasks whose ttls end in five seconds: in delay, in error, in flight, and one whose lease was lost."""
        await store.tasks.create([a_task(id=id, ttl=5) for id in ("error", "lost", "unack")])
        claims = {claim.id: claim for claim in await claim_due(store)}
        await store.tasks.settle([failed(claims["error"], NOW + 60_000)])
        await store.tasks.give_back([claims["lost"]])
        [claim] = await claim_due(store, lease_end=NOW + 1)
        assert (claim.id, await release_due(store, Bucket.UNACK, NOW + 1)) == ("lost", 1)
        await store.tasks.create([a_task(id="delay", ttl=5, delay=60)])

    async def test_a_ttl_that_ends_while_a_task_waits_makes_one(self, store: StoreFixture, waiting: None) -> None:
        assert await expire(store, SOON - 1) == []
        assert await expire(store) == ["delay", "error", "lost"]
        made = await follow_ups(store)
        assert [content_of(record)["id"] for record in made] == ["delay", "error", "lost"]
        for record in made:
            died = task_view(await find(store, content_of(record)["id"]))
            assert isinstance(record.task, Task)
            assert record.task.content.encode() == msgspec.json.encode(died)
        contents = await assert_sound(store, SOON)
        assert contents.expiry[("order", "unack")] == SOON + 1000

    async def test_a_task_that_has_changed_since_it_was_read_dies_the_next_time(
        self, store: StoreFixture, waiting: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = store.lookup.stored_tasks

        async def read_early(names: Any) -> Any:
            found = await original(names)
            changed = encode_task(a_task(ttl=5, content="changed"))
            await ask(store, [("HSET", store.keys.shard_of("delay").pool, "delay", changed)])
            return found

        monkeypatch.setattr(store.lookup, "stored_tasks", read_early)
        assert "delay" not in await expire(store)
        monkeypatch.undo()
        assert "delay" in await expire(store)
        [content] = [content_of(made) for made in await follow_ups(store) if content_of(made)["id"] == "delay"]
        assert content["content"] == "changed"

    async def test_what_cannot_be_read_makes_one_and_what_is_gone_makes_none(
        self, store: StoreFixture, waiting: None
    ) -> None:
        await ask(store, [("HSET", store.keys.shard_of("delay").pool, "delay", b"?")])
        await ask(store, [("HDEL", store.keys.shard_of("error").pool, "error")])
        assert await expire(store) == ["delay", "error", "lost"]
        first, _ = await follow_ups(store)
        content = content_of(first)
        assert (content["id"], content["content"], content["last_error"]["reason"]) == ("delay", None, "expired")

    async def test_topics_without_the_field_take_no_command_more(self, store: StoreFixture) -> None:
        counts = list[dict[str, int]]()
        with_policies = partial(store.dead_letter_topics.expire, policies=policies())
        for verb in (store.expiry.expire, store.expiry.expire, with_policies):
            await store.tasks.create([a_task(id=f"t{n}", topic="mail", ttl=5, delay=9) for n in range(9)])
            deaths = [(task, expiry_failure(None, SOON)) for task in await store.expiry.expired_tasks(SOON)]
            counts.append(await commands_of(store, partial(verb, deaths, SOON)))
            await store.edits.delete([f"t{n}" for n in range(9)])
        assert counts[1] == counts[2]  # before, the script is loaded


class TestConsumers:
    @pytest.fixture(autouse=True)
    async def rules(self, store: StoreFixture) -> None:
        await set_policies(store, deliver="pull", **EVENTS)
        await set_policies(store, "events", deliver="pull")

    async def test_acks_nacks_and_claims_too_many_make_one_each(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=id, callback="", max_retry=0) for id in "abcde"])
        await store.tasks.create([a_task(id="m", topic="mail", callback="")])
        leases = {pulled.task.id: pulled.lease for pulled in await pull(store, "order", "mail")}
        assert await store.pulls.ack([leases[id] for id in "amaa"], NOW) == [True, True, False, False]
        [result] = await store.pulls.claim([a_request()._replace(done=[leases["b"]])], Interval(NOW, NOW))
        assert not isinstance(result, LaterError)
        assert result.acked == [True]
        nacks = [LeaseNack(leases["c"], Nack(is_final=True)), LeaseNack(leases["d"], Nack())]
        verdicts = await store.pulls.nack([*nacks, nacks[0]], store.policies.latest, NOW, lambda: 0.0)
        assert [verdict and not isinstance(verdict, LaterError) and verdict.target for verdict in verdicts] == [
            SettleTarget.DEAD, SettleTarget.DEAD, None,
        ]  # fmt: skip
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
        [result] = await store.pulls.claim([a_request(max_claims=1)], Interval(LATER, LATER))
        assert await ends_of(store) == [("a", "done"), ("b", "done"), ("c", "dead"), ("d", "dead"), ("e", "dead")]
        await assert_sound(store, LATER)

    async def test_an_ack_of_a_lost_lease_makes_none(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=id, callback="") for id in "abc"])
        lost = {pulled.task.id: pulled.lease for pulled in await pull(store)}
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
        await store.edits.delete(["b"])
        [again, _] = sorted(await pull(store, now=NOW + LEASE_MS), key=lambda pulled: pulled.task.id)
        leases = [*lost.values(), again.lease]
        assert await store.pulls.ack(leases, NOW) == [False, False, False, True]
        assert await ends_of(store) == [("a", "done")]

    async def test_an_ack_whose_answer_was_lost_may_be_sent_again(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task(id="a", callback="")])
        [pulled] = await pull(store)
        original = store.client.execute_each

        async def be_cut(verb: str, commands: Any) -> Any:
            answers = await original(verb, commands)
            if verb == "settle":
                raise StoreDown("the connection is cut", unknown=True)
            return answers

        monkeypatch.setattr(store.client, "execute_each", be_cut)
        with pytest.raises(StoreDown):
            await store.pulls.ack([pulled.lease], NOW)
        monkeypatch.undo()
        assert await store.pulls.ack([pulled.lease], NOW) == [False]
        assert await ends_of(store) == [("a", "done")]

    async def test_messages_that_are_popped_make_them(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=id, callback="") for id in "ab"])
        result = await store.claim_records.pop("order", 2, Interval(NOW, NOW))
        assert [pulled.task.id for pulled in result.tasks] == ["a", "b"]
        assert await ends_of(store) == [("a", "done"), ("b", "done")]

    async def test_no_message_is_lost_of_a_pop_if_the_store_goes_away_within_it(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content = "x" * (MAX_READ_BYTES // 2)
        await store.tasks.create([a_task(id=id, callback="", content=content) for id in "abc"])
        lose_settles_after_the_first(store, monkeypatch)
        result = await store.claim_records.pop("order", 3, Interval(NOW, NOW))
        monkeypatch.undo()
        popped = [(pulled.task.id, "done") for pulled in result.tasks]
        assert 0 < len(popped) < 3
        assert await ends_of(store) == popped
        buckets = (await read_contents(store)).buckets
        kept = [id for bucket in (Bucket.DELAY, Bucket.UNACK) for id in buckets.get((bucket, "order"), {})]
        assert sorted([*kept, *(id for id, _ in popped)]) == ["a", "b", "c"]

    async def test_what_was_acked_is_known_if_the_store_goes_away_before_the_others(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.tasks.create([a_task(id="a", callback=""), a_task(id="m", topic="mail", callback="")])
        leases = [pulled.lease for pulled in await pull(store, "order", "mail")]
        lose_settles_after_the_first(store, monkeypatch)
        answer, other = await store.pulls.ack(leases, NOW)
        monkeypatch.undo()
        assert isinstance(answer, StoreDown)
        assert other is True
        assert await store.pulls.ack(leases, NOW) == [True, False]

    async def test_a_pulled_topic_stays_held_and_hands_them_out_in_order(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=f"t{n}", callback="") for n in range(8)])
        for pulled in await pull(store):
            assert await store.pulls.ack([pulled.lease], NOW) == [True]
        wakes = {at for (bucket, _, topic), at in (await assert_sound(store)).wakes.items() if bucket is Bucket.DELAY}
        assert wakes == {PAUSED}
        made = [pulled.task for pulled in await pull(store, "events")]
        assert [json.loads(task.content)["id"] for task in made] == [f"t{n}" for n in range(8)]
        assert all(one.id[:18] < other.id[:18] for one, other in pairwise(made))

    async def test_what_a_user_removes_has_not_ended(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id=id, callback="") for id in "abc"])
        await pull(store, limit=1)
        assert len(await store.edits.delete(["a", "b", "c"])) == 3
        assert await ends_of(store) == []
        assert (await assert_sound(store)).pool == set()


async def test_a_task_that_is_redriven_and_dies_again_makes_another(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a")])
    for _ in range(2):
        [claim] = await claim_due(store, SOON, topics=("order",))
        assert await settle(store, [ended(store, died(claim))]) == [True]
        await store.edits.redrive(["a"], NOW)
    assert await ends_of(store) == [("a", "dead")] * 2


async def test_ends_go_on_while_the_store_is_full_and_none_is_without_its_follow_up(store: StoreFixture) -> None:
    await set_policies(store)
    await store.tasks.create([a_task(id=id, content="x" * 9000) for id in "abc"] + [a_task(id="d", ttl=5, delay=9)])
    a, b, c = sorted(await claim_due(store), key=lambda claim: claim.id)
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        moving = ended(store, died(c), policies(dead_to="failed"))
        assert await settle(store, [ended(store, done(a)), ended(store, died(b)), moving]) == [True] * 3
        assert await expire(store) == ["d"]
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    assert await ends_of(store) == [("a", "done"), ("b", "dead"), ("c", "dead"), ("d", "dead")]
    await assert_sound(store, SOON)


async def test_a_call_takes_500_tasks_at_most_and_many_large_ones_several_round_trips(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, counts = list[int](), list[int]()
    original = store.client.execute_each

    async def execute_each(verb: str, commands: Any) -> Any:
        if verb in ("settle", "expire", "change_topic"):
            sizes.append(sum(len(part) for command in commands for part in command if isinstance(part, bytes)))
            packed = {pack_id(f"t{n:03}") for n in range(600)}
            counts.extend(len(packed.intersection(map(_as_bytes, command))) for command in commands)
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", execute_each)
    await store.tasks.create([a_task(content="x" * 2**20) for _ in range(9)])
    assert await settle(store, [ended(store, done(claim)) for claim in await claim_due(store)]) == [True] * 9
    assert len(sizes) >= 3
    await store.redis.flushdb()
    for rules in (policies(), policies(dead_to="failed")):
        await store.tasks.create([a_task(id=f"t{n:03}", ttl=5, delay=9) for n in range(600)])
        while await expire(store, rules=rules):
            pass
        assert len((await read_contents(store)).pool) == 2 * 600
        await store.redis.flushdb()
    assert max(sizes) < MAX_READ_BYTES + 2**20
    assert 0 < max(counts) <= MAX_TASKS // 2


def _as_bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


async def test_a_topic_that_cannot_be_written_leaves_its_tasks_in_flight_and_stops_no_other(
    store: StoreFixture,
) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="b", topic="mail")])
    claims = {claim.id: claim for claim in await claim_due(store)}
    await ask(store, [("SET", store.keys.shard_of("a").bucket(Bucket.DELAY, b"events"), "no sorted set")])
    answer, other = await settle(store, [ended(store, done(claims["a"])), ended(store, done(claims["b"]))])
    assert isinstance(answer, LaterError)
    assert other is True
    assert (await find(store, "a")).state is Bucket.UNACK


async def test_settles_of_other_topics_take_no_command_more(store: StoreFixture) -> None:
    counts = list[dict[str, int]]()
    for verb in (store.tasks.settle, store.tasks.settle, store.dead_letter_topics.settle):
        await store.tasks.create([a_task(id="a", topic="mail")])
        [claim] = await claim_due(store)
        counts.append(await commands_of(store, partial(verb, [ended(store, done(claim))])))
    assert counts[1] == counts[2]  # before, the script is loaded


@pytest.mark.one_server
async def test_a_daemon_that_would_make_none_refuses_the_store(store: StoreFixture) -> None:
    assert await ask(store, [("HGET", store.keys.meta, "needs")]) == [None]
    await set_policies(store, on_done="")
    assert await ask(store, [("HGET", store.keys.meta, "needs")]) == [None]
    await set_policies(store, on_done="events")
    assert await ask(store, [("HGET", store.keys.meta, "needs")]) == [b"follow-ups"]


@each_case("shards", [1, 7, 1024, 16_384])
def test_an_id_is_fitted_into_a_shard_by_its_last_digits(shards: int) -> None:
    keys = Keys("later", shards)
    for shard in (keys.shards[0], keys.shards[-1]):
        drawn = "0190b7e2-4d00-7abc-8def-0123456fffff"
        ids = [keys.fit_id(id, shard) for id in (drawn, new_id(), order_id(new_id(), NOW))]
        assert [keys.shard_of(id) for id in ids] == [shard] * 3
        assert all(map(is_uuid, ids))
        assert ids[0].startswith(drawn[:-6])
