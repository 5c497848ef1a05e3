"""The dead of a topic that died for a reason: what the verbs over many of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from later.core.errors import LaterError
from later.store.client import Client
from later.store.codec import parse_failure
from later.store.cursor import BucketCursor, BucketEntry
from later.store.fanout import fan_out
from later.store.keys import Keys
from later.store.types import BucketRange


class DeadCursor:
    """Meets the dead of a stretch whose last failure was for `reason`, or (None) all, who died first first.

    They are looked at `slice` at a time.
    """

    def __init__(self, client: Client, keys: Keys, dead: BucketRange, reason: str | None, slice: int) -> None:
        self._client = client
        self._keys = keys
        self._walk = BucketCursor(client, keys, dead, slice)
        self._reason = reason
        self._slice = slice
        self._met: list[BucketEntry] = []

    async def fetch(self, most: int) -> list[BucketEntry]:
        """The next of them, at least one until there are no more. Raises StoreDown."""
        while not self._met:
            entries = await self._walk.fetch(self._slice)
            if not entries:
                return []
            self._met = entries if self._reason is None else await self._of_reason(entries)
        taken, self._met = self._met[:most], self._met[most:]
        return taken

    async def _of_reason(self, entries: Sequence[BucketEntry]) -> list[BucketEntry]:
        stored = await fan_out(
            self._client,
            "dead",
            entries,
            lambda entry: (self._keys.shards[entry.shard], b""),
            lambda shard, _, some: ("HMGET", shard.outcome, *(entry.packed for entry in some)),
        )
        failures = [parse_failure(one) for one in raise_errors(stored)]
        return [entry for entry, last in zip(entries, failures, strict=True) if last and last.reason == self._reason]


def raise_errors(answers: list[Any]) -> list[Any]:
    """The answers, none of which is an error; raised where one is."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return answers
