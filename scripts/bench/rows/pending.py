"""Creating and claiming in a store with millions of tasks, compared with raw calls of the same scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from later.store.scripts import MAX_TASKS
from later.store.tasks import Tasks
from later.store.types import ClaimRequest
from scripts.bench.environment import Environment
from scripts.bench.load import run_load
from scripts.bench.programs import run_api
from scripts.bench.raw_script import CreateBatches, RawConnection, pack_commands, record_commands
from scripts.bench.results import BenchError, Contender, Row, Sample, ShareOfReference
from scripts.bench.rows import batch
from scripts.bench.seed import build_task, raise_errors, run_with_tasks
from scripts.bench.stores import BenchStore, run_store

TASKS_PER_BATCH = 1_000
CONCURRENT_CREATES = 4
"""Creates at a time, raw and by later: a daemon has at least so many connections. Claims come one after another."""
TOPIC = "order"
DAY_MS = 86_400_000
MIN_SHARE = 0.6


class FilledStore:
    """A store with pending tasks, due within a day. The row creates more there and claims the earliest."""

    def __init__(self, environment: Environment, store: BenchStore, tasks: int) -> None:
        self._environment = environment
        self._store = store
        self._tasks = tasks
        self._moved = environment.sizes.moved
        self._creates = CreateBatches(TASKS_PER_BATCH)
        self._first_due_at = int(time.time() * 1000) + DAY_MS
        self._random = Random(0)
        self._create_raw(tasks)

    def contenders(self) -> Iterator[Contender]:
        """Yield the contenders. Each that claims takes as many tasks as the one before it has created."""
        size = f"{self._tasks / 1e6:g} million" if self._tasks else "empty"
        raw_create, raw_claim = f"{size}: raw calls of `create`", f"{size}: raw calls of `claim`"
        targets = [ShareOfReference(MIN_SHARE)]
        yield Contender(name=raw_create, store="none", measure=self.create_raw)
        yield Contender(name=raw_claim, store="none", measure=self.claim_raw)
        yield Contender(
            name=f"{size}: store.create", store="none", measure=self.create, references=[raw_create], targets=targets
        )
        yield Contender(
            name=f"{size}: store.claim", store="none", measure=self.claim, references=[raw_claim], targets=targets
        )
        yield Contender(
            name=f"{size}: /create/batch", store="none", measure=self.create_by_batch, references=[raw_create]
        )

    def create_raw(self) -> Sample:
        self._clear_if_unfilled()
        return self._rate(self._create_raw(self._moved))

    def _create_raw(self, tasks: int) -> float:
        with RawConnection(self._store.socket) as connection:
            connection.load_scripts()
            batches = self._creates.batches(tasks // TASKS_PER_BATCH, self._due_at)
            return connection.time_messages(batches, self._creates.call_count, concurrency=CONCURRENT_CREATES)

    def create(self) -> Sample:
        self._clear_if_unfilled()
        return self._rate(run_with_tasks(self._store.url, self._create))

    async def _create(self, store: Tasks) -> float:
        batches = [
            [build_task(self._due_at()) for _ in range(TASKS_PER_BATCH)] for _ in range(self._moved // TASKS_PER_BATCH)
        ]
        remaining = iter(batches)

        async def create() -> None:
            for tasks in remaining:
                raise_errors(await store.create(tasks))

        started = time.perf_counter()
        await asyncio.gather(*(create() for _ in range(CONCURRENT_CREATES)))
        return time.perf_counter() - started

    def claim_raw(self) -> Sample:
        now, before = self._first_due_at + DAY_MS, self._store.count_in_flight(TOPIC.encode())
        call = pack_commands(
            record_commands(lambda store: store.claim([ClaimRequest(TOPIC, 0, MAX_TASKS)], now, now + DAY_MS))
        )
        with RawConnection(self._store.socket) as connection:
            connection.load_scripts()
            seconds = connection.time_messages([call] * (self._moved // MAX_TASKS), 1, concurrency=1)
        self._check_claimed(self._store.count_in_flight(TOPIC.encode()) - before)
        return self._rate(seconds)

    def claim(self) -> Sample:
        return self._rate(run_with_tasks(self._store.url, self._claim))

    async def _claim(self, store: Tasks) -> float:
        now, started, claimed = self._first_due_at + DAY_MS, time.perf_counter(), 0
        for _ in range(self._moved // MAX_TASKS):
            (claims,) = raise_errors(await store.claim([ClaimRequest(TOPIC, 0, MAX_TASKS)], now, now + DAY_MS))
            claimed += len(claims.claims)
        seconds = time.perf_counter() - started
        self._check_claimed(claimed)
        return seconds

    def _check_claimed(self, claimed: int) -> None:
        if claimed != self._moved:
            raise BenchError(f"{claimed} of {self._moved} tasks were claimed")

    def create_by_batch(self) -> Sample:
        self._clear_if_unfilled()
        delays = [self._due_at() / 1000 - time.time() for _ in range(TASKS_PER_BATCH)]
        with run_api(self._environment, "serve", self._store) as server:
            result = run_load(self._environment, batch.build_load(server.url, self._moved, delays))
        return {"rate": result.rate * TASKS_PER_BATCH}

    def _clear_if_unfilled(self) -> None:
        """Clear a store that no pending tasks were created in, so that it is empty for each contender."""
        if not self._tasks:
            self._store.clear()

    def _due_at(self) -> int:
        return self._first_due_at + int(self._random.random() * DAY_MS)

    def _rate(self, seconds: float) -> Sample:
        return {"rate": self._moved / seconds}


@contextmanager
def contenders(environment: Environment) -> Iterator[list[Contender]]:
    with run_store(environment, "none") as empty, run_store(environment, "none") as full:
        yield [
            *FilledStore(environment, empty, 0).contenders(),
            *FilledStore(environment, full, environment.sizes.pending).contenders(),
        ]


PENDING = Row(
    name="pending",
    title="5 million tasks pending, due anywhere in a day: creating and claiming 200,000 more",
    target="later's create and claim ≥ 0.6 of the raw calls, as on an empty store",
    figures=("rate",),
    contenders=contenders,
)
