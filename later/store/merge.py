"""The merging of asynchronous generators: several run side by side, and what they yield comes as it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


async def merge(generators: Iterable[AsyncGenerator[Item]], at_once: int) -> AsyncGenerator[Item]:
    """Yield the items of all generators, of which `at_once` run at a time; the next begins when one has ended.

    A generator goes on only when its item was processed: the caller may change the data that the generator reads next.
    An error of one ends all.
    """
    waiting = iter(generators)
    unfinished: set[AsyncGenerator[Item]] = set()
    running: dict[asyncio.Task[Item | None], AsyncGenerator[Item]] = {}

    def begin_next() -> None:
        for generator in islice(waiting, 1):
            unfinished.add(generator)
            go_on(generator)

    def go_on(generator: AsyncGenerator[Item]) -> None:
        running[asyncio.ensure_future(anext(generator, None))] = generator

    for _ in range(at_once):
        begin_next()
    try:
        while running:
            ready, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ready:
                generator = running.pop(task)
                item = task.result()
                if item is None:
                    unfinished.discard(generator)
                    begin_next()
                else:
                    yield item
                    go_on(generator)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for generator in unfinished:
            await generator.aclose()
