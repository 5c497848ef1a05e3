"""Consumers that race for the tasks of a topic with short leases, and of which one is killed again and again.

    python racing_consumers.py URL-OF-THE-STORE TOPIC FOLDER

It ends when every task is done or dead. Each consumer is a process with a file in the folder; before it does anything
that ends a lease, and after it has got one, it writes a line: an array of a word, an id and numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TextIO

import redis

from later.core.clock import Clock
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.retry import Nack
from later.store.keys import Bucket, Keys
from later.store.open import Store, open_existing_store
from later.store.pull_plan import PulledTask, PullRequest, PullResult, PullTopic
from later.store.pulls import LeaseNack
from later.store.settings import StoreSettings

CONSUMERS = 8
BATCH = 20
LEASE_MS = 50
KILL_EVERY_S = 0.25
ACTIONS = ("ack",) * 12 + ("extend", "extend", "release", "release", "nack", "reject", "walk away")


class Consumer:
    """A consumer that acks most of its tasks, and does everything else with the others."""

    def __init__(self, store: Store, topic: str, log: TextIO, random: Random) -> None:
        self._store = store
        self._topic = PullTopic(topic, BATCH, LEASE_MS)
        self._log = log
        self._random = random

    async def work(self) -> None:
        """Work until killed."""
        while True:
            now = await self._store.time.now()
            request = PullRequest([self._topic], self._random.randint(1, BATCH))
            [result] = await self._store.pulls.claim([request], now)
            if not isinstance(result, PullResult):
                raise result
            answered_at, answered = time.monotonic_ns(), await self._store.time.now()
            for task in result.tasks:
                self._note("claimed", task, task.attempt, answered_at, now.high, answered.high, task.lease_end)
            if not result.tasks:
                await asyncio.sleep(0.01)
            cut = self._random.randint(0, len(result.tasks))
            await self._do(result.tasks[:cut])
            await asyncio.sleep(self._random.choice([0, 0, 0.02, 0.06]))
            await self._do(result.tasks[cut:])

    async def _do(self, tasks: Sequence[PulledTask]) -> None:
        pulls, leases = self._store.pulls, [task.lease for task in tasks]
        now = await self._store.time.now()
        match self._random.choice(ACTIONS) if tasks else "walk away":
            case "extend":
                for task, answer in zip(tasks, await pulls.extend(leases, now.low + 2 * LEASE_MS), strict=True):
                    if answer is True:
                        self._note("extended", task, now.low + 2 * LEASE_MS)
                await asyncio.sleep(LEASE_MS / 1000)
                await self._ack(tasks)
            case "ack":
                await self._ack(tasks)
            case "release":
                for task in tasks:
                    self._note("given up", task, now.low)
                await pulls.release(leases)
            case "nack" | "reject" as action:
                for task in tasks:
                    self._note("given up", task, now.low)
                nack = Nack(is_final=True) if action == "reject" else Nack(delay_ms=0)
                nacks = [LeaseNack(lease, nack) for lease in leases]
                await pulls.nack(nacks, Policies(Policy()), now.high, self._random.random)

    async def _ack(self, tasks: Sequence[PulledTask]) -> None:
        now = await self._store.time.now()
        answers = await self._store.pulls.ack([task.lease for task in tasks], now.high)
        for task, answer in zip(tasks, answers, strict=True):
            if answer is True:
                self._note("acked", task, now.high)

    def _note(self, word: str, task: PulledTask, *numbers: int) -> None:
        self._log.write(json.dumps([word, task.task.id, *numbers]) + "\n")


async def consume(url: str, topic: str, file: Path, seed: int) -> None:
    settings = StoreSettings(url=url, prefix="later", timeout_s=20)
    store = await open_existing_store(settings, Clock(time.monotonic, time.time))
    with file.open("w", buffering=1) as log:
        await Consumer(store, topic, log, Random(seed)).work()


def start_consumer(url: str, topic: str, folder: Path, seed: int) -> int:
    """Start a consumer in a process of its own, and return its process id."""
    pid = os.fork()
    if not pid:
        with suppress(KeyboardInterrupt):
            asyncio.run(consume(url, topic, folder / f"{seed:04d}.jsonl", seed))
        os._exit(1)
    return pid


def count_left(client: redis.Redis, topic: str) -> int:
    """Return how many tasks of the topic are neither done nor dead, at one moment: tasks move between buckets."""
    shards = int(client.hget("later:meta", "shards"))  # type: ignore[arg-type]  # redis-py's stub: also awaitable
    with client.pipeline(transaction=True) as counts:
        for shard in Keys("later", shards).shards:
            for bucket in (Bucket.DELAY, Bucket.UNACK, Bucket.ERROR):
                counts.zcard(shard.bucket(bucket, topic.encode()))
        return sum(counts.execute())


def main(url: str, topic: str, folder: Path) -> None:
    random, seeds = Random(0), itertools.count()
    pids = [start_consumer(url, topic, folder, next(seeds)) for _ in range(CONSUMERS)]
    try:
        with redis.Redis.from_url(url) as client:
            while count_left(client, topic):
                time.sleep(KILL_EVERY_S)
                killed = random.randrange(CONSUMERS)
                os.kill(pids[killed], signal.SIGKILL)
                _, status = os.waitpid(pids[killed], 0)
                assert os.WIFSIGNALED(status), f"a consumer failed: {status}"
                pids[killed] = start_consumer(url, topic, folder, next(seeds))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
