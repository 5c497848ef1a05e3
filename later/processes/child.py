"""One run of a child process, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from later.config import Config
from later.metrics import MetricSamples
from later.processes.rpc import Channel, RpcError, open_channel

log = structlog.get_logger("later.processes")

MAX_MISSED_CALLS = 3
"""A process that leaves this many calls in a row unanswered, each for a second, hangs."""
MAX_SILENT_CHECKS = 10
"""After this many checks in a row without a word from it, even a late one, a process is killed. A check of a process
that does not answer comes every 3 s, so that takes 30 s. Checks are counted instead of seconds, because after a suspend
of the machine a minute has passed for the clock, and no process has had the time to answer."""
MAX_START_CHECKS = 150
"""After this many checks without its first word, a process is killed. That takes five minutes: imports may be slow."""

_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); "
    "from later.startup import exit_on_termination; exit_on_termination(); "
    "from later.processes.child_main import main; main()"
)
"""The child's import path is its last argument: in PYTHONPATH, a path with a colon would become two."""


async def start_child(number: int, config: Config) -> Child:
    """Start a process: the same `later` and the same libraries as ours.

    It runs in its own session, so that a terminal's Ctrl-C reaches the supervisor alone. It inherits one end of the
    channel and nothing else: no port, no lock of the embedded store. Its configuration comes over the channel.

    Raises:
        OSError: the machine cannot run another process.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        channel = await open_channel(ours)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _PROGRAM, config.command, f"{number}/{config.processes}"),
                *("--channel", str(theirs.fileno()), "--log", config.log_format, config.log_level),
                json.dumps([path or os.getcwd() for path in sys.path]),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("LATER_")},
                start_new_session=True,
            )
        except BaseException:
            channel.close()
            raise
    return Child(number, process, channel)


class Child:
    """A child process from its start to its exit. `up` and `samples` are what it reported last."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.exited = asyncio.ensure_future(process.wait())
        self.up = False
        self.samples: MetricSamples = []
        self.failure_reported = False
        self._process = process
        self.silent_checks = 0
        """Checks in a row since the child last sent anything."""
        self.start_checks = 0
        """Checks before the child sent its first message."""
        self._messages_read = 0
        self._missed_calls = 0
        self._hung = asyncio.Event()
        self._update: asyncio.Task[bool] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, or minus the signal that killed it; None while it runs."""
        return self._process.returncode

    @property
    def is_hung(self) -> bool:
        return self._hung.is_set()

    async def call(self, method: str, params: object = None, *, timeout_s: float) -> Any:
        """Return the child's answer.

        Raises:
            RpcError: there is no answer within `timeout_s`, or the child hangs meanwhile.
        """
        answer = asyncio.create_task(self.channel.call(method, params, timeout_s=timeout_s))
        hung = asyncio.create_task(self._hung.wait())
        try:
            await asyncio.wait({answer, hung}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise RpcError(f"process {self.number} hangs: {method}")
        finally:
            answer.cancel()
            hung.cancel()

    async def check(self, topics: Sequence[str] = ()) -> None:
        """Update the samples, and notice whether the child still answers.

        The answer comes from its event loop, so it says that the child can work. Before its first word the child is
        being started, and is not called: imports may take long on a busy machine.

        Call it from one ticker only: called at each scrape, a short stall would be many missed calls.
        """
        if not self.channel.messages_read:
            self.start_checks += 1
            return
        answered = await self.update_samples(topics)
        self.silent_checks = self.silent_checks + 1 if self.channel.messages_read == self._messages_read else 0
        self._messages_read = self.channel.messages_read
        if answered:
            self._missed_calls = 0
            self._hung.clear()
            return
        self._missed_calls += 1
        if self._missed_calls == MAX_MISSED_CALLS:
            self._hung.set()
            log.warning("process hangs", process=self.number, pid=self.pid)

    async def update_samples(self, topics: Sequence[str] = ()) -> bool:
        """Fetch the child's samples; return False, and keep the last ones, if it does not answer.

        `topics` are those that shall have a label of their own.

        Concurrent callers wait for the same answer: a slow process is not called ever more often.
        """

        async def fetch() -> bool:
            try:
                self.samples = msgspec.convert(await self.channel.call("samples", topics), MetricSamples)
            except RpcError:
                return False
            return True

        if self._update is None or self._update.done():
            self._update = asyncio.create_task(fetch())
        return await asyncio.shield(self._update)

    async def stop(self, timeout_s: float) -> None:
        """Ask the child to stop, and kill it if it has not exited within `timeout_s`.

        It is asked by a call and not by a signal: it may have received a signal already (systemd signals a whole
        control group), and a second one would force its exit.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                with suppress(RpcError):
                    await self.channel.call("stop", timeout_s=timeout_s)
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
        self.channel.close()
