"""The map of a cluster's slots as this process knows it: read from all nodes, and read again when it may be old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import redis.exceptions as errors

from later.address_types import Address
from later.core.errors import StoreMismatch
from later.store.scripts import Command
from later.store.slot_map import SlotMap, newest_map, parse_map

ANSWER_TIMEOUT_S = 0.5
"""How long one node may take. All are asked at once, and those that answer decide."""
READ_EVERY_S = 15.0
"""How often the map is read while nothing speaks against it."""
READ_WHILE_AWAY_S = 0.25
"""How often it is read for calls that do not wait for a node that is away: all processes do so, perhaps for hours."""
LEAST_PAUSE_S = 0.05
"""Two readings lie at least this far apart, however many commands are redirected."""

_READ: tuple[Command, ...] = (("CLUSTER", "SHARDS"), ("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"))

Ask = Callable[[Address, tuple[Command, ...]], Awaitable[list[Any]]]
"""Returns a node's answers to commands, errors among them. Raises RedisError, OSError."""


class ClusterMap:
    """The slots and their nodes. `on_change` is called with each new map, before it is used."""

    def __init__(
        self, seeds: Iterable[Address], ask: Ask, on_change: Callable[[SlotMap], Awaitable[None]], *, uses_tls: bool
    ) -> None:
        self._seeds = tuple(seeds)
        self._ask = ask
        self._on_change = on_change
        self._uses_tls = uses_tls
        self._current: SlotMap | None = None
        self.owners: list[Address | None] = []
        """The node that serves each slot, by the map and by what nodes have said since it was read."""
        self._moved: dict[int, Address] = {}
        """The owners that nodes have named since then, by slot."""
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    @property
    def current(self) -> SlotMap | None:
        """The map that was read last; None before the first one."""
        return self._current

    @property
    def primaries(self) -> tuple[Address, ...]:
        """The nodes that serve slots, the first node's slots first."""
        return self._map.primaries

    @property
    def _map(self) -> SlotMap:
        assert self._current is not None, "the map is read before it is used"
        return self._current

    def note_moved(self, slot: int, owner: Address) -> None:
        """Note what a node has said, until the map is read again."""
        self._moved[slot] = self.owners[slot] = owner
        self.start_reading()

    def read_if_old(self, age_s: float = READ_EVERY_S) -> None:
        """Begin to read the map if that was so long ago."""
        if asyncio.get_running_loop().time() - self._read_at > age_s:
            self.start_reading()

    async def read(self) -> None:
        """Read the map. Callers at the same time share one reading.

        Raises:
            RedisError, OSError: no node answers.
            StoreMismatch: the server is not in a cluster.
        """
        reading = self.start_reading()
        await asyncio.wait([reading])
        if reading.cancelled():
            raise errors.ConnectionError("the store was closed")
        reading.result()

    def start_reading(self) -> asyncio.Task[None]:
        """Begin to read the map, unless that is under way."""
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(_retrieve_error)
        return reading

    async def aclose(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._read_at + LEAST_PAUSE_S - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        known = () if self._current is None else self._current.nodes
        moved = dict(self._moved)
        try:
            newest = await self._read_from(known or self._seeds)
        except (errors.RedisError, OSError):
            others = tuple(seed for seed in self._seeds if seed not in known)
            if not known or not others:
                raise
            newest = await self._read_from(others)
        finally:
            self._read_at = loop.time()
        await self._on_change(newest)
        self._current, self.owners = newest, list(newest.owners)
        self._moved = {slot: owner for slot, owner in self._moved.items() if moved.get(slot) != owner}
        for slot, owner in self._moved.items():
            self.owners[slot] = owner

    async def _read_from(self, nodes: Iterable[Address]) -> SlotMap:
        """Return the newest map of some nodes. Raises the last error if none of them has one."""
        asked = list(nodes)
        answers = await asyncio.gather(*map(self._ask_one, asked), return_exceptions=True)
        newest = newest_map(answer for answer in answers if isinstance(answer, SlotMap))
        if newest is not None and newest.primaries:
            return newest
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        for failure in failures:
            if isinstance(failure, StoreMismatch):
                raise failure
        if failures:
            raise failures[-1]
        raise errors.ClusterDownError("the nodes know of none that serves slots")

    async def _ask_one(self, node: Address) -> SlotMap:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                shards, slots, info = await self._ask(node, _READ)
        except TimeoutError:
            raise errors.TimeoutError(f"{node} does not answer within {ANSWER_TIMEOUT_S:g} s") from None
        if isinstance(info, Exception):
            if "cluster support disabled" in str(info):
                raise StoreMismatch(f"{node} is not in a cluster: name it by redis://, without +cluster")
            raise info
        if isinstance(shards, Exception):  # Redis 6, and services that do without it
            if isinstance(slots, Exception):
                raise slots
            shards = None
        return parse_map(shards, slots, info, node, uses_tls=self._uses_tls)


def _retrieve_error(reading: asyncio.Task[None]) -> None:
    """Mark the error as retrieved: perhaps no caller waits for it any more."""
    if not reading.cancelled():
        reading.exception()
