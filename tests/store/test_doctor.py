"""The doctor finds what is wrong, nothing else, and mends it for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from later.core.task import encode, pack_id
from later.store import scripts
from later.store.doctor import Defect, Doctor, Finding
from later.store.keys import Bucket
from later.store.scripts import Command, Script
from later.store.types import Claim, ClaimRequest, Settlement
from tests.builders import NOW, a_task
from tests.house import House
from tests.store.sight import (
    LEASE_MS,
    ask,
    assert_sound,
    died,
    done,
    failed,
    findings,
    let_go,
    see,
    take,
    whole,
)

YEARS = 10**12
"""Ms; a wake entry so far ahead of any clock is wrong."""
PREFERENCE = [Bucket.UNACK, Bucket.ERROR, Bucket.DELAY, Bucket.DEAD]


@pytest.fixture
def shards() -> int:
    """A few: the doctor reads one after the other. With one and with many it is used in the tests of the verbs."""
    return 3


async def a_busy_house(house: House) -> None:
    """Tasks in every bucket of several topics, and some that have ended."""
    await house.store.create([a_task(topic=f"topic-{n % 5}") for n in range(60)])
    claims = await take(house)
    await house.store.settle([fate(claim, n) for n, claim in enumerate(claims[:30])])
    await house.store.give_back(claims[30:40])
    await house.store.create([a_task(id=f"own-{n}", own_id=True, delay=n) for n in range(20)])


def fate(claim: Claim, n: int) -> Settlement:
    return [done(claim, NOW + 9), died(claim), failed(claim, claim.due_at)][n % 3]


async def create(house: House, id: str = "a", topic: str = "order", delay: float = 0) -> None:
    assert await house.store.create([a_task(id=id, own_id=True, topic=topic, delay=delay)]) == [True]


async def put(house: House, bucket: Bucket, topic: str = "order", id: str = "a", score: int = NOW + 7) -> None:
    """An entry into a bucket by hand, with a right wake entry."""
    shard, name = house.keys.shard_of(id), topic.encode()
    await ask(
        house,
        [
            ("ZADD", shard.bucket(bucket, name), score, pack_id(id)),
            ("ZADD", shard.wakes[bucket], "LT", score, name),
        ],
    )


async def take_out(house: House, bucket: Bucket, topic: str = "order", id: str = "a") -> None:
    """An entry out of its bucket by hand, with the wake entry; the bucket holds nothing else."""
    shard, name = house.keys.shard_of(id), topic.encode()
    await ask(
        house,
        [("ZREM", shard.bucket(bucket, name), pack_id(id)), ("ZREM", shard.wakes[bucket], name)],
    )


async def spoil(house: House, id: str = "a", body: bytes = b"\xc1") -> None:
    await ask(house, [("HSET", house.keys.shard_of(id).pool, pack_id(id), body)])


def body_of(topic: str) -> bytes:
    return encode(a_task(topic=topic))


async def mended(house: House, now: int = NOW) -> list[Defect]:
    """What an examination with --repair finds; nothing is wrong after it."""
    doctor = Doctor(house.client, house.keys)
    kinds = []
    async for finding in doctor.examine(now):
        kinds.append(finding.kind)
        assert await doctor.mend(finding, now)
        assert not await doctor.mend(finding, now)
    assert await findings(house, now) == []
    return kinds


async def the_finding(house: House) -> Finding:
    [finding] = await findings(house)
    return finding


class TestNothingWrong:
    async def test_a_sound_store_has_no_findings(self, house: House) -> None:
        await a_busy_house(house)
        assert await findings(house, NOW) == []

    async def test_an_empty_store_has_no_findings(self, house: House) -> None:
        assert await findings(house) == []

    async def test_it_says_how_much_it_has_read(self, house: House) -> None:
        await a_busy_house(house)
        doctor = Doctor(house.client, house.keys)
        for _ in range(2):
            assert [finding async for finding in doctor.examine(NOW)] == []
            assert (doctor.tasks, doctor.entries) == (70, 70)

    async def test_a_topic_may_wait_for_its_turn(self, house: House) -> None:
        await house.store.create([a_task() for _ in range(100)])
        await take(house, NOW + 60_000, limit=1)
        assert await findings(house, NOW + 60_000) == []

    @pytest.mark.parametrize("bucket", Bucket)
    async def test_a_body_that_cannot_be_read_may_lie_in_any_one_bucket(self, house: House, bucket: Bucket) -> None:
        await create(house)
        await take_out(house, Bucket.DELAY)
        await put(house, bucket, "whatever")
        await spoil(house)
        assert await findings(house) == []

    async def test_examining_and_mending_what_is_right_changes_nothing(self, house: House) -> None:
        await create(house)
        await put(house, Bucket.UNACK)
        finding = await the_finding(house)
        await take_out(house, Bucket.UNACK)
        before = await see(house)
        assert not await Doctor(house.client, house.keys).mend(finding, NOW)
        assert await see(house) == before


class TestTaskInSeveralBuckets:
    @pytest.mark.parametrize("second", [bucket for bucket in Bucket if bucket is not Bucket.DELAY])
    async def test_it_is_found_once_and_stays_where_most_is_known(self, house: House, second: Bucket) -> None:
        await a_busy_house(house)
        await create(house)
        await put(house, second)
        finding = await the_finding(house)
        assert (finding.kind, finding.id, finding.topic) == (Defect.SEVERAL, b"a", b"order")
        assert await mended(house) == [Defect.SEVERAL]
        kept = min(second, Bucket.DELAY, key=PREFERENCE.index)
        score = NOW if kept is Bucket.DELAY else NOW + 7
        assert (await assert_sound(house)).places("a") == [(kept, "order", score)]

    async def test_all_four_are_one_finding(self, house: House) -> None:
        await create(house)
        for bucket in Bucket:
            await put(house, bucket, score=NOW - 1)
        assert str(await the_finding(house)) == (
            f"task 'a' (topic 'order', shard {house.keys.shard_of('a').index}) is in several buckets: "
            "dead:order, delay:order, error:order, unack:order"
        )
        assert await mended(house) == [Defect.SEVERAL]
        assert (await see(house)).places("a") == [(Bucket.UNACK, "order", NOW - 1)]

    async def test_that_of_another_topic_gives_way(self, house: House) -> None:
        await create(house)
        await put(house, Bucket.UNACK, "other")
        await put(house, Bucket.ERROR, "third")
        assert await mended(house) == [Defect.SEVERAL]
        assert (await see(house)).places("a") == [(Bucket.DELAY, "order", NOW)]

    async def test_two_of_other_topics_and_none_of_its_own(self, house: House) -> None:
        await create(house)
        await take_out(house, Bucket.DELAY)
        await put(house, Bucket.UNACK, "other")
        await put(house, Bucket.ERROR, "third")
        assert await mended(house) == [Defect.SEVERAL]
        assert (await see(house)).places("a") == [(Bucket.DELAY, "order", NOW)]

    async def test_a_body_that_cannot_be_read_stays_in_the_best(self, house: House) -> None:
        await create(house)
        await put(house, Bucket.DEAD, "a")
        await put(house, Bucket.ERROR, "z")
        await spoil(house)
        assert await mended(house) == [Defect.SEVERAL]
        assert (await see(house)).places("a") == [(Bucket.ERROR, "z", NOW + 7)]

    async def test_the_delivery_under_way_still_counts(self, house: House) -> None:
        await create(house)
        [claim] = await take(house)
        await put(house, Bucket.DELAY)
        await mended(house)
        assert await house.store.settle([done(claim)]) == [True]
        await assert_sound(house)


class TestTaskInNoBucket:
    async def test_it_is_due_now(self, house: House) -> None:
        await a_busy_house(house)
        await create(house, topic="lonely", delay=9)
        await take_out(house, Bucket.DELAY, "lonely")
        finding = await the_finding(house)
        assert (finding.kind, finding.id, finding.topic, finding.where) == (Defect.NOWHERE, b"a", b"lonely", ())
        assert await mended(house) == [Defect.NOWHERE]
        assert (await see(house)).places("a") == [(Bucket.DELAY, "lonely", NOW)]

    async def test_with_a_body_that_cannot_be_read_it_is_dead(self, house: House) -> None:
        await create(house)
        await take_out(house, Bucket.DELAY)
        await spoil(house)
        assert await mended(house) == [Defect.NOWHERE]
        assert (await see(house)).places("a") == [(Bucket.DEAD, "unknown", NOW)]

    async def test_an_empty_body_is_one_that_cannot_be_read(self, house: House) -> None:
        await create(house)
        await take_out(house, Bucket.DELAY)
        await spoil(house, body=b"")
        assert await mended(house) == [Defect.NOWHERE]
        assert (await see(house)).places("a") == [(Bucket.DEAD, "unknown", NOW)]

    async def test_its_attempts_are_kept(self, house: House) -> None:
        await create(house)
        [claim] = await take(house)
        await take_out(house, Bucket.UNACK)
        await mended(house)
        [again] = await take(house)
        assert (again.attempt, again.fence > claim.fence) == (2, True)


class TestTaskInABucketOfAnotherTopic:
    async def test_it_is_due_now_in_its_own(self, house: House) -> None:
        await a_busy_house(house)
        await create(house, delay=9)
        await spoil(house, body=body_of("other"))
        finding = await the_finding(house)
        assert (finding.kind, finding.id, finding.topic) == (Defect.MISPLACED, b"a", b"other")
        assert finding.where == ("delay:order",)
        assert await mended(house) == [Defect.MISPLACED]
        assert (await see(house)).places("a") == [(Bucket.DELAY, "other", NOW)]


class TestEntryWithoutABody:
    @pytest.mark.parametrize("bucket", Bucket)
    async def test_it_is_removed_with_all_that_it_had(self, house: House, bucket: Bucket) -> None:
        await a_busy_house(house)
        before = await see(house)
        await put(house, bucket, "a-topic-of-its-own")
        shard = house.keys.shard_of("a")
        await ask(house, [("HSET", key, "a", "1 1") for key in (shard.attempts, shard.outcome)])
        finding = await the_finding(house)
        assert (finding.kind, finding.id, finding.topic) == (Defect.BODILESS, b"a", None)
        assert await mended(house) == [Defect.BODILESS]
        assert await see(house) == before

    async def test_in_several_buckets_it_is_one_finding(self, house: House) -> None:
        await put(house, Bucket.DELAY)
        await put(house, Bucket.DEAD, "other")
        assert await mended(house) == [Defect.BODILESS]
        assert (await see(house)).buckets == {}

    @pytest.mark.parametrize("kind", ["attempts", "outcome", "both"])
    async def test_what_it_left_behind_is_removed(self, house: House, kind: str) -> None:
        shard = house.keys.shard_of("a")
        keys = {"attempts": [shard.attempts], "outcome": [shard.outcome], "both": [shard.attempts, shard.outcome]}
        await ask(house, [("HSET", key, "a", "1 1") for key in keys[kind]])
        finding = await the_finding(house)
        assert (finding.kind, finding.id) == (Defect.LEFTOVER, b"a")
        assert finding.where == (("attempts", "outcome") if kind == "both" else (kind,))
        assert await mended(house) == [Defect.LEFTOVER]
        sight = await see(house)
        assert (sight.attempts, sight.outcome) == ({}, {})

    async def test_any_bytes_may_be_an_id_and_a_topic(self, house: House) -> None:
        shard, id = house.keys.shards[-1], b"\xff\n\x00"
        topic = b"\xfe:\n"
        await ask(
            house,
            [
                ("ZADD", shard.bucket(Bucket.DEAD, topic), 1, id),
                ("ZADD", shard.wakes[Bucket.DEAD], 1, topic),
                ("HSET", shard.outcome, id, "x"),
            ],
        )
        assert "\n" not in str(await the_finding(house))
        assert await mended(house) == [Defect.BODILESS]
        assert (await see(house)).buckets == {}


@pytest.mark.parametrize("bucket", Bucket)
class TestWakeEntry:
    async def test_a_missing_one_is_set(self, house: House, bucket: Bucket) -> None:
        await self.in_bucket(house, bucket)
        await ask(house, [("DEL", house.keys.shard_of("a").wakes[bucket])])
        finding = await the_finding(house)
        assert (finding.kind, finding.id, finding.topic, finding.bucket) == (
            Defect.WAKE_MISSING, None, b"order", bucket,
        )  # fmt: skip
        assert await mended(house) == [Defect.WAKE_MISSING]

    async def test_a_stale_one_is_removed(self, house: House, bucket: Bucket) -> None:
        await a_busy_house(house)
        before = await see(house)
        await ask(house, [("ZADD", house.keys.shard_of("a").wakes[bucket], NOW, "empty")])
        assert str(await the_finding(house)) == (
            f"bucket {bucket} (topic 'empty', shard {house.keys.shard_of('a').index}) is empty, but has a wake entry"
        )
        assert await mended(house) == [Defect.WAKE_STALE]
        assert await see(house) == before

    @pytest.mark.parametrize("off", [-1, YEARS])
    async def test_a_wrong_one_is_put_right(self, house: House, bucket: Bucket, off: int) -> None:
        await self.in_bucket(house, bucket)
        right = (await see(house)).wakes
        [(where, at)] = right.items()
        await ask(house, [("ZADD", house.keys.shard_of("a").wakes[bucket], at + off, "order")])
        assert await mended(house) == [Defect.WAKE_WRONG]
        assert (await see(house)).wakes == right == {where: at}

    async def in_bucket(self, house: House, bucket: Bucket) -> None:
        await create(house)
        if bucket is not Bucket.DELAY:
            await take_out(house, Bucket.DELAY)
            await put(house, bucket, score=NOW + LEASE_MS)


async def test_everything_wrong_at_once_is_mended_in_one_run(house: House) -> None:
    await a_busy_house(house)
    for n in range(20):
        await create(house, f"several-{n}")
        await put(house, Bucket.ERROR, id=f"several-{n}")
        await create(house, f"nowhere-{n}", topic=f"gone-{n}")
        await take_out(house, Bucket.DELAY, f"gone-{n}", f"nowhere-{n}")
        await create(house, f"misplaced-{n}")
        await spoil(house, f"misplaced-{n}", body_of("elsewhere"))
        await put(house, Bucket.DEAD, id=f"bodiless-{n}")
        await ask(house, [("HSET", house.keys.shard_of(f"x{n}").outcome, f"x{n}", "x")])
    for shard in house.keys.shards:
        await ask(house, [("ZADD", shard.wakes[Bucket.UNACK], 5, "nobody")])
    await ask(house, [("DEL", house.keys.shards[0].wakes[Bucket.DELAY])])

    kinds = await mended(house)
    for kind in (Defect.SEVERAL, Defect.NOWHERE, Defect.MISPLACED, Defect.BODILESS, Defect.LEFTOVER):
        assert kinds.count(kind) == 20
    assert kinds.count(Defect.WAKE_STALE) == len(house.keys.shards)
    await assert_sound(house)


async def test_thousands_of_topics_and_tasks_are_read(house: House) -> None:
    await house.store.create([a_task(topic=f"topic-{n % 700}") for n in range(3000)])
    await create(house, "nowhere", topic="topic-1")
    shard = house.keys.shard_of("nowhere")
    await ask(house, [("ZREM", shard.bucket(Bucket.DELAY, b"topic-1"), "nowhere")])
    found = [finding for finding in await findings(house) if finding.id is not None]
    assert [(finding.kind, finding.id) for finding in found] == [(Defect.NOWHERE, b"nowhere")]
    doctor = Doctor(house.client, house.keys)
    assert await doctor.mend(found[0], NOW)
    assert (await see(house)).places("nowhere") == [(Bucket.DELAY, "topic-1", NOW)]


async def test_a_topic_that_came_up_while_it_read_is_seen(house: House) -> None:
    """The list of buckets is as old as the examination: a task of a newer topic is not taken for lost."""
    await create(house, "a", topic="old")
    doctor = Doctor(house.client, house.keys)
    assert [finding async for finding in doctor.examine(NOW)] == []
    await house.store.delete(["a"])
    await create(house, "a", topic="new")
    nowhere = Finding(Defect.NOWHERE, house.keys.shard_of("a").index, b"a", b"old", None, ())
    assert not await doctor.mend(nowhere, NOW)
    assert (await see(house)).places("a") == [(Bucket.DELAY, "new", NOW)]


def meddle(
    house: House, monkeypatch: pytest.MonkeyPatch, script: Script, deed: Callable[[], Awaitable[object]]
) -> None:
    """Do the deed just before the doctor calls `script` for the first time."""
    one, deeds = house.client.execute, [deed]

    async def meddled(verb: str, command: Command) -> Any:
        if deeds and script.sha in command:
            await deeds.pop()()
        return await one(verb, command)

    monkeypatch.setattr(house.client, "execute", meddled)


class TestWhatChangesUnderItsHands:
    async def test_a_suspect_that_was_created_anew_in_a_new_topic_is_well(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(house)
        await take_out(house, Bucket.DELAY)
        meddle(house, monkeypatch, scripts.EXAMINE, lambda: anew(house, "new"))
        assert await findings(house) == []

    async def test_a_task_that_was_created_anew_is_mended_as_it_is_now(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(house)
        await put(house, Bucket.UNACK)
        finding = await the_finding(house)
        meddle(house, monkeypatch, scripts.MEND, lambda: anew(house, "new"))
        assert not await Doctor(house.client, house.keys).mend(finding, NOW)
        assert (await assert_sound(house)).places("a") == [(Bucket.DELAY, "new", NOW)]

    async def test_a_task_that_was_deleted_is_not_brought_back(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(house)
        await take_out(house, Bucket.DELAY)
        finding = await the_finding(house)
        meddle(house, monkeypatch, scripts.MEND, lambda: house.store.delete(["a"]))
        assert not await Doctor(house.client, house.keys).mend(finding, NOW)
        assert (await assert_sound(house)).buckets == {}

    async def test_a_task_that_was_settled_is_kept_where_it_is_now(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await create(house)
        [claim] = await take(house)
        await put(house, Bucket.DELAY)
        finding = await the_finding(house)
        meddle(house, monkeypatch, scripts.MEND, lambda: house.store.settle([failed(claim, NOW + 9)]))
        assert await Doctor(house.client, house.keys).mend(finding, NOW)
        assert (await assert_sound(house)).places("a") == [(Bucket.ERROR, "order", NOW + 9)]

    async def test_a_turn_that_came_after_it_began_to_read_is_right(self, house: House) -> None:
        long_ago, now = NOW - YEARS, (await house.store.now()).low
        await house.store.create([a_task(created_at=long_ago) for _ in range(9)])
        await take(house, now, limit=1)
        assert await findings(house, long_ago) == []


async def anew(house: House, topic: str) -> None:
    await house.store.delete(["a"])
    await create(house, topic=topic)


async def test_beside_busy_workers_nothing_is_found(house: House) -> None:
    await house.store.measure_time()
    stop = asyncio.Event()
    workers = [asyncio.create_task(work(house, number, stop)) for number in range(3)]
    found = [finding for _ in range(4) for finding in await findings(house, house.clock.now().low)]
    stop.set()
    moved = await asyncio.gather(*workers)
    assert found == []
    assert min(moved) > 0


async def work(house: House, number: int, stop: asyncio.Event) -> int:
    """Every verb, again and again, by the store's real time; how many verbs changed something."""
    moved, round_ = 0, 0
    topics = [f"topic-{number}", "shared", "fourth"]
    while not stop.is_set():
        round_ += 1
        now = house.clock.now().low
        ids = [f"{number}-{round_}-{n}" for n in range(12)]
        tasks = [a_task(id=id, own_id=True, topic=topics[n % 3], created_at=now) for n, id in enumerate(ids)]
        moved += len(await house.store.create(tasks))
        claims = await take_some(house, topics, now)
        settlements = [fate(claim, n) for n, claim in enumerate(claims) if n % 5]
        moved += sum(answer is True for answer in await house.store.settle(settlements))
        await house.store.give_back(claims[::10])
        for bucket in (Bucket.ERROR, Bucket.UNACK):
            await let_go(house, bucket, house.clock.now().low)
        await house.store.delete(ids[:6])
    return moved


async def take_some(house: House, topics: Sequence[str], now: int) -> list[Claim]:
    wants = [ClaimRequest(topic, shard.index, 5) for topic in topics for shard in house.keys.shards]
    return [claim for claims in await house.store.claim(wants, now, now) for claim in whole(claims).claims]
