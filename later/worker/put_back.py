"""Claimed tasks that go back to the store: their origin is full or held, this machine could not call it, or a stop."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from later.core.errors import LaterError
from later.store.open import Store
from later.store.types import PutBack

log = structlog.get_logger("later.put_back")


class PutBackQueue:
    """Puts claimed tasks back. Those that the store could not take go with the next ones, until their leases end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[PutBack] = []

    def __len__(self) -> int:
        """Return how many tasks the store could not take yet."""
        return len(self._waiting)

    async def put_back(self, tasks: Sequence[PutBack], now: int) -> list[PutBack]:
        """Put these tasks back at `now` (ms), and those that wait; return those that the store took."""
        tasks = [*(task for task in self._waiting if task.claim.lease_end > now), *tasks]
        self._waiting = []
        if not tasks:
            return []
        answers: Sequence[bool | LaterError]
        try:
            answers = await self._store.tasks.put_back(tasks)
        except LaterError as error:
            log.debug("tasks not put back", count=len(tasks), reason=str(error))
            answers = [error] * len(tasks)
        answered = list(zip(tasks, answers, strict=True))
        self._waiting += [task for task, answer in answered if isinstance(answer, LaterError)]
        return [task for task, answer in answered if answer is True]
