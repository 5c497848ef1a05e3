"""Group commit: writes of the same turn of the event loop share one round trip.

One round trip for each request is slow: the store answers a thousand tasks in the time that it takes to answer ten
callers. Each caller still waits for its own result, and an error reaches exactly the callers whose write failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from later.core.errors import LaterError, StoreDown, StoreFault

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_ITEMS = 1000
"""Items in one round trip: more would keep the first of them waiting, and the store from its other clients."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of items in one round trip, or a little more: many large ones would exceed the store's timeout."""
MAX_ROUND_TRIPS = 2
"""Round trips under way at a time: one that the store works on, and one that it finds when it is done. Items that
arrive meanwhile wait together, so that groups grow as the store slows down."""


class _QueuedItem(msgspec.Struct, Generic[Item, Answer]):
    """An item, the future of its answer, since when it waits (s, by the loop's clock), and its size in bytes.

    A named tuple would take three times as long to make.
    """

    item: Item
    answer: asyncio.Future[Answer]
    since: float
    size: int


class GroupCommit(Generic[Item, Answer]):
    """Gathers single items for a call that takes many.

    An item that has waited for `queue_timeout_s` is not sent: its caller gets StoreDown.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | LaterError]]],
        *,
        queue_timeout_s: float,
    ) -> None:
        self._call = call
        self._queue_timeout_s = queue_timeout_s
        self._queue: deque[_QueuedItem[Item, Answer]] = deque()
        self._round_trips: set[asyncio.Task[Any] | None] = set()

    def __call__(self, item: Item, size: int = 0) -> asyncio.Future[Answer]:
        """Return the future answer to an item of `size` bytes. It raises what the call raises, or returns for it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._queue.append(_QueuedItem(item, answer, loop.time(), size))
        if len(self._queue) == 1:
            loop.call_soon(self._send)
        return answer

    def _send(self) -> None:
        """Fail the items that have waited for too long, and send others while round trips are free."""
        loop = asyncio.get_running_loop()
        latest = loop.time() - self._queue_timeout_s
        while self._queue and self._queue[0].since <= latest:
            overdue = self._queue.popleft()
            if not overdue.answer.done():
                overdue.answer.set_exception(StoreDown(f"the store took no request within {self._queue_timeout_s:g} s"))
        while self._queue and len(self._round_trips) < MAX_ROUND_TRIPS:
            group: list[_QueuedItem[Item, Answer]] = []
            size = 0
            while self._queue and len(group) < MAX_ITEMS and size < MAX_BYTES:
                size += self._queue[0].size
                group.append(self._queue.popleft())
            self._round_trips.add(loop.create_task(self._send_group(group)))

    async def _send_group(self, group: list[_QueuedItem[Item, Answer]]) -> None:
        """Send a group, and answer every caller, whatever happens: none may wait for ever."""
        answers: Sequence[Answer | Exception] = []
        try:
            answers = await self._call([queued.item for queued in group])
            if len(answers) != len(group):
                raise StoreFault(f"the store's call answered {len(answers)} of {len(group)} items")
        except Exception as error:
            answers = [error] * len(group)
        except BaseException:
            answers = [StoreDown("the call was cancelled", unknown=True)] * len(group)
            raise
        finally:
            for queued, answer in zip(group, answers, strict=True):
                if queued.answer.done():
                    continue  # the caller has gone
                if isinstance(answer, Exception):
                    queued.answer.set_exception(answer)
                else:
                    queued.answer.set_result(answer)
            self._round_trips.discard(asyncio.current_task())
            if self._queue:
                asyncio.get_running_loop().call_soon(self._send)  # with what the callers above send next


class NodeGroups(Generic[Item, Answer]):
    """A group commit for each node of a cluster: one that is slow, or away, does not hold up the items of others.

    `node_of` returns the node of an item; all of them have the same one if there is one server.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | LaterError]]],
        node_of: Callable[[Item], Hashable],
        *,
        queue_timeout_s: float,
    ) -> None:
        self._call = call
        self._node_of = node_of
        self._queue_timeout_s = queue_timeout_s
        self._groups: dict[Hashable, GroupCommit[Item, Answer]] = {}

    def __call__(self, item: Item, size: int = 0) -> asyncio.Future[Answer]:
        """Return the future answer to an item, as `GroupCommit` does."""
        node = self._node_of(item)
        group = self._groups.get(node)
        if group is None:
            group = self._groups[node] = GroupCommit(self._call, queue_timeout_s=self._queue_timeout_s)
        return group(item, size)
