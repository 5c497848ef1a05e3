"""Stores of the bench's own: each empty, on a socket in a folder that goes with it. No other store is ever touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from later.store.keys import Bucket, Keys
from scripts.bench.environment import Setting
from scripts.bench.processes import Running, a_process, eventually

DURABILITIES = {
    "none": ("--appendonly", "no"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
}
"""What a store does about the disk, by name."""


class OwnStore:
    """A running store."""

    def __init__(self, running: Running, socket: Path) -> None:
        self.pid = running.pid
        self.socket = socket
        self.url = f"unix://{socket}"
        self._client = redis.Redis.from_url(self.url)

    def answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self._client.ping())
        return False

    def info(self, section: str) -> dict[str, Any]:
        return dict(self._client.info(section))

    def in_flight(self, topic: bytes) -> int:
        """How many tasks of a topic are claimed."""
        return int(self._client.zcard(Keys("later", 1).shards[0].bucket(Bucket.UNACK, topic)))

    def empty(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()


@contextmanager
def a_store(setting: Setting, durability: str) -> Iterator[OwnStore]:
    """An empty store of our own."""
    with setting.a_folder() as folder:
        socket = folder / "store.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
        command = [str(setting.server), *options, "--loglevel", "warning", *DURABILITIES[durability]]
        with a_process(command, folder, "store") as running:
            store = OwnStore(running, socket)
            eventually(store.answers, "the store answers", running)
            try:
                yield store
            finally:
                store.close()
