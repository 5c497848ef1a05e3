"""Reads the contents of a store without later's code, and takes the steps that many tests share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import unpack_id
from later.store.doctor import Doctor, Finding
from later.store.keys import Bucket, parse_expiry_member
from later.store.scripts import Command
from later.store.types import Claim, ClaimRequest, ClaimResult, Settlement
from tests.builders import NOW
from tests.store_fixture import StoreFixture

LEASE_MS = 30_000
PAUSED = -(2**63)
"""Stands for a wake entry of -inf."""
FAILURE = Failure(1, "status", 500, "answered 500", NOW, None, 1)
WakeKey = tuple[Bucket, int, str]


class StoreContents(NamedTuple):
    """Everything that the store holds of tasks, ids unpacked. Wakes are by bucket, shard and topic."""

    pool: set[str]
    buckets: dict[tuple[Bucket, str], dict[str, int]]
    wakes: dict[WakeKey, int]
    firsts: dict[WakeKey, int]
    attempts: dict[str, str]
    outcome: dict[str, bytes]
    done: dict[str, int]
    expiry: dict[tuple[str, str], int]
    """By topic and id."""

    def entries_of(self, id: str) -> list[tuple[Bucket, str, int]]:
        """Return the task's entries: bucket, topic, score."""
        return [(*place, entries[id]) for place, entries in self.buckets.items() if id in entries]


async def ask(store: StoreFixture, commands: Iterable[Command]) -> list[Any]:
    """Return the store's answers, without later's client."""
    async with store.redis.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute()


async def read_contents(store: StoreFixture) -> StoreContents:
    sight = StoreContents(set(), {}, {}, {}, {}, {}, {}, {})
    names = (await ask(store, [("KEYS", "*")]))[0]
    for shard in store.keys.shards:
        places = [(*where, name) for name in names if (where := shard.parse_bucket_key(name)) is not None]
        hashes: list[Command] = [("HGETALL", key) for key in (shard.pool, shard.attempts, shard.outcome)]
        zsets = [shard.done, shard.expiry, *shard.wakes.values(), *(name for _, _, name in places)]
        pool, attempts, outcome, *sets = await ask(
            store, [*hashes, *(("ZRANGE", key, 0, -1, "WITHSCORES") for key in zsets)]
        )
        done, expiry, *rest = (_scores(flat) for flat in sets)
        sight.pool.update(map(unpack_id, pool))
        sight.attempts.update({unpack_id(id): entry.decode() for id, entry in pairs(attempts)})
        sight.outcome.update({unpack_id(id): entry for id, entry in pairs(outcome)})
        sight.done.update({unpack_id(id): at for id, at in done.items()})
        for member, at in expiry.items():
            topic, id = parse_expiry_member(member)
            sight.expiry[topic.decode(), unpack_id(id)] = at
        for bucket, wakes in zip(Bucket, rest, strict=False):
            sight.wakes.update({(bucket, shard.index, topic.decode()): at for topic, at in wakes.items()})
        for (bucket, topic, _), entries in zip(places, rest[len(Bucket) :], strict=True):
            found = {unpack_id(id): at for id, at in entries.items()}
            sight.buckets.setdefault((bucket, topic.decode()), {}).update(found)
            sight.firsts[bucket, shard.index, topic.decode()] = min(found.values())
    return sight


def pairs(answer: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return an answer's pairs: redis-py makes a dict of some answers and leaves others flat."""
    return answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)


def _scores(flat: Any) -> dict[bytes, int]:
    return {member: PAUSED if float(score) == -math.inf else int(float(score)) for member, score in pairs(flat)}


async def locate(store: StoreFixture, id: str) -> tuple[Bucket, int] | None:
    """Return the only bucket that holds a task, and its score there; None if the task is gone completely."""
    sight = await read_contents(store)
    places = sight.entries_of(id)
    assert len(places) == (1 if id in sight.pool else 0)
    if not places:
        assert id not in sight.attempts
        assert id not in sight.outcome
        return None
    bucket, _, score = places[0]
    return bucket, score


async def claim_due(
    store: StoreFixture, now: int = NOW, limit: int = 500, lease_end: int | None = None, topics: Sequence[str] = ()
) -> list[Claim]:
    """Claim the due tasks (of these topics) as a worker does, up to a limit of each topic."""
    look = await store.tasks.due_topics(Bucket.DELAY, 1000)
    wants = [
        ClaimRequest(wake.topic, wake.shard, limit)
        for wake in look.topics
        if wake.at <= now and (not topics or wake.topic in topics)
    ]
    answers = await store.tasks.claim(wants, now, now + LEASE_MS if lease_end is None else lease_end)
    return [claim for claims in answers for claim in unwrap_claim(claims).claims]


def unwrap_claim(answer: object) -> ClaimResult:
    """Return a claim's result. Fail if it is an error."""
    assert isinstance(answer, ClaimResult)
    return answer


async def release_due(store: StoreFixture, bucket: Bucket, now: int) -> int:
    """Release tasks as a worker does; return how many moved."""
    look = await store.tasks.due_topics(bucket, 1000)
    answers = await store.tasks.release(bucket, [wake for wake in look.topics if wake.at <= now], now)
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
    """Assert that every task is in one bucket and every wake entry right, and that the doctor finds nothing."""
    sight = await read_contents(store)
    assert all(len(sight.entries_of(id)) == 1 for id in sight.pool)
    assert sum(map(len, sight.buckets.values())) == len(sight.pool)
    assert sight.wakes.keys() == sight.firsts.keys()
    assert all(at == sight.firsts[where] or sight.firsts[where] < at <= now for where, at in sight.wakes.items())
    assert await findings(store, now) == []
    return sight
