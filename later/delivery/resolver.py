"""Name lookups that block nothing else: each runs in a daemon thread of its own.

The usual resolvers share a few threads (asyncio's executor has min(32, cores + 4), libuv four), so a handful of dead
names would stop every delivery. And an executor's threads are joined when the process exits: a name server that hangs
would delay that, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence

from aiohappyeyeballs import AddrInfoType

from later.delivery.http_client import LocalFault

CACHE_S = 10.0
"""How long an answer is used again: getaddrinfo does not say how long it is valid."""
MAX_CACHED = 4096


class NameLookup:
    """A lookup that is under way. It is given up if all its callers have gone before there was a thread for it."""

    def __init__(self, answer: asyncio.Task[Sequence[AddrInfoType]]) -> None:
        self.answer = answer
        self.callers = 0
        self.has_thread = False


class Resolver:
    """getaddrinfo in threads, `max_lookups` at a time. Calls to the same host and port share a lookup."""

    def __init__(self, *, max_lookups: int) -> None:
        self._free = asyncio.Semaphore(max_lookups)
        self._lookups: dict[tuple[str, int], NameLookup] = {}
        self._cache: OrderedDict[tuple[str, int], tuple[float, Sequence[AddrInfoType]]] = OrderedDict()
        """Answers, with the time of the event loop (s) until which each is used; the oldest first."""

    async def resolve(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Return the addresses of `host`, at least one.

        Raises:
            OSError: it has none.
            LocalFault: the machine has no more threads.
        """
        key = (host, port)
        expires_at, addresses = self._cache.get(key, (0.0, ()))
        if asyncio.get_running_loop().time() < expires_at:
            return addresses
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = NameLookup(asyncio.create_task(self._look_up(host, port)))
            lookup.answer.add_done_callback(lambda answer: self._on_answer(key, answer))
        lookup.callers += 1
        try:
            return await asyncio.shield(lookup.answer)
        finally:
            lookup.callers -= 1
            if not lookup.callers and not lookup.has_thread and self._lookups.get(key) is lookup:
                del self._lookups[key]
                lookup.answer.cancel()

    def _on_answer(self, key: tuple[str, int], answer: asyncio.Task[Sequence[AddrInfoType]]) -> None:
        if answer.cancelled():
            return
        del self._lookups[key]
        if answer.exception() is None:
            self._cache[key] = (asyncio.get_running_loop().time() + CACHE_S, answer.result())
            self._cache.move_to_end(key)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)

    async def _look_up(self, host: str, port: int) -> Sequence[AddrInfoType]:
        await self._free.acquire()
        self._lookups[host, port].has_thread = True
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Sequence[AddrInfoType]] = loop.create_future()

        def finish(addresses: Sequence[AddrInfoType] | Exception) -> None:
            self._free.release()
            if result.done():
                return
            if isinstance(addresses, Exception):
                result.set_exception(addresses)
            else:
                result.set_result(addresses)

        def run() -> None:
            """Run in a thread, which is free again when the lookup ends, not when its callers give up."""
            addresses: Sequence[AddrInfoType] | Exception
            try:
                addresses = resolve_host(host, port)
            except Exception as error:
                addresses = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the callers gone
                loop.call_soon_threadsafe(finish, addresses)

        try:
            threading.Thread(name=f"lookup of {host}", target=run, daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise LocalFault("can't start a new thread") from error
        return await result


def resolve_host(host: str, port: int) -> Sequence[AddrInfoType]:
    """Return what getaddrinfo says. Blocks.

    Raises:
        OSError: there is no such name, or this machine cannot ask.
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError:  # a label is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, "this is not a host name") from None
    except OSError as error:
        socket.socket().close()  # raises EMFILE if there is no free descriptor: then this says nothing about the name
        if error.errno == errno.EBUSY:  # what glibc says then, unless it is the first lookup; one was freed meanwhile
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        raise
