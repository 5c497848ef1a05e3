"""What goes beyond one shard, and one instance: topics that are held, permits of those that are limited, and ramps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from later.core.errors import LaterError
from later.store import scripts
from later.store.client import Client
from later.store.holds import PAUSED_RANGE
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Argument, Command

SAVED_MS = 250
"""How much of its rate a topic saves up while it is asked for late. What is not asked for at all is not saved."""
SLICE = 500


class PermitRequest(NamedTuple):
    """What an instance has under way of a topic (`held`), how many permits it wants besides, how many it hands back.

    `rate` (a second) and `concurrency`: 0 is no limit.
    """

    topic: str
    in_flight: int
    wanted: int
    returned: int
    lease_end: int
    rate: float
    concurrency: int


class PermitGrant(NamedTuple):
    """How many deliveries may begin; `again_at` is when (ms) the rate has more (None: it is not what limits)."""

    permits: int
    again_at: int | None


class Permits:
    """Every method raises StoreDown. `instance` is this process's name among all."""

    def __init__(self, client: Client, keys: Keys, instance: str) -> None:
        self._client = client
        self._keys = keys
        self._instance = instance
        self._calls = 0

    async def acquire(self, asks: Sequence[PermitRequest], now: int) -> list[PermitGrant | LaterError]:
        """Take permits, and say how many are in use here; so many as are left are everybody's."""
        answers = await self._client.execute_each("permit", [self._permit(ask, now) for ask in asks])
        return [
            answer if isinstance(answer, LaterError) else PermitGrant(answer[0], int(answer[1]) if answer[1] else None)
            for answer in answers
        ]

    def _permit(self, ask: PermitRequest, now: int) -> Command:
        self._calls += 1
        arguments: list[Argument] = [
            self._instance,
            self._calls,
            now,
            ask.in_flight,
            ask.wanted,
            ask.returned,
            ask.lease_end,
        ]
        arguments += [repr(ask.rate), ask.concurrency, SAVED_MS]
        return scripts.PERMIT.call([self._keys.permits(ask.topic)], arguments)

    async def in_use(self, topics: Sequence[str], now: int) -> dict[str, int]:
        """How many permits of each topic's concurrency are in use, over all instances."""
        answers = await self._client.execute_all("permit", [("HGETALL", self._keys.permits(topic)) for topic in topics])
        return {topic: _in_use(answer, now) for topic, answer in zip(topics, answers, strict=True)}

    async def hold(self, topic: str, until: int, full_speed_at: int | None, now: int) -> None:
        """Let nothing of a topic be claimed before `until` (ms), in any shard."""
        calls = [_hold(shard, topic, until) for shard in self._keys.shards]
        await self._in_slices([*calls, *self._ramps({topic: full_speed_at}, now)])

    async def hold_paused(self, topics: Sequence[tuple[str, int]]) -> None:
        """The same of paused topics, each in a shard where it was met."""
        await self._in_slices([_hold(self._keys.shards[shard], topic, None) for topic, shard in topics])

    async def paused_topics(self) -> set[str]:
        """Topics that are held for as long as they are paused."""
        held: set[str] = set()
        left, at = list(self._keys.shards), 0
        while left:
            found = await self._names_held([(shard, at) for shard in left])
            held.update(topic.decode() for names in found for topic in names)
            left = [shard for shard, names in zip(left, found, strict=True) if len(names) == SLICE]
            at += SLICE
        return held

    async def _names_held(self, places: Sequence[tuple[Shard, int]]) -> list[list[bytes]]:
        return await self._in_slices(
            [("ZRANGE", shard.wakes[Bucket.DELAY], *PAUSED_RANGE, "LIMIT", at, SLICE) for shard, at in places]
        )

    async def resume(self, topics: Mapping[str, tuple[int, int | None]], now: int) -> None:
        """Let topics that were paused be claimed, each from a moment (ms) on, and by another as fast as can be."""
        calls = [
            scripts.RESUME.call([shard.wakes[Bucket.DELAY]], [topic, at])
            for topic, (at, _) in topics.items()
            for shard in self._keys.shards
        ]
        full_speed = {topic: full_speed_at for topic, (_, full_speed_at) in topics.items()}
        await self._in_slices([*self._ramps(full_speed, now), *calls])

    def _ramps(self, full_speed: Mapping[str, int | None], now: int) -> list[Command]:
        ramps = [(topic, at) for topic, at in full_speed.items() if at is not None]
        return [_ramp(self._keys.ramps, ramps[start : start + SLICE], now) for start in range(0, len(ramps), SLICE)]

    async def _in_slices(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(commands), SLICE):
            answers += await self._client.execute_all("hold", commands[start : start + SLICE])
        return answers


def _hold(shard: Shard, topic: str, until: int | None) -> Command:
    return scripts.HOLD.call([shard.wakes[Bucket.DELAY]], [topic, "inf" if until is None else until])


def _ramp(key: bytes, ramps: Sequence[tuple[str, int]], now: int) -> Command:
    arguments: list[Argument] = [now]
    for topic, at in ramps:
        arguments += [topic, at]
    return scripts.RAMP.call([key], arguments)


def _in_use(answer: object, now: int) -> int:
    fields = answer if isinstance(answer, dict) else {}
    used = 0
    for name, value in fields.items():
        if name.startswith(b"of:"):
            count, ends, _ = value.split()
            used += int(count) if int(ends) > now else 0
    return used
