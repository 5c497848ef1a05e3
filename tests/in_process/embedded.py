"""Applications with an embedded later, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from later import Later, StoreClaims
from later.client.answers import Info
from later.core.errors import NotFound

_numbers = count()


def new_prefix() -> str:
    """Return the prefix of a store that is empty, on a server that tests share."""
    return f"embedded{next(_numbers)}"


@asynccontextmanager
async def working(tasks: Later, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Let an application work; at the end it is stopped, and what runs is given back."""
    async with tasks:
        worker = asyncio.create_task(tasks.work(**{"drain": 0, **options}))
        try:
            yield worker
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nothing says when
            await asyncio.sleep(0.005)


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is true that must be asked for."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  # nothing says when
            await asyncio.sleep(0.005)


async def info(tasks: Later, id: str) -> Info | None:
    """Return a task; None if it has ended, or was never there."""
    try:
        return await tasks.get(id)
    except NotFound:
        return None


def socket_of(url: str) -> str:
    """Return the path of a server's socket."""
    return urlsplit(url).path


def claims_of(url: str, **options: Any) -> StoreClaims:
    """Return a later of its own on the server at `url`."""
    return StoreClaims(url, **{"prefix": new_prefix(), **options})
