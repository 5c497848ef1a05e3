"""Claims of tasks together, under one id: what they hold, for how long, and what becomes of them in races."""

from __future__ import annotations

import pytest

from later.core.clock import Interval
from later.core.edit import TaskChanges
from later.core.errors import StoreDown
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.retry import Verdict
from later.core.task import Task, pack_id
from later.store.claim_records import HeldTask
from later.store.defects import Defect
from later.store.keys import Bucket, Keys
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic
from later.store.scripts import BY_SHA
from later.store.types import ClaimRecord, TaskEdit, TaskRecord, decode_record
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.cut_connection import CutConnection
from tests.store.inspection import ask, assert_sound, findings, locate, pairs, read_contents, release_due
from tests.store_fixture import StoreFixture

TTL_MS, GRACE_MS = 100_000, 60_000
AT_NOW = Interval(NOW, NOW)
MANY = 12


def tasks_with_ttl(*ttls: float | None) -> list[Task]:
    return [a_task(id=f"t{n}", own_id=True, created_at=NOW - 50 + n, ttl=ttl) for n, ttl in enumerate(ttls)]


async def claim(store: StoreFixture, limit: int = 20, now: int = NOW, **options: int) -> list[PulledTask]:
    return (await store.claim_records.claim("order", TTL_MS, GRACE_MS, limit, Interval(now, now), **options)).tasks


async def claim_one(store: StoreFixture, *tasks: Task) -> tuple[str, PulledTask]:
    """Create tasks, by default one, and claim them; return the claim's id and its first task."""
    await store.tasks.create(tasks or [a_task(id="a", own_id=True)])
    first, *_ = await claim(store)
    return first.claim_id, first


async def held_by(store: StoreFixture, claim_id: str, now: int = NOW, topic: str = "order") -> list[str]:
    """Return the ids of the tasks that a claim holds."""
    found = await store.claim_records.read(topic, claim_id, Interval(now, now))
    return [] if found is None else [task.id for task, _ in found.tasks]


async def records(store: StoreFixture) -> list[bytes]:
    [names] = await ask(store, [("KEYS", "*:claim:*")])
    return sorted(names)


async def test_tasks_are_claimed_together_in_order_and_shown_by_the_claims_id(store: StoreFixture) -> None:
    tasks = tasks_with_ttl(*[None] * MANY)
    await store.tasks.create(tasks)
    pulled = await claim(store)
    assert [each.task.id for each in pulled] == [task.id for task in tasks]
    [claim_id] = {each.claim_id for each in pulled}
    found = await store.claim_records.read("order", claim_id, AT_NOW)
    assert found is not None
    assert found.record == ClaimRecord(claim_id, "order", NOW, TTL_MS, GRACE_MS)
    assert found.tasks == [HeldTask(task, 1) for task in tasks]
    for each in pulled:
        assert await locate(store, each.task.id) == (Bucket.UNACK, NOW + TTL_MS)
    assert await claim(store) == []
    await assert_sound(store)


async def test_each_shard_that_gives_tasks_has_a_record_of_them_that_ends_with_their_leases(
    store: StoreFixture,
) -> None:
    await store.tasks.create(tasks_with_ttl(*[None] * MANY))
    pulled = await claim(store)
    claim_id, used = pulled[0].claim_id, {store.keys.shard_of(each.task.id).index for each in pulled}
    assert [shard.index for shard in store.keys.shards_of_claim(claim_id)] == sorted(used)
    assert await records(store) == sorted(store.keys.shards[index].claim_record(claim_id) for index in used)
    for index in used:
        shard = store.keys.shards[index]
        key = shard.claim_record(claim_id)
        [answer, left_ms] = await ask(store, [("HGETALL", key), ("PTTL", key)])
        fields = dict(pairs(answer))
        assert decode_record(claim_id, fields.pop(b"")) == ClaimRecord(claim_id, "order", NOW, TTL_MS, GRACE_MS)
        assert fields == {
            pack_id(each.task.id): b"%d %d" % (each.lease.fence, each.due_at)
            for each in pulled
            if store.keys.shard_of(each.task.id) is shard
        }
        assert 0 < left_ms <= TTL_MS
    contents = await read_contents(store)
    assert contents.attempts == {each.task.id: f"1 {each.lease.fence} {claim_id}" for each in pulled}


async def test_an_empty_claim_writes_nothing(store: StoreFixture) -> None:
    await store.tasks.create([a_task(delay=60)])
    before = await read_contents(store)
    assert await claim(store) == []
    assert await read_contents(store) == before
    assert await records(store) == []


async def test_a_claim_takes_the_first_due_as_many_as_it_asks_for(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(*[None] * MANY))
    assert [[each.task.id for each in await claim(store, limit)] for limit in (5, 3)] == [
        ["t0", "t1", "t2", "t3", "t4"], ["t5", "t6", "t7"],
    ]  # fmt: skip


async def test_an_update_lets_a_claim_last_from_now_on_be_that_longer_or_shorter(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(*[None] * MANY))
    claim_id = (await claim(store))[0].claim_id
    for ttl_ms, later in ((500_000, 1000), (60_000, 2000)):
        now = Interval(NOW + later, NOW + later)
        assert await store.claim_records.update("order", claim_id, ttl_ms, 70_000, now) == MANY
        found = await store.claim_records.read("order", claim_id, now)
        assert found is not None
        assert found.record == ClaimRecord(claim_id, "order", now.low, ttl_ms, 70_000)
        assert (await locate(store, "t0")) == (Bucket.UNACK, now.low + ttl_ms)
        for key in await records(store):
            [left_ms] = await ask(store, [("PTTL", key)])
            assert ttl_ms - 10_000 < left_ms <= ttl_ms
    await assert_sound(store, NOW + 2000)


async def test_a_released_claim_leaves_its_tasks_due_as_before_without_an_attempt(store: StoreFixture) -> None:
    tasks = tasks_with_ttl(*[None] * MANY)
    await store.tasks.create(tasks)
    pulled = await claim(store)
    released = await store.claim_records.release("order", pulled[0].claim_id, AT_NOW)
    assert {lease.id for lease in released} == {task.id for task in tasks}
    contents = await assert_sound(store)
    assert contents.buckets == {(Bucket.DELAY, "order"): {task.id: task.execute_at for task in tasks}}
    assert contents.attempts == {}
    assert await records(store) == []
    assert await store.claim_records.release("order", pulled[0].claim_id, AT_NOW) == []
    assert [each.attempt for each in await claim(store)] == [1] * MANY


async def test_tasks_that_nobody_gets_are_given_back(store: StoreFixture) -> None:
    _, pulled = await claim_one(store)
    assert [lease.id for lease in await store.claim_records.give_back([pulled])] == ["a"]
    assert await locate(store, "a") == (Bucket.DELAY, NOW)
    assert await records(store) == []


async def test_a_claim_of_another_topic_is_none(store: StoreFixture) -> None:
    claim_id, _ = await claim_one(store)
    assert await held_by(store, claim_id, topic="mail") == []
    assert await store.claim_records.update("mail", claim_id, TTL_MS, GRACE_MS, AT_NOW) == 0
    assert await store.claim_records.release("mail", claim_id, AT_NOW) == []
    assert await held_by(store, claim_id) == ["a"]


# What becomes of the tasks of a claim meanwhile


async def test_a_task_that_is_done_is_held_no_more_and_a_claim_without_tasks_is_none(store: StoreFixture) -> None:
    claim_id, _ = await claim_one(store, *tasks_with_ttl(None, None))
    for left in (["t1"], []):
        id = "t1" if not left else "t0"
        [record] = await store.lookup.query([id])
        assert isinstance(record, TaskRecord)
        lease = record.lease(NOW)
        assert lease is not None
        assert await store.pulls.ack([lease], NOW) == [True]
        assert await held_by(store, claim_id) == left
    assert await store.claim_records.update("order", claim_id, TTL_MS, GRACE_MS, AT_NOW) == 0
    assert await store.claim_records.release("order", claim_id, AT_NOW) == []


async def test_a_claim_ends_with_its_lease_and_its_tasks_are_due_again_behind_the_others(store: StoreFixture) -> None:
    claim_id, pulled = await claim_one(store)
    end = NOW + TTL_MS
    assert await held_by(store, claim_id, end - 1) == ["a"]
    assert await held_by(store, claim_id, end) == []  # although nobody has requeued its task
    assert await store.claim_records.update("order", claim_id, TTL_MS, GRACE_MS, Interval(end, end)) == 0
    assert await store.claim_records.release("order", claim_id, Interval(end, end)) == []
    assert await locate(store, "a") == (Bucket.UNACK, end)

    await store.tasks.create([a_task(id="b", own_id=True)])
    assert await release_due(store, Bucket.UNACK, end) == 1
    assert await store.pulls.ack([pulled.lease], NOW) == [False]
    again = await claim(store, now=end)
    assert [(each.task.id, each.attempt) for each in again] == [("b", 1), ("a", 2)]
    assert again[0].claim_id != claim_id
    assert await held_by(store, claim_id, NOW) == []  # its record is there, but another claim has the task
    assert await store.claim_records.release("order", claim_id, AT_NOW) == []
    assert await held_by(store, again[0].claim_id, end) == ["b", "a"]
    await assert_sound(store, end)


async def test_if_its_record_is_lost_a_claim_is_none_and_its_tasks_stay_leased(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_id, pulled = await claim_one(store)
    lost = await store.claim_records._read_parts("order", claim_id, AT_NOW)
    await ask(store, [("DEL", key) for key in await records(store)])
    assert await held_by(store, claim_id) == []
    assert await store.claim_records.update("order", claim_id, TTL_MS, GRACE_MS, AT_NOW) == 0
    assert await store.claim_records.release("order", claim_id, AT_NOW) == []
    assert await locate(store, "a") == (Bucket.UNACK, NOW + TTL_MS)

    async def read_before(*_: object) -> object:
        return lost

    monkeypatch.setattr(store.claim_records, "_read_parts", read_before)  # the record is lost after its read
    assert await store.claim_records.update("order", claim_id, 2 * TTL_MS, GRACE_MS, AT_NOW) == 0
    assert await locate(store, "a") == (Bucket.UNACK, NOW + TTL_MS)
    assert await store.pulls.ack([pulled.lease], NOW) == [True]
    await assert_sound(store)


async def test_claims_go_on_while_the_store_is_full(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(*[60] * MANY))
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        claim_id = (await claim(store))[0].claim_id
        assert await store.claim_records.update("order", claim_id, TTL_MS, GRACE_MS, AT_NOW) == MANY
        assert len(await store.claim_records.release("order", claim_id, AT_NOW)) == MANY
        assert len((await store.claim_records.pop("order", 20, AT_NOW)).tasks) == MANY
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])
    await assert_sound(store)


async def test_deleted_and_created_again_a_task_is_no_longer_its_claims(store: StoreFixture) -> None:
    claim_id, _ = await claim_one(store)
    await store.edits.delete(["a"])
    await store.tasks.create([a_task(id="a", own_id=True)])
    assert await held_by(store, claim_id) == []
    assert await store.claim_records.update("order", claim_id, TTL_MS, GRACE_MS, AT_NOW) == 0
    assert await locate(store, "a") == (Bucket.DELAY, NOW)
    await claim(store)
    assert await held_by(store, claim_id) == []
    assert await store.claim_records.release("order", claim_id, AT_NOW) == []


async def test_a_record_of_a_task_tells_which_claim_holds_it_and_for_how_long(store: StoreFixture) -> None:
    claim_id, first = await claim_one(store)
    await store.tasks.create([a_task(id="b", own_id=True), a_task(id="c", own_id=True, delay=9)])
    [result] = await store.pulls.claim([PullRequest([PullTopic("order", 1, TTL_MS)], 1)], AT_NOW)
    assert isinstance(result, PullResult)
    found = [record for record in await store.lookup.query(["a", "b", "c"]) if isinstance(record, TaskRecord)]
    assert [record.claim_id for record in found] == [claim_id, "", ""]
    assert [record.lease(NOW + TTL_MS - 1) for record in found] == [first.lease, result.tasks[0].lease, None]
    assert [record.lease(NOW + TTL_MS) for record in found] == [None] * 3


async def test_a_task_that_was_claimed_too_often_is_dead_and_not_handed_out(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(None, None))
    await claim(store, limit=1, max_claims=1)
    end = NOW + TTL_MS
    await release_due(store, Bucket.UNACK, end)
    result = await store.claim_records.claim("order", TTL_MS, GRACE_MS, 20, Interval(end, end), max_claims=1)
    assert [each.task.id for each in result.tasks] == ["t1"]
    [(_, verdict, _)] = result.deaths
    assert isinstance(verdict, Verdict)
    assert verdict.failure is not None
    assert verdict.failure.reason == "lost"
    assert await held_by(store, result.tasks[0].claim_id, end) == ["t1"]
    await assert_sound(store, end)


async def test_the_doctor_gives_a_record_without_an_end_one(store: StoreFixture) -> None:
    claim_id, _ = await claim_one(store)
    [key] = await records(store)
    await ask(store, [("PERSIST", key)])
    [finding] = await findings(store)
    assert str(finding) == f"claim record (shard {store.keys.shard_of('a').index}) has no end: {claim_id}"
    assert finding.kind is Defect.CLAIM_ENDLESS
    assert [await store.doctor.repair(finding, NOW) for _ in range(2)] == [True, False]
    assert await findings(store) == []
    assert await held_by(store, claim_id) == ["a"]


# Expiry


async def test_a_claimed_task_lives_for_the_claim_and_its_grace_at_least(store: StoreFixture) -> None:
    short, long, _ = tasks = tasks_with_ttl(1, 1000, None)
    await store.tasks.create(tasks)
    pulled = await claim(store)
    until = NOW + TTL_MS + GRACE_MS
    assert [each.task.expires_at for each in pulled] == [until, long.expires_at, None]
    contents = await read_contents(store)
    assert contents.expiry == {("order", "t0"): until, ("order", "t1"): long.expires_at}
    found = await store.claim_records.read("order", pulled[0].claim_id, AT_NOW)
    assert found is not None
    assert [task.expires_at for task, _ in found.tasks] == [until, long.expires_at, None]
    [stored, *_] = await store.lookup.query(["t0"])
    assert isinstance(stored, TaskRecord)
    assert isinstance(stored.task, Task)
    assert stored.task.expires_at == short.expires_at
    assert await store.claim_records.ends([stored]) == {"t0": until}

    await store.claim_records.update("order", pulled[0].claim_id, 60_000, 2_000_000, AT_NOW)
    contents = await read_contents(store)
    assert contents.expiry == {("order", "t0"): NOW + 2_060_000, ("order", "t1"): NOW + 2_060_000}
    await store.claim_records.update("order", pulled[0].claim_id, 60_000, 0, AT_NOW)
    assert (await read_contents(store)).expiry == contents.expiry


async def test_after_its_claim_a_task_can_be_claimed_until_its_moved_end(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(1))
    await claim(store)
    end = NOW + TTL_MS
    assert await store.expiry.expired_tasks(end) == []
    await release_due(store, Bucket.UNACK, end)
    [again] = await claim(store, now=end + GRACE_MS - 1)
    assert (again.attempt, again.task.expires_at) == (2, end + 2 * GRACE_MS - 1 + TTL_MS)


async def test_an_edit_leaves_the_end_that_a_claim_has_moved(store: StoreFixture) -> None:
    """The task's body has its own end, which is over by then."""
    tasks = tasks_with_ttl(1, 1)
    await store.tasks.create(tasks)
    await claim(store)
    end = NOW + TTL_MS
    await release_due(store, Bucket.UNACK, end)
    changes = {"t0": TaskChanges(content="new"), "t1": TaskChanges(content="new", ttl=2)}
    await store.edits.update([TaskEdit(id, change, Policies(Policy()), end) for id, change in changes.items()])
    assert (await read_contents(store)).expiry == {("order", "t0"): end + GRACE_MS, ("order", "t1"): NOW - 49 + 2000}
    [task] = await claim(store, now=end)
    assert (task.task.id, task.task.content) == ("t0", "new")


async def test_a_task_that_has_expired_is_dead_and_not_claimed(store: StoreFixture) -> None:
    [task] = tasks_with_ttl(1)
    await store.tasks.create([task])
    assert task.expires_at is not None
    result = await store.claim_records.claim("order", TTL_MS, GRACE_MS, 20, Interval(task.expires_at, task.expires_at))
    assert result.tasks == []
    assert [verdict.failure and verdict.failure.reason for _, verdict, _ in result.deaths] == ["expired"]
    assert await locate(store, "t0") == (Bucket.DEAD, task.expires_at)
    await assert_sound(store, task.expires_at)


async def test_a_task_is_popped_until_the_end_that_a_claim_has_moved(store: StoreFixture) -> None:
    """Otherwise a message that is listed as free would be dead when it is popped."""
    tasks = tasks_with_ttl(*[1] * MANY, 1000, None)
    await store.tasks.create(tasks)
    claim_id = (await claim(store))[0].claim_id
    await store.claim_records.release("order", claim_id, AT_NOW)
    last = NOW + TTL_MS + GRACE_MS - 1
    result = await store.claim_records.pop("order", 20, Interval(last, last))
    assert ([each.task.id for each in result.tasks], result.deaths) == ([task.id for task in tasks], [])
    assert [each.task.expires_at for each in result.tasks] == [*[last + 1] * MANY, tasks[-2].expires_at, None]
    contents = await assert_sound(store, last)
    assert (contents.pool, contents.expiry) == (set(), {})


async def test_a_task_is_not_popped_at_the_end_that_a_claim_has_moved(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(1))
    claim_id = (await claim(store))[0].claim_id
    await store.claim_records.release("order", claim_id, AT_NOW)
    end = NOW + TTL_MS + GRACE_MS
    result = await store.claim_records.pop("order", 20, Interval(end, end))
    assert result.tasks == []
    assert [verdict.failure and verdict.failure.reason for _, verdict, _ in result.deaths] == ["expired"]


# Popping


async def test_popped_tasks_are_gone_and_each_is_popped_once(store: StoreFixture) -> None:
    await store.tasks.create(tasks_with_ttl(*[60] * MANY))
    first = await store.claim_records.pop("order", 5, AT_NOW)
    second = await store.claim_records.pop("order", 20, AT_NOW)
    assert [each.task.id for each in [*first.tasks, *second.tasks]] == [f"t{n}" for n in range(MANY)]
    assert (await store.claim_records.pop("order", 5, AT_NOW)).tasks == []
    contents = await assert_sound(store)
    assert not contents.pool
    assert not contents.expiry
    assert contents.done.keys() == {f"t{n}" for n in range(MANY)}


# Ids


@each_case("shards, numbers, suffix", [
    (1, [0], ""),
    (2, [1, 0], "01"),
    (16, [15, 3], "3f"),
    (17, [16, 3], "0310"),
    (300, [255, 299], "0ff12b"),
])  # fmt: skip
def test_a_claims_id_names_its_shards(shards: int, numbers: list[int], suffix: str) -> None:
    keys, name = Keys("later", shards), "0123456789abcdef01234567"
    assert keys.claim_id(name, numbers) == name + suffix
    assert [shard.index for shard in keys.shards_of_claim(name + suffix)] == sorted(numbers)


@each_case("shards, claim_id", [
    (1, "a"), (1, "None"), (1, "f" * 23), (1, "f" * 25), (1, "F" * 24), (1, "f" * 23 + "\n"), (1, "f" * 24 + "\n"),
    (2, "f" * 24 + "10"), (2, "f" * 24 + "00"), (2, "f" * 24 + "2"), (17, "f" * 24 + "1"), (17, "f" * 24 + "11"),
    (17, "f" * 24 + "031"), (300, "f" * 3000),
])  # fmt: skip
def test_no_other_text_is_the_id_of_a_claim(shards: int, claim_id: str) -> None:
    assert Keys("later", shards).shards_of_claim(claim_id) == []


def test_a_record_is_read_as_it_was_written() -> None:
    record = ClaimRecord("f" * 24, "team/jobs", NOW, TTL_MS, GRACE_MS)
    assert decode_record(record.claim_id, record.encode().encode()) == record


@pytest.mark.one_server
@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
async def test_a_pop_hands_out_what_it_has_perhaps_removed_and_leaves_what_it_has_not(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, answer_lost: bool
) -> None:
    await store.tasks.create([a_task(id="a")])
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    connection = CutConnection(monkeypatch)
    connection.cut_at, connection.answer_lost = 1 if len(store.keys.shards) == 1 else 2, answer_lost
    pop = store.claim_records.pop("order", 1, AT_NOW)
    if answer_lost:
        assert [popped.task.id for popped in (await pop).tasks] == ["a"]
        assert await locate(store, "a") is None
    else:
        with pytest.raises(StoreDown):
            await pop
        assert await locate(store, "a") == (Bucket.UNACK, NOW + 60_000)
    await assert_sound(store)
