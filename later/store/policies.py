"""The policies of topics and namespaces, as this process knows them: read again each second, changed one at a time.

Whoever judges takes one `Policies` and stays with it, so that nothing is judged by a mix of old and new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from later.core.errors import Conflict
from later.core.policy import Policy
from later.core.policy_scopes import NO_SETTINGS, Level, Policies, PolicyScope, Settings
from later.store import scripts
from later.store.client import Client
from later.store.codec import pairs
from later.store.keys import Keys
from later.store.scripts import Argument

FRESH_S = 1.5
"""What was read so long ago is read again before anybody is judged by it: a change is seen within two seconds."""
CHANGES_KEPT = 1000
"""How many places are known as changed last: a process that has missed more reads all policies anew."""
MAX_STARTS = 20
"""How often a change starts over when somebody else's comes between."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Settings).decode


class PolicyBook:
    """Reads and changes them. `daemon` is what applies where nothing is set; `monotonic` gives seconds."""

    def __init__(self, client: Client, keys: Keys, daemon: Policy, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._keys = [keys.policies, keys.policy_changes, keys.ramps]
        self._monotonic = monotonic
        self.latest = Policies(daemon)
        """The policies as they were read last."""
        self._version: int | None = None
        self.ramps: Mapping[str, int] = {}
        """Topics that come back to full speed, after a pause or a wait, and when (ms) they will be there."""
        self._read_at = -FRESH_S
        self._reading: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    async def current(self) -> Policies:
        """What was read a moment ago. Raises StoreDown: nothing was, and now nothing can be."""
        if self._monotonic() - self._read_at >= FRESH_S:
            await self._share_a_reading()
        return self.latest

    async def read(self) -> Policies:
        """What is set at this moment. Raises StoreDown."""
        if self._reading is not None:
            await asyncio.wait([self._reading])  # it may have looked already
        await self._share_a_reading()
        return self.latest

    async def change(self, place: PolicyScope, edit: Callable[[Settings], Settings]) -> Policies:
        """Make other settings of one place's; what is set from then on, which this process sees at once.

        Raises:
            Refused: what comes of it is no policy.
            Conflict: others changed policies all the time.
            StoreDown: nobody can know.
        """
        async with self._changing:  # or of many at once in this process most would start over again and again
            return await self._change(place, edit)

    async def _change(self, place: PolicyScope, edit: Callable[[Settings], Settings]) -> Policies:
        for _ in range(MAX_STARTS):
            before = await self.read()
            version, settings = self._version, edit(before.settings_at(place))
            before.with_settings(place, settings)
            written = b"" if settings == NO_SETTINGS else _encode(settings)
            arguments: list[Argument] = [_named(place), version or 0, written, CHANGES_KEPT]
            if await self._client.execute("set_policy", scripts.SET_POLICY.call(self._keys, arguments)) >= 0:
                return await self.read()
        raise Conflict("the policies changed each time they were looked at: try again")

    async def _share_a_reading(self) -> None:
        """One reading for all who want one now: or with a store that hangs, each would wait for those before it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._has_read)
        await asyncio.shield(self._reading)

    def _has_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waited was told; perhaps nobody waits any more

    async def _read(self) -> None:
        asked_at = self._monotonic()
        known = "" if self._version is None else self._version
        call = scripts.POLICIES_SINCE.call(self._keys, [known])
        version, everything, ramps, *changed = await self._client.execute("policies", call)
        if changed or everything:
            self.latest = Policies(self.latest.daemon, _settings(self.latest, bool(everything), changed))
        self.ramps = {topic.decode(): int(float(at)) for topic, at in pairs(ramps)}
        self._version, self._read_at = version, asked_at


def _settings(before: Policies, everything: bool, changed: Sequence[Any]) -> dict[PolicyScope, Settings]:
    settings = {} if everything else dict(before.settings)
    for name, written in zip(changed[::2], changed[1::2], strict=True):
        if written is None:
            settings.pop(_place(name), None)
        else:
            settings[_place(name)] = _decode(written)
    return settings


def _named(place: PolicyScope) -> str:
    return f"{place.level}:{place.name}"


def _place(name: bytes) -> PolicyScope:
    level, _, rest = name.decode().partition(":")
    return PolicyScope(Level(level), rest)
