"""The verbs that change one task: edited, due now, brought back. A task in flight is not touched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from later.core.edit import TaskChanges
from later.core.errors import Conflict, LaterError, NotFound, Refused, StoreDown
from later.core.policy import Policies, Policy
from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import Claim, TaskEdit, TaskRecord
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import (
    FAILURE,
    LEASE_MS,
    ask,
    assert_sound,
    died,
    done,
    failed,
    let_go,
    place,
    see,
    take,
)

POLICIES = Policies(Policy(max_delay_ms=3_600_000))
SOON = NOW + 5_000


async def a_task_in(house: House, state: str, **changes: Any) -> Task:
    """A task `a` that was put there at NOW."""
    task = a_task(**{"id": "a", "own_id": True, "delay": 60 if state == "delay" else 0, **changes})
    await house.store.create([task])
    if state != "delay":
        [claim] = await take(house)
    if state == "error":
        await house.store.settle([failed(claim, NOW + 10_000)])
    if state == "dead":
        await house.store.settle([died(claim)])
    return task


async def update(house: House, id: str = "a", now: int = SOON, **changes: Any) -> TaskRecord:
    return only(await house.store.update([TaskEdit(id, TaskChanges(id=id, **changes), POLICIES, now)]))


async def run_now(house: House, id: str = "a", now: int = SOON) -> TaskRecord:
    return only(await house.store.run_now([id], now))


async def redrive(house: House, id: str = "a", now: int = SOON) -> TaskRecord:
    return only(await house.store.redrive([id], now))


def only(answers: list[TaskRecord | LaterError]) -> TaskRecord:
    [answer] = answers
    if isinstance(answer, LaterError):
        raise answer
    return answer


async def queried(house: House, id: str = "a") -> TaskRecord:
    return only(await house.store.query([id]))


VERBS = pytest.mark.parametrize("verb", [update, run_now, redrive])


class TestUpdate:
    async def test_in_delay_it_is_due_when_it_says(self, house: House) -> None:
        await a_task_in(house, "delay")
        found = await update(house, delay=30, content="other")
        assert (found.state, found.score) == (Bucket.DELAY, SOON + 30_000)
        assert isinstance(found.task, Task)
        assert (found.task.execute_at, found.task.created_at, found.task.content) == (SOON + 30_000, NOW, "other")
        assert found == await queried(house)
        await assert_sound(house)

    @pytest.mark.parametrize("state", ["delay", "error"])
    async def test_what_is_not_to_move_stays_where_it_is(self, house: House, state: str) -> None:
        await a_task_in(house, state)
        before = await queried(house)
        found = await update(house, content="other", retry=9)
        assert (found.state, found.score, found.failure) == (before.state, before.score, before.failure)
        assert getattr(found.task, "content", None) == "other"
        assert found == await queried(house)

    async def test_in_error_with_a_new_time_it_goes_to_delay_and_keeps_what_it_failed_of(self, house: House) -> None:
        await a_task_in(house, "error")
        found = await update(house, delay=0)
        assert (found.state, found.score, found.attempts, found.failure) == (Bucket.DELAY, SOON, 1, FAILURE)
        await assert_sound(house, SOON)
        [claim] = await take(house, SOON)
        assert (claim.attempt, claim.failure) == (2, FAILURE)

    @pytest.mark.parametrize(
        ("state", "why"),
        [("unack", "is in flight: it can be edited if"), ("dead", "is dead: /redrive or /run-now bring it back")],
    )
    async def test_what_does_not_wait_is_not_edited(self, house: House, state: str, why: str) -> None:
        await a_task_in(house, state)
        before = await see(house)
        with pytest.raises(Conflict, match=f"task 'a' {why}"):
            await update(house, content="other")
        assert await see(house) == before

    async def test_the_index_of_those_that_age_follows(self, house: House) -> None:
        await a_task_in(house, "delay")
        await update(house, ttl=90)
        assert (await see(house)).expiry == {("order", "a"): NOW + 90_000}
        await update(house, content="other")
        assert (await see(house)).expiry == {("order", "a"): NOW + 90_000}
        await update(house, ttl=None)
        assert (await see(house)).expiry == {}

    async def test_a_ttl_that_has_ended_by_then_lets_it_die(self, house: House) -> None:
        await a_task_in(house, "delay")
        await update(house, ttl=1)
        assert [task.id for task in await house.ends.expired_tasks(SOON)] == ["a"]

    async def test_what_is_refused_changes_nothing(self, house: House) -> None:
        await a_task_in(house, "delay")
        before = await see(house)
        with pytest.raises(Refused, match="Exceeds max allowed delivery delay of 3600000 milliseconds"):
            await update(house, delay=3601, content="other")
        assert await see(house) == before

    async def test_two_edits_at_once_are_made_one_after_the_other(self, house: House) -> None:
        await a_task_in(house, "delay")
        changes = [TaskChanges(retry=7), TaskChanges(ttl=7), TaskChanges(delay=7)]
        answers = await house.store.update([TaskEdit("a", some, POLICIES, SOON) for some in changes])
        assert answers[-1] == await queried(house)
        task = only(answers[-1:]).task
        assert isinstance(task, Task)
        assert (task.max_retry, task.expires_at, task.execute_at) == (7, NOW + 7000, SOON + 7000)

    async def test_each_of_many_gets_its_own_answer(self, house: House) -> None:
        tasks = [a_task(delay=60) for _ in range(250)]
        await house.store.create(tasks[1:])
        edits = [TaskEdit(task.id, TaskChanges(delay=n), POLICIES, SOON) for n, task in enumerate(tasks)]
        edits[7] = edits[7]._replace(changes=TaskChanges(delay=9999))
        answers = await house.store.update(edits)
        assert isinstance(answers[0], NotFound)
        assert isinstance(answers[7], Refused)
        rest = [(n, answer) for n, answer in enumerate(answers) if n not in (0, 7)]
        assert all(isinstance(found, TaskRecord) and found.score == SOON + n * 1000 for n, found in rest)
        await assert_sound(house, SOON)

    async def test_a_body_that_cannot_be_read_can_only_be_deleted(self, house: House) -> None:
        await a_task_in(house, "delay")
        await ask(house, [("HSET", house.keys.shard_of("a").pool, "a", b"\xc1")])
        with pytest.raises(Conflict, match="it can be deleted, not edited"):
            await update(house, delay=1)

    async def test_a_full_store_takes_none(self, house: House) -> None:
        await a_task_in(house, "delay")
        await ask(house, [("CONFIG", "SET", "maxmemory", "100000")])
        try:
            with pytest.raises(StoreDown, match="full"):
                await update(house, content="other")
        finally:
            await ask(house, [("CONFIG", "SET", "maxmemory", "0")])
        assert getattr((await queried(house)).task, "content", None) == "hello"


class TestRunNow:
    @pytest.mark.parametrize("state", ["delay", "error", "dead"])
    async def test_it_is_due_now(self, house: House, state: str) -> None:
        await a_task_in(house, state)
        found = await run_now(house)
        assert (found.state, found.score) == (Bucket.DELAY, SOON)
        assert found == await queried(house)
        await assert_sound(house, SOON)
        assert [claim.id for claim in await take(house, SOON)] == ["a"]

    async def test_who_is_late_keeps_its_place_in_line(self, house: House) -> None:
        await a_task_in(house, "delay", delay=1)
        assert (await run_now(house)).score == NOW + 1000

    async def test_when_it_was_meant_to_run_stays(self, house: House) -> None:
        task = await a_task_in(house, "delay")
        assert (await run_now(house)).task == task

    async def test_from_error_it_keeps_what_it_failed_of(self, house: House) -> None:
        await a_task_in(house, "error")
        found = await run_now(house)
        assert (found.attempts, found.failure) == (1, FAILURE)

    async def test_from_dead_it_begins_anew(self, house: House) -> None:
        await a_task_in(house, "dead", ttl=60)
        found = await run_now(house)
        assert (found.attempts, found.failure) == (0, None)
        assert (await see(house)).expiry == {("order", "a"): SOON + 60_000}

    async def test_in_flight_it_runs_already(self, house: House) -> None:
        await a_task_in(house, "unack")
        before = await see(house)
        with pytest.raises(Conflict, match="task 'a' is in flight: it runs already"):
            await run_now(house)
        assert await see(house) == before

    async def test_a_full_store_lets_it(self, house: House) -> None:
        tasks = [a_task(delay=60, ttl=60), a_task()]
        await house.store.create(tasks)
        await house.store.settle([died(claim) for claim in await take(house)])
        await ask(house, [("CONFIG", "SET", "maxmemory", "100000")])
        try:
            answers = await house.store.run_now([task.id for task in tasks], SOON)
        finally:
            await ask(house, [("CONFIG", "SET", "maxmemory", "0")])
        assert [getattr(found, "score", None) for found in answers] == [SOON, SOON]


class TestRedrive:
    async def test_it_comes_back_with_its_retries_and_its_ttl(self, house: House) -> None:
        task = await a_task_in(house, "dead", ttl=60)
        found = await redrive(house)
        assert (found.state, found.score, found.attempts, found.failure) == (Bucket.DELAY, SOON, 0, None)
        assert isinstance(found.task, Task)
        assert (found.task.created_at, found.task.execute_at) == (task.created_at, task.execute_at)
        assert found.task.expires_at == SOON + 60_000
        assert found == await queried(house)
        assert (await assert_sound(house, SOON)).expiry == {("order", "a"): SOON + 60_000}

    async def test_its_ttl_does_not_grow_with_each_time(self, house: House) -> None:
        await a_task_in(house, "dead", ttl=60)
        await redrive(house)
        await house.store.settle([died(claim) for claim in await take(house, SOON)])
        found = await redrive(house, now=NOW + 50_000)
        assert getattr(found.task, "expires_at", None) == NOW + 110_000

    @pytest.mark.parametrize(
        ("state", "why"),
        [("unack", "in flight, not dead: wait"), ("delay", "in delay, not dead: /run-now"), ("error", "in error, not")],
    )
    async def test_only_the_dead_come_back(self, house: House, state: str, why: str) -> None:
        await a_task_in(house, state)
        before = await see(house)
        with pytest.raises(Conflict, match=f"task 'a' is {why}"):
            await redrive(house)
        assert await see(house) == before

    async def test_a_body_that_cannot_be_read_comes_back_too(self, house: House) -> None:
        await a_task_in(house, "dead")
        await ask(house, [("HSET", house.keys.shard_of("a").pool, "a", b"\xc1")])
        assert (await redrive(house)).state is Bucket.DELAY
        assert await place(house, "a") == (Bucket.DELAY, SOON)

    async def test_a_late_answer_of_its_former_life_settles_nothing(self, house: House) -> None:
        await house.store.create([a_task(id="a")])
        [old] = await take(house)
        await house.store.settle([died(old)])
        await redrive(house)
        assert await house.store.settle([done(old)]) == [False]
        [new] = await take(house, SOON)
        assert (new.attempt, new.fence > old.fence) == (1, True)


@VERBS
async def test_an_id_that_is_not_there(house: House, verb: Any) -> None:
    options = {"delay": 1} if verb is update else {}
    with pytest.raises(NotFound, match=r"no task has the id 'a'$"):
        await verb(house, **options)


@VERBS
async def test_an_id_that_has_ended(house: House, verb: Any) -> None:
    await house.store.create([a_task(id="a", own_id=True)])
    await house.store.settle([done(claim, SOON) for claim in await take(house)])
    with pytest.raises(NotFound, match="it has ended"):
        await verb(house, **({"delay": 1} if verb is update else {}))


@VERBS
async def test_a_topic_that_is_held_stays_held(house: House, verb: Any) -> None:
    await a_task_in(house, "dead" if verb is redrive else "delay")
    await house.flow().hold("order", NOW + 99_000, None, NOW)
    await verb(house, **({"delay": 0} if verb is update else {}))
    assert (await see(house)).wakes[Bucket.DELAY, house.keys.shard_of("a").index, "order"] == -(NOW + 99_000)
    assert await take(house, SOON) == []


@pytest.mark.parametrize("verb", [update, run_now])
async def test_a_task_created_anew_since_it_was_read_is_as_its_new_body_says(
    house: House, verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_task_in(house, "delay", topic="mail")
    new = a_task(id="a", own_id=True, delay=90, content="new")
    whole = house.store._edits._by_id.bodies
    calls: list[int] = []

    async def then_changed(ids: Any) -> Any:
        read = await whole(ids)
        if not calls:
            calls.append(1)
            await house.store.delete(["a"])
            await house.store.create([new])
        return read

    monkeypatch.setattr(house.store._edits._by_id, "bodies", then_changed)
    found = await verb(house, **({"retry": 9} if verb is update else {}))
    assert (found.topic, getattr(found.task, "content", None)) == ("order", "new")
    assert getattr(found.task, "max_retry", None) == (9 if verb is update else 3)
    await assert_sound(house, SOON)


class TestRaces:
    async def test_a_thousand_updates_race_claims(self, house: House) -> None:
        """Every task is either edited, and delivered so, or was in flight; never both."""
        tasks = [a_task(content="old") for _ in range(1000)]
        await house.store.create(tasks)
        claims: list[Claim] = []

        async def worker() -> None:
            while len(claims) < 1000:
                claims.extend(await take(house, NOW, limit=7))
                await asyncio.sleep(0)

        async def editor(some: list[Task]) -> list[TaskRecord | LaterError]:
            answers: list[TaskRecord | LaterError] = []
            for task in some:
                edits = [TaskEdit(task.id, TaskChanges(content="new", delay=0), POLICIES, NOW)]
                answers += await house.store.update(edits)
            return answers

        claiming = asyncio.create_task(worker())
        answered = await asyncio.gather(*(editor(tasks[n::20]) for n in range(20)))
        await claiming
        answers = {task.id: answered[n % 20][n // 20] for n, task in enumerate(tasks)}
        contents = {claim.id: getattr(claim.task, "content", None) for claim in claims}
        edited = {id for id, answer in answers.items() if isinstance(answer, TaskRecord)}
        assert {type(answer) for answer in answers.values()} <= {TaskRecord, Conflict}
        assert contents == {task.id: "new" if task.id in edited else "old" for task in tasks}
        assert 0 < len(edited) < 1000
        await assert_sound(house)

    async def test_run_now_and_redrive_race_claims_and_settles(self, house: House) -> None:
        """Whatever comes of the race, each task stays in one place, and ends up claimed once more at most."""
        tasks = [a_task() for _ in range(200)]
        await house.store.create(tasks)
        await house.store.settle([died(claim) for claim in await take(house)])
        ids = [task.id for task in tasks]
        again: list[Claim] = []

        async def worker() -> None:
            for _ in range(40):
                again.extend(await take(house, SOON, limit=20))

        first, second, _ = await asyncio.gather(
            house.store.run_now(ids, SOON), house.store.redrive(ids, SOON), worker()
        )
        again += await take(house, SOON)
        assert sorted(claim.id for claim in again) == sorted(ids)
        for one, other in zip(first, second, strict=True):
            assert isinstance(one, TaskRecord) or isinstance(other, TaskRecord)
        sight = await assert_sound(house, SOON)
        assert sight.buckets.keys() == {(Bucket.UNACK, "order")}

    async def test_leases_that_ran_out_are_no_flight(self, house: House) -> None:
        await a_task_in(house, "unack")
        await let_go(house, Bucket.UNACK, NOW + LEASE_MS)
        assert (await update(house, now=NOW + LEASE_MS, delay=1)).attempts == 1


async def test_what_came_before_a_failure_is_known(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [a_task(delay=60) for _ in range(150)]
    await house.store.create(tasks)
    whole = house.client.execute_each
    trips: list[str] = []

    async def cut(verb: str, commands: Any) -> Any:
        trips.extend([verb] if commands else [])
        if len(trips) > 2:
            raise StoreDown("cut")
        return await whole(verb, commands)

    monkeypatch.setattr(house.client, "execute_each", cut)
    answers = await house.store.run_now([task.id for task in tasks], SOON)
    assert [type(answer) for answer in answers] == [TaskRecord] * 100 + [StoreDown] * 50
