"""Creates and claims in a store with millions of tasks, compared with raw calls of the same scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from later.store.scripts import MAX_TASKS
from later.store.tasks import Tasks
from later.store.types import ClaimRequest
from scripts.bench.daemons import run_api
from scripts.bench.environment import Environment
from scripts.bench.load import run_load
from scripts.bench.raw_script import CreateBatches, RawConnection, pack_commands, record_commands
from scripts.bench.results import BenchError, Contender, Row, Sample, ShareOfReference
from scripts.bench.rows import batch
from scripts.bench.seed import build_task, raise_errors, run_with_tasks
from scripts.bench.stores import BenchStore, run_store

TASKS_PER_BATCH = 1_000
CREATES_IN_FLIGHT = 4
"""Concurrent creates, raw and by later: a daemon has at least so many connections. A ticker claims one by one."""
TOPIC = "order"
DAY_MS = 86_400_000
MIN_SHARE = 0.6


class FilledStore:
    """A store with pending tasks, due within a day; more are created there and the earliest claimed."""

    def __init__(self, environment: Environment, store: BenchStore, tasks: int) -> None:
        self._environment = environment
        self._store = store
        self._tasks = tasks
        self._moved = environment.sizes.moved
        self._creates = CreateBatches(TASKS_PER_BATCH)
        self._first = int(time.time() * 1000) + DAY_MS
        self._random = Random(0)
        self._create_raw(tasks)

    def contenders(self) -> Iterator[Contender]:
        """Yield the contenders; each claim takes as many tasks as the create before it has made."""
        where = f"{self._tasks / 1e6:g} million" if self._tasks else "empty"
        created, claimed = f"{where}: raw calls of `create`", f"{where}: raw calls of `claim`"
        goals = [ShareOfReference(MIN_SHARE)]
        yield Contender(name=created, store="none", measure=self.create_raw)
        yield Contender(name=claimed, store="none", measure=self.claim_raw)
        yield Contender(
            name=f"{where}: store.create", store="none", measure=self.create, reference=created, targets=goals
        )
        yield Contender(
            name=f"{where}: store.claim", store="none", measure=self.claim, reference=claimed, targets=goals
        )
        yield Contender(name=f"{where}: /create/batch", store="none", measure=self.create_by_batch, reference=created)

    def create_raw(self) -> Sample:
        self._make_ready()
        return self._rate(self._create_raw(self._moved))

    def _create_raw(self, tasks: int) -> float:
        with RawConnection(self._store.socket) as connection:
            connection.load_scripts()
            batches = self._creates.batches(tasks // TASKS_PER_BATCH, self._due_at)
            return connection.time_messages(batches, self._creates.calls, under_way=CREATES_IN_FLIGHT)

    def create(self) -> Sample:
        self._make_ready()
        return self._rate(run_with_tasks(self._store.url, self._create))

    async def _create(self, store: Tasks) -> float:
        batches = [
            [build_task(self._due_at()) for _ in range(TASKS_PER_BATCH)] for _ in range(self._moved // TASKS_PER_BATCH)
        ]
        waiting = iter(batches)

        async def create() -> None:
            for tasks in waiting:
                raise_errors(await store.create(tasks))

        started = time.perf_counter()
        await asyncio.gather(*(create() for _ in range(CREATES_IN_FLIGHT)))
        return time.perf_counter() - started

    def claim_raw(self) -> Sample:
        now, before = self._first + DAY_MS, self._store.in_flight(TOPIC.encode())
        call = pack_commands(
            record_commands(lambda store: store.claim([ClaimRequest(TOPIC, 0, MAX_TASKS)], now, now + DAY_MS))
        )
        with RawConnection(self._store.socket) as connection:
            connection.load_scripts()
            seconds = connection.time_messages([call] * (self._moved // MAX_TASKS), 1, under_way=1)
        self._check(self._store.in_flight(TOPIC.encode()) - before)
        return self._rate(seconds)

    def claim(self) -> Sample:
        return self._rate(run_with_tasks(self._store.url, self._claim))

    async def _claim(self, store: Tasks) -> float:
        now, started, claimed = self._first + DAY_MS, time.perf_counter(), 0
        for _ in range(self._moved // MAX_TASKS):
            (claims,) = raise_errors(await store.claim([ClaimRequest(TOPIC, 0, MAX_TASKS)], now, now + DAY_MS))
            claimed += len(claims.claims)
        seconds = time.perf_counter() - started
        self._check(claimed)
        return seconds

    def _check(self, claimed: int) -> None:
        if claimed != self._moved:
            raise BenchError(f"{claimed} of {self._moved} tasks were claimed")

    def create_by_batch(self) -> Sample:
        self._make_ready()
        delays = [self._due_at() / 1000 - time.time() for _ in range(TASKS_PER_BATCH)]
        with run_api(self._environment, "serve", self._store) as server:
            return {
                "rate": run_load(self._environment, batch.build_load(server.url, self._moved, delays)).rate
                * TASKS_PER_BATCH
            }

    def _make_ready(self) -> None:
        if not self._tasks:
            self._store.empty()

    def _due_at(self) -> int:
        return self._first + int(self._random.random() * DAY_MS)

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
