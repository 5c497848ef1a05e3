"""The world of a case: an application, a later that keeps its tasks, and time that the case moves.

A virtual clock and a daemon each are such a world. The daemon's clock goes on by itself meanwhile, so times are whole
minutes here: what is to be told apart is a minute or more apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest

from later import Handler, Later, Task
from later.client import AsyncClient, Info
from later.core.errors import LaterError, NotFound

MINUTE = 60.0


class Run(NamedTuple):
    """A run of a handler: its attempt, when it was (minutes since the case began), and its payload."""

    attempt: int
    minute: int
    payload: Any


class World(ABC):
    """An application of which a case uses its own topics, and later behind it."""

    last: Task[Any]
    """The task of the last run."""

    def __init__(self, tasks: Later, case: str) -> None:
        self.tasks = tasks
        self.runs: list[Run] = []
        """The runs of the handlers of this case."""
        self._case = case
        self._began_at: datetime | None = None

    @abstractmethod
    async def now(self) -> datetime:
        """Return the time."""

    @abstractmethod
    async def move(self, by_s: float) -> None:
        """Move time, and let happen what is due on the way, each at its own time."""

    @property
    def client(self) -> AsyncClient:
        return self.tasks.client

    @property
    def callback(self) -> str:
        assert self.tasks.callback is not None
        return self.tasks.callback

    async def advance(self, minutes: float) -> None:
        await self.move(minutes * MINUTE)

    async def minute_of(self, time: datetime | None) -> int | None:
        """Return a time in minutes since the first call of this method, which is the beginning of the case."""
        if self._began_at is None:
            self._began_at = await self.now()
        return None if time is None else round((time - self._began_at) / timedelta(minutes=1))

    async def at(self, minutes: float) -> datetime:
        """Return a time in so many minutes."""
        return await self.now() + timedelta(minutes=minutes)

    def topic(self, name: str = "work") -> str:
        """Return a topic of this case alone."""
        return f"{self._case}/{name}"

    def id(self, name: str) -> str:
        """Return an id of this case alone."""
        return f"{self._case}-{name}"

    async def policy(self, name: str = "work", **fields: object) -> None:
        await self.client.set_policy(self.topic(name), fields)

    async def handler(self, *ends: Exception, name: str = "work") -> Handler[Any]:
        """Add a handler that raises these in its runs, one after the other, and then is done."""
        await self.minute_of(None)
        left = [*ends]

        @self.tasks.handler(self.topic(name))
        async def work(payload: Any, task: Task[Any]) -> None:
            minute = await self.minute_of(await self.now())
            assert minute is not None
            self.runs.append(Run(task.attempt, minute, payload))
            self.last = task
            if left:
                raise left.pop(0)

        return work

    async def info(self, name: str) -> Info:
        return await self.tasks.get(self.id(name))

    async def has_ended(self, id: str) -> bool:
        """Return True if a task has ended and its id is remembered; False if nothing is known of it."""
        with pytest.raises(NotFound) as error:
            await self.tasks.get(id)
        return error.value.ended

    @property
    def minutes(self) -> list[int]:
        return [run.minute for run in self.runs]

    @property
    def attempts(self) -> list[int]:
        return [run.attempt for run in self.runs]


Case = Callable[[World], Any]


def refused(kind: type[LaterError], text: str) -> AbstractContextManager[Any]:
    """Expect an error whose text has this in it."""
    return pytest.raises(kind, match=text)
