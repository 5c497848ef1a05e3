"""Tasks that die in a topic with a dead-letter topic live on there: moved in one step, guarded by their leases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from later.core.clock import Interval
from later.core.dead_letter_topic import move_dead
from later.core.errors import LaterError, NotFound, StoreDown
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies, Settings, topic_scope
from later.core.retry import Failure, Nack, SettleTarget, Verdict, expiry_failure
from later.core.task import Death, Task, encode_task
from later.store.dead_letter_topics import TopicChange
from later.store.fanout import MAX_READ_BYTES
from later.store.keys import Bucket
from later.store.pull_plan import PullRequest, PullTopic
from later.store.pulls import LeaseNack
from later.store.types import Claim, Settlement, TaskRecord
from tests.builders import NOW, a_task
from tests.store.inspection import (
    FAILURE,
    LEASE_MS,
    PAUSED,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    locate,
    read_contents,
    release_due,
)
from tests.store.test_pulls import a_request, pull
from tests.store_fixture import StoreFixture

EXHAUSTED = Failure(4, "exhausted", 500, "4 failures, the last: answered 500", NOW - 1, None, 4)
SOON = NOW + 5000


def policies(dead_to: str = "failed", **more: Any) -> Policies:
    return Policies(DEFAULT_POLICY, {topic_scope("order"): Settings({"dead_to": dead_to, **more})})


def moved(claim: Claim, rules: Policies | None = None, at: int = NOW) -> Settlement:
    """Return the death of a claimed task, which moves to the topic `failed`."""
    assert isinstance(claim.task, Task)
    verdict = Verdict(SettleTarget.DEAD, at, EXHAUSTED)
    return Settlement(claim, move_dead(verdict, claim.task, rules or policies()), None)


async def move(store: StoreFixture, *tasks: Task, rules: Policies | None = None) -> None:
    """Create tasks of the topic `order`, and let them die."""
    await store.tasks.create(tasks)
    claims: list[Claim] = []
    while some := await claim_due(store, topics=("order",)):
        claims += some
    assert await store.dead_letter_topics.settle([moved(claim, rules) for claim in claims]) == [True] * len(tasks)


async def find(store: StoreFixture, id: str) -> TaskRecord:
    [record] = await store.lookup.query([id])
    assert isinstance(record, TaskRecord), record
    return record


async def expire(store: StoreFixture, now: int, rules: Policies | None = None) -> list[str]:
    """Let tasks expire as a worker does; return the ids of those that died."""
    found = await store.expiry.expired_tasks(now)
    deaths = [(task, expiry_failure(task.failure, now)) for task in found]
    answers = await store.dead_letter_topics.expire(deaths, now, rules or policies())
    return sorted(task.id for task, answer in zip(found, answers, strict=True) if answer is True)


async def test_a_dead_task_is_due_in_the_other_topic_and_begins_anew(store: StoreFixture) -> None:
    task = a_task(id="a", own_id=True, ttl=60, content="hello", headers={"X-A": "1"})
    await move(store, task)
    record = await find(store, "a")
    assert (record.topic, record.state, record.score) == ("failed", Bucket.DELAY, NOW)
    assert (record.attempts, record.failure) == (0, None)
    assert record.task == msgspec.structs.replace(
        task,
        topic="failed",
        expires_at=None,
        renewed_at=NOW,
        death=Death("order", "exhausted", 500, "4 failures, the last: answered 500", NOW - 1, 4, 60_000),
    )
    contents = await assert_sound(store)
    assert (contents.expiry, contents.attempts, contents.outcome) == ({}, {}, {})
    [claim] = await claim_due(store)
    assert (claim.topic, claim.attempt, claim.failure) == ("failed", 1, None)
    assert await store.tasks.settle([done(claim, NOW + 10**9)]) == [True]
    assert (await assert_sound(store)).done == {"a": NOW + 10**9}


async def test_its_ttl_there_counts_from_its_death(store: StoreFixture) -> None:
    await move(store, a_task(id="a", ttl=60), rules=policies(dead_ttl=2))
    assert (await assert_sound(store)).expiry == {("failed", "a"): NOW + 2000}
    assert await expire(store, NOW + 1999) == []
    assert await expire(store, NOW + 2000) == ["a"]
    assert await locate(store, "a") == (Bucket.DEAD, NOW + 2000)
    assert (await find(store, "a")).topic == "failed"


async def test_what_dies_beside_others_is_moved_and_they_are_settled(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=id) for id in "abcd"] + [a_task(id="e", topic="mail")])
    claims = {claim.id: claim for claim in await claim_due(store)}
    settlements = [
        done(claims["a"]), moved(claims["b"]), failed(claims["c"], SOON), moved(claims["d"]), died(claims["e"]),
    ]  # fmt: skip
    assert await store.dead_letter_topics.settle([*settlements, moved(claims["b"])]) == [True] * 5 + [False]
    contents = await assert_sound(store)
    assert contents.buckets == {
        (Bucket.DELAY, "failed"): {"b": NOW, "d": NOW},
        (Bucket.ERROR, "order"): {"c": SOON},
        (Bucket.DEAD, "mail"): {"e": NOW},
    }


async def test_a_pulled_topic_stays_held_and_hands_out_tasks_that_have_a_callback(store: StoreFixture) -> None:
    await store.policies.change(topic_scope("failed"), lambda before: before.merge({"deliver": "pull"}))
    await move(store, *(a_task(id=f"m{n}") for n in range(40)))
    wakes = {at for (bucket, _, topic), at in (await assert_sound(store)).wakes.items() if bucket is Bucket.DELAY}
    assert wakes == {PAUSED}
    tasks = await pull(store, "failed")
    assert {pulled.task.callback for pulled in tasks} == {"http://127.0.0.1:8888/success"}
    assert {(pulled.attempt, pulled.task.death and pulled.task.death.topic) for pulled in tasks} == {(1, "order")}


async def test_a_nack_and_too_many_claims_move_a_task_of_a_pulled_topic(store: StoreFixture) -> None:
    await store.policies.change(topic_scope("order"), lambda before: before.merge({"dead_to": "failed"}))
    rules = await store.policies.read()
    await store.tasks.create([a_task(id=id, callback="", max_retry=0) for id in "abc"])
    rejected, exhausted, _ = sorted(await pull(store), key=lambda pulled: pulled.task.id)
    nacks = [LeaseNack(rejected.lease, Nack(is_final=True)), LeaseNack(exhausted.lease, Nack(message="no disk"))]
    answers = await store.pulls.nack([*nacks, nacks[0]], rules, NOW, lambda: 0.0)
    assert [getattr(answer, "target", answer) for answer in answers] == [SettleTarget.DEAD, SettleTarget.DEAD, None]
    await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
    [result] = await store.pulls.claim([a_request(max_claims=1)], Interval(SOON * 2, SOON * 2))
    assert not isinstance(result, LaterError)
    assert ([*result.tasks], [death.claim.id for death in result.deaths]) == ([], ["c"])
    assert {id: (await find(store, id)).topic for id in "abc"} == dict.fromkeys("abc", "failed")
    deaths = [task.death for id in "abc" if isinstance(task := (await find(store, id)).task, Task)]
    assert [death and death.reason for death in deaths] == ["rejected", "exhausted", "lost"]
    await assert_sound(store, SOON * 2)


class TestExpired:
    @pytest.fixture
    async def waiting(self, store: StoreFixture) -> None:
        """One task in delay, one in error after a failure, one in flight; their ttls end in five seconds."""
        await store.tasks.create([a_task(id=id, ttl=5) for id in ("error", "unack")])
        claims = {claim.id: claim for claim in await claim_due(store)}
        await store.tasks.settle([failed(claims["error"], NOW + 60_000)])
        await store.tasks.create([a_task(id="delay", ttl=5, delay=60)])

    async def test_a_task_whose_ttl_ends_while_it_waits_moves_too(self, store: StoreFixture, waiting: None) -> None:
        assert await expire(store, SOON - 1) == []
        assert await expire(store, SOON) == ["delay", "error"]
        contents = await assert_sound(store, SOON)
        assert contents.buckets[Bucket.DELAY, "failed"] == {"delay": SOON, "error": SOON}
        assert contents.expiry == {("order", "unack"): SOON + 1000}
        assert (contents.outcome, set(contents.attempts)) == ({}, {"unack"})
        task = (await find(store, "error")).task
        assert isinstance(task, Task)
        message = "its ttl ended before it was done"
        assert task.death == Death("order", "expired", 500, message, SOON, 1, 5000, None, FAILURE.all)

    async def test_a_task_that_has_changed_since_it_was_read_moves_the_next_time(
        self, store: StoreFixture, waiting: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = store.lookup.stored_tasks

        async def read_early(names: Any) -> Any:
            found = await original(names)
            await ask(store, [("HSET", store.keys.shard_of("delay").pool, "delay", encode_task(a_task(ttl=5)))])
            return found

        monkeypatch.setattr(store.lookup, "stored_tasks", read_early)
        assert await expire(store, SOON) == ["error"]
        monkeypatch.undo()
        assert (await find(store, "delay")).state is Bucket.DELAY
        assert await expire(store, SOON) == ["delay"]
        assert (await find(store, "delay")).topic == "failed"

    async def test_a_ttl_that_a_claim_has_moved_is_waited_for(self, store: StoreFixture, waiting: None) -> None:
        found = await store.expiry.expired_tasks(SOON)
        shard = store.keys.shard_of("delay")
        await ask(store, [("ZADD", shard.expiry, SOON + 9000, b"order\0delay")])
        deaths = [(task, expiry_failure(None, SOON)) for task in found if task.id == "delay"]
        assert await store.dead_letter_topics.expire(deaths, SOON, policies()) == [False]
        assert (await find(store, "delay")).topic == "order"

    async def test_what_cannot_be_read_or_is_gone_dies_as_ever(self, store: StoreFixture, waiting: None) -> None:
        await ask(store, [("HSET", store.keys.shard_of("delay").pool, "delay", b"?")])
        await ask(store, [("HDEL", store.keys.shard_of("error").pool, "error")])
        assert await expire(store, SOON) == ["delay", "error"]
        contents = await read_contents(store)
        assert contents.buckets[Bucket.DEAD, "order"] == {"delay": SOON, "error": SOON}
        assert (Bucket.DELAY, "failed") not in contents.buckets

    async def test_topics_without_a_dead_letter_topic_keep_their_dead(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a", ttl=5, delay=9), a_task(id="b", topic="mail", ttl=5, delay=9)])
        assert await expire(store, SOON) == ["a", "b"]
        contents = await assert_sound(store, SOON)
        assert contents.buckets == {(Bucket.DELAY, "failed"): {"a": SOON}, (Bucket.DEAD, "mail"): {"b": SOON}}


class TestComingBack:
    async def test_a_waiting_task_goes_back_to_where_it_died(self, store: StoreFixture) -> None:
        task = a_task(id="a", ttl=60)
        await move(store, task, rules=policies(dead_ttl=99))
        [answer] = await store.edits.redrive(["a"], SOON)
        back = msgspec.structs.replace(task, expires_at=SOON + 60_000, renewed_at=SOON)
        assert answer == TaskRecord("a", "order", back, Bucket.DELAY, SOON, 0, None)
        assert await find(store, "a") == answer
        assert (await assert_sound(store, SOON)).expiry == {("order", "a"): SOON + 60_000}

    async def test_so_does_one_that_has_failed_in_the_dead_letter_topic(self, store: StoreFixture) -> None:
        await move(store, a_task(id="a"))
        [claim] = await claim_due(store)
        await store.tasks.settle([failed(claim, SOON)])
        [answer] = await store.edits.redrive(["a"], SOON)
        assert isinstance(answer, TaskRecord)
        assert (answer.topic, answer.attempts, answer.failure) == ("order", 0, None)
        await assert_sound(store, SOON)

    async def test_one_in_flight_or_dead_there_is_redriven_as_any_other(self, store: StoreFixture) -> None:
        await move(store, a_task(id="a"), a_task(id="b"))
        a, b = sorted(await claim_due(store), key=lambda claim: claim.id)
        await store.tasks.settle([died(a)])
        answers = await store.edits.redrive(["a", "b", "c"], SOON)
        assert [type(answer).__name__ for answer in answers] == ["TaskRecord", "InFlight", "NotFound"]
        assert (await find(store, "a")).topic == "failed"
        assert await store.tasks.settle([done(b)]) == [True]

    async def test_what_was_redriven_is_known_also_if_the_store_goes_away_before_the_others(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await move(store, a_task(id="a"), a_task(id="b"))
        a, _ = sorted(await claim_due(store), key=lambda claim: claim.id)
        await store.tasks.settle([died(a)])
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)

        async def be_away(names: Any) -> Any:
            raise StoreDown("the store is gone")

        monkeypatch.setattr(store.lookup, "stored_tasks", be_away)
        answers = await store.edits.redrive(["a", "b"], SOON)
        assert [type(answer).__name__ for answer in answers] == ["TaskRecord", "StoreDown"]

    async def test_a_task_that_never_died_is_no_dead_letter(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a")])
        [answer] = await store.edits.redrive(["a"], SOON)
        assert str(answer) == "task 'a' is in delay, not dead: /run-now makes it due now"


async def test_a_task_moves_while_the_store_is_full(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="b", ttl=5, delay=9)])
    [claim] = await claim_due(store)
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        assert await store.dead_letter_topics.settle([moved(claim)]) == [True]
        assert await expire(store, SOON) == ["b"]
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    assert {(await find(store, id)).topic for id in "ab"} == {"failed"}


async def test_many_large_tasks_take_several_round_trips(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = store.client.execute_each

    async def execute_each(verb: str, commands: Any) -> Any:
        if verb == "change_topic":
            sizes.append(sum(len(part) for command in commands for part in command if isinstance(part, bytes)))
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", execute_each)
    await move(store, *(a_task(content="x" * 2**20) for _ in range(9)))
    await move(store, *(a_task() for _ in range(700)))
    assert len(sizes) >= 3 + 2
    assert max(sizes) < MAX_READ_BYTES + 2**20
    assert len((await assert_sound(store)).buckets[Bucket.DELAY, "failed"]) == 709


async def test_a_topic_that_cannot_be_written_keeps_its_tasks_in_flight(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a")])
    [claim] = await claim_due(store)
    await ask(store, [("SET", store.keys.shard_of("a").bucket(Bucket.DELAY, b"failed"), "no sorted set")])
    [answer] = await store.dead_letter_topics.settle([moved(claim)])
    assert isinstance(answer, LaterError)
    assert (await find(store, "a")).state is Bucket.UNACK
    assert await store.tasks.settle([done(claim)]) == [True]


async def test_a_verb_that_finds_the_task_elsewhere_starts_over(store: StoreFixture) -> None:
    task = a_task(id="a", own_id=True)
    await move(store, task)
    assert await store.tasks.create([task]) != [True]
    assert (await store.edits.run_now(["a"], SOON))[0] == await find(store, "a")
    [deletion] = await store.edits.delete(["a"])
    assert not isinstance(deletion, LaterError)
    assert isinstance((await store.lookup.query(["a"]))[0], NotFound)
    assert (await assert_sound(store)).pool == set()


@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
async def test_a_move_may_be_sent_again(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, answer_lost: bool
) -> None:
    await store.tasks.create([a_task(id="a", own_id=True)])
    [claim] = await claim_due(store)
    original = store.client.execute_each

    async def be_cut(verb: str, commands: Any) -> Any:
        if answer_lost:
            await original(verb, commands)
        raise StoreDown("the connection is cut")

    monkeypatch.setattr(store.client, "execute_each", be_cut)
    [first] = await store.dead_letter_topics.settle([moved(claim)])
    assert isinstance(first, StoreDown)
    monkeypatch.undo()
    assert await store.dead_letter_topics.settle([moved(claim)]) == [not answer_lost]
    assert (await assert_sound(store)).buckets == {(Bucket.DELAY, "failed"): {"a": NOW}}


async def test_a_consumer_of_both_topics_gets_a_task_once_in_each(store: StoreFixture) -> None:
    """It dies under the claim that would hand it out, and is handed out by the next one, of the other topic."""
    await store.policies.change(topic_scope("order"), lambda before: before.merge({"dead_to": "failed"}))
    await store.policies.read()
    await store.tasks.create([a_task(id="a", callback="", ttl=1)])
    both = PullRequest([PullTopic("order", 9, LEASE_MS), PullTopic("failed", 9, LEASE_MS)], 9)
    late = Interval(SOON, SOON)
    tasks = []
    for _ in range(2):
        [result] = await store.pulls.claim([both], late)
        assert not isinstance(result, LaterError)
        tasks += result.tasks
    assert [(pulled.task.id, pulled.task.topic, pulled.attempt) for pulled in tasks] == [("a", "failed", 1)]


async def test_a_change_of_a_task_that_is_not_there_changes_nothing(store: StoreFixture) -> None:
    before = await read_contents(store)
    change = TopicChange("order", a_task(topic="failed"), NOW, fence=7)
    assert await store.dead_letter_topics.change_topics([change, change._replace(fence=None, seen=b"x")]) == [False] * 2
    assert await read_contents(store) == before
