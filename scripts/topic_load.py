"""Measures the cost of many topics and policies to the store and a process: `python -m scripts.topic_load --help`."""

from __future__ import annotations

import asyncio
import re
import resource
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import click
import redis
import uvloop

from later.api.paging import encode_cursor
from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Settings, topic_scope
from later.core.snapshot import encode_snapshot
from later.daemon.census import Census
from later.embedded.server import find_server
from later.metrics import Metrics
from later.store.client import StoreClient
from later.store.connections import connect
from later.store.keys import Keys
from later.store.open import Store, build_store
from later.store.policy_reader import encode_settings
from scripts.bench.processes import Process, run_process, wait_until
from scripts.bench.seed import build_task, create_all

Result = TypeVar("Result")

TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.001
SLOW_US = 1000
"""Commands that take the store as long as this are looked for."""
REQUESTS = 20
CENSUS_S = 600
FAR_S = 86_400
"""The tasks are due in a day."""
SETTINGS = Settings({"rate": 10, "concurrency": 4})


class Probe:
    """The cost of some work: its wall time, this process's CPU and longest block, the store's CPU and commands."""

    def __init__(self, server: redis.Redis) -> None:
        self._server = server

    async def measure(self, name: str, work: Callable[[], Awaitable[Result]]) -> Result:
        """Do the work and print what it cost."""
        self._server.slowlog_reset()
        commands, store_s = self._count_commands(), self._store_s()
        watching = asyncio.create_task(_longest_block())
        await asyncio.sleep(0.01)
        wall_s, cpu_s = time.monotonic(), time.process_time()
        result = await work()
        wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
        watching.cancel()
        block_s = await watching
        store_s = self._store_s() - store_s
        slow_us = max((entry["duration"] for entry in self._server.slowlog_get(1000)), default=0)
        slowest = f"{slow_us / 1000:.0f} ms" if slow_us else "under 1 ms"
        print(
            f"{name:<34} wall {wall_s * 1000:8.1f} ms  process {cpu_s * 1000:8.1f} ms, blocked {block_s * 1000:5.0f} ms"
            f"  store {store_s * 1000:7.1f} ms, slowest command {slowest},"
            f" {self._count_commands() - commands} commands  ({_memory_mb():.0f} MB)",
            flush=True,
        )
        return result

    def requests(self, name: str, url: str) -> bytes:
        """Make requests one after the other and print what each cost; return the last answer."""
        store_s, commands, wall_s = self._store_s(), self._count_commands(), time.monotonic()
        for _ in range(REQUESTS):
            with urllib.request.urlopen(url) as answer:
                body: bytes = answer.read()
        wall_s, store_s = (time.monotonic() - wall_s) / REQUESTS, (self._store_s() - store_s) / REQUESTS
        print(
            f"{name:<34} wall {wall_s * 1000:8.1f} ms  store {store_s * 1000:.1f} ms,"
            f" {(self._count_commands() - commands) / REQUESTS:.0f} commands  {len(body):,} bytes",
            flush=True,
        )
        return body

    def _store_s(self) -> float:
        cpu = self._server.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    def _count_commands(self) -> int:
        return int(self._server.info("stats")["total_commands_processed"])


async def _longest_block() -> float:
    """Return, when it is cancelled, the longest CPU time (s) for which the event loop served nobody.

    The wall time would also count when other processes had the CPU.
    """
    longest, woke_at = 0.0, time.thread_time()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            longest = max(longest, time.thread_time() - woke_at)
            woke_at = time.thread_time()
    return max(longest, time.thread_time() - woke_at)


def _memory_mb() -> float:
    """Return the most memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def run_store(folder: Path) -> Iterator[tuple[redis.Redis, str]]:
    """Run an empty store; yield a client of it and its URL."""
    path = folder / "store.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--slowlog-log-slower-than", str(SLOW_US)]
    with run_process([str(find_server()), *options, "--dir", str(folder)], folder, "store") as process:
        url = f"unix://{path}"
        server = redis.Redis.from_url(url)
        wait_until(lambda: path.exists() and bool(server.ping()), "the store answers", process)
        yield server, url


def open_store(url: str, shards: int) -> Store:
    """Return a store as a process of its own would have it."""
    clock = Clock(time.monotonic, time.time)
    client = StoreClient(connect(url, clock, TIMEOUT_S), clock, timeout_s=TIMEOUT_S)
    return build_store(client, clock, Keys("later", shards), DEFAULT_POLICY)


async def seed_topics(url: str, shards: int, topics: int) -> None:
    store = open_store(url, shards)
    due_at = (await store.time.now()).low + FAR_S * 1000
    await create_all(store.tasks, (build_task(due_at, topic=f"team{n % 100}/t{n:07}") for n in range(topics)))
    await store.aclose()


async def measure_topics(url: str, shards: int, probe: Probe) -> None:
    """Measure a census."""
    store = open_store(url, shards)
    await store.topic_index.complete()
    census = Census(store, Metrics())
    snapshot = await probe.measure("census", census.count)
    print(f"{'snapshot':<34} {snapshot.total.topics:,} topics, {len(encode_snapshot(snapshot)):,} bytes")
    await probe.measure("census, again", census.count)
    await store.aclose()


@contextmanager
def run_daemon(url: str, shards: int, folder: Path) -> Iterator[tuple[Process, str]]:
    """Run `later serve` on the store; yield its process and its URL."""
    command = [sys.executable, "-m", "later", "serve", "--redis", url, "--shards", str(shards)]
    with run_process([*command, "--listen", "127.0.0.1:0", "--auth", "off"], folder, "daemon") as process:
        wait_until(lambda: _find_url(process.log) is not None, "the daemon listens", process)
        yield process, str(_find_url(process.log))


def _find_url(log: Path) -> str | None:
    """Return the URL of a daemon that logs in which it listens."""
    found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
    return None if found is None else found[0]


def measure_daemon(url: str, shards: int, probe: Probe, folder: Path) -> None:
    """Measure calls of a daemon."""
    with run_daemon(url, shards, folder) as (process, address):
        wait_until(lambda: b'"topic"' in _get(f"{address}/topics?sort=delay&limit=1"), "a census", process, CENSUS_S)
        probe.requests("GET /metrics", f"{address}/metrics")
        probe.requests("GET /topics", f"{address}/topics?limit=100")
        probe.requests("GET /topics?namespace=", f"{address}/topics?limit=100&namespace=team50")
        for sort in ("lateness", "due", "delay"):
            probe.requests(f"GET /topics?sort={sort}", f"{address}/topics?limit=100&sort={sort}")
        cursor = encode_cursor("team50/t0000050")
        probe.requests("GET /topics, in the middle", f"{address}/topics?limit=100&cursor={cursor}")
        probe.requests("GET /topics/{topic}", f"{address}/topics/{urllib.parse.quote('team50/t0000050', safe='')}")
        probe.requests("GET /overview", f"{address}/overview")
        status = Path(f"/proc/{process.pid}/status").read_text()
        print("daemon", *re.findall(r"VmHWM:.*", status))


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read())


async def measure_policies(url: str, shards: int, probe: Probe) -> None:
    """Measure the first reading of all policies, and changes of one."""
    one, other = open_store(url, shards), open_store(url, shards)
    first = await probe.measure("policies: first reading", one.policies.read)
    print(f"{'policies':<34} {len(first.settings):,}")
    await other.policies.read()

    async def use(store: Store) -> None:
        policies = await store.policies.read()
        _ = policies.has_limits, policies.leave_tasks, policies.has_pulled, policies.shortest_dead_keep_ms

    await use(one)
    await use(other)

    async def change(number: int) -> None:
        await one.policies.change(topic_scope(f"team{number}/t{number:07}"), lambda before: Settings({"rate": 20}))
        await use(one)

    for number in range(2):
        await probe.measure("policies: a change, here", partial(change, number))
        await probe.measure("policies: the change, elsewhere", partial(use, other))
    await one.aclose()
    await other.aclose()


def seed_policies(server: redis.Redis, policies: int) -> None:
    """Give as many topics a policy. The book of policies would take a round trip for each."""
    keys = Keys("later", 1)
    fields = {f"topic:team{n % 100}/t{n:07}": encode_settings(SETTINGS) for n in range(policies)}
    for some in batches(fields.items()):
        server.hset(keys.policies.decode(), mapping=dict(some))
    server.hset(keys.policies.decode(), "version", 1)
    server.zadd(keys.policy_changes.decode(), {"version:1": 1})


def batches(items: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    remaining = iter(items)
    while some := list(islice(remaining, 10_000)):
        yield some


@click.command()
@click.option("--topics", default=0, help="Topics with one task each.")
@click.option("--policies", default=0, help="Topics with a policy.")
@click.option("--shards", default=16, show_default=True)
def main(topics: int, policies: int, shards: int) -> None:
    """Measure on a store of its own: a census, pages, a scrape, the policies."""
    with tempfile.TemporaryDirectory(prefix="topics-") as name, run_store(folder := Path(name)) as (server, url):
        probe = Probe(server)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if topics:
                runner.run(seed_topics(url, shards, topics))
                used = server.info("memory")["used_memory"]
                print(f"{'store':<34} {topics:,} topics, {used / 2**20:.0f} MB", flush=True)
                runner.run(measure_topics(url, shards, probe))
            if policies:
                seed_policies(server, policies)
                runner.run(measure_policies(url, shards, probe))
        if topics:
            measure_daemon(url, shards, probe, folder)


if __name__ == "__main__":
    main()
