"""The signing secrets as this process knows them: rotations are in the store, read again each second; masters are not.

A delivery takes one `KeyRing` and stays with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from later.core.clock import Interval
from later.core.errors import Conflict
from later.core.signing import UNREADABLE, Generations, KeyRing, Master, SecretScope
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys
from later.store.scripts import Argument, Command
from later.store.shared_read import FRESH_S, MAX_STARTS, SharedRead

_ALL = "all"
"""The field of the generations of every scope that was not rotated by itself."""

DEFAULT_MASTER = "signing"
"""The field of `later:meta` with the fingerprint of the master by which workers sign what was never rotated."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Generations).decode


class SigningBook:
    """Reads and rotates signing secrets. `monotonic` returns seconds, `now` the store's time."""

    def __init__(
        self,
        client: StoreClient,
        keys: Keys,
        monotonic: Callable[[], float],
        now: Callable[[], Awaitable[Interval]],
        grace_s: float = 0.0,
    ) -> None:
        self._client = client
        self._keys = [keys.signing]
        self._meta = keys.meta
        self._monotonic = monotonic
        self._now = now
        self.latest = KeyRing()
        """The secrets as they were read last."""
        self._version: int | None = None
        self._read_at = -FRESH_S
        self.shared_read = SharedRead(client, "signing", self._command, self._accept, monotonic, grace_s=grace_s)

    def use_masters(self, masters: Sequence[Master]) -> None:
        """Derive secrets from these masters from now on."""
        self.latest = KeyRing(masters, self.latest.rotated, self.latest.rotated_all)

    async def refresh(self) -> None:
        """Read the rotations, unless that was done within `FRESH_S`, or the grace while their node is away.

        Raises StoreDown.
        """
        if self._monotonic() - self._read_at >= FRESH_S:
            await self.shared_read.share_unless_away(self._read_at)

    async def read(self) -> KeyRing:
        """Return the secrets as they are now. Raises StoreDown."""
        await self.shared_read.renew()
        return self.latest

    async def rotate(self, scope: SecretScope, overlap_ms: int) -> KeyRing:
        """Give a scope a new secret; the older ones end after the overlap. Return the secrets from then on.

        Raises:
            NoSigningKey: this process has no master.
            TooManySecrets: too many older ones would sign beside it.
            Conflict: others rotated secrets in the meantime each time.
            StoreDown: whether the secret was rotated is not known.
        """
        return await self._rotate(lambda ring: [scope], overlap_ms)

    async def rotate_all(self, overlap_ms: int) -> KeyRing:
        """Give all scopes new secrets, also those that were never used. Raises: as `rotate`."""
        return await self._rotate(lambda ring: [None, *ring.rotated], overlap_ms)

    async def foreign_default_master(self) -> str | None:
        """Return the fingerprint of the master by which others sign what was never rotated, if ours is another one.

        None if it is ours, or nobody has noted one, or all secrets were rotated together. Raises StoreDown.
        """
        noted = await self._client.execute("signing", ("HGET", self._meta, DEFAULT_MASTER))
        masters = self.latest.masters
        if noted is None or not masters or self.latest.rotated_all or noted.decode() == masters[-1].fingerprint:
            return None
        return str(noted.decode())

    async def note_default_master(self) -> None:
        """Note the fingerprint of the master by which this process signs what was never rotated. Raises StoreDown.

        The first process that signs on a store notes its own; it stays.
        """
        if self.latest.masters:
            await self._client.execute(
                "signing", ("HSETNX", self._meta, DEFAULT_MASTER, self.latest.masters[-1].fingerprint)
            )

    async def _rotate(self, choose: Callable[[KeyRing], Iterable[SecretScope | None]], overlap_ms: int) -> KeyRing:
        for _ in range(MAX_STARTS):
            ring, version = await self.read(), self._version
            now = (await self._now()).low
            changed = {scope: ring.rotate(scope, now, overlap_ms) for scope in choose(ring)}
            arguments: list[Argument] = [version or 0]
            for scope, generations in changed.items():
                arguments += [_ALL if scope is None else scope.text, _encode(generations)]
            if await self._client.execute("set_signing", scripts.SET_SIGNING.call(self._keys, arguments)) >= 0:
                await self.shared_read.renew_after_change()
                return ring.replace(changed)
        raise Conflict("the signing secrets changed each time they were looked at: try again")

    def _command(self) -> Command:
        """Return the command that reads the rotations, if they have changed since the last read."""
        return scripts.SIGNING_SINCE.read(self._keys, ["" if self._version is None else self._version])

    def _accept(self, answer: Any, asked_at: float) -> None:
        version, *found = answer
        if version != self._version:
            rotated = dict(_read_rotation(name, written) for name, written in pairs(found))
            rotated_all = rotated.pop(None, ())
            own = {scope: generations for scope, generations in rotated.items() if scope is not None}
            self.latest = KeyRing(self.latest.masters, own, rotated_all)
        self._version, self._read_at = version, asked_at


def _read_rotation(name: bytes, written: bytes) -> tuple[SecretScope | None, Generations]:
    """Return a scope, None for all others, and its generations; `UNREADABLE` if they cannot be read."""
    text = name.decode()
    scope = None if text == _ALL else SecretScope.parse(text)
    try:
        return scope, _decode(written)
    except ValueError:
        return scope, UNREADABLE
