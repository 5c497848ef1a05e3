"""Claims of consumers, and what becomes of their leases."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.clock import Interval
from later.core.errors import LaterError, StoreFull
from later.core.lease import decode_lease, encode_lease
from later.core.policy import Policy
from later.core.policy_scopes import Policies, topic_scope
from later.core.retry import Nack, SettleTarget, Verdict
from later.store.keys import Bucket
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic
from later.store.pulls import LeaseNack
from later.store.types import BucketRange
from tests.builders import NOW, a_task
from tests.store.inspection import PAUSED, ask, assert_sound, claim_due, locate, read_contents, release_due
from tests.store_fixture import StoreFixture

LEASE_MS = 30_000
AT_NOW = Interval(NOW, NOW)


def a_request(*names: str, limit: int = 500, lease_ms: int = LEASE_MS, max_claims: int = 0) -> PullRequest:
    topics = names or ("order",)
    return PullRequest([PullTopic(name, limit, lease_ms, max_claims) for name in topics], limit)


async def pull_all(store: StoreFixture, *requests: PullRequest, now: int = NOW) -> list[PullResult]:
    """Pull with these requests at once."""
    results = await store.pulls.claim(requests, Interval(now, now))
    return [result for result in results if isinstance(result, PullResult)]


async def pull(store: StoreFixture, *names: str, limit: int = 500, now: int = NOW, **kw: int) -> list[PulledTask]:
    [result] = await pull_all(store, a_request(*names, limit=limit, **kw), now=now)
    return result.tasks


def ids(tasks: list[PulledTask]) -> list[str]:
    return [pulled.task.id for pulled in tasks]


async def test_a_pulled_task_is_in_flight_and_its_ack_removes_it(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a")])
    [pulled] = await pull(store)
    assert await locate(store, "a") == (Bucket.UNACK, NOW + LEASE_MS)
    assert (pulled.attempt, pulled.due_at, pulled.lease_end) == (1, NOW, NOW + LEASE_MS)
    assert await store.pulls.ack([decode_lease(encode_lease(pulled.lease))], NOW) == [True]
    assert await locate(store, "a") is None


async def test_an_ack_that_is_sent_twice_finds_the_lease_lost(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a")])
    [pulled] = await pull(store)
    assert await store.pulls.ack([pulled.lease] * 2, NOW) == [True, False]
    assert await store.pulls.ack([pulled.lease], NOW) == [False]


async def test_no_worker_claims_of_a_topic_of_which_a_consumer_has_claimed(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=str(n)) for n in range(200)])
    [first, *others] = await pull(store)
    assert len(others) == 199
    await store.tasks.create([a_task(id="new")])
    await store.pulls.release([first.lease])
    assert not await claim_due(store)
    assert sorted(ids(await pull(store))) == sorted([first.task.id, "new"])


async def test_a_release_returns_a_task_to_its_place_without_an_attempt(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=str(n), created_at=NOW - 5 + n) for n in range(3)])
    first = (await pull(store, limit=1))[0]
    assert await store.pulls.release([first.lease]) == [True]
    assert await store.pulls.release([first.lease]) == [False]
    again = await pull(store)
    assert ids(again) == ["0", "1", "2"]
    assert [pulled.attempt for pulled in again] == [1, 1, 1]


async def test_an_extended_lease_ends_at_the_new_moment_and_its_token_goes_on(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="b")])
    a, b = await pull(store)
    assert await store.pulls.extend([a.lease, b.lease], NOW + 90_000) == [True, True]
    assert await store.pulls.extend([b.lease], NOW + 1_000) == [True]
    assert await release_due(store, Bucket.UNACK, NOW + LEASE_MS) == 1
    assert await store.pulls.extend([a.lease, b.lease], NOW + 90_000) == [True, False]
    assert await store.pulls.ack([a.lease, b.lease], NOW) == [True, False]


async def test_a_nack_waits_for_the_backoff_or_its_own_delay_or_is_final(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=id, max_retry=3) for id in "abcd"])
    nacks = [Nack(message="no"), Nack(delay_ms=5_000), Nack(is_final=True), Nack(is_busy=True)]
    pulled = await pull(store)
    policies = Policies(Policy(retry_base_ms=10_000))
    answers = await store.pulls.nack(
        [LeaseNack(task.lease, nack) for task, nack in zip(pulled, nacks, strict=True)], policies, NOW, lambda: 0.0
    )
    verdicts = [answer for answer in answers if isinstance(answer, Verdict)]
    targets = [SettleTarget.ERROR, SettleTarget.ERROR, SettleTarget.DEAD, SettleTarget.ERROR]
    assert [(verdict.target, verdict.at - NOW) for verdict in verdicts] == list(
        zip(targets, [10_000, 5_000, 0, 10_000], strict=True)
    )
    failures = [verdict.failure for verdict in verdicts]
    assert [failure.failures if failure else None for failure in failures] == [1, 1, 1, 0]
    assert await store.pulls.nack([LeaseNack(pulled[0].lease, nacks[0])], policies, NOW, lambda: 0.0) == [None]


async def test_an_empty_pull_writes_nothing(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", delay=60)])
    await pull(store, now=NOW + 60_000, limit=1)
    await store.tasks.create([a_task(id="b", delay=600)])
    before = (await store.redis.info("persistence"))["rdb_changes_since_last_save"]
    [result] = await pull_all(store, a_request())
    assert (result.tasks, result.next_due_at) == ([], NOW + 600_000)
    assert (await store.redis.info("persistence"))["rdb_changes_since_last_save"] == before


async def test_tasks_are_pulled_by_due_time_over_all_shards(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"{n:03}", created_at=NOW - 100 + n) for n in range(100)])
    assert ids(await pull(store, limit=40)) == [f"{n:03}" for n in range(40)]
    assert ids(await pull(store)) == [f"{n:03}" for n in range(40, 100)]
    wakes = (await read_contents(store)).wakes
    assert {at for (bucket, *_), at in wakes.items() if bucket is Bucket.DELAY} == {PAUSED}


async def test_requests_that_are_made_together_are_dealt_evenly(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"{n:03}") for n in range(100)])
    results = await pull_all(store, *(a_request(limit=500 if n % 2 else 3, lease_ms=1000 + n % 3) for n in range(20)))
    assert sum(len(result.tasks) for result in results) == 100
    assert all(len(result.tasks) == (3 if n % 2 == 0 else 7) for n, result in enumerate(results))
    assert len({pulled.task.id for result in results for pulled in result.tasks}) == 100


async def test_each_of_many_greedy_requests_gets_a_task(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"{n:03}") for n in range(700)])
    results = await pull_all(store, *[a_request(limit=500)] * 600)
    counts = [len(result.tasks) for result in results]
    assert (len(counts), min(counts), max(counts), sum(counts)) == (600, 1, 2, 700)


async def test_topics_are_taken_in_the_order_of_preference(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"{topic}{n}", topic=topic) for topic in "xyz" for n in range(3)])
    request = PullRequest([PullTopic("z", 2, LEASE_MS), PullTopic("x", 500, LEASE_MS), PullTopic("y", 500, 1000)], 7)
    [result] = await pull_all(store, request)
    assert ids(result.tasks) == ["z0", "z1", "x0", "x1", "x2", "y0", "y1"]
    assert result.next_due_at == NOW


async def test_topics_with_due_tasks_are_found_among_those_without(store: StoreFixture) -> None:
    tasks = [a_task(topic=f"t{n}", delay=0 if n % 3 else 60) for n in range(0, 100, 10)]
    await store.tasks.create([*tasks, a_task(topic="t99"), a_task(topic="t99")])
    found = await store.pulls.due_topics([f"t{n}" for n in range(100)], NOW)
    assert sorted(found) == [f"t{n}" for n in (10, 20, 40, 50, 70, 80, 99)]


async def test_a_topic_that_cannot_be_read_does_not_stop_the_others(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="good", topic="good")])
    await ask(store, [("SET", shard.bucket(Bucket.DELAY, b"bad"), "no bucket") for shard in store.keys.shards])
    assert await store.pulls.due_topics(["bad", "good"], NOW) == ["good"]
    for bad, good in ((a_request("bad"), a_request("good")), (a_request("bad", "good", limit=1), a_request("bad"))):
        results = await store.pulls.claim([bad, good], AT_NOW)
        tasks = [pulled for result in results if isinstance(result, PullResult) for pulled in result.tasks]
        assert ids(tasks) == ["good"]
        assert [isinstance(result, LaterError) for result in results].count(True) == 1
        await store.pulls.release([pulled.lease for pulled in tasks])


async def test_a_task_that_must_not_be_handed_out_is_dead(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="expired", ttl=1), a_task(id="broken"), a_task(id="lost"), a_task(id="good")])
    await ask(
        store,
        [
            ("HSET", store.keys.shard_of("broken").pool, "broken", b"no body"),
            ("HSET", store.keys.shard_of("lost").attempts, "lost", b"3 1"),
        ],
    )
    [result] = await pull_all(store, a_request(max_claims=3), now=NOW + 1000)
    assert ids(result.tasks) == ["good"]
    reasons = {death.claim.id: death.verdict.failure and death.verdict.failure.reason for death in result.deaths}
    assert reasons == {"expired": "expired", "broken": "body", "lost": "lost"}
    for id in reasons:
        assert await locate(store, id) == (Bucket.DEAD, NOW + 1000)


async def test_a_pull_looks_again_where_all_that_it_claimed_was_dead(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=f"{n}", ttl=1) for n in range(5)] + [a_task(id="good", delay=0.5)])
    assert ids(await pull(store, limit=1, now=NOW + 2000)) == ["good"]


async def test_bodies_of_one_result_are_limited_and_one_task_always_comes(store: StoreFixture) -> None:
    large = "x" * (3 * 1024 * 1024)
    await store.tasks.create([a_task(id=str(n), content=large) for n in range(4)])
    assert ids(await pull(store)) == ["0", "1"]
    await store.tasks.create([a_task(id="huge", content="x" * (9 * 1024 * 1024), created_at=NOW - 1)])
    assert ids(await pull(store)) == ["huge"]
    assert ids(await pull(store)) == ["2", "3"]


async def test_a_small_task_does_not_pass_a_large_one_that_did_not_fit(store: StoreFixture) -> None:
    sizes = [5, 5, 1, 5, 1, 1]
    await store.tasks.create(
        [
            a_task(id=f"{n:02}", created_at=NOW - 50 + n, content="x" * size * 1024 * 1024)
            for n, size in enumerate(sizes)
        ]
    )
    got = [ids(await pull(store)) for _ in range(3)]
    assert got == [["00"], ["01", "02"], ["03", "04", "05"]]


async def test_the_store_is_sound_after_pulls(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=str(n)) for n in range(5)])
    pulled = await pull(store)
    await store.pulls.ack([pulled[0].lease], NOW)
    await store.pulls.release([pulled[1].lease])
    await store.pulls.extend([pulled[2].lease], NOW + 60_000)
    await store.pulls.nack([LeaseNack(pulled[3].lease, Nack())], Policies(Policy()), NOW, lambda: 0.0)
    await assert_sound(store)


async def test_consumers_go_on_while_the_store_is_full(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=id) for id in "abcd"])
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        with pytest.raises(StoreFull):
            unwrap(await store.tasks.create([a_task(id="e")]))
        a, b, c, d = await pull(store)
        assert await store.pulls.extend([a.lease], NOW + 60_000) == [True]
        assert await store.pulls.ack([a.lease], NOW) == [True]
        assert await store.pulls.release([b.lease]) == [True]
        answers = await store.pulls.nack([LeaseNack(c.lease, Nack())], Policies(Policy()), NOW, lambda: 0.0)
        assert isinstance(answers[0], Verdict)
        assert ids(await pull(store, limit=1)) == ["b"]
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    assert await locate(store, "a") is None
    assert await locate(store, d.task.id) == (Bucket.UNACK, NOW + LEASE_MS)
    await assert_sound(store)


def unwrap(answers: list[Any]) -> None:
    """Raise the first error among the answers."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


async def test_a_nack_after_the_last_retry_is_exhausted_and_its_message_may_be_long(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a", max_retry=0)])
    [pulled] = await pull(store)
    nack = LeaseNack(pulled.lease, Nack(message="x" * 600, reason="no_disk"))
    [verdict] = await store.pulls.nack([nack], Policies(Policy()), NOW, lambda: 0.0)
    assert isinstance(verdict, Verdict)
    assert verdict.failure is not None
    assert (verdict.failure.reason, len(verdict.failure.message)) == ("exhausted", 500)
    await store.dead_letters.redrive(BucketRange("order", Bucket.DEAD), now=NOW + 1000)
    assert [task.attempt for task in await pull(store, now=NOW + 2000)] == [1]


async def test_a_namespaces_uuid_is_remembered_under_its_name_when_it_is_acked(store: StoreFixture) -> None:
    task = a_task(topic="team/jobs", own_id=True, is_namespaced_uuid=True, remember_ms=1000)
    await store.tasks.create([task])
    [pulled] = await pull(store, "team/jobs")
    assert await store.pulls.ack([pulled.lease], NOW) == [True]
    assert (await read_contents(store)).done == {f"team/{task.id}": NOW + 1000}


async def test_an_acked_id_is_remembered_as_its_task_says_or_the_policy(store: StoreFixture) -> None:
    await store.policies.change(topic_scope("order"), lambda settings: settings.merge({"remember": 5}))
    tasks = [a_task(id="a"), a_task(id="b", own_id=True), a_task(id="c", own_id=True, remember_ms=7)]
    await store.tasks.create([*tasks, a_task(id="d", own_id=True, remember_ms=0)])
    leases = [decode_lease(encode_lease(pulled.lease)) for pulled in await pull(store)]
    assert await store.pulls.ack(leases, NOW) == [True] * 4
    assert (await read_contents(store)).done == {"b": NOW + 5000, "c": NOW + 7}


@pytest.mark.one_server
async def test_the_first_pulled_policy_notes_that_the_store_needs_daemons_that_know_it(store: StoreFixture) -> None:
    async def needs() -> bytes | None:
        [found] = await ask(store, [("HGET", store.keys.meta, "needs")])
        return found  # type: ignore[no-any-return]  # redis-py's

    book, topic = store.new_policy_book(), topic_scope("order")
    await book.change(topic, lambda before: before.merge({"deliver": "push"}))
    assert await needs() is None
    for _ in range(2):
        await book.change(topic, lambda before: before.merge({"deliver": "pull"}))
        assert await needs() == b"pull"
    await ask(store, [("HSET", store.keys.meta, "needs", "spools, tags2")])
    await book.change(topic, lambda before: before.merge({"deliver": "pull"}))
    assert await needs() == b"spools,tags2,pull"
