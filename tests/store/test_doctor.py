"""The doctor finds every defect, nothing else, and repairs it for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from later.core.retry import expiry_failure
from later.core.task import encode_task, pack_id
from later.store import scripts
from later.store.defects import Defect, Finding
from later.store.doctor import SEARCH_SLICE, SHARDS_AT_ONCE, Doctor
from later.store.keys import Bucket, Shard
from later.store.scripts import Command, Script
from later.store.types import Claim, ClaimRequest, ExpiredTask, Settlement
from tests.builders import NOW, a_task
from tests.store.inspection import (
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    findings,
    read_contents,
    release_due,
    unwrap_claim,
)
from tests.store_fixture import StoreFixture

YEARS = 10**12
"""Ms; a wake entry so far ahead of any clock is wrong."""
PREFERENCE = [Bucket.UNACK, Bucket.ERROR, Bucket.DELAY, Bucket.DEAD]


@pytest.fixture
def shards() -> int:
    """Return a few: the doctor reads one shard after another. Tests of the verbs use it with one and with many."""
    return 3


async def fill_all_buckets(store: StoreFixture) -> None:
    """Put tasks into every bucket of several topics, and let some end."""
    await store.tasks.create([a_task(topic=f"topic-{n % 5}") for n in range(60)])
    claims = await claim_due(store)
    await store.tasks.settle([settlement_of(claim, n) for n, claim in enumerate(claims[:30])])
    await store.tasks.give_back(claims[30:40])
    await store.tasks.create([a_task(id=f"own-{n}", own_id=True, delay=n) for n in range(20)])


def settlement_of(claim: Claim, n: int) -> Settlement:
    return [done(claim, NOW + 9), died(claim), failed(claim, claim.due_at)][n % 3]


async def create(store: StoreFixture, id: str = "a", topic: str = "order", delay: float = 0) -> None:
    assert await store.tasks.create([a_task(id=id, own_id=True, topic=topic, delay=delay)]) == [True]


async def add_entry(
    store: StoreFixture, bucket: Bucket, topic: str = "order", id: str = "a", score: int = NOW + 7
) -> None:
    """Put an entry into a bucket by hand, with a right wake entry."""
    shard, name = store.keys.shard_of(id), topic.encode()
    await ask(
        store,
        [
            ("ZADD", shard.bucket(bucket, name), score, pack_id(id)),
            ("ZADD", shard.wakes[bucket], "LT", score, name),
        ],
    )


async def remove_entry(store: StoreFixture, bucket: Bucket, topic: str = "order", id: str = "a") -> None:
    """Take the only entry out of its bucket by hand, with the wake entry."""
    shard, name = store.keys.shard_of(id), topic.encode()
    await ask(
        store,
        [("ZREM", shard.bucket(bucket, name), pack_id(id)), ("ZREM", shard.wakes[bucket], name)],
    )


async def corrupt_body(store: StoreFixture, id: str = "a", body: bytes = b"\xc1") -> None:
    await ask(store, [("HSET", store.keys.shard_of(id).pool, pack_id(id), body)])


def body_of(topic: str) -> bytes:
    return encode_task(a_task(topic=topic))


async def repair_all(store: StoreFixture, now: int = NOW) -> list[Defect]:
    """Return what an examination with --repair finds, and assert that nothing is wrong after it."""
    doctor = Doctor(store.client, store.keys)
    kinds = []
    async for finding in doctor.examine(now):
        kinds.append(finding.kind)
        assert await doctor.repair(finding, now)
        assert not await doctor.repair(finding, now)
    assert await findings(store, now) == []
    return kinds


async def only_finding(store: StoreFixture) -> Finding:
    [finding] = await findings(store)
    return finding


class TestNothingWrong:
    async def test_a_sound_store_has_no_findings(self, store: StoreFixture) -> None:
        await fill_all_buckets(store)
        assert await findings(store, NOW) == []

    async def test_an_empty_store_has_no_findings(self, store: StoreFixture) -> None:
        assert await findings(store) == []

    async def test_it_says_how_much_it_has_read(self, store: StoreFixture) -> None:
        await fill_all_buckets(store)
        doctor = Doctor(store.client, store.keys)
        for _ in range(2):
            assert [finding async for finding in doctor.examine(NOW)] == []
            assert (doctor.tasks, doctor.entries) == (70, 70)

    async def test_a_topic_may_wait_for_its_turn(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task() for _ in range(100)])
        await claim_due(store, NOW + 60_000, limit=1)
        assert await findings(store, NOW + 60_000) == []

    @pytest.mark.parametrize("bucket", Bucket)
    async def test_a_body_that_cannot_be_read_may_lie_in_any_one_bucket(
        self, store: StoreFixture, bucket: Bucket
    ) -> None:
        await create(store)
        await remove_entry(store, Bucket.DELAY)
        await add_entry(store, bucket, "whatever")
        await corrupt_body(store)
        assert await findings(store) == []

    async def test_a_repair_of_a_sound_store_changes_nothing(self, store: StoreFixture) -> None:
        await create(store)
        await add_entry(store, Bucket.UNACK)
        finding = await only_finding(store)
        await remove_entry(store, Bucket.UNACK)
        before = await read_contents(store)
        assert not await Doctor(store.client, store.keys).repair(finding, NOW)
        assert await read_contents(store) == before


class TestTaskInSeveralBuckets:
    @pytest.mark.parametrize("second", [bucket for bucket in Bucket if bucket is not Bucket.DELAY])
    async def test_it_is_found_once_and_stays_in_the_preferred_bucket(
        self, store: StoreFixture, second: Bucket
    ) -> None:
        await fill_all_buckets(store)
        await create(store)
        await add_entry(store, second)
        finding = await only_finding(store)
        assert (finding.kind, finding.id, finding.topic) == (Defect.SEVERAL, b"a", b"order")
        assert await repair_all(store) == [Defect.SEVERAL]
        kept = min(second, Bucket.DELAY, key=PREFERENCE.index)
        score = NOW if kept is Bucket.DELAY else NOW + 7
        assert (await assert_sound(store)).entries_of("a") == [(kept, "order", score)]

    async def test_all_four_are_one_finding(self, store: StoreFixture) -> None:
        await create(store)
        for bucket in Bucket:
            await add_entry(store, bucket, score=NOW - 1)
        assert str(await only_finding(store)) == (
            f"task 'a' (topic 'order', shard {store.keys.shard_of('a').index}) is in several buckets: "
            "dead:order, delay:order, error:order, unack:order"
        )
        assert await repair_all(store) == [Defect.SEVERAL]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.UNACK, "order", NOW - 1)]

    async def test_the_entry_in_another_topic_is_removed(self, store: StoreFixture) -> None:
        await create(store)
        await add_entry(store, Bucket.UNACK, "other")
        await add_entry(store, Bucket.ERROR, "third")
        assert await repair_all(store) == [Defect.SEVERAL]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DELAY, "order", NOW)]

    async def test_in_two_buckets_of_other_topics_it_is_due_now_in_its_own(self, store: StoreFixture) -> None:
        await create(store)
        await remove_entry(store, Bucket.DELAY)
        await add_entry(store, Bucket.UNACK, "other")
        await add_entry(store, Bucket.ERROR, "third")
        assert await repair_all(store) == [Defect.SEVERAL]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DELAY, "order", NOW)]

    async def test_an_unreadable_task_stays_in_the_preferred_bucket(self, store: StoreFixture) -> None:
        await create(store)
        await add_entry(store, Bucket.DEAD, "a")
        await add_entry(store, Bucket.ERROR, "z")
        await corrupt_body(store)
        assert await repair_all(store) == [Defect.SEVERAL]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.ERROR, "z", NOW + 7)]

    async def test_the_delivery_under_way_still_counts(self, store: StoreFixture) -> None:
        await create(store)
        [claim] = await claim_due(store)
        await add_entry(store, Bucket.DELAY)
        await repair_all(store)
        assert await store.tasks.settle([done(claim)]) == [True]
        await assert_sound(store)


class TestTaskInNoBucket:
    async def test_it_is_due_now(self, store: StoreFixture) -> None:
        await fill_all_buckets(store)
        await create(store, topic="lonely", delay=9)
        await remove_entry(store, Bucket.DELAY, "lonely")
        finding = await only_finding(store)
        assert (finding.kind, finding.id, finding.topic, finding.where) == (Defect.NOWHERE, b"a", b"lonely", ())
        assert await repair_all(store) == [Defect.NOWHERE]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DELAY, "lonely", NOW)]

    async def test_with_a_body_that_cannot_be_read_it_is_dead(self, store: StoreFixture) -> None:
        await create(store)
        await remove_entry(store, Bucket.DELAY)
        await corrupt_body(store)
        assert await repair_all(store) == [Defect.NOWHERE]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DEAD, "unknown", NOW)]

    async def test_an_empty_body_is_one_that_cannot_be_read(self, store: StoreFixture) -> None:
        await create(store)
        await remove_entry(store, Bucket.DELAY)
        await corrupt_body(store, body=b"")
        assert await repair_all(store) == [Defect.NOWHERE]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DEAD, "unknown", NOW)]

    async def test_its_attempts_are_kept(self, store: StoreFixture) -> None:
        await create(store)
        [claim] = await claim_due(store)
        await remove_entry(store, Bucket.UNACK)
        await repair_all(store)
        [again] = await claim_due(store)
        assert (again.attempt, again.fence != claim.fence) == (2, True)

    @pytest.mark.parametrize("is_left_in_dead", [False, True])
    async def test_the_failure_of_a_task_that_expired_unsent_does_not_outlive_it(
        self, store: StoreFixture, is_left_in_dead: bool
    ) -> None:
        """A failure without an attempt is what claims and settles of living tasks do not look for."""
        await store.tasks.create([a_task(id="a", own_id=True, ttl=1)])
        expired = ExpiredTask("a", "order", store.keys.shard_of("a").index, None, b"")
        assert await store.expiry.expire([(expired, expiry_failure(None, NOW + 2000))], NOW + 2000) == [True]
        if is_left_in_dead:
            await add_entry(store, Bucket.DELAY)
        else:
            await remove_entry(store, Bucket.DEAD)
        await repair_all(store)
        [claim] = await claim_due(store, NOW + 9)
        assert (claim.attempt, claim.failure) == (1, None)
        await store.tasks.settle([done(claim)])
        assert (await assert_sound(store)).outcome == {}


class TestTaskInABucketOfAnotherTopic:
    async def test_it_is_due_now_in_its_own(self, store: StoreFixture) -> None:
        await fill_all_buckets(store)
        await create(store, delay=9)
        await corrupt_body(store, body=body_of("other"))
        finding = await only_finding(store)
        assert (finding.kind, finding.id, finding.topic) == (Defect.MISPLACED, b"a", b"other")
        assert finding.where == ("delay:order",)
        assert await repair_all(store) == [Defect.MISPLACED]
        assert (await read_contents(store)).entries_of("a") == [(Bucket.DELAY, "other", NOW)]


class TestEntryWithoutABody:
    @pytest.mark.parametrize("bucket", Bucket)
    async def test_it_is_removed_with_all_that_it_had(self, store: StoreFixture, bucket: Bucket) -> None:
        await fill_all_buckets(store)
        before = await read_contents(store)
        await add_entry(store, bucket, "a-topic-of-its-own")
        shard = store.keys.shard_of("a")
        await ask(store, [("HSET", key, "a", "1 1") for key in (shard.attempts, shard.outcome)])
        finding = await only_finding(store)
        assert (finding.kind, finding.id, finding.topic) == (Defect.BODILESS, b"a", None)
        assert await repair_all(store) == [Defect.BODILESS]
        assert await read_contents(store) == before

    async def test_in_several_buckets_it_is_one_finding(self, store: StoreFixture) -> None:
        await add_entry(store, Bucket.DELAY)
        await add_entry(store, Bucket.DEAD, "other")
        assert await repair_all(store) == [Defect.BODILESS]
        assert (await read_contents(store)).buckets == {}

    @pytest.mark.parametrize("kind", ["attempts", "outcome", "both"])
    async def test_what_it_left_behind_is_removed(self, store: StoreFixture, kind: str) -> None:
        shard = store.keys.shard_of("a")
        keys = {"attempts": [shard.attempts], "outcome": [shard.outcome], "both": [shard.attempts, shard.outcome]}
        await ask(store, [("HSET", key, "a", "1 1") for key in keys[kind]])
        finding = await only_finding(store)
        assert (finding.kind, finding.id) == (Defect.LEFTOVER, b"a")
        assert finding.where == (("attempts", "outcome") if kind == "both" else (kind,))
        assert await repair_all(store) == [Defect.LEFTOVER]
        contents = await read_contents(store)
        assert (contents.attempts, contents.outcome) == ({}, {})

    async def test_any_bytes_may_be_an_id_and_a_topic(self, store: StoreFixture) -> None:
        shard, id = store.keys.shards[-1], b"\xff\n\x00"
        topic = b"\xfe:\n"
        await ask(
            store,
            [
                ("ZADD", shard.bucket(Bucket.DEAD, topic), 1, id),
                ("ZADD", shard.wakes[Bucket.DEAD], 1, topic),
                ("HSET", shard.outcome, id, "x"),
            ],
        )
        assert "\n" not in str(await only_finding(store))
        assert await repair_all(store) == [Defect.BODILESS]
        assert (await read_contents(store)).buckets == {}


@pytest.mark.parametrize("bucket", Bucket)
class TestWakeEntry:
    async def test_a_missing_one_is_set(self, store: StoreFixture, bucket: Bucket) -> None:
        await self.in_bucket(store, bucket)
        await ask(store, [("DEL", store.keys.shard_of("a").wakes[bucket])])
        finding = await only_finding(store)
        assert (finding.kind, finding.id, finding.topic, finding.bucket) == (
            Defect.WAKE_MISSING, None, b"order", bucket,
        )  # fmt: skip
        assert await repair_all(store) == [Defect.WAKE_MISSING]

    async def test_a_stale_one_is_removed(self, store: StoreFixture, bucket: Bucket) -> None:
        await fill_all_buckets(store)
        before = await read_contents(store)
        await ask(store, [("ZADD", store.keys.shard_of("a").wakes[bucket], NOW, "empty")])
        assert str(await only_finding(store)) == (
            f"bucket {bucket} (topic 'empty', shard {store.keys.shard_of('a').index}) is empty, but has a wake entry"
        )
        assert await repair_all(store) == [Defect.WAKE_STALE]
        assert await read_contents(store) == before

    @pytest.mark.parametrize("off", [-1, YEARS])
    async def test_a_wrong_one_is_put_right(self, store: StoreFixture, bucket: Bucket, off: int) -> None:
        await self.in_bucket(store, bucket)
        right = (await read_contents(store)).wakes
        [(where, at)] = right.items()
        await ask(store, [("ZADD", store.keys.shard_of("a").wakes[bucket], at + off, "order")])
        assert await repair_all(store) == [Defect.WAKE_WRONG]
        assert (await read_contents(store)).wakes == right == {where: at}

    async def in_bucket(self, store: StoreFixture, bucket: Bucket) -> None:
        await create(store)
        if bucket is not Bucket.DELAY:
            await remove_entry(store, Bucket.DELAY)
            await add_entry(store, bucket, score=NOW + LEASE_MS)


async def test_all_defects_at_once_are_repaired_in_one_run(store: StoreFixture) -> None:
    await fill_all_buckets(store)
    for n in range(20):
        await create(store, f"several-{n}")
        await add_entry(store, Bucket.ERROR, id=f"several-{n}")
        await create(store, f"nowhere-{n}", topic=f"gone-{n}")
        await remove_entry(store, Bucket.DELAY, f"gone-{n}", f"nowhere-{n}")
        await create(store, f"misplaced-{n}")
        await corrupt_body(store, f"misplaced-{n}", body_of("elsewhere"))
        await add_entry(store, Bucket.DEAD, id=f"bodiless-{n}")
        await ask(store, [("HSET", store.keys.shard_of(f"x{n}").outcome, f"x{n}", "x")])
    for shard in store.keys.shards:
        await ask(store, [("ZADD", shard.wakes[Bucket.UNACK], 5, "nobody")])
    await ask(store, [("DEL", store.keys.shards[0].wakes[Bucket.DELAY])])

    kinds = await repair_all(store)
    for kind in (Defect.SEVERAL, Defect.NOWHERE, Defect.MISPLACED, Defect.BODILESS, Defect.LEFTOVER):
        assert kinds.count(kind) == 20
    assert kinds.count(Defect.WAKE_STALE) == len(store.keys.shards)
    await assert_sound(store)


async def test_thousands_of_topics_and_tasks_are_read(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic=f"topic-{n % 700}") for n in range(3000)])
    await create(store, "nowhere", topic="topic-1")
    shard = store.keys.shard_of("nowhere")
    await ask(store, [("ZREM", shard.bucket(Bucket.DELAY, b"topic-1"), "nowhere")])
    found = [finding for finding in await findings(store) if finding.id is not None]
    assert [(finding.kind, finding.id) for finding in found] == [(Defect.NOWHERE, b"nowhere")]
    doctor = Doctor(store.client, store.keys)
    assert await doctor.repair(found[0], NOW)
    assert (await read_contents(store)).entries_of("nowhere") == [(Bucket.DELAY, "topic-1", NOW)]


async def test_no_command_names_more_buckets_than_a_slice(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(0, 2500, 500):
        await store.tasks.create([a_task(id=f"t{n}", topic=f"topic-{n}") for n in range(start, start + 500)])
    await create(store, "a")
    await add_entry(store, Bucket.UNACK, "topic-7")
    keys: list[int] = []
    execute = store.client.execute

    async def record(verb: str, command: Command) -> Any:
        if command[0] == "EVALSHA":
            keys.append(int(command[2]))
        return await execute(verb, command)

    monkeypatch.setattr(store.client, "execute", record)
    assert [finding.kind for finding in await findings(store)] == [Defect.SEVERAL]
    assert SEARCH_SLICE // 2 < max(keys) < SEARCH_SLICE + 20


class TestSeveralShards:
    @pytest.fixture
    def shards(self) -> int:
        """Return more than are examined side by side."""
        return 2 * SHARDS_AT_ONCE + 1

    async def lose_one_in_each(self, store: StoreFixture) -> None:
        """Create tasks in all shards, and take one of each out of its bucket, with its wake entry."""
        await store.tasks.create([a_task(id=f"t{n}", own_id=True, topic="order") for n in range(400)])
        for shard in store.keys.shards:
            bucket = shard.bucket(Bucket.DELAY, b"order")
            [[id, *_]] = await ask(store, [("ZRANGE", bucket, 0, 0)])
            await ask(store, [("ZREM", bucket, id)])

    async def test_the_defects_of_all_are_found_and_repaired(self, store: StoreFixture) -> None:
        await self.lose_one_in_each(store)
        found = await findings(store)
        assert {(finding.kind, finding.shard) for finding in found} == {
            (Defect.NOWHERE, shard.index) for shard in store.keys.shards
        }
        assert await repair_all(store) == [Defect.NOWHERE] * len(store.keys.shards)

    async def test_of_some_only_these_are_examined(self, store: StoreFixture) -> None:
        await self.lose_one_in_each(store)
        doctor, some = Doctor(store.client, store.keys), store.keys.shards[3:5]
        assert sorted([finding.shard async for finding in doctor.examine(NOW, some)]) == [3, 4]
        assert (doctor.shards, doctor.tasks) == (2, await doctor.count_tasks(some))
        assert 0 < doctor.tasks < 400 == await doctor.count_tasks(store.keys.shards)

    async def test_no_more_run_side_by_side_than_it_says(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await self.lose_one_in_each(store)
        doctor = Doctor(store.client, store.keys)
        begun: list[int] = []
        running: list[int] = []
        read_keys = doctor._read_keys

        def note(shard: Shard) -> AsyncIterator[list[bytes]]:
            begun.append(shard.index)
            running.append(len(begun) - doctor.shards)
            return read_keys(shard)

        monkeypatch.setattr(doctor, "_read_keys", note)
        assert len([finding async for finding in doctor.examine(NOW)]) == len(store.keys.shards)
        assert sorted(begun) == [*range(len(store.keys.shards))]
        assert max(running) == SHARDS_AT_ONCE

    async def test_the_names_of_buckets_are_kept_as_long_as_their_shard_is_examined(self, store: StoreFixture) -> None:
        await self.lose_one_in_each(store)
        doctor = Doctor(store.client, store.keys)
        kept = [len(doctor._buckets) async for _ in doctor.examine(NOW)]
        assert 1 < max(kept) <= SHARDS_AT_ONCE
        assert doctor._buckets == {}


async def test_small_and_large_buckets_are_read_whole(store: StoreFixture) -> None:
    """A bucket of more than a few hundred entries is read in several steps, beside others that end at once."""
    for start in range(0, 3000, 500):
        await store.tasks.create([a_task(topic="large") for n in range(start, start + 500)])
    await store.tasks.create([a_task(topic=f"small-{n}") for n in range(300)])
    await add_entry(store, Bucket.DEAD, "large", id="nobody")
    await add_entry(store, Bucket.DEAD, "small-299", id="nobody-2")
    doctor = Doctor(store.client, store.keys)
    found = {finding.id async for finding in doctor.examine(NOW)}
    assert found == {b"nobody", b"nobody-2"}
    assert doctor.tasks >= 3300
    assert doctor.entries >= 3302


async def test_a_topic_that_appears_during_the_examination_is_seen(store: StoreFixture) -> None:
    """The list of buckets is as old as the examination: a task of a newer topic must not pass for lost."""
    await create(store, "a", topic="old")
    doctor = Doctor(store.client, store.keys)
    assert [finding async for finding in doctor.examine(NOW)] == []
    await store.edits.delete(["a"])
    await create(store, "a", topic="new")
    nowhere = Finding(Defect.NOWHERE, store.keys.shard_of("a").index, b"a", b"old", None, ())
    assert not await doctor.repair(nowhere, NOW)
    assert (await read_contents(store)).entries_of("a") == [(Bucket.DELAY, "new", NOW)]


def run_before(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, script: Script, action: Callable[[], Awaitable[object]]
) -> None:
    """Run `action` just before the doctor calls `script` for the first time."""
    original, actions = store.client.execute, [action]

    async def execute_after_action(verb: str, command: Command) -> Any:
        if actions and script.sha in command:
            await actions.pop()()
        return await original(verb, command)

    monkeypatch.setattr(store.client, "execute", execute_after_action)


class TestChangesDuringAnExamination:
    async def test_a_suspect_that_was_created_again_in_a_new_topic_is_no_finding(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(store)
        await remove_entry(store, Bucket.DELAY)
        run_before(store, monkeypatch, scripts.EXAMINE, lambda: recreate(store, "new"))
        assert await findings(store) == []

    async def test_a_task_that_was_created_again_is_repaired_in_its_present_state(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(store)
        await add_entry(store, Bucket.UNACK)
        finding = await only_finding(store)
        run_before(store, monkeypatch, scripts.REPAIR, lambda: recreate(store, "new"))
        assert not await Doctor(store.client, store.keys).repair(finding, NOW)
        assert (await assert_sound(store)).entries_of("a") == [(Bucket.DELAY, "new", NOW)]

    async def test_a_task_that_was_deleted_is_not_brought_back(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(store)
        await remove_entry(store, Bucket.DELAY)
        finding = await only_finding(store)
        run_before(store, monkeypatch, scripts.REPAIR, lambda: store.edits.delete(["a"]))
        assert not await Doctor(store.client, store.keys).repair(finding, NOW)
        assert (await assert_sound(store)).buckets == {}

    async def test_a_task_that_was_settled_is_kept_where_it_is_now(
        self, store: StoreFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(store)
        [claim] = await claim_due(store)
        await add_entry(store, Bucket.DELAY)
        finding = await only_finding(store)
        run_before(store, monkeypatch, scripts.REPAIR, lambda: store.tasks.settle([failed(claim, NOW + 9)]))
        assert await Doctor(store.client, store.keys).repair(finding, NOW)
        assert (await assert_sound(store)).entries_of("a") == [(Bucket.ERROR, "order", NOW + 9)]

    async def test_a_turn_that_came_during_the_examination_is_right(self, store: StoreFixture) -> None:
        long_ago, now = NOW - YEARS, (await store.time.now()).low
        await store.tasks.create([a_task(created_at=long_ago) for _ in range(9)])
        await claim_due(store, now, limit=1)
        assert await findings(store, long_ago) == []


async def recreate(store: StoreFixture, topic: str) -> None:
    await store.edits.delete(["a"])
    await create(store, topic=topic)


async def test_nothing_is_found_beside_busy_workers(store: StoreFixture) -> None:
    await store.time.measure()
    stop = asyncio.Event()
    workers = [asyncio.create_task(work(store, number, stop)) for number in range(3)]
    found = [finding for _ in range(4) for finding in await findings(store, store.clock.now().low)]
    stop.set()
    moved = await asyncio.gather(*workers)
    assert found == []
    assert min(moved) > 0


async def work(store: StoreFixture, number: int, stop: asyncio.Event) -> int:
    """Run every verb again and again, by the store's real time; return how many changed something."""
    moved, round_ = 0, 0
    topics = [f"topic-{number}", "shared", "fourth"]
    while not stop.is_set():
        round_ += 1
        now = store.clock.now().low
        ids = [f"{number}-{round_}-{n}" for n in range(12)]
        tasks = [a_task(id=id, own_id=True, topic=topics[n % 3], created_at=now) for n, id in enumerate(ids)]
        moved += len(await store.tasks.create(tasks))
        claims = await claim_some(store, topics, now)
        settlements = [settlement_of(claim, n) for n, claim in enumerate(claims) if n % 5]
        moved += sum(answer is True for answer in await store.tasks.settle(settlements))
        await store.tasks.give_back(claims[::10])
        for bucket in (Bucket.ERROR, Bucket.UNACK):
            await release_due(store, bucket, store.clock.now().low)
        await store.edits.delete(ids[:6])
    return moved


async def claim_some(store: StoreFixture, topics: Sequence[str], now: int) -> list[Claim]:
    requests = [ClaimRequest(topic, shard.index, 5) for topic in topics for shard in store.keys.shards]
    return [claim for claims in await store.tasks.claim(requests, now, now) for claim in unwrap_claim(claims).claims]
