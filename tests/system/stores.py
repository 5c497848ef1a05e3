"""Store servers that tests kill, stop and restart on the same files, and direct reads of their contents."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import redis

from later.embedded import EmbeddedStore
from later.store.keys import Bucket, Keys
from tests.servers import run_server


class StoreServer:
    """A store server that a test controls."""

    def __init__(self, name: str, folder: Path, options: tuple[str, ...]) -> None:
        self.url = ""
        self._name = name
        self._folder = folder
        self._options = options
        self._running = ExitStack()
        self._process: Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.url, self._process = self._running.enter_context(run_server(self._name, self._folder, *self._options))

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._running.close()
        self._process = None

    def terminate(self) -> None:
        """Send SIGTERM and wait for the exit."""
        self._send(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(10)
        self.kill()

    def hang(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)


@contextmanager
def run_store(name: str, folder: Path, *options: str) -> Iterator[StoreServer]:
    """Run a store server on a socket in `folder`."""
    server = StoreServer(name, folder, options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def count_tasks(client: redis.Redis, shards: int = 1) -> int:
    """Return the number of tasks in the pools."""
    return sum(int(client.hlen(shard.pool)) for shard in Keys("later", shards).shards)


def count_bucket(client: redis.Redis, bucket: Bucket, *topics: str) -> int:
    """Return the number of tasks of these topics in a bucket, with one shard."""
    shard = Keys("later", 1).shards[0]
    return sum(int(client.zcard(shard.bucket(bucket, topic.encode()))) for topic in topics)


@contextmanager
def open_embedded_store(data: Path) -> Iterator[redis.Redis]:
    """Open the embedded store that a `later up` left in `data`."""
    store = EmbeddedStore(data)
    with asyncio.Runner() as loop:
        loop.run(store.start())
        try:
            with redis.Redis.from_url(store.url) as client:
                yield client
        finally:
            loop.run(store.stop())
