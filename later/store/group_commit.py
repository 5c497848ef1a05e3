"""Group commit: writes of the same turn of the event loop share one round trip.

One request, one round trip is the slow way: the store answers a thousand tasks in the time that it takes to answer ten
callers. Each caller still waits for its own result, and an error reaches exactly the callers whose write it was.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from later.core.errors import LaterError, StoreDown

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_ITEMS = 1000
"""Items in one round trip: more would keep the first of them waiting, and the store from everybody else."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of items in one round trip, or a little more: many large ones would not come through in the store's timeout."""
MAX_ROUND_TRIPS = 2
"""Round trips under way at a time: one for the store to work on, one for it to find when it is done. What comes
meanwhile waits together, so that groups grow as the store slows."""


class _Caller(NamedTuple, Generic[Item, Answer]):
    """An item, who waits for its answer, and since when (s, by the loop's clock)."""

    item: Item
    answer: asyncio.Future[Answer]
    since: float
    size: int
    """In bytes."""


class GroupCommit(Generic[Item, Answer]):
    """Gathers single items for a call that takes many.

    Who has waited in line for `patience_s` is told that the store does not
    answer, instead of being sent to it.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | LaterError]]],
        *,
        queue_timeout_s: float,
    ) -> None:
        self._call = call
        self._patience_s = queue_timeout_s
        self._waiting: deque[_Caller[Item, Answer]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def __call__(self, item: Item, size: int = 0) -> Answer:
        """Return the answer to an item of `size` bytes. Raises what the call raised, or answered for this item."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(_Caller(item, answer, loop.time(), size))
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        self._send_away()
        if not self._waiting or len(self._under_way) >= MAX_ROUND_TRIPS:
            return
        trip = asyncio.create_task(self._run(self._next_group()))
        self._under_way.add(trip)
        trip.add_done_callback(self._arrived)
        self._send()

    def _next_group(self) -> list[_Caller[Item, Answer]]:
        group: list[_Caller[Item, Answer]] = []
        weight = 0
        while self._waiting and len(group) < MAX_ITEMS and weight < MAX_BYTES:
            caller = self._waiting.popleft()
            weight += caller.size
            group.append(caller)
        return group

    def _send_away(self) -> None:
        latest = asyncio.get_running_loop().time() - self._patience_s
        while self._waiting and self._waiting[0].since <= latest:
            caller = self._waiting.popleft()
            if not caller.answer.done():
                caller.answer.set_exception(StoreDown(f"the store took no request within {self._patience_s:g} s"))

    def _arrived(self, trip: asyncio.Task[None]) -> None:
        self._under_way.discard(trip)
        self._send()

    async def _run(self, group: list[_Caller[Item, Answer]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._call([caller.item for caller in group])
        except Exception as error:  # whatever it is, it is each caller's: nobody may wait for ever
            answers = [error] * len(group)
        for caller, answer in zip(group, answers, strict=True):
            if caller.answer.done():
                continue  # its caller has gone
            if isinstance(answer, Exception):
                caller.answer.set_exception(answer)
            else:
                caller.answer.set_result(answer)
