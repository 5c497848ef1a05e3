"""The processes of a supervisor: so many of them, each started again when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog

from later.config import Config
from later.core.backoff import RESTART_DELAYS_S, RestartBackoff
from later.processes.child import Child, spawn
from later.processes.rpc import Handlers

log = structlog.get_logger("later.processes")


class ProcessSlot:
    """Where there is to be a process: the one that runs, or when (ms) the next one starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.backoff = RestartBackoff((0, *RESTART_DELAYS_S))
        self.started_at = 0
        self.start_at = 0


class ProcessPool:
    """`answers` are those to a child's questions; `on_death` is told of each that ended, `on_exit` that one has."""

    def __init__(
        self,
        command: str,
        config: Config,
        *,
        handlers: Callable[[Child], Handlers],
        on_unexpected_exit: Callable[[Child], None],
    ) -> None:
        self._command = command
        self._config = config
        self._places = [ProcessSlot(number) for number in range(1, config.processes + 1)]
        self._answers = handlers
        self._on_death = on_unexpected_exit
        self.on_exit: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Child]:
        """Those that run, up or not."""
        return (place.child for place in self._places if place.child is not None)

    @property
    def up(self) -> list[Child]:
        return [child for child in self if child.up and child.status is None]

    def why_not_ready(self) -> str | None:
        """One line; None when all are up and answer."""
        missing = len(self._places) - len(self.up)
        if missing:
            return f"{missing} of {len(self._places)} processes {_is(missing)} being started"
        hanging = sum(child.is_hung for child in self.up)
        return f"{hanging} of {len(self._places)} processes {_does(hanging)} not answer" if hanging else None

    async def check(self, now: int) -> int | None:
        """Start those that are missing and whose pause is over. A start that fails is one more death.

        Answers when (ms) the next pause is over; None: all of them run.
        """
        for place in self._places:
            if place.child is not None and place.child.status is not None:
                self._book_restart(place, place.child, now)
            if place.child is None and place.start_at <= now:
                await self._start(place, now)
        return min((place.start_at for place in self._places if place.child is None), default=None)

    async def stop(self, timeout_s: float) -> None:
        """Ask all of them to stop, and kill those that take longer. No check may follow."""
        await asyncio.gather(*(child.stop(timeout_s) for child in self))

    def kill(self) -> None:
        """End them at once."""
        for child in self:
            child.kill()

    async def _start(self, place: ProcessSlot, now: int) -> None:
        place.started_at = now
        try:
            place.child = child = await spawn(place.number, self._command, self._config, self._answers)
        except Exception as error:  # whatever it is: the others are to be started, and this one not at once again
            place.start_at = now + place.backoff.next_delay_ms(0)
            reason = str(error) if isinstance(error, OSError) else repr(error)
            log.warning("process cannot be started", process=place.number, reason=reason)
            return
        child.exited.add_done_callback(lambda _: self.on_exit())
        log.debug("process started", process=child.number, pid=child.pid)

    def _book_restart(self, place: ProcessSlot, child: Child, now: int) -> None:
        child.close()
        self._on_death(child)
        pause_ms = place.backoff.next_delay_ms(now - place.started_at)
        place.child, place.start_at = None, now + pause_ms
        log.warning(
            "process exited", process=child.number, pid=child.pid, status=child.status, restart_in_s=pause_ms // 1000
        )


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _does(count: int) -> str:
    return "does" if count == 1 else "do"
