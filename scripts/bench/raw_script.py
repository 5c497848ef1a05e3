"""A store's script driven raw: its calls made beforehand, as bytes, with nothing between them and the socket."""

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
from scripts.bench.seed import a_task

READ_BYTES = 1 << 16
ID_BYTES = 16
RANDOM_BYTES = 7
"""How many of a UUID's last bytes are random whatever its version; enough for billions of ids."""


class Wire:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, packed: bytes | bytearray) -> None:
        self._socket.sendall(packed)

    def answer(self) -> Any:
        """The next answer. Raises BenchError where it is an error."""
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(READ_BYTES))
        if isinstance(answer, hiredis.ReplyError):
            raise BenchError(f"the store answered: {answer}")
        return answer

    def load_scripts(self) -> None:
        for script in BY_SHA.values():
            self.send(packed([("SCRIPT", "LOAD", script.source)]))
            self.answer()

    def timed(self, messages: Iterable[bytes | bytearray], answers_each: int, under_way: int) -> float:
        """Send the messages, so many of them under way at a time; the seconds until the last was answered."""
        started, waiting = time.perf_counter(), 0
        for message in messages:
            self.send(message)
            waiting += answers_each
            while waiting >= under_way * answers_each:
                self.answer()
                waiting -= 1
        for _ in range(waiting):
            self.answer()
        return time.perf_counter() - started


def packed(commands: Sequence[Command]) -> bytes:
    return b"".join(hiredis.pack_command(cast("tuple[str]", command)) for command in commands)


class _Recorder:
    """Takes a client's place in a store and keeps what would be sent."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        self.commands += commands
        raise _RecordedError


class _RecordedError(Exception):
    """Ends the verb: nobody answers it."""


def recorded(use: Callable[[Tasks], Awaitable[object]]) -> list[Command]:
    """The commands that a verb of the store would send."""
    recorder = _Recorder()

    async def run() -> None:
        await use(Tasks(cast("Client", recorder), Keys("later", 1)))

    try:
        asyncio.run(run())
    except _RecordedError:
        return recorder.commands
    raise BenchError("a verb of the store sent nothing")


class Creates:
    """The creates of a batch of tasks, as bytes in which ids and due times are written over for each batch."""

    def __init__(self, tasks: int) -> None:
        due_at = int(time.time() * 1000)
        made = [a_task(due_at) for _ in range(tasks)]
        commands = recorded(lambda store: store.create(made))
        self.tasks = tasks
        self.calls = len(commands)
        self._bytes = bytearray(packed(commands))
        self._ids = list(_places(self._bytes, [pack_id(task.id) for task in made]))
        self._dues = list(_places(self._bytes, [b"\r\n%d\r\n" % due_at] * tasks))

    def batches(self, count: int, due_at: Callable[[], int]) -> Iterator[bytearray]:
        """So many batches, each of other tasks; good until the next one is asked for."""
        written, chance = self._bytes, RANDOM_BYTES * self.tasks
        for _ in range(count):
            random = os.urandom(chance)
            for index, (id_at, score_at) in enumerate(zip(self._ids, self._dues, strict=True)):
                start = id_at + ID_BYTES - RANDOM_BYTES
                written[start : start + RANDOM_BYTES] = random[index * RANDOM_BYTES : (index + 1) * RANDOM_BYTES]
                written[score_at + 2 : score_at + 15] = b"%d" % due_at()
            yield written


def _places(data: bytearray, parts: Sequence[bytes]) -> Iterator[int]:
    """Where the parts stand, one after the other."""
    at = 0
    for part in parts:
        at = data.index(part, at)
        yield at
        at += len(part) - 2  # what ends one may begin the next
