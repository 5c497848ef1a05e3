"""Name lookups that hold up nobody else: each in a daemon thread of its own.

The resolvers at hand share a few threads (asyncio's executor has min(32, cores + 4), libuv four), so that a
handful of dead names would stop every delivery. And an executor's threads are joined when the process ends: a
name server that hangs would hold that up, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from contextvars import ContextVar
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


deadline_s: ContextVar[float] = ContextVar("deadline_s")
"""Of the call that the running asyncio task makes. (aiohttp looks up in a task of its own, which inherits it, and
outlives the call.)"""


class Resolver(AbstractResolver):
    """getaddrinfo, `lookups` at a time; a lookup is given up that found no free thread within the call's deadline,

    or `patience_s` where nothing says that. Whoever asked for it has given up by then: without this, lookups that
    nobody wants would stand before those that somebody waits for.
    """

    def __init__(self, *, max_lookups: int, default_timeout_s: float) -> None:
        self._free = asyncio.Semaphore(max_lookups)
        self._patience_s = default_timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of `host`.

        Raises:
            OSError: there are none, or no thread to ask for them.
        """
        await self._a_free_thread()
        answer: asyncio.Future[list[ResolveResult]] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(
            name=f"lookup of {host}", target=self._look_up, args=(answer, host, port, family), daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no more threads
            self._free.release()
            raise OSError(str(error)) from error
        return await answer

    async def close(self) -> None:
        """Nothing to close: threads that hang end with the process."""

    async def _a_free_thread(self) -> None:
        try:
            async with asyncio.timeout(deadline_s.get(self._patience_s)):
                await self._free.acquire()
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, "too many other lookups hang") from None

    def _look_up(
        self, answer: asyncio.Future[list[ResolveResult]], host: str, port: int, family: socket.AddressFamily
    ) -> None:
        """What a thread does. Its place is free when the lookup ends, not when its caller has given up."""
        found: list[ResolveResult] | Exception
        try:
            found = addresses(host, port, family)
        except Exception as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            answer.get_loop().call_soon_threadsafe(self._hand_over, answer, found)

    def _hand_over(self, answer: asyncio.Future[list[ResolveResult]], found: list[ResolveResult] | Exception) -> None:
        self._free.release()
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)


def addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    """What getaddrinfo says, in aiohttp's shape. Blocks.

    Raises:
        OSError: there is no such name.
    """
    try:
        infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError:  # a label that is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, "this is not the name of a host") from None
    return [
        ResolveResult(hostname=host, host=_numeric(address), port=port, family=kind, proto=proto, flags=NUMERIC)
        for kind, _, proto, _, address in infos
    ]


def _numeric(address: tuple[Any, ...]) -> str:
    """The address as text; a link-local one with its scope, without which nothing can be reached there."""
    host, scope = str(address[0]), address[3] if len(address) == 4 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host
