"""Both clients of applications behind one interface, so that a test runs with each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from later.client import AsyncClient, Client

KINDS = ("sync", "async")


class _Blocking:
    """An `AsyncClient` as a `Client`: each call runs a loop until it is answered."""

    def __init__(self, client: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: object, **options: object) -> Any:
            result = method(*args, **options)
            return self._loop.run_until_complete(_collect(result) if hasattr(result, "__aiter__") else result)

        return call


async def _collect(items: AsyncIterator[Any]) -> Iterator[Any]:
    return iter([item async for item in items])


@contextmanager
def open_client(kind: str, url: str, **options: Any) -> Iterator[Client]:
    """Open a client of this kind, and close it."""
    if kind == "sync":
        with Client(url, **options) as client:
            yield client
        return
    async_client = AsyncClient(url, **options)
    loop = asyncio.new_event_loop()
    try:
        yield cast("Client", _Blocking(async_client, loop))
    finally:
        loop.run_until_complete(async_client.aclose())
        loop.close()
