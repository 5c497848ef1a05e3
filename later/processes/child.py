"""One run of a process of several, as its supervisor sees it: started, asked, ended."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from later.metrics import Figures
from later.processes.channel import Answers, Channel, NoAnswer, open_channel

log = structlog.get_logger("later.processes")

MANY_MISSED = 3
"""So many questions in a row without an answer, and a process counts as hanging."""


class Child:
    """From its start to its exit status. `up` and `figures` are what it said of itself last."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number = number
        self.up = False
        self.figures: Figures = []
        self.ended = asyncio.ensure_future(process.wait())
        self._process = process
        self._channel = channel
        self._missed = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it lives; the exit status, or minus the signal, that ended it."""
        return self._process.returncode

    @property
    def hangs(self) -> bool:
        """Does it live and answer nothing any more?"""
        return self._missed >= MANY_MISSED

    async def ask(self, what: str, *, within_s: float) -> Any:
        """Raises NoAnswer."""
        return await self._channel.ask(what, within_s=within_s)

    async def count(self) -> None:
        """Bring its figures up to date; they stay as they are where it does not answer."""
        try:
            self.figures = msgspec.convert(await self._channel.ask("figures"), Figures)
        except NoAnswer:
            self._missed += 1
            if self._missed == MANY_MISSED:
                log.warning("process hangs", process=self.number, pid=self.pid)
        else:
            self._missed = 0

    async def stop(self, patience_s: float) -> None:
        """Ask it to stop; kill it if it has not ended then. Not by a signal: it may have got one already (systemd

        signals a whole control group), and a second one would mean to leave at once.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                with suppress(NoAnswer):
                    await self._channel.ask("stop", within_s=patience_s)
                await asyncio.shield(self.ended)
        if self.status is None:
            log.warning("process killed: it did not stop in time", process=self.number, pid=self.pid)
            self.kill()
            await self.ended
        self.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Nothing more will be heard of it."""
        self._channel.close()


async def spawn(number: int, of: int, command: str, answers: Callable[[Child], Answers]) -> Child:
    """Start a process; `answers` are those to its questions. Raises OSError: the machine has no room for it.

    In a session of its own, so that a terminal's Ctrl-C is for the supervisor alone. What it inherits is one end of the
    channel and nothing else of ours: no port, no lock of the embedded store.
    """
    ours, theirs = socket.socketpair()
    known: dict[str, Any] = {}
    channel = await open_channel(ours, known)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "later.processes", command, f"{number}/{of}"),
                *("--channel", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
    except BaseException:
        channel.close()
        raise
    child = Child(number, process, channel)
    known.update(answers(child))
    return child


def _environment() -> dict[str, str]:
    """Ours, so that it finds the same `later` and the same libraries; but its options come over the channel."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LATER_")}
    return inherited | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
