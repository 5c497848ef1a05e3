"""Count how often idle workers look at shards, and what that costs them and the store.

`python -m scripts.idle_looks --workers 100 --shards 256` starts an empty store in a temporary directory and lets as
many workers share the shards as `later worker` would: each has a `ShardSelector` and a `ShardSharing` of its own. Their
ticks and heartbeats run one after the other in this process, at simulated times, and each look is a real read. So the
looks and commands are exact, and the CPU times are those of one second of the whole fleet. `--alone` has no sharing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.embedded import find_server
from later.store.open import Store, connect_store
from later.store.settings import StoreSettings
from later.worker.shard_selector import ShardSelector
from later.worker.shard_sharing import ShardSharing

TICK_MS = 100
BEAT_MS = 2000
SLOTS = 256
START_MS = 1_900_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The figures of one second of all workers together; CPU times in ms."""

    looks: float
    commands: float
    workers_cpu_ms: float
    store_cpu_ms: float
    most_looks: int
    """Shards that one worker owns, at most."""


class IdleFleet:
    """Idle workers on one store."""

    def __init__(self, store: Store, workers: int, *, shares: bool) -> None:
        self._store = store
        self._shares = shares
        names = [f"host-{number}:1:{number:04x}" for number in range(workers)]
        shards = len(store.keys.shards)
        self._selectors = {name: ShardSelector(shards, tick_ms=TICK_MS, name=name) for name in names}
        self._sharings = [ShardSharing(store, name, selector) for name, selector in self._selectors.items()]
        self.looks = 0

    @property
    def most_owned(self) -> int:
        return max(selector.owned for selector in self._selectors.values())

    async def beat(self, now: int) -> None:
        for sharing in self._sharings if self._shares else ():
            await sharing.beat(now)

    async def tick(self, now: int) -> None:
        for selector in self._selectors.values():
            shards = selector.for_delay(now, has_free_slots=True)
            await self._store.tasks.worker_snapshot(SLOTS, shards=shards)
            selector.note_end(now, claimed=(), left=())
            self.looks += len(self._store.keys.shards) if shards is None else len(shards)

    async def run(self, start: int, seconds: int) -> None:
        for now in range(start, start + 1000 * seconds, TICK_MS):
            if now % BEAT_MS == 0:
                await self.beat(now)
            await self.tick(now)


async def measure(url: str, workers: int, shards: int, seconds: int, *, shares: bool) -> Cost:
    """Return the cost of idle workers. The store at `url` must be empty."""
    settings = StoreSettings(url=url, prefix="later", timeout_s=30)
    clock = Clock(time.monotonic, time.time)
    store = connect_store(settings, shards, clock, DEFAULT_POLICY, "", lambda verb: lambda seconds: None)
    with redis.Redis.from_url(url) as server:
        try:
            fleet = IdleFleet(store, workers, shares=shares)
            await fleet.run(START_MS, 1)
            await fleet.beat(START_MS + 1000)
            fleet.looks, before, cpu_before = 0, _server_figures(server), _own_cpu_ms()
            await fleet.run(START_MS + 2000, seconds)
            after, cpu_after = _server_figures(server), _own_cpu_ms()
        finally:
            await store.aclose()
    return Cost(
        looks=fleet.looks / seconds,
        commands=(after["commands"] - before["commands"]) / seconds,
        workers_cpu_ms=(cpu_after - cpu_before) / seconds,
        store_cpu_ms=(after["cpu_ms"] - before["cpu_ms"]) / seconds,
        most_looks=fleet.most_owned,
    )


def _own_cpu_ms() -> float:
    times = os.times()
    return 1000 * (times.user + times.system)


def _server_figures(server: redis.Redis) -> dict[str, float]:
    info: dict[str, Any] = server.info()
    cpu = info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]
    return {"commands": info["total_commands_processed"], "cpu_ms": 1000 * cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description="Count how often idle workers look at shards.")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=4, help="simulated seconds")
    parser.add_argument("--alone", action="store_true", help="let each worker look at all shards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="later-idle-") as folder:
        socket = Path(folder) / "store.sock"
        command = [str(find_server()), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                _wait_until_up(f"unix://{socket}")
                shares = not options.alone
                cost = asyncio.run(
                    measure(f"unix://{socket}", options.workers, options.shards, options.seconds, shares=shares)
                )
            finally:
                process.kill()
    print(f"{options.workers} idle workers, {options.shards} shards, each second of all of them:")
    print(f"looks at shards       {cost.looks:12,.0f}")
    print(f"commands              {cost.commands:12,.0f}")
    print(f"CPU of the workers    {cost.workers_cpu_ms:12,.0f} ms")
    print(f"CPU of the store      {cost.store_cpu_ms:12,.0f} ms")
    print(f"shards of one worker  {cost.most_looks:12,} at most")


def _wait_until_up(url: str) -> None:
    deadline = time.monotonic() + 10
    with redis.Redis.from_url(url) as server:
        while time.monotonic() < deadline:
            with suppress(redis.RedisError):
                if server.ping():
                    return
            time.sleep(0.02)
    raise SystemExit("the store did not start")


if __name__ == "__main__":
    main()
