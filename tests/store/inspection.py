"""Reads the contents of a store without later's code, and takes the steps that many tests share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import unpack_id
from later.store.defects import Finding
from later.store.doctor import Doctor
from later.store.keys import Bucket, parse_expiry_member
from later.store.scripts import Command
from later.store.topic_index import NamesBetween
from later.store.types import BucketRange, Claim, ClaimRequest, ClaimResult, Settlement, TaskRecord
from tests.builders import NOW
from tests.store_fixture import StoreFixture

LEASE_MS = 30_000
PAUSED = -(2**63)
"""The value for a wake entry of -inf."""
FAILURE = Failure(1, "status", 500, "answered 500", NOW, None, 1)
WakeKey = tuple[Bucket, int, str]


def names_of(names: Iterable[str]) -> NamesBetween:
    """Return what returns those of these names that lie between two others."""
    ordered = sorted(names)
    return lambda start, end, limit: [name for name in ordered if start < name and (name < end or not end)][:limit]


no_names = names_of([])


class StoreContents(NamedTuple):
    """Everything that the store holds of tasks, ids unpacked. Wakes are by bucket, shard and topic."""

    pool: set[str]
    buckets: dict[tuple[Bucket, str], dict[str, int]]
    wakes: dict[WakeKey, int]
    first_scores: dict[WakeKey, int]
    attempts: dict[str, str]
    outcome: dict[str, bytes]
    done: dict[str, int]
    expiry: dict[tuple[str, str], int]
    """By topic and id."""
    topics: set[tuple[int, str]]
    """The index of topics, by shard."""

    def entries_of(self, id: str) -> list[tuple[Bucket, str, int]]:
        """Return the task's entries: bucket, topic, score."""
        return [(*key, scores[id]) for key, scores in self.buckets.items() if id in scores]


async def ask(store: StoreFixture, commands: Iterable[Command]) -> list[Any]:
    """Return the store's answers, without later's client."""
    async with store.redis.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute()


async def read_contents(store: StoreFixture) -> StoreContents:
    contents = StoreContents(set(), {}, {}, {}, {}, {}, {}, {}, set())
    names = (await ask(store, [("KEYS", "*")]))[0]
    for shard in store.keys.shards:
        bucket_keys = [(*parsed, name) for name in names if (parsed := shard.parse_bucket_key(name)) is not None]
        hashes: list[Command] = [("HGETALL", key) for key in (shard.pool, shard.attempts, shard.outcome)]
        zsets = [shard.topics, shard.done, shard.expiry, *shard.wakes.values(), *(name for _, _, name in bucket_keys)]
        pool, attempts, outcome, *sets = await ask(
            store, [*hashes, *(("ZRANGE", key, 0, -1, "WITHSCORES") for key in zsets)]
        )
        topics, done, expiry, *rest = (_scores(flat) for flat in sets)
        contents.topics.update((shard.index, topic.decode()) for topic in topics)
        contents.pool.update(map(unpack_id, pool))
        contents.attempts.update({unpack_id(id): entry.decode() for id, entry in pairs(attempts)})
        contents.outcome.update({unpack_id(id): entry for id, entry in pairs(outcome)})
        contents.done.update({unpack_id(id): at for id, at in done.items()})
        for member, at in expiry.items():
            topic, id = parse_expiry_member(member)
            contents.expiry[topic.decode(), unpack_id(id)] = at
        for bucket, wakes in zip(Bucket, rest, strict=False):
            contents.wakes.update({(bucket, shard.index, topic.decode()): at for topic, at in wakes.items()})
        for (bucket, topic, _), entries in zip(bucket_keys, rest[len(Bucket) :], strict=True):
            scores = {unpack_id(id): at for id, at in entries.items()}
            contents.buckets.setdefault((bucket, topic.decode()), {}).update(scores)
            contents.first_scores[bucket, shard.index, topic.decode()] = min(scores.values())
    return contents


def pairs(answer: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return an answer's pairs: redis-py makes a dict of some answers and leaves others flat."""
    return answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)


def _scores(flat: Any) -> dict[bytes, int]:
    return {member: PAUSED if float(score) == -math.inf else int(float(score)) for member, score in pairs(flat)}


async def locate(store: StoreFixture, id: str) -> tuple[Bucket, int] | None:
    """Return the only bucket that holds a task, and its score there; None if nothing is left of the task."""
    contents = await read_contents(store)
    entries = contents.entries_of(id)
    assert len(entries) == (1 if id in contents.pool else 0)
    if not entries:
        assert id not in contents.attempts
        assert id not in contents.outcome
        return None
    bucket, _, score = entries[0]
    return bucket, score


async def claim_due(
    store: StoreFixture, now: int = NOW, limit: int = 500, lease_end: int | None = None, topics: Sequence[str] = ()
) -> list[Claim]:
    """Claim the due tasks (of these topics) as a worker does, up to a limit of each topic."""
    due = await store.tasks.due_topics(Bucket.DELAY, 1000)
    requests = [
        ClaimRequest(wake.topic, wake.shard, limit)
        for wake in due.topics
        if wake.at <= now and (not topics or wake.topic in topics)
    ]
    answers = await store.tasks.claim(requests, now, now + LEASE_MS if lease_end is None else lease_end)
    return [claim for claims in answers for claim in unwrap_claim(claims).claims]


def unwrap_claim(answer: object) -> ClaimResult:
    """Return a claim's result. Fail if it is an error."""
    assert isinstance(answer, ClaimResult)
    return answer


async def release_due(store: StoreFixture, bucket: Bucket, now: int) -> int:
    """Release tasks as a worker does; return how many moved."""
    due = await store.tasks.due_topics(bucket, 1000)
    answers = await store.tasks.release(bucket, [wake for wake in due.topics if wake.at <= now], now)
    return sum(getattr(answer, "moved", 0) for answer in answers)


def done(claim: Claim, remember_until: int | None = None, at: int = NOW) -> Settlement:
    return Settlement(claim, Verdict(SettleTarget.DONE, at), remember_until)


def failed(claim: Claim, until: int) -> Settlement:
    return Settlement(claim, Verdict(SettleTarget.ERROR, until, FAILURE), None)


def died(claim: Claim, at: int = NOW) -> Settlement:
    return Settlement(claim, Verdict(SettleTarget.DEAD, at, FAILURE), None)


async def findings(store: StoreFixture, now: int = NOW) -> list[Finding]:
    return [finding async for finding in Doctor(store.client, store.keys).examine(now)]


async def assert_sound(store: StoreFixture, now: int = NOW) -> StoreContents:
    """Assert that every task is in one bucket, every wake entry right and every topic in the index.

    Also that the doctor finds nothing.
    """
    contents = await read_contents(store)
    assert all(len(contents.entries_of(id)) == 1 for id in contents.pool)
    assert sum(map(len, contents.buckets.values())) == len(contents.pool)
    firsts = contents.first_scores
    moments = {key: at for key, at in contents.wakes.items() if at != PAUSED}
    assert moments.keys() <= firsts.keys() <= contents.wakes.keys()
    assert {(shard, topic) for _, shard, topic in contents.wakes} <= contents.topics
    assert all(at == firsts[key] or firsts[key] < at <= now for key, at in moments.items())
    assert await findings(store, now) == []
    return contents


class ListedPage(NamedTuple):
    """The first tasks of a listing, and whether others follow."""

    tasks: list[TaskRecord]
    more: bool


async def list_page(
    store: StoreFixture, bucket_range: BucketRange, limit: int, reason: str | None = None
) -> ListedPage:
    """Return the first `limit` tasks of a range, read slice by slice."""
    tasks: list[TaskRecord] = []
    async with aclosing(store.listing.slices([bucket_range], limit, reason)) as slices:
        async for found in slices:
            tasks += found.tasks
            if len(tasks) > limit:
                return ListedPage(tasks[:limit], True)
    return ListedPage(tasks, False)
