"""Consumers that race for tasks, with leases that run out all the time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

from later.core.clock import Interval
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.retry import Nack
from later.store.keys import Bucket
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic
from later.store.pulls import LeaseNack
from later.store.types import TaskRecord
from tests.builders import a_task
from tests.store.inspection import assert_sound, release_due
from tests.store_fixture import StoreFixture

TASKS = 300
REQUEST = PullTopic("order", 20, lease_ms=1, max_claims=1_000_000)


class Consumer:
    """A consumer that acks most of its tasks, and does everything else with the others."""

    def __init__(self, store: StoreFixture, seed: int, acked: Counter[str]) -> None:
        self._store = store
        self._random = Random(seed)
        self._acked = acked

    async def work(self) -> None:
        while len(self._acked) < TASKS:
            now = await self._store.time.now()
            [result] = await self._store.pulls.claim([PullRequest([REQUEST], self._random.randint(1, 20))], now)
            assert isinstance(result, PullResult)
            some = result.tasks
            cut = self._random.randint(0, len(some))
            await self._do(some[:cut])
            await asyncio.sleep(self._random.choice([0, 0, 0.002]))
            await self._do(some[cut:])

    async def _do(self, tasks: Sequence[PulledTask]) -> None:
        pulls, leases = self._store.pulls, [pulled.lease for pulled in tasks]
        now = (await self._store.time.now()).low
        match self._random.choice(["ack", "ack", "ack", "release", "nack", "extend", "walk away"]):
            case "ack":
                answers = await pulls.ack(leases, now)
                self._acked.update(lease.id for lease, answer in zip(leases, answers, strict=True) if answer is True)
            case "release":
                await pulls.release(leases)
            case "nack":
                nacks = [LeaseNack(lease, Nack(delay_ms=0)) for lease in leases]
                await pulls.nack(nacks, Policies(Policy()), now, self._random.random)
            case "extend":
                await pulls.extend(leases, now + 5)


class ClaimingConsumer:
    """A consumer that claims tasks together, under one id, and does everything that can be done with such a claim."""

    def __init__(self, store: StoreFixture, seed: int, acked: Counter[str]) -> None:
        self._store = store
        self._random = Random(seed)
        self._acked = acked
        self._claim_ids = [""]

    async def work(self) -> None:
        claims = self._store.claim_records
        while len(self._acked) < TASKS:
            now, limit = await self._store.time.now(), self._random.randint(1, 20)
            ttl_ms = self._random.choice([1, 5, 1000])
            tasks = (await claims.claim("order", ttl_ms, ttl_ms, limit, now, max_claims=1_000_000)).tasks
            self._claim_ids += {pulled.claim_id for pulled in tasks}
            claim_id = self._random.choice([self._claim_ids[-1], self._random.choice(self._claim_ids)])
            now = await self._store.time.now()
            match self._random.choice(["ack", "ack", "ack", "release", "update", "walk away"]):
                case "ack":
                    await self._ack(claim_id, now)
                case "release":
                    await claims.release("order", claim_id, now)
                case "update":
                    await claims.update("order", claim_id, 5, 5, now)
            if ttl_ms == 1000:
                await claims.release("order", self._claim_ids[-1], now)

    async def _ack(self, claim_id: str, now: Interval) -> None:
        """Ack each task that a claim holds, as a client does that deletes messages by its claim."""
        found = await self._store.claim_records.read("order", claim_id, now)
        ids = [] if found is None else [task.id for task, _ in found.tasks]
        records = [record for record in await self._store.lookup.query(ids) if isinstance(record, TaskRecord)]
        held = [lease for record in records if record.claim_id == claim_id and (lease := record.lease(now.low))]
        answers = await self._store.pulls.ack(held, now.high)
        self._acked.update(lease.id for lease, answer in zip(held, answers, strict=True) if answer is True)


async def requeue(store: StoreFixture, acked: Counter[str]) -> None:
    """Requeue what is due, as a worker does."""
    while len(acked) < TASKS:
        now = (await store.time.now()).low
        await release_due(store, Bucket.UNACK, now)
        await release_due(store, Bucket.ERROR, now)
        await asyncio.sleep(0.001)


async def test_each_task_is_acked_exactly_once_by_consumers_that_race(store: StoreFixture) -> None:
    now = (await store.time.now()).low
    await store.tasks.create([a_task(id=f"{n}", created_at=now, max_retry=1000) for n in range(TASKS)])
    acked: Counter[str] = Counter()
    async with asyncio.timeout(60):
        kinds: list[type[Consumer | ClaimingConsumer]] = [Consumer, ClaimingConsumer] * 2
        consumers = [kind(store, seed, acked) for seed, kind in enumerate(kinds)]
        await asyncio.gather(requeue(store, acked), *(consumer.work() for consumer in consumers))
    assert set(acked.values()) == {1}
    assert len(acked) == TASKS
    contents = await assert_sound(store, (await store.time.now()).high)
    assert not contents.pool
    assert not contents.attempts
    assert not contents.outcome
