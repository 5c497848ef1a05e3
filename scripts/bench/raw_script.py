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

from later.core.task import pack_id
from later.store.client import Client
from later.store.keys import Keys
from later.store.scripts import BY_SHA, Command
from later.store.tasks import Tasks
from scripts.bench.results import BenchError
from scripts.bench.seed import build_task

READ_BYTES = 1 << 16
ID_BYTES = 16
RANDOM_BYTES = 7
"""Number of last bytes of a UUID that are random in every version; enough for billions of ids."""


class RawConnection:
    """A connection to the store without a client library between."""

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

    def time_messages(self, messages: Iterable[bytes | bytearray], answers_each: int, under_way: int) -> float:
        """Send the messages, `under_way` at a time, and return the seconds until the last answer."""
        started, waiting = time.perf_counter(), 0
        for message in messages:
            self.send(message)
            waiting += answers_each
            while waiting >= under_way * answers_each:
                self.read_answer()
                waiting -= 1
        for _ in range(waiting):
            self.read_answer()
        return time.perf_counter() - started


def pack_commands(commands: Sequence[Command]) -> bytes:
    return b"".join(hiredis.pack_command(cast("tuple[str]", command)) for command in commands)


class _RecordingClient:
    """Stand-in for a client that keeps the commands instead of sending them."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        self.commands += commands
        raise _RecordedError


class _RecordedError(Exception):
    """Ends the call of the store, which would wait for an answer otherwise."""


def record_commands(use: Callable[[Tasks], Awaitable[object]]) -> list[Command]:
    """Return the commands that a call of the store would send."""
    recorder = _RecordingClient()

    async def run() -> None:
        await use(Tasks(cast("Client", recorder), Keys("later", 1)))

    try:
        asyncio.run(run())
    except _RecordedError:
        return recorder.commands
    raise BenchError("the call of the store sent nothing")


class CreateBatches:
    """The create calls of a batch as bytes; each batch overwrites the ids and due times."""

    def __init__(self, tasks: int) -> None:
        due_at = int(time.time() * 1000)
        made = [build_task(due_at) for _ in range(tasks)]
        commands = record_commands(lambda store: store.create(made))
        self.tasks = tasks
        self.calls = len(commands)
        self._bytes = bytearray(pack_commands(commands))
        self._ids = list(_find_in_order(self._bytes, [pack_id(task.id) for task in made]))
        self._dues = list(_find_in_order(self._bytes, [b"\r\n%d\r\n" % due_at] * tasks))

    def batches(self, count: int, due_at: Callable[[], int]) -> Iterator[bytearray]:
        """Yield `count` batches of different tasks. Each is valid until the next is requested."""
        written, chance = self._bytes, RANDOM_BYTES * self.tasks
        for _ in range(count):
            random = os.urandom(chance)
            for index, (id_at, score_at) in enumerate(zip(self._ids, self._dues, strict=True)):
                start = id_at + ID_BYTES - RANDOM_BYTES
                written[start : start + RANDOM_BYTES] = random[index * RANDOM_BYTES : (index + 1) * RANDOM_BYTES]
                written[score_at + 2 : score_at + 15] = b"%d" % due_at()
            yield written


def _find_in_order(data: bytearray, parts: Sequence[bytes]) -> Iterator[int]:
    """Yield the positions of the parts, which follow one another in `data`."""
    at = 0
    for part in parts:
        at = data.index(part, at)
        yield at
        at += len(part) - 2  # the end of one part may be the beginning of the next
