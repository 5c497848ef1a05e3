"""The verb upsert, state by state; test_model.py mixes it with all other verbs."""

from __future__ import annotations

from typing import Any

import pytest

from later.core.clock import Interval
from later.core.edit import TaskChanges
from later.core.errors import Conflict, IdTaken, InFlight, LaterError, PolicyRefusal, StoreDown, StoreFault, StoreFull
from later.core.if_exists import Upsert
from later.core.policy import DelayMode, Policy
from later.core.policy_scopes import Policies
from later.core.task import Death, Task, decode_task, new_id, pack_id
from later.store.keys import Bucket
from later.store.lookup import Lookup
from later.store.types import CreateResult, Deletion, UpdatedTask
from tests.builders import NOW, a_task
from tests.store.inspection import ask, assert_sound, claim_due, died, done, failed, locate, read_contents, release_due
from tests.store_fixture import StoreFixture

RULES = Policies(Policy())
SOON = NOW + 5_000
DEATH = Death("order", "gone", 410, "answered 410", NOW, 1, None)


async def bring(store: StoreFixture, state: str, **changes: Any) -> Task:
    """Create the task `a`, due at once, and let it come into this state."""
    task = a_task(**{"id": "a", "own_id": True, "content": "old", **changes})
    await store.tasks.create([task])
    if state != "delay":
        [claim] = await claim_due(store, topics=[task.topic])
        settlements = {"error": failed(claim, NOW + 10_000), "dead": died(claim), "ended": done(claim, NOW + 10**6)}
        if state in settlements:
            await store.tasks.settle([settlements[state]])
    return task


def upsert_of(rules: Policies = RULES, *, delay: float | None = None, **changes: Any) -> Upsert:
    """Return an upsert of the task `a`, whose create says the content and, if it is given, the delay."""
    task = a_task(**{"id": "a", "own_id": True, "content": "new", "created_at": SOON, "delay": delay or 0, **changes})
    return Upsert(task, TaskChanges(id="a", content="new", delay=delay), rules)


async def upsert(store: StoreFixture, item: Upsert) -> CreateResult | LaterError:
    [result] = await store.upserts.upsert([item])
    return result


async def content_of(store: StoreFixture, id: str = "a") -> str:
    [raw] = await ask(store, [("HGET", store.keys.shard_of(id).pool, pack_id(id))])
    return decode_task(id, raw).content


async def test_an_id_that_no_task_has_is_created(store: StoreFixture) -> None:
    assert await upsert(store, upsert_of(delay=3, ttl=60)) is True
    assert await locate(store, "a") == (Bucket.DELAY, SOON + 3000)
    assert (await assert_sound(store)).expiry == {("order", "a"): SOON + 60_000}


@pytest.mark.parametrize(("state", "due_at"), [("delay", NOW), ("error", NOW + 10_000)])
async def test_a_task_that_waits_is_edited_where_it_is(store: StoreFixture, state: str, due_at: int) -> None:
    await bring(store, state)
    assert await upsert(store, upsert_of()) == UpdatedTask(due_at)
    assert (await locate(store, "a"), await content_of(store)) == ((Bucket(state), due_at), "new")


@pytest.mark.parametrize("state", ["delay", "error"])
async def test_a_new_delay_of_a_task_that_waits_counts_from_now(store: StoreFixture, state: str) -> None:
    await bring(store, state)
    assert await upsert(store, upsert_of(delay=7)) == UpdatedTask(SOON + 7000)
    assert await locate(store, "a") == (Bucket.DELAY, SOON + 7000)
    [task] = [claim.attempt for claim in await claim_due(store, SOON + 7000)]
    assert task == (1 if state == "delay" else 2)
    await assert_sound(store)


async def test_an_edit_leaves_the_end_that_a_claim_has_moved_unless_it_has_a_ttl(store: StoreFixture) -> None:
    """The task's body has its own end, which is over by then."""
    await store.tasks.create([a_task(id="a", own_id=True, ttl=1)])
    await store.claim_records.claim("order", 100_000, 60_000, 1, Interval(NOW, NOW))
    end = NOW + 100_000
    await release_due(store, Bucket.UNACK, end)
    assert await upsert(store, upsert_of(created_at=end)) == UpdatedTask(end)
    assert (await read_contents(store)).expiry == {("order", "a"): end + 60_000}
    with_ttl = upsert_of(created_at=end)._replace(changes=TaskChanges(id="a", ttl=900))
    assert await upsert(store, with_ttl) == UpdatedTask(end)
    assert (await read_contents(store)).expiry == {("order", "a"): NOW + 900_000}


async def test_a_task_in_flight_stays_as_it_is(store: StoreFixture) -> None:
    await bring(store, "unack")
    assert isinstance(await upsert(store, upsert_of(delay=7)), InFlight)
    assert await content_of(store) == "old"


@pytest.mark.parametrize("state", ["dead", "ended"])
async def test_a_task_that_is_dead_or_has_ended_begins_a_new_life(store: StoreFixture, state: str) -> None:
    await bring(store, state, ttl=60)
    assert await upsert(store, upsert_of(delay=7)) is True
    contents = await assert_sound(store)
    assert (contents.done, contents.attempts, contents.outcome, contents.expiry) == ({}, {}, {}, {})
    [claim] = await claim_due(store, SOON + 7000)
    assert (claim.attempt, claim.failure, claim.task) == (1, None, upsert_of(delay=7).task)


async def test_the_memory_of_an_edited_task_is_the_creates_own(store: StoreFixture) -> None:
    await bring(store, "delay", remember_ms=9)
    await upsert(store, upsert_of())
    [record] = await store.lookup.query(["a"])
    assert not isinstance(record, LaterError)
    assert isinstance(record.task, Task)
    assert record.task.remember_ms == 9
    await upsert(store, upsert_of(remember_ms=5))
    [record] = await store.lookup.query(["a"])
    assert not isinstance(record, LaterError)
    assert isinstance(record.task, Task)
    assert record.task.remember_ms == 5


async def test_a_task_that_waits_in_another_topic_stays_there(store: StoreFixture) -> None:
    await bring(store, "delay", topic="other")
    assert type(await upsert(store, upsert_of())) is Conflict
    assert await locate(store, "a") == (Bucket.DELAY, NOW)
    assert await content_of(store) == "old"


@pytest.mark.parametrize("state", ["delay", "error", "dead"])
async def test_a_dead_letter_of_the_topic_gives_its_place(store: StoreFixture, state: str) -> None:
    await bring(store, state, topic="failed", death=DEATH, ttl=60)
    assert await upsert(store, upsert_of(delay=7)) is True
    contents = await assert_sound(store)
    assert (contents.buckets, contents.expiry) == ({(Bucket.DELAY, "order"): {"a": SOON + 7000}}, {})
    assert (contents.attempts, contents.outcome) == ({}, {})


async def test_a_dead_task_of_another_topic_gives_its_place(store: StoreFixture) -> None:
    await bring(store, "dead", topic="other")
    assert await upsert(store, upsert_of()) is True
    assert (await assert_sound(store)).buckets == {(Bucket.DELAY, "order"): {"a": SOON}}


async def test_an_edit_that_the_policy_refuses_is_refused_only_of_a_task_that_waits(store: StoreFixture) -> None:
    rules = Policies(Policy(delay_mode=DelayMode.QUEUE))
    await bring(store, "delay")
    assert isinstance(await upsert(store, upsert_of(rules, delay=7)), PolicyRefusal)
    assert await content_of(store) == "old"
    await store.tasks.settle([died(claim) for claim in await claim_due(store)])
    assert await upsert(store, upsert_of(rules, delay=7)) is True


async def test_a_body_that_cannot_be_read_is_replaced_only_if_its_task_is_dead(store: StoreFixture) -> None:
    await bring(store, "delay")
    await ask(store, [("HSET", store.keys.shard_of("a").pool, b"a", b"\xc1")])
    assert isinstance(await upsert(store, upsert_of()), Conflict)
    await store.tasks.settle([died(claim) for claim in await claim_due(store)])
    assert await upsert(store, upsert_of()) is True


async def test_another_namespaces_uuid_is_taken(store: StoreFixture) -> None:
    id = new_id()
    await store.tasks.create([a_task(id=id, own_id=True)])
    theirs = upsert_of(id=id, topic="team/x", is_namespaced_uuid=True)
    assert isinstance(await upsert(store, theirs), IdTaken)


async def test_a_namespaces_uuid_that_has_ended_is_created_anew(store: StoreFixture) -> None:
    ours = upsert_of(id=new_id(), topic="team/x", is_namespaced_uuid=True)
    shard = store.keys.shard_of(ours.task.id)
    await ask(store, [("ZADD", shard.done, NOW + 10**9, f"team/{ours.task.id}".encode())])
    assert await upsert(store, ours) is True
    assert (await read_contents(store)).done == {}


async def test_items_of_one_id_are_carried_out_in_order(store: StoreFixture) -> None:
    results = await store.upserts.upsert([upsert_of(delay=n) for n in (9, 3, 6)])
    assert results == [True, UpdatedTask(SOON + 3000), UpdatedTask(SOON + 6000)]
    assert await locate(store, "a") == (Bucket.DELAY, SOON + 6000)


@pytest.mark.parametrize("change", ["created", "edited", "deleted"])
async def test_what_changes_between_the_read_and_the_script_is_read_again(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change != "created":
        await bring(store, "delay")
    read = Lookup.stored_or_free
    reads = 0

    async def read_then_change(lookup: Lookup, ids: Any) -> Any:
        nonlocal reads
        reads += 1
        seen = await read(lookup, ids)
        if reads == 1 and change == "deleted":
            assert await store.edits.delete(["a"]) == [Deletion("a", topic="order")]
        elif reads == 1:
            await store.upserts.upsert([upsert_of(delay=99)])
        return seen

    monkeypatch.setattr(Lookup, "stored_or_free", read_then_change)
    result = await upsert(store, upsert_of(delay=7))
    assert result == (True if change == "deleted" else UpdatedTask(SOON + 7000))
    assert await locate(store, "a") == (Bucket.DELAY, SOON + 7000)
    await assert_sound(store)


async def test_what_was_created_is_known_if_the_store_goes_away_before_the_others(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bring(store, "delay", topic="failed", death=DEATH)
    original = store.client.execute_each
    upserts = 0

    async def execute_each(verb: str, commands: Any) -> Any:
        nonlocal upserts
        upserts += verb == "upsert"
        if upserts == 2:
            raise StoreDown("gone")
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", execute_each)
    created, unknown = await store.upserts.upsert([upsert_of(id="b"), upsert_of()])
    assert created is True
    assert isinstance(unknown, StoreDown)


async def test_a_full_store_changes_nothing(store: StoreFixture) -> None:
    await bring(store, "dead")
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        results = await store.upserts.upsert([upsert_of(), upsert_of(id="b")])
        assert [type(result) for result in results] == [StoreFull] * 2
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    assert await locate(store, "a") == (Bucket.DEAD, NOW)
    assert await locate(store, "b") is None


async def test_a_task_in_no_bucket_is_a_fault(store: StoreFixture) -> None:
    await bring(store, "delay")
    await ask(store, [("ZREM", store.keys.shard_of("a").bucket(Bucket.DELAY, b"order"), b"a")])
    assert isinstance(await upsert(store, upsert_of()), StoreFault)
