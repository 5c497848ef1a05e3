"""One run of a process of several, as its supervisor sees it: started, asked, ended."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from later.config import Config
from later.metrics import MetricSamples
from later.processes.rpc import Channel, Handlers, RpcError, open_channel

log = structlog.get_logger("later.processes")

MAX_MISSED_CALLS = 3
"""So many questions in a row without an answer, and a process counts as hanging."""


_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); from later.processes.child_main import main; main()"
)
"""Where it finds `later` comes as its last argument; in PYTHONPATH, a path with a colon would become two."""


class Child:
    """From its start to its exit status. `up` and `figures` are what it said of itself last."""

    _process: asyncio.subprocess.Process
    _channel: Channel
    exited: asyncio.Future[int]

    def __init__(self, number: int) -> None:
        """One that is yet to `begin`."""
        self.number = number
        self.up = False
        self.samples: MetricSamples = []
        self.failure_reported = False
        """Has it told why it fails?"""
        self._missed = 0
        self._hung = asyncio.Event()
        self._counting: asyncio.Task[bool] | None = None

    def begin(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self.exited = asyncio.ensure_future(process.wait())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it lives; the exit status, or minus the signal, that ended it."""
        return self._process.returncode

    @property
    def is_hung(self) -> bool:
        """Does it live and answer nothing any more?"""
        return self._hung.is_set()

    async def call(self, method: str, *, timeout_s: float) -> Any:
        """Raises NoAnswer: there is none within that time; or there will be none soon, for it hangs."""
        asking = asyncio.create_task(self._channel.call(method, timeout_s=timeout_s))
        hanging = asyncio.create_task(self._hung.wait())
        try:
            await asyncio.wait({asking, hanging}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise RpcError(f"process {self.number} hangs: {method}")
        finally:
            asking.cancel()
            hanging.cancel()

    async def check(self) -> None:
        """Count, and see whether it still answers. For a ticker alone: were it as often as somebody scrapes, a short

        stall would be many misses.
        """
        if await self.update_samples():
            self._missed = 0
            self._hung.clear()
            return
        self._missed += 1
        if self._missed == MAX_MISSED_CALLS:
            self._hung.set()
            log.warning("process hangs", process=self.number, pid=self.pid)

    async def update_samples(self) -> bool:
        """Bring its figures up to date. False: they stay as they are, for it does not answer.

        Whoever wants them meanwhile waits for the same answer: a process that is slow is not asked ever more.
        """
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._count())
        return await asyncio.shield(self._counting)

    async def _count(self) -> bool:
        try:
            self.samples = msgspec.convert(await self._channel.call("samples"), MetricSamples)
        except RpcError:
            return False
        return True

    async def stop(self, timeout_s: float) -> None:
        """Ask it to stop; kill it if it has not ended then. Not by a signal: it may have got one already (systemd

        signals a whole control group), and a second one would mean to leave at once.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                with suppress(RpcError):
                    await self._channel.call("stop", timeout_s=timeout_s)
                await asyncio.shield(self.exited)
        if self.status is None:
            log.warning("process killed: it did not stop in time", process=self.number, pid=self.pid)
            self.kill()
            await self.exited
        elif self.status != 0 and not self.failure_reported:
            log.warning("process exited", process=self.number, pid=self.pid, status=self.status)
        self.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Nothing more will be heard of it."""
        self._channel.close()


async def spawn(number: int, command: str, config: Config, answers: Callable[[Child], Handlers]) -> Child:
    """Start a process; `answers` are those to its questions. Raises OSError: the machine has no room for it.

    In a session of its own, so that a terminal's Ctrl-C is for the supervisor alone. What it inherits is one end of the
    channel and nothing else of ours: no port, no lock of the embedded store.
    """
    child = Child(number)
    known = answers(child)
    ours, theirs = socket.socketpair()
    with theirs:
        channel = await open_channel(ours, known)
        try:
            process = await asyncio.create_subprocess_exec(
                *_line(number, command, config, theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("LATER_")},
                start_new_session=True,
            )
        except BaseException:
            channel.close()
            raise
    child.begin(process, channel)
    return child


def _line(number: int, command: str, config: Config, descriptor: int) -> list[str]:
    """The same `later` and the same libraries as ours; and what it must know before it can be told the rest."""
    paths = [path or os.getcwd() for path in sys.path]
    return [
        *(sys.executable, "-P", "-c", _START, command, f"{number}/{config.processes}"),
        *("--channel", str(descriptor), "--log", config.log_format, config.log_level, json.dumps(paths)),
    ]
