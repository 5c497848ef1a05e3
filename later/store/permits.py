"""Limits that hold over all shards and instances: holds of topics, permits for rate and concurrency, ramps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from later.core.errors import LaterError
from later.store import scripts
from later.store.client import StoreClient
from later.store.holds import PAUSED_RANGE
from later.store.keys import Bucket, Keys
from later.store.scripts import Argument, Command

SAVED_MS = 250
"""How many ms of its rate a topic may catch up on if permits are requested late; after a longer gap, none."""
PAGE = 2000
"""Held topics of a shard that are read in one round trip."""
SLICE = 500
"""Commands, or topics, in one round trip."""


class PermitRequest(NamedTuple):
    """An instance's deliveries of a topic in flight, how many more it wants, and how many granted ones it returns.

    `lease_end` (ms) is when the permits end if the instance is lost; `rate` is per second; 0 means no limit.
    """

    topic: str
    in_flight: int
    wanted: int
    returned: int
    lease_end: int
    rate: float
    concurrency: int


class PermitGrant(NamedTuple):
    """The number of deliveries that may begin. `again_at` (ms) is when the rate allows more; None if it allows all."""

    permits: int
    again_at: int | None


class Permits:
    """Holds topics and takes permits for them. `instance` names this process. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys, instance: str) -> None:
        self._client = client
        self._keys = keys
        self._instance = instance
        self._calls = 0

    async def acquire(self, requests: Sequence[PermitRequest], now: int) -> list[PermitGrant | LaterError]:
        """Take permits, and report how many are in use here."""
        commands: list[Command] = []
        for topic, in_flight, wanted, returned, lease_end, rate, concurrency in requests:
            self._calls += 1
            arguments: list[Argument] = [self._instance, self._calls, now, in_flight, wanted, returned, lease_end]
            arguments += [repr(rate), concurrency, SAVED_MS]
            commands.append(scripts.PERMIT.call([self._keys.permits(topic)], arguments))
        answers = await self._client.execute_each("permit", commands)
        return [
            answer if isinstance(answer, LaterError) else PermitGrant(answer[0], int(answer[1]) if answer[1] else None)
            for answer in answers
        ]

    async def in_use(self, topics: Sequence[str], now: int) -> dict[str, int]:
        """Return how many permits of each topic's concurrency are in use, over all instances."""
        reads: list[Command] = [("HGETALL", self._keys.permits(topic)) for topic in topics]
        answers = await self._execute_in_slices("permit", reads, missing={})
        in_use: dict[str, int] = {}
        for topic, fields in zip(topics, answers, strict=True):
            counts = (value.split() for name, value in fields.items() if name.startswith(b"of:"))
            in_use[topic] = sum(int(count) for count, ends, _ in counts if int(ends) > now)
        return in_use

    async def hold_paused(self, topics: Sequence[tuple[str, int]]) -> None:
        """Hold topics until they are resumed, each in the shard (its index) in which it was found."""
        shards = self._keys.shards
        holds = [
            scripts.HOLD.call([shards[shard].wakes[Bucket.DELAY], shards[shard].topics], [topic, "inf"])
            for topic, shard in topics
        ]
        await self._execute_in_slices("hold", holds, missing=None)

    async def paused_topics(self, indices: Sequence[int] | None = None) -> set[str]:
        """Return the topics that are held until they are resumed.

        These are those of the shards with these indices (None: of all) that are there.
        """
        paused: set[bytes] = set()
        shards, offset = list(self._keys.select(indices)), 0
        while shards:
            answers = await self._execute_in_slices(
                "hold",
                [("ZRANGE", s.wakes[Bucket.DELAY], *PAUSED_RANGE, "LIMIT", offset, PAGE) for s in shards],
                missing=[],
            )
            paused.update(*answers)
            shards = [shard for shard, topics in zip(shards, answers, strict=True) if len(topics) == PAGE]
            offset += PAGE
        return {topic.decode() for topic in paused}

    async def resume(self, topics: Mapping[str, tuple[int, int | None]], now: int) -> None:
        """Let paused topics be claimed from a moment (ms) on, and at full speed from another (None: at once).

        The slow starts are written first, in a round trip of their own: in a cluster they are on another node, and a
        topic must not be resumed before every worker can know that it starts slowly. In a shard that is away the topic
        stays held: it is found there when the shard is back.
        """
        resumes = [
            scripts.RESUME.call([shard.wakes[Bucket.DELAY]], [topic, at])
            for topic, (at, _) in topics.items()
            for shard in self._keys.shards
        ]
        ramps = self._ramp_commands({topic: full_speed_at for topic, (_, full_speed_at) in topics.items()}, now)
        if ramps:
            await self._client.execute_all("hold", ramps)
        await self._execute_in_slices("hold", resumes, missing=None)

    def _ramp_commands(self, full_speed: Mapping[str, int | None], now: int) -> list[Command]:
        commands: list[Command] = []
        ramps = [(topic, at) for topic, at in full_speed.items() if at is not None]
        for start in range(0, len(ramps), SLICE):
            arguments: list[Argument] = [now]
            for topic, at in ramps[start : start + SLICE]:
                arguments += [topic, at]
            commands.append(scripts.RAMP.call([self._keys.ramps], arguments))
        return commands

    async def _execute_in_slices(self, verb: str, commands: Sequence[Command], missing: Any) -> list[Any]:
        """Return the answers, with `missing` for each one whose node is away."""
        answers: list[Any] = []
        for start in range(0, len(commands), SLICE):
            answers += await self._client.execute_optional(verb, commands[start : start + SLICE], missing)
        return answers
