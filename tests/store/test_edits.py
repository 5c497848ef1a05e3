"""The verbs that change one task: update, run now, redrive. A task in flight is not touched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from later.core.edit import TaskChanges
from later.core.errors import Conflict, InFlight, LaterError, NotFound, Refused, StoreDown
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.task import Task
from later.store.codec import StoredTask
from later.store.edits import Edits
from later.store.keys import Bucket
from later.store.scripts import BY_SHA
from later.store.types import Claim, Deletion, TaskEdit, TaskRecord
from tests.builders import NOW, a_task
from tests.cut_connection import CutConnection
from tests.store.inspection import (
    FAILURE,
    LEASE_MS,
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
from tests.store_fixture import StoreFixture, hold_topic

POLICIES = Policies(Policy(max_delay_ms=3_600_000))
SOON = NOW + 5_000


async def a_task_in(store: StoreFixture, state: str, **changes: Any) -> Task:
    """Put a task `a` into the bucket at NOW."""
    task = a_task(**{"id": "a", "own_id": True, "delay": 60 if state == "delay" else 0, **changes})
    await store.tasks.create([task])
    if state != "delay":
        [claim] = await claim_due(store)
    if state == "error":
        await store.tasks.settle([failed(claim, NOW + 10_000)])
    if state == "dead":
        await store.tasks.settle([died(claim)])
    return task


async def update(store: StoreFixture, id: str = "a", now: int = SOON, **changes: Any) -> TaskRecord:
    return only_result(await store.edits.update([TaskEdit(id, TaskChanges(id=id, **changes), POLICIES, now)]))


async def run_now(store: StoreFixture, id: str = "a", now: int = SOON) -> TaskRecord:
    return only_result(await store.edits.run_now([id], now))


async def redrive(store: StoreFixture, id: str = "a", now: int = SOON) -> TaskRecord:
    return only_result(await store.edits.redrive([id], now))


def only_result(answers: list[TaskRecord | LaterError]) -> TaskRecord:
    [answer] = answers
    if isinstance(answer, LaterError):
        raise answer
    return answer


async def query(store: StoreFixture, id: str = "a") -> TaskRecord:
    return only_result(await store.lookup.query([id]))


VERBS = pytest.mark.parametrize("verb", [update, run_now, redrive])


class TestUpdate:
    async def test_a_task_in_delay_gets_the_new_due_time(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        found = await update(store, delay=30, content="other")
        assert (found.state, found.score) == (Bucket.DELAY, SOON + 30_000)
        assert isinstance(found.task, Task)
        assert (found.task.execute_at, found.task.created_at, found.task.content) == (SOON + 30_000, NOW, "other")
        assert found == await query(store)
        await assert_sound(store)

    @pytest.mark.parametrize("state", ["delay", "error"])
    async def test_a_task_without_a_new_due_time_stays_where_it_is(self, store: StoreFixture, state: str) -> None:
        await a_task_in(store, state)
        before = await query(store)
        found = await update(store, content="other", retry=9)
        assert (found.state, found.score, found.failure) == (before.state, before.score, before.failure)
        assert getattr(found.task, "content", None) == "other"
        assert found == await query(store)

    async def test_a_task_in_error_with_a_new_due_time_moves_to_delay_and_keeps_its_failure(
        self, store: StoreFixture
    ) -> None:
        await a_task_in(store, "error")
        found = await update(store, delay=0)
        assert (found.state, found.score, found.attempts, found.failure) == (Bucket.DELAY, SOON, 1, FAILURE)
        await assert_sound(store, SOON)
        [claim] = await claim_due(store, SOON)
        assert (claim.attempt, claim.failure) == (2, FAILURE)

    @pytest.mark.parametrize(
        ("state", "why"),
        [("unack", "is in flight: it can be edited if"), ("dead", "is dead: /redrive or /run-now bring it back")],
    )
    async def test_a_task_in_flight_or_dead_is_not_edited(self, store: StoreFixture, state: str, why: str) -> None:
        await a_task_in(store, state)
        before = await read_contents(store)
        with pytest.raises(Conflict, match=f"task 'a' {why}"):
            await update(store, content="other")
        assert await read_contents(store) == before

    async def test_the_expiry_index_follows_the_ttl(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        await update(store, ttl=90)
        assert (await read_contents(store)).expiry == {("order", "a"): NOW + 90_000}
        await update(store, content="other")
        assert (await read_contents(store)).expiry == {("order", "a"): NOW + 90_000}
        await update(store, ttl=None)
        assert (await read_contents(store)).expiry == {}

    async def test_a_task_whose_new_ttl_has_ended_expires(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        await update(store, ttl=1)
        assert [task.id for task in await store.expiry.expired_tasks(SOON)] == ["a"]

    async def test_a_refused_edit_changes_nothing(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        before = await read_contents(store)
        with pytest.raises(Refused, match="Exceeds max allowed delivery delay of 3600000 milliseconds"):
            await update(store, delay=3601, content="other")
        assert await read_contents(store) == before

    async def test_two_edits_at_once_are_made_one_after_the_other(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        changes = [TaskChanges(retry=7), TaskChanges(ttl=7), TaskChanges(delay=7)]
        answers = await store.edits.update([TaskEdit("a", some, POLICIES, SOON) for some in changes])
        assert answers[-1] == await query(store)
        task = only_result(answers[-1:]).task
        assert isinstance(task, Task)
        assert (task.max_retry, task.expires_at, task.execute_at) == (7, NOW + 7000, SOON + 7000)

    async def test_each_of_many_edits_gets_its_own_result(self, store: StoreFixture) -> None:
        tasks = [a_task(delay=60) for _ in range(250)]
        await store.tasks.create(tasks[1:])
        edits = [TaskEdit(task.id, TaskChanges(delay=n), POLICIES, SOON) for n, task in enumerate(tasks)]
        edits[7] = edits[7]._replace(changes=TaskChanges(delay=9999))
        answers = await store.edits.update(edits)
        assert isinstance(answers[0], NotFound)
        assert isinstance(answers[7], Refused)
        rest = [(n, answer) for n, answer in enumerate(answers) if n not in (0, 7)]
        assert all(isinstance(found, TaskRecord) and found.score == SOON + n * 1000 for n, found in rest)
        await assert_sound(store, SOON)

    async def test_a_body_that_cannot_be_read_can_only_be_deleted(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        await ask(store, [("HSET", store.keys.shard_of("a").pool, "a", b"\xc1")])
        with pytest.raises(Conflict, match="it can be deleted, not edited"):
            await update(store, delay=1)

    async def test_a_full_store_refuses_an_edit(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay")
        await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
        try:
            with pytest.raises(StoreDown, match="full"):
                await update(store, content="other")
        finally:
            await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
        assert getattr((await query(store)).task, "content", None) == "hello"


class TestRunNow:
    @pytest.mark.parametrize("state", ["delay", "error", "dead"])
    async def test_a_task_is_due_now(self, store: StoreFixture, state: str) -> None:
        await a_task_in(store, state)
        found = await run_now(store)
        assert (found.state, found.score) == (Bucket.DELAY, SOON)
        assert found == await query(store)
        await assert_sound(store, SOON)
        assert [claim.id for claim in await claim_due(store, SOON)] == ["a"]

    async def test_an_overdue_task_keeps_its_due_time(self, store: StoreFixture) -> None:
        await a_task_in(store, "delay", delay=1)
        assert (await run_now(store)).score == NOW + 1000

    async def test_the_time_for_which_it_was_scheduled_stays(self, store: StoreFixture) -> None:
        task = await a_task_in(store, "delay")
        assert (await run_now(store)).task == task

    async def test_a_task_from_error_keeps_its_failure(self, store: StoreFixture) -> None:
        await a_task_in(store, "error")
        found = await run_now(store)
        assert (found.attempts, found.failure) == (1, FAILURE)

    async def test_a_task_from_dead_has_all_its_retries(self, store: StoreFixture) -> None:
        await a_task_in(store, "dead", ttl=60)
        found = await run_now(store)
        assert (found.attempts, found.failure) == (0, None)
        assert (await read_contents(store)).expiry == {("order", "a"): SOON + 60_000}

    async def test_a_task_in_flight_is_a_conflict(self, store: StoreFixture) -> None:
        await a_task_in(store, "unack")
        before = await read_contents(store)
        with pytest.raises(Conflict, match="task 'a' is in flight: it runs already"):
            await run_now(store)
        assert await read_contents(store) == before

    async def test_a_full_store_allows_it(self, store: StoreFixture) -> None:
        tasks = [a_task(delay=60, ttl=60), a_task()]
        await store.tasks.create(tasks)
        await store.tasks.settle([died(claim) for claim in await claim_due(store)])
        await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
        try:
            answers = await store.edits.run_now([task.id for task in tasks], SOON)
        finally:
            await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
        assert [getattr(found, "score", None) for found in answers] == [SOON, SOON]


class TestRedrive:
    async def test_a_task_comes_back_with_its_retries_and_its_ttl(self, store: StoreFixture) -> None:
        task = await a_task_in(store, "dead", ttl=60)
        found = await redrive(store)
        assert (found.state, found.score, found.attempts, found.failure) == (Bucket.DELAY, SOON, 0, None)
        assert isinstance(found.task, Task)
        assert (found.task.created_at, found.task.execute_at) == (task.created_at, task.execute_at)
        assert found.task.expires_at == SOON + 60_000
        assert found == await query(store)
        assert (await assert_sound(store, SOON)).expiry == {("order", "a"): SOON + 60_000}

    async def test_its_ttl_does_not_grow_with_each_redrive(self, store: StoreFixture) -> None:
        await a_task_in(store, "dead", ttl=60)
        await redrive(store)
        await store.tasks.settle([died(claim) for claim in await claim_due(store, SOON)])
        found = await redrive(store, now=NOW + 50_000)
        assert getattr(found.task, "expires_at", None) == NOW + 110_000

    @pytest.mark.parametrize(
        ("state", "why"),
        [("unack", "in flight, not dead: wait"), ("delay", "in delay, not dead: /run-now"), ("error", "in error, not")],
    )
    async def test_only_dead_tasks_come_back(self, store: StoreFixture, state: str, why: str) -> None:
        await a_task_in(store, state)
        before = await read_contents(store)
        with pytest.raises(Conflict, match=f"task 'a' is {why}"):
            await redrive(store)
        assert await read_contents(store) == before

    async def test_a_body_that_cannot_be_read_comes_back_too(self, store: StoreFixture) -> None:
        await a_task_in(store, "dead")
        await ask(store, [("HSET", store.keys.shard_of("a").pool, "a", b"\xc1")])
        assert (await redrive(store)).state is Bucket.DELAY
        assert await locate(store, "a") == (Bucket.DELAY, SOON)

    async def test_a_claim_from_before_the_redrive_settles_nothing(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a")])
        [old] = await claim_due(store)
        await store.tasks.settle([died(old)])
        await redrive(store)
        assert await store.tasks.settle([done(old)]) == [False]
        [new] = await claim_due(store, SOON)
        assert (new.attempt, new.fence != old.fence) == (1, True)


@VERBS
async def test_an_unknown_id_is_not_found(store: StoreFixture, verb: Any) -> None:
    options = {"delay": 1} if verb is update else {}
    with pytest.raises(NotFound, match=r"no task has the id 'a'$"):
        await verb(store, **options)


@VERBS
async def test_an_ended_task_is_not_found(store: StoreFixture, verb: Any) -> None:
    await store.tasks.create([a_task(id="a", own_id=True)])
    await store.tasks.settle([done(claim, SOON) for claim in await claim_due(store)])
    with pytest.raises(NotFound, match="it has ended"):
        await verb(store, **({"delay": 1} if verb is update else {}))


@VERBS
async def test_a_topic_that_is_held_stays_held(store: StoreFixture, verb: Any) -> None:
    await a_task_in(store, "dead" if verb is redrive else "delay")
    await hold_topic(store, "order", NOW + 99_000)
    await verb(store, **({"delay": 0} if verb is update else {}))
    assert (await read_contents(store)).wakes[Bucket.DELAY, store.keys.shard_of("a").index, "order"] == -(NOW + 99_000)
    assert await claim_due(store, SOON) == []


@pytest.mark.parametrize("verb", [update, run_now])
async def test_a_task_that_was_created_again_since_it_was_read_is_read_again(
    store: StoreFixture, verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_task_in(store, "delay", topic="mail")
    new = a_task(id="a", own_id=True, delay=90, content="new")
    original = store.edits._lookup.stored_tasks
    calls: list[int] = []

    async def read_then_recreate(ids: Any) -> Any:
        read = await original(ids)
        if not calls:
            calls.append(1)
            await store.edits.delete(["a"])
            await store.tasks.create([new])
        return read

    monkeypatch.setattr(store.edits._lookup, "stored_tasks", read_then_recreate)
    found = await verb(store, **({"retry": 9} if verb is update else {}))
    assert (found.topic, getattr(found.task, "content", None)) == ("order", "new")
    assert getattr(found.task, "max_retry", None) == (9 if verb is update else 3)
    await assert_sound(store, SOON)


class TestRaces:
    async def test_a_thousand_updates_race_claims(self, store: StoreFixture) -> None:
        """Every task is either edited, and delivered so, or was in flight; never both."""
        tasks = [a_task(content="old") for _ in range(1000)]
        await store.tasks.create(tasks)
        claims: list[Claim] = []

        async def worker() -> None:
            while len(claims) < 1000:
                claims.extend(await claim_due(store, NOW, limit=7))
                await asyncio.sleep(0)

        async def editor(some: list[Task]) -> list[TaskRecord | LaterError]:
            answers: list[TaskRecord | LaterError] = []
            for task in some:
                edits = [TaskEdit(task.id, TaskChanges(content="new", delay=0), POLICIES, NOW)]
                answers += await store.edits.update(edits)
            return answers

        claiming = asyncio.create_task(worker())
        answered = await asyncio.gather(*(editor(tasks[n::20]) for n in range(20)))
        await claiming
        answers = {task.id: answered[n % 20][n // 20] for n, task in enumerate(tasks)}
        contents = {claim.id: getattr(claim.task, "content", None) for claim in claims}
        edited = {id for id, answer in answers.items() if isinstance(answer, TaskRecord)}
        assert all(isinstance(answer, TaskRecord | Conflict) for answer in answers.values())
        assert contents == {task.id: "new" if task.id in edited else "old" for task in tasks}
        assert 0 < len(edited) < 1000
        await assert_sound(store)

    async def test_run_now_and_redrive_race_claims(self, store: StoreFixture) -> None:
        """However the race ends, each task is in one bucket, and is claimed once more at most."""
        tasks = [a_task() for _ in range(200)]
        await store.tasks.create(tasks)
        await store.tasks.settle([died(claim) for claim in await claim_due(store)])
        ids = [task.id for task in tasks]
        again: list[Claim] = []

        async def worker() -> None:
            for _ in range(40):
                again.extend(await claim_due(store, SOON, limit=20))

        first, second, _ = await asyncio.gather(
            store.edits.run_now(ids, SOON), store.edits.redrive(ids, SOON), worker()
        )
        again += await claim_due(store, SOON)
        assert sorted(claim.id for claim in again) == sorted(ids)
        for one, other in zip(first, second, strict=True):
            assert isinstance(one, TaskRecord) or isinstance(other, TaskRecord)
        contents = await assert_sound(store, SOON)
        assert contents.buckets.keys() == {(Bucket.UNACK, "order")}

    async def test_a_task_whose_lease_expired_is_not_in_flight(self, store: StoreFixture) -> None:
        await a_task_in(store, "unack")
        await release_due(store, Bucket.UNACK, NOW + LEASE_MS)
        assert (await update(store, now=NOW + LEASE_MS, delay=1)).attempts == 1


async def test_results_from_before_a_failure_are_returned(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [a_task(delay=60) for _ in range(150)]
    await store.tasks.create(tasks)
    original = store.client.execute_each
    verbs: list[str] = []

    async def cut(verb: str, commands: Any) -> Any:
        verbs.extend([verb] if commands else [])
        if len(verbs) > 2:
            raise StoreDown("cut")
        return await original(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", cut)
    answers = await store.edits.run_now([task.id for task in tasks], SOON)
    assert [type(answer) for answer in answers] == [TaskRecord] * 100 + [StoreDown] * 50


@pytest.mark.one_server
@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
@pytest.mark.parametrize("verb", ["update", "run_now", "redrive", "delete"])
async def test_no_error_denies_a_change_wherever_the_connection_is_cut(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, verb: str, answer_lost: bool
) -> None:
    """Several round trips are needed: each reads one body, and `run_now` meets dead tasks."""
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    calls: dict[str, Callable[[list[str]], Awaitable[Sequence[TaskRecord | Deletion | LaterError]]]] = {
        "update": lambda ids: store.edits.update(
            [TaskEdit(i, TaskChanges(id=i, delay=1), POLICIES, SOON) for i in ids]
        ),
        "run_now": lambda ids: store.edits.run_now(ids, SOON),
        "redrive": lambda ids: store.edits.redrive(ids, SOON),
        "delete": store.edits.delete,
    }
    states = {"update": ["delay"], "redrive": ["dead"]}.get(verb, ["delay", "dead"]) * 2
    cut_at = failures = 0
    while failures or not cut_at:
        await store.redis.flushdb()
        ids = [(await a_task_in(store, state, id=f"t{n}")).id for n, state in enumerate(states)]
        before = await store.lookup.query(ids)
        monkeypatch.setattr("later.store.fanout.MAX_READ_BYTES", 1)
        connection = CutConnection(monkeypatch)
        connection.cut_at, connection.answer_lost = cut_at, answer_lost
        try:
            answers = await calls[verb](ids)
        except StoreDown as error:
            answers = [error] * len(ids)
        monkeypatch.undo()
        denied = [isinstance(answer, StoreDown) and not answer.unknown for answer in answers]
        for was, now, is_denied in zip(before, await store.lookup.query(ids), denied, strict=True):
            assert not is_denied or now == was, f"cut at {cut_at}"
        failures, cut_at = sum(isinstance(answer, StoreDown) for answer in answers), cut_at + 1
    assert cut_at >= 3  # a read, a change, and one in which nothing was cut


async def test_a_delete_that_must_look_again_knows_what_it_deleted_before(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.tasks.create([a_task(id=id, own_id=True, delay=60) for id in ("a", "b")])
    original = store.edits._lookup.stored_tasks
    looks = 0

    async def read_late(ids: Sequence[str]) -> dict[str, StoredTask | LaterError]:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise StoreDown("cut")
        found = await original(ids)
        edits = Edits(store.client, store.keys, store.dead_letter_topics)
        await edits.update([TaskEdit("b", TaskChanges(id="b", delay=1), POLICIES, SOON)])
        return found

    monkeypatch.setattr(store.edits._lookup, "stored_tasks", read_late)
    deleted, failed = await store.edits.delete(["a", "b"])
    assert (deleted, type(failed)) == (Deletion("a", topic="order"), StoreDown)


async def test_tasks_of_a_topic_are_deleted_there_and_nowhere_else(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id=id, own_id=True) for id in "abc"])
    await store.tasks.create([a_task(id="other", topic="mail")])
    flying, dead, waiting = [claim for claim in await claim_due(store) if claim.topic == "order"]
    await store.tasks.settle([died(dead)])
    await store.tasks.give_back([waiting])
    ids = [flying.id, dead.id, waiting.id, "other", "none", waiting.id]
    answers = await store.edits.delete_of_topic("order", ids)
    assert [type(answer) for answer in answers] == [Deletion, Conflict, Deletion, NotFound, NotFound, NotFound]
    assert answers[0] == Deletion(flying.id, in_flight=True, topic="order")
    assert (await query(store, "other")).topic == "mail"
    assert (await query(store, dead.id)).state is Bucket.DEAD
    await assert_sound(store)


async def test_a_delete_can_leave_what_has_a_lease_that_has_not_ended(store: StoreFixture) -> None:
    await store.tasks.create([a_task(id="a"), a_task(id="b", delay=60)])
    [claim] = await claim_due(store, lease_end=SOON)
    answers = await store.edits.delete_of_topic("order", ["a", "b"], SOON - 1)
    assert [type(answer) for answer in answers] == [InFlight, Deletion]
    assert await store.tasks.settle([failed(claim, SOON)]) == [True]
    await store.tasks.create([a_task(id="c")])
    await claim_due(store, lease_end=SOON)
    assert await store.edits.delete_of_topic("order", ["c"], SOON) == [Deletion("c", in_flight=True, topic="order")]
    await assert_sound(store)
