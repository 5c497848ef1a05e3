"""Raw calls of a script: the bytes are built beforehand and written straight to the socket."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import hiredis

from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.core.task import pack_id
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.open import build_store
from later.store.scripts import BY_SHA, Command
from later.store.tasks import Tasks
from scripts.bench.results import BenchError
from scripts.bench.seed import build_task

READ_BYTES = 1 << 16
ID_BYTES = 16
RANDOM_BYTES = 7
"""How many bytes at the end of a UUID are random in every version; enough for billions of ids."""


class RawConnection:
    """A connection to the store that bypasses the client library."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, packed: bytes | bytearray) -> None:
        self._socket.sendall(packed)

    def read_answer(self) -> Any:
        """Return the next answer. Raises BenchError if it is an error."""
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(READ_BYTES))
        if isinstance(answer, hiredis.ReplyError):
            raise BenchError(f"the store answered: {answer}")
        return answer

    def load_scripts(self) -> None:
        for script in BY_SHA.values():
            self.send(pack_commands([("SCRIPT", "LOAD", script.source)]))
            self.read_answer()

    def time_messages(self, messages: Iterable[bytes | bytearray], answers_each: int, concurrency: int) -> float:
        """Send the messages, `concurrency` at a time, and return the seconds until the last answer."""
        started, unanswered = time.perf_counter(), 0
        for message in messages:
            self.send(message)
            unanswered += answers_each
            while unanswered >= concurrency * answers_each:
                self.read_answer()
                unanswered -= 1
        for _ in range(unanswered):
            self.read_answer()
        return time.perf_counter() - started


def pack_commands(commands: Sequence[Command]) -> bytes:
    return b"".join(hiredis.pack_command(cast("tuple[str]", command)) for command in commands)


class _RecordingClient:
    """A replacement for the store's client that keeps the commands instead of sending them."""

    timeout_s = 2.0

    def __init__(self) -> None:
        self.commands: list[Command] = []

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        self.commands += commands
        raise _RecordedError

    execute_timed = execute_each


class _RecordedError(Exception):
    """Raised to end the call of the store package, which would otherwise wait for an answer."""


def record_commands(call: Callable[[Tasks], Awaitable[object]]) -> list[Command]:
    """Return the commands that a call of the store package would send."""
    recorder, keys = _RecordingClient(), Keys("later", 1)
    client = cast("StoreClient", recorder)

    async def run() -> None:
        await call(build_store(client, Clock(time.monotonic, time.time), keys, DEFAULT_POLICY).tasks)

    try:
        asyncio.run(run())
    except _RecordedError:
        return recorder.commands
    raise BenchError("the call of the store sent nothing")


class CreateBatches:
    """The create calls of a batch as bytes. Each new batch is the same bytes with other ids and due times."""

    def __init__(self, task_count: int) -> None:
        due_at = int(time.time() * 1000)
        batch = [build_task(due_at) for _ in range(task_count)]
        commands = record_commands(lambda store: store.create(batch))
        self.task_count = task_count
        self.call_count = len(commands)
        self._bytes = bytearray(pack_commands(commands))
        self._id_positions = list(_find_in_order(self._bytes, [pack_id(task.id) for task in batch]))
        self._due_positions = list(_find_in_order(self._bytes, [b"\r\n%d\r\n" % due_at] * task_count))

    def batches(self, count: int, due_at: Callable[[], int]) -> Iterator[bytearray]:
        """Yield `count` batches of different tasks. Each is valid until the next is requested."""
        content, random_size = self._bytes, RANDOM_BYTES * self.task_count
        for _ in range(count):
            random = os.urandom(random_size)
            for index, (id_position, due_position) in enumerate(
                zip(self._id_positions, self._due_positions, strict=True)
            ):
                start = id_position + ID_BYTES - RANDOM_BYTES
                content[start : start + RANDOM_BYTES] = random[index * RANDOM_BYTES : (index + 1) * RANDOM_BYTES]
                content[due_position + 2 : due_position + 15] = b"%d" % due_at()
            yield content


def _find_in_order(data: bytearray, parts: Sequence[bytes]) -> Iterator[int]:
    """Yield the positions of the parts, which follow one another in `data`."""
    at = 0
    for part in parts:
        at = data.index(part, at)
        yield at
        at += len(part) - 2  # the end of one part may be the beginning of the next
