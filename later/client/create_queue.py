"""The queue of creates of one turn of the event loop, which are sent together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from later.client.answers import Enqueued
from later.client.batch_call import BatchItem, Results

Create = Callable[[BatchItem[Enqueued]], Awaitable[Enqueued]]
CreateBatch = Callable[[list[BatchItem[Enqueued]]], Awaitable[Results[Enqueued]]]


class CreateQueue:
    """Sends what is created in one turn of the loop as one batch; a create that is alone goes alone.

    Each caller gets its own answer or error. A caller that is cancelled before its create is sent takes it back; later,
    it may be carried out.
    """

    def __init__(self, create: Create, create_batch: CreateBatch) -> None:
        self._create = create
        self._create_batch = create_batch
        self._waiting: list[tuple[BatchItem[Enqueued], asyncio.Future[Enqueued]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def create(self, item: BatchItem[Enqueued]) -> Enqueued:
        """Create a task. Raises LaterError."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        answer: asyncio.Future[Enqueued] = loop.create_future()
        self._waiting.append((item, answer))
        return await answer

    async def drain(self) -> None:
        """Wait until everything that was created is answered."""
        self._flush()
        while self._sending:
            await asyncio.wait(self._sending)

    def _flush(self) -> None:
        waiting = [pair for pair in self._waiting if not pair[1].done()]
        self._waiting = []
        if waiting:
            sending = asyncio.get_running_loop().create_task(self._send(waiting))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _send(self, waiting: list[tuple[BatchItem[Enqueued], asyncio.Future[Enqueued]]]) -> None:
        items = [item for item, _ in waiting]
        results: Sequence[Enqueued | Exception]
        try:
            results = [await self._create(items[0])] if len(items) == 1 else await self._create_batch(items)
        except Exception as error:  # each caller raises it
            results = [error] * len(items)
        except asyncio.CancelledError:  # the loop ends
            for _, answer in waiting:
                answer.cancel()
            raise
        for (_, answer), result in zip(waiting, results, strict=True):
            if answer.done():
                continue  # its caller was cancelled
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
