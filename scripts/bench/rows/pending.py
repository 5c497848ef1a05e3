"""A store that holds millions: what later creates and claims in it, beside the same scripts driven raw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from later.store.scripts import MAX_TASKS
from later.store.tasks import Tasks
from later.store.types import ClaimRequest
from scripts.bench.daemons import an_api
from scripts.bench.environment import Setting
from scripts.bench.load import press
from scripts.bench.raw_script import Creates, Wire, packed, recorded
from scripts.bench.results import BenchError, Contender, Row, Sample, ShareOf
from scripts.bench.rows import batch
from scripts.bench.seed import a_task, good, using
from scripts.bench.stores import OwnStore, a_store

EACH = 1_000
CREATES_UNDER_WAY = 4
"""At a time, ours as well as raw: a daemon has that many connections and more. A ticker claims one after the other."""
TOPIC = "order"
DAY_MS = 86_400_000
SHARE = 0.6


class Pending:
    """A store with tasks pending, due anywhere in a day to come; tasks are created there, and the earliest claimed."""

    def __init__(self, setting: Setting, store: OwnStore, tasks: int) -> None:
        self._setting = setting
        self._store = store
        self._tasks = tasks
        self._moved = setting.scale.moved
        self._creates = Creates(EACH)
        self._first = int(time.time() * 1000) + DAY_MS
        self._random = Random(0)
        self._create_raw(tasks)

    def contenders(self) -> Iterator[Contender]:
        """Each claims what the one before has created, or as many others."""
        where = f"{self._tasks / 1e6:g} million" if self._tasks else "empty"
        created, claimed = f"{where}: the script `create`, raw", f"{where}: the script `claim`, raw"
        goals = [ShareOf(SHARE)]
        yield Contender(name=created, store="none", measure=self.create_raw)
        yield Contender(name=claimed, store="none", measure=self.claim_raw)
        yield Contender(name=f"{where}: store.create", store="none", measure=self.create, beside=created, goals=goals)
        yield Contender(name=f"{where}: store.claim", store="none", measure=self.claim, beside=claimed, goals=goals)
        yield Contender(name=f"{where}: /create/batch", store="none", measure=self.create_by_batch, beside=created)

    def create_raw(self) -> Sample:
        self._make_ready()
        return self._rate(self._create_raw(self._moved))

    def _create_raw(self, tasks: int) -> float:
        with Wire(self._store.socket) as wire:
            wire.load_scripts()
            batches = self._creates.batches(tasks // EACH, self._due_at)
            return wire.timed(batches, self._creates.calls, under_way=CREATES_UNDER_WAY)

    def create(self) -> Sample:
        self._make_ready()
        return self._rate(using(self._store.url, self._create))

    async def _create(self, store: Tasks) -> float:
        batches = [[a_task(self._due_at()) for _ in range(EACH)] for _ in range(self._moved // EACH)]
        waiting = iter(batches)

        async def create() -> None:
            for tasks in waiting:
                good(await store.create(tasks))

        started = time.perf_counter()
        await asyncio.gather(*(create() for _ in range(CREATES_UNDER_WAY)))
        return time.perf_counter() - started

    def claim_raw(self) -> Sample:
        now, before = self._first + DAY_MS, self._store.in_flight(TOPIC.encode())
        call = packed(recorded(lambda store: store.claim([ClaimRequest(TOPIC, 0, MAX_TASKS)], now, now + DAY_MS)))
        with Wire(self._store.socket) as wire:
            wire.load_scripts()
            seconds = wire.timed([call] * (self._moved // MAX_TASKS), 1, under_way=1)
        self._check(self._store.in_flight(TOPIC.encode()) - before)
        return self._rate(seconds)

    def claim(self) -> Sample:
        return self._rate(using(self._store.url, self._claim))

    async def _claim(self, store: Tasks) -> float:
        now, started, claimed = self._first + DAY_MS, time.perf_counter(), 0
        for _ in range(self._moved // MAX_TASKS):
            (claims,) = good(await store.claim([ClaimRequest(TOPIC, 0, MAX_TASKS)], now, now + DAY_MS))
            claimed += len(claims.claims)
        seconds = time.perf_counter() - started
        self._check(claimed)
        return seconds

    def _check(self, claimed: int) -> None:
        if claimed != self._moved:
            raise BenchError(f"{claimed} of {self._moved} tasks were claimed")

    def create_by_batch(self) -> Sample:
        self._make_ready()
        delays = [self._due_at() / 1000 - time.time() for _ in range(EACH)]
        with an_api(self._setting, "serve", self._store) as server:
            return {"rate": press(self._setting, batch.load(server.url, self._moved, delays)).rate * EACH}

    def _make_ready(self) -> None:
        if not self._tasks:
            self._store.empty()

    def _due_at(self) -> int:
        return self._first + int(self._random.random() * DAY_MS)

    def _rate(self, seconds: float) -> Sample:
        return {"rate": self._moved / seconds}


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    with a_store(setting, "none") as empty, a_store(setting, "none") as full:
        yield [
            *Pending(setting, empty, 0).contenders(),
            *Pending(setting, full, setting.scale.pending).contenders(),
        ]


PENDING = Row(
    name="pending",
    title="5 million tasks pending, due anywhere in a day: creating and claiming 200,000 more",
    target="later's create and claim ≥ 0.6 of the scripts driven raw, as on an empty store",
    figures=("rate",),
    contenders=contenders,
)
