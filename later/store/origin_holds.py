"""Holds of origins: until when no task of a topic is delivered to an origin, because that asked for a pause."""

from __future__ import annotations

from collections.abc import Sequence

from later.core.origin import Origin
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys

MAX_HOLDS = 1000
"""Origins of a topic that are held at most; more are those that end first."""


class OriginHolds:
    """The holds of origins. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def hold(self, topic: str, origin: Origin, until: int, now: int) -> None:
        """Deliver nothing of a topic to an origin before `until` (ms)."""
        hold = scripts.HOLD_ORIGIN.call([self._keys.origin_holds(topic)], [now, _encode(origin), until, MAX_HOLDS])
        last = scripts.RAMP.call([self._keys.held_origin_topics], [now, topic, until])
        await self._client.execute_all("hold", [hold, last])

    async def read(self, topics: Sequence[str], now: int) -> dict[str, dict[Origin, int]]:
        """Return the origins of each topic that are held, and until when (ms); none of a topic whose node is away."""
        commands = [scripts.ORIGIN_HOLDS.call([self._keys.origin_holds(topic)], [now]) for topic in topics]
        answers = await self._client.execute_optional("hold", commands, missing=[])
        return {
            topic: {Origin.of(origin.decode()): int(float(until)) for origin, until in pairs(answer)}
            for topic, answer in zip(topics, answers, strict=True)
        }

    async def held_until(self, topic: str, origin: Origin) -> int | None:
        """Return until when (ms) the origin is held in the topic, which may be past; None if it is not."""
        command = ("ZSCORE", self._keys.origin_holds(topic), _encode(origin))
        [until] = await self._client.execute_all("hold", [command])
        return None if until is None else int(float(until))


def _encode(origin: Origin) -> str:
    """Return a URL of the origin."""
    return f"{origin.scheme}://{origin.url_host}:{origin.port}"
