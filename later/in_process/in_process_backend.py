"""The backend of clients whose later is in their own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any

from later.client import machine_clock
from later.client.backend import AsyncSession, ThreadConnection
from later.client.call import Call
from later.client.connection_settings import ConnectionSettings
from later.client.http import ApiReply
from later.core.errors import Unavailable

ANSWER_S = 5.0
"""How much longer than its call a thread waits for an answer: the event loop of the store may be busy."""

Exchange = Callable[[str, str, bytes | None, str, float], Coroutine[Any, Any, ApiReply]]


class InProcessBackend:
    """Passes calls to `exchange`, in the event loop that `find_loop` returns: that of the store.

    `find_loop` raises NotConfigured while the store is not open.
    """

    def __init__(self, exchange: Exchange, find_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.exchange = exchange
        self.find_loop = find_loop

    def open_session(self, settings: ConnectionSettings) -> AsyncSession:
        return _InProcessSession(self)

    def open_connection(self, settings: ConnectionSettings) -> ThreadConnection:
        return _InProcessConnection(self)

    def wall_ms(self) -> int:
        return machine_clock.wall_ms()


class _InProcessSession:
    """The calls of one event loop, which may be another one than that of the store."""

    def __init__(self, backend: InProcessBackend) -> None:
        self._backend = backend

    async def exchange(self, call: Call[Any], timeout_s: float) -> ApiReply:
        loop = self._backend.find_loop()
        exchange = self._backend.exchange(call.method, call.path, call.body, call.content_type, timeout_s)
        if loop is asyncio.get_running_loop():
            return await exchange
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(exchange, loop))

    async def close(self) -> None:
        """Return at once: there are no connections."""

    def abandon(self) -> None:
        """Return at once: a child of this process has nothing of it."""


class _InProcessConnection:
    """The calls of a thread without an event loop."""

    def __init__(self, backend: InProcessBackend) -> None:
        self._backend = backend

    def exchange(self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float) -> ApiReply:
        loop = self._backend.find_loop()
        exchange = self._backend.exchange(method, path, body, content_type, timeout_s)
        answer = asyncio.run_coroutine_threadsafe(exchange, loop)
        wait_s = timeout_s + ANSWER_S
        try:
            return answer.result(wait_s)
        except TimeoutError:
            answer.cancel()
            raise Unavailable(f"the event loop did not answer within {wait_s:g} s", unknown=True) from None
        except CancelledError:
            raise Unavailable("the store was closed", unknown=True) from None

    def close(self) -> None:
        """Return at once: there is no connection."""
