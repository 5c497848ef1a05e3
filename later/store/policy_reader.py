"""Reads policies: what has changed since a version, or all of them, in pages if they are many.

The pages are those of HSCAN, and what has changed is read with each: a scope that is changed while it is looked for may
be missed by HSCAN, or have been read before, but then it is among the changes. The settings of the last page, with the
changes until then, are therefore those of one version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from later.core.errors import StoreDown
from later.core.policy_scopes import Level, PolicyScope, Settings, SettingsBuilder, SettingsMap
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys
from later.store.scripts import Command
from later.store.shared_read import MAX_STARTS

PAGE = 1000
"""Settings that are read at a time: the store takes less than a millisecond for them, and this process some 5."""
SUMMARIZED_AT_ONCE = 4
"""Parts of the settings that are looked through before other work of this process gets its turn: after some 5 ms."""
CHANGED, ALL, TOO_MANY = range(3)
"""The settings that an answer of `policies_since` has, as its second item says."""

encode_settings = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settings).decode


class PoliciesRead(NamedTuple):
    """The settings of a version, and the times (ms) that are read with them, by topic: see `PolicyBook`."""

    version: int
    settings: SettingsMap
    ramps: Mapping[str, int]
    held_origin_topics: Mapping[str, int]


class _Answer(NamedTuple):
    """The answer of `policies_since`; `total` is the number of all settings, `changed` has those that follow."""

    version: int
    follows: int
    total: int
    ramps: list[bytes]
    held_origin_topics: list[bytes]
    changed: list[bytes | None]

    @classmethod
    def parse(cls, answer: Any) -> _Answer:
        version, follows, total, ramps, held_origin_topics, *changed = answer
        return cls(version, follows, total, ramps, held_origin_topics, changed)

    def read(self, settings: SettingsMap) -> PoliciesRead:
        return PoliciesRead(self.version, settings, _times(self.ramps), _times(self.held_origin_topics))


class PolicyReader:
    """Reads the policies of a store."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._policies = keys.policies
        self._keys = [keys.policies, keys.policy_changes, keys.ramps, keys.held_origin_topics]

    def command_since(self, version: int | None) -> Command:
        """Return the command that reads what has changed since a version; None: nothing is known."""
        return scripts.POLICIES_SINCE.call(self._keys, ["" if version is None else version, PAGE])

    async def complete(self, answer: Any, known: SettingsMap) -> PoliciesRead:
        """Return what was read: from `known`, which is of the version that was asked about, or all in pages.

        Raises:
            StoreDown: a page could not be read, or others changed so much meanwhile that all began anew each time.
        """
        since = _Answer.parse(answer)
        for _ in range(MAX_STARTS):
            if since.follows == CHANGED and not since.changed:
                return since.read(known)
            if since.follows != TOO_MANY:
                settings = (SettingsMap() if since.follows == ALL else known).changed(_parse(pairs(since.changed)))
                return since.read(settings)
            builder = SettingsBuilder(SettingsMap())
            since = await self._read_pages(builder, since)
            if since.follows == CHANGED:
                settings = builder.build()
                await _summarize(settings)
                if len(settings) == since.total:  # otherwise another server went on with this one's cursor
                    return since.read(settings)
                since = _Answer.parse(await self._client.execute("policies", self.command_since(None)))
        raise StoreDown("the policies changed too often to be read: try again")

    async def _read_pages(self, builder: SettingsBuilder, since: _Answer) -> _Answer:
        """Add all settings to the builder; return the answer of the version that they have then.

        If the changes are no longer known, return at once what was answered instead.
        """
        cursor = 0
        while True:
            scan: Command = ("HSCAN", self._policies, cursor, "COUNT", PAGE)
            commands = [scan, self.command_since(since.version)]
            (cursor, fields), answer = await self._client.execute_all("policies", commands)
            since = _Answer.parse(answer)
            if since.follows != CHANGED:
                return since
            builder.update(_parse(fields.items()))
            builder.update(_parse(pairs(since.changed)))
            if not cursor:
                return since


async def _summarize(settings: SettingsMap) -> None:
    """Look the settings through once, in turns with other work: later only those are that have changed."""
    parts = settings.parts
    while some := list(islice(parts, SUMMARIZED_AT_ONCE)):
        for part in some:
            _ = part.summary
        await asyncio.sleep(0)


def _parse(fields: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[PolicyScope, Settings | None]]:
    """Yield scopes and their settings; None where they were removed."""
    for name, written in fields:
        if name != b"version":
            level, _, scope_name = name.decode().partition(":")
            yield PolicyScope(Level(level), scope_name), None if written is None else _decode(written)


def _times(flat: list[bytes]) -> dict[str, int]:
    return {topic.decode(): int(float(at)) for topic, at in pairs(flat)}
