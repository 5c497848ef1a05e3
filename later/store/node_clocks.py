"""The clocks of a cluster's nodes: each primary is asked for its time, when it is needed and each second besides.

A shard may move from any node to any other, so the time of all of them counts (see `Clock`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import redis.exceptions as errors
import structlog

from later.address_types import Address
from later.core.clock import Clock
from later.core.errors import LaterError
from later.store.connections import tell_jump
from later.store.slot_map import SlotMap

log = structlog.get_logger("later.cluster")

ASK_EVERY_S = 1.0
"""How often all primaries are asked."""
ANSWER_TIMEOUT_S = 0.5
"""How long one of them may take. All are asked at once, and each is counted when it answers."""

AskTime = Callable[[Address], Awaitable[tuple[bytes, bytes]]]
"""Returns a node's answer to TIME: seconds and microseconds. Raises RedisError, OSError, LaterError."""


class NodeClocks:
    """Asks the primaries for their time.

    `count_failover` is called when a replica has become a primary, `note_jump` then with the seconds by which its clock
    is ahead of that of the primary before it.
    """

    def __init__(
        self,
        clock: Clock,
        ask_time: AskTime,
        *,
        count_failover: Callable[[], None],
        note_jump: Callable[[float], None],
    ) -> None:
        self._clock = clock
        self._primaries: Sequence[Address] = ()
        self._ask_time = ask_time
        self._count_failover = count_failover
        self._note_jump = note_jump
        self._round: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[NoReturn] | None = None
        self._closed = False
        clock.expect_several()

    async def measure(self) -> None:
        """Measure the time of all primaries. Callers at the same time share one round.

        Raises:
            RedisError, OSError, LaterError: none of them answers.
        """
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._measure_all())
            self._round.add_done_callback(_retrieve_error)
        await asyncio.shield(self._round)

    async def use_map(self, before: SlotMap | None, now: SlotMap) -> None:
        """Measure the primaries that are new in a map, before it is used. After the first one, ask all each second."""
        self._primaries = now.primaries
        if before is None:
            with suppress(errors.RedisError, OSError, LaterError):
                await self.measure()
        else:
            new = [node for node in now.primaries if node not in before.primaries]
            await asyncio.gather(*map(self._measure_one, new))
            for old, successor in failovers(before, now).items():
                self._note_failover(old, successor)
        if self._watching is None and not self._closed:
            self._watching = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        """Ask no more."""
        self._closed = True
        tasks = [task for task in (self._watching, self._round) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _note_failover(self, before: Address, now: Address) -> None:
        self._count_failover()
        log.warning("store failed over", before=str(before), now=str(now))
        jump_s = self._clock.difference_s(now, before)
        if jump_s is not None:
            tell_jump(jump_s, self._note_jump)

    async def _watch(self) -> NoReturn:
        while True:
            with suppress(errors.RedisError, OSError, LaterError):
                await self.measure()
            await asyncio.sleep(ASK_EVERY_S)

    async def _measure_all(self) -> None:
        nodes = self._primaries
        failures = await asyncio.gather(*map(self._measure_one, nodes))
        answered = [node for node, failure in zip(nodes, failures, strict=True) if failure is None]
        self._clock.forget_silent(answered)
        if not answered:
            raise next((failure for failure in failures if failure), errors.ConnectionError("no node is known yet"))

    async def _measure_one(self, node: Address) -> Exception | None:
        """Measure a node's time; return why it could not be measured."""
        sent, wall_ahead = self._clock.monotonic(), self._clock.wall_ahead()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                seconds, micros = await self._ask_time(node)
        except TimeoutError:
            return errors.TimeoutError(f"{node} does not answer within {ANSWER_TIMEOUT_S:g} s")
        except (errors.RedisError, OSError, LaterError) as error:
            return error
        time_us = int(seconds) * 1_000_000 + int(micros)
        self._clock.observe(time_us, sent, self._clock.monotonic(), wall_ahead, server=node)
        return None


def failovers(before: SlotMap, now: SlotMap) -> dict[Address, Address]:
    """Return the primaries whose slots a replica of theirs serves now, each with that replica.

    Slots that an operator moves go to a node that is no replica.
    """
    replicas = set(before.nodes) - set(before.primaries)
    owners = zip(before.owners, now.owners, strict=True)
    return {
        old: new
        for old, new in owners
        if old is not None and new is not None and old != new and new in replicas and old not in now.primaries
    }


def _retrieve_error(done: asyncio.Task[None]) -> None:
    """Mark the error as retrieved: perhaps no caller waits for it any more."""
    if not done.cancelled():
        done.exception()
