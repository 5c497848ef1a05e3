"""Stores of the benchmark: each starts empty, on a socket in a temporary directory. No other store is touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from later.store.keys import Bucket, Keys
from scripts.bench.environment import Environment
from scripts.bench.processes import Process, free_port, run_process, wait_until

DURABILITIES = {
    "none": ("--appendonly", "no"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
}
"""The server's options for each durability."""


class BenchStore:
    """A running server of a store, with a client that reads its counts."""

    def __init__(self, process: Process, socket: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.socket = socket
        self.url = f"unix://{socket}"
        self._client = redis.Redis.from_url(self.url)

    def answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self._client.ping())
        return False

    def info(self, section: str) -> dict[str, Any]:
        return dict(self._client.info(section))

    def has_replica(self) -> bool:
        """Return True if a replica has all of the store, and follows it."""
        return bool(self.info("replication").get("slave0", {}).get("state") == "online")

    def count_in_flight(self, topic: bytes) -> int:
        """Return the number of claimed tasks of a topic."""
        return int(self._client.zcard(Keys("later", 1).shards[0].bucket(Bucket.UNACK, topic)))

    def clear(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()


@contextmanager
def run_replicated_store(environment: Environment, durability: str) -> Iterator[BenchStore]:
    """Run an empty store and a replica of it, both with this durability, and wait until the replica has joined."""
    port = str(free_port())
    with (
        run_store(environment, durability, "--port", port, "--repl-diskless-sync-delay", "0") as store,
        run_store(environment, durability, "--replicaof", f"127.0.0.1 {port}") as replica,
    ):
        wait_until(store.has_replica, "the replica joins", replica.process)
        yield store


@contextmanager
def run_store(environment: Environment, durability: str, *more: str) -> Iterator[BenchStore]:
    """Run an empty store with this durability, and more options, and wait until it answers."""
    with environment.temporary_folder() as folder:
        socket = folder / "store.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder), *more]
        command = [str(environment.store_program), *options, "--loglevel", "warning", *DURABILITIES[durability]]
        with run_process(command, folder, "store") as process:
            store = BenchStore(process, socket)
            wait_until(store.answers, "the store answers", process)
            try:
                yield store
            finally:
                store.close()
