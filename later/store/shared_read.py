"""Reads of the store that many callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from later.core.errors import LaterError, NodeDown, StoreDown, StoreFault
from later.store.away_tags import key_of
from later.store.client import StoreClient
from later.store.keys import hash_tag
from later.store.scripts import Command
from later.store.unwaited import retrieve_error

FRESH_S = 1.5
"""Policies, keys and rotations read longer ago are read again before they are used: a change takes effect soon."""
REREAD_EVERY_S = 0.01
"""How far apart, at least, reads for callers begin that were refused by what was read before: they may try again and
again, or send thousands of items of which some are refused."""
REREAD_SHARE = 10
"""Such reads may take one part in so many of the time: a slow one is followed by a longer pause."""
MAX_REREAD_PAUSE_S = 0.1
"""How far apart they are at most, however slow they are."""
MAX_STARTS = 20
"""How often a change of them starts over because another one was made in the meantime."""


class SharedRead:
    """Runs a command for all callers that want its answer: otherwise, if the store hangs, each waits for those before.

    `command` returns it, and `accept` gets its answer and when it was asked, by `monotonic`. It goes on if a caller is
    cancelled, because others may wait for it. `translate` turns an error that the store answered into the one to raise.
    `complete` gets an answer that may be too long for one, and returns it with what it has read besides.
    """

    def __init__(
        self,
        client: StoreClient,
        verb: str,
        command: Callable[[], Command],
        accept: Callable[[Any, float], None],
        monotonic: Callable[[], float],
        translate: Callable[[StoreFault], LaterError] = lambda fault: fault,
        *,
        grace_s: float = 0.0,
        complete: Callable[[Any], Awaitable[Any]] | None = None,
    ) -> None:
        self._client = client
        self.grace_s = grace_s
        """How long what was read is good while the node is away."""
        self._verb = verb
        self.command = command
        self._accept = accept
        self._monotonic = monotonic
        self._translate = translate
        self._complete = complete
        self._reading: asyncio.Task[None] | None = None
        self._was_read = False

    @property
    def is_running(self) -> bool:
        return self._reading is not None

    async def share(self) -> None:
        """Wait for the read that is running, or for a new one.

        Raises:
            StoreDown: it could not be read.
            LaterError: what `translate` returns, or `accept` raises.
        """
        reading = self._reading
        if reading is None:
            reading = self.start(self._client.execute(self._verb, self.command()))
        await asyncio.shield(reading)

    async def share_unless_away(self, read_at: float) -> None:
        """Wait as `share` does, unless the node is away and what was read at `read_at` is good for `grace_s`.

        So one node that is away does not stop all others. It may come back any time, so others keep asking.
        """
        if self.is_good(read_at):
            return
        try:
            await self.share()
        except NodeDown:
            if not self.is_in_grace(read_at):
                raise

    def is_in_grace(self, read_at: float) -> bool:
        """Return True if what was read at `read_at` is good while the node is away: never, if nothing was read yet."""
        return self._was_read and self._monotonic() - read_at < self.grace_s

    def is_good(self, read_at: float) -> bool:
        """Return True if the node is known to be away, and what was read at `read_at` is good meanwhile."""
        return hash_tag(key_of(self.command())) in self._client.away_tags and self.is_in_grace(read_at)

    async def renew(self) -> None:
        """Wait for a read that begins now or later. Raises: as `share`."""
        if self._reading is not None:
            await asyncio.wait([self._reading])  # it may have read before a change
        await self.share()

    async def renew_after_change(self) -> None:
        """Read what was just changed. Raises StoreDown, `unknown`, because the change was made."""
        try:
            await self.renew()
        except StoreDown as error:
            raise StoreDown(str(error), unknown=True) from error

    def start(self, answer: Coroutine[None, None, Any]) -> asyncio.Task[None]:
        """Return the read that takes this answer to the command. No other may be running."""

        def finish(reading: asyncio.Task[None]) -> None:
            self._reading = None
            retrieve_error(reading)

        self._reading = asyncio.create_task(self._run(answer, self._monotonic()))
        self._reading.add_done_callback(finish)
        return self._reading

    async def _run(self, answer: Coroutine[None, None, Any], asked_at: float) -> None:
        try:
            answered = await answer
            self._accept(answered if self._complete is None else await self._complete(answered), asked_at)
            self._was_read = True
        except StoreFault as fault:
            error = self._translate(fault)
            if error is fault:  # an error that is its own cause would have no end
                raise
            raise error from fault
        except StoreDown as error:
            error.unknown = False  # a read whose answer is lost has changed nothing
            raise


class JointRead:
    """Runs several reads, and measures the store's time, in one round trip."""

    def __init__(self, client: StoreClient, reads: Sequence[SharedRead]) -> None:
        self._client = client
        self._reads = reads

    async def run(self) -> None:
        """Run the reads that are not running already. An error of one does not stop the others; raise the first."""
        reads = [read for read in self._reads if not read.is_running]
        commands = [read.command() for read in reads]
        round_trip = asyncio.create_task(self._client.execute_each_timed("refresh", commands))
        round_trip.add_done_callback(retrieve_error)

        async def find_answer(index: int) -> Any:
            answer = (await round_trip)[index]
            if isinstance(answer, LaterError):
                raise answer
            return answer

        readings = [read.start(find_answer(index)) for index, read in enumerate(reads)]
        await asyncio.wait([round_trip, *readings])
        for done in (round_trip, *readings):
            done.result()


class PacedRead:
    """Runs `read` for callers that want one which begins after their call, one at a time and not too often.

    All callers that wait for the next one share it, for `timeout_s` at most: it comes after the one that is running,
    and if the store hangs, each of them takes as long as any call of the store may.
    """

    def __init__(self, read: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        self._read = read
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The read that has not begun, if any."""
        self._free_at = 0.0
        """When (s, by the loop's clock) the next one may begin."""

    async def wait(self) -> None:
        """Wait for a read that begins now or later. Raises: as `read`; StoreDown if it takes too long."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(retrieve_error)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(self._next)
        except TimeoutError:
            raise StoreDown(f"the store did not answer within {self._timeout_s:g} s") from None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(self._free_at - loop.time(), 0))
            self._next = None  # callers that come from now on need another one
            began = loop.time()
            try:
                await self._read()
            finally:
                pause_s = REREAD_SHARE * (loop.time() - began)
                self._free_at = began + min(max(pause_s, REREAD_EVERY_S), MAX_REREAD_PAUSE_S)
