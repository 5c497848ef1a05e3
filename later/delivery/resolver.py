"""Name lookups that block nothing else: each runs in a daemon thread of its own.

The usual resolvers share a few threads (asyncio's executor has min(32, cores + 4), libuv four), so a handful of dead
names would stop every delivery. And an executor's threads are joined when the process exits: a name server that hangs
would delay that, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from contextvars import ContextVar

from aiohttp.abc import AbstractResolver, ResolveResult

from later.delivery.http_client import LocalFault

NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

call_timeout_s: ContextVar[float] = ContextVar("call_timeout_s")
"""The timeout of the call that the running asyncio task makes. (aiohttp looks names up in a task of its own, which
inherits the context and outlives the call.)"""


class Resolver(AbstractResolver):
    """getaddrinfo in threads, `max_lookups` at a time.

    A lookup that finds no free thread within the call's timeout, or `default_timeout_s` outside of a call, is given up:
    its caller has given up, too, and its lookup would only delay others.
    """

    def __init__(self, *, max_lookups: int, default_timeout_s: float) -> None:
        self._free = asyncio.Semaphore(max_lookups)
        self._default_timeout_s = default_timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`.

        Raises:
            OSError: it has none, or no lookup ended in time.
            LocalFault: the machine has no more threads.
        """
        try:
            async with asyncio.timeout(call_timeout_s.get(self._default_timeout_s)):
                await self._free.acquire()
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, "too many other lookups hang") from None
        loop = asyncio.get_running_loop()
        result: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def finish(addresses: list[ResolveResult] | Exception) -> None:
            self._free.release()
            if result.done():
                return
            if isinstance(addresses, Exception):
                result.set_exception(addresses)
            else:
                result.set_result(addresses)

        def look_up() -> None:
            """Run in a thread, which is free again when the lookup ends, not when its caller gives up."""
            addresses: list[ResolveResult] | Exception
            try:
                addresses = resolve_host(host, port, family)
            except Exception as error:
                addresses = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the caller gone
                loop.call_soon_threadsafe(finish, addresses)

        try:
            threading.Thread(name=f"lookup of {host}", target=look_up, daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise LocalFault("can't start a new thread") from error
        return await result

    async def close(self) -> None:
        """Leave hanging threads alone: they end with the process."""


def resolve_host(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    """Return what getaddrinfo says, in aiohttp's form. Blocks.

    Raises:
        OSError: there is no such name.
    """
    try:
        infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError:  # a label is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, "this is not a host name") from None
    results = []
    for kind, _, proto, _, address in infos:
        numeric, scope = str(address[0]), address[3] if len(address) == 4 else 0
        if scope and "%" not in numeric:  # a link-local address is unreachable without its scope
            numeric = f"{numeric}%{scope}"
        results.append(ResolveResult(hostname=host, host=numeric, port=port, family=kind, proto=proto, flags=NUMERIC))
    return results
