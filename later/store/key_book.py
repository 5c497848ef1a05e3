"""The API keys as this process knows them: read again each second, changed one at a time.

The store never holds a key, only its digest. Nothing is judged by keys that were read too long ago: a key that is
revoked is refused within 2.5 seconds, and while the store is away no key is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from later.core.api_keys import ApiKey, Scope
from later.core.errors import Conflict, StoreDown, StoreFault
from later.core.key_set import KeySet
from later.core.policy import MIN_RATE
from later.store import scripts
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.keys import Keys
from later.store.scripts import Argument, Command
from later.store.shared_read import FRESH_S, MAX_STARTS, PacedRead, SharedRead

MINUTE_MS = 60_000
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: no later time can be shown."""
_ENDED = "ended:"
"""The beginning of a field beside the uses: of a key whose end was noted."""


class StoredKey(msgspec.Struct, frozen=True):
    """A key as JSON in the store, under its id."""

    digest: str
    name: str
    namespace: str | None
    scopes: list[str]
    created_at: Annotated[int, Meta(ge=0, le=LATEST_MS)]
    expires_at: Annotated[int, Meta(ge=0, le=LATEST_MS)] | None
    rate: Annotated[float, Meta(ge=MIN_RATE)] | None
    lifetime_ms: Annotated[int, Meta(ge=0, le=LATEST_MS)] | UnsetType | None = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredKey).decode


class KeyBook:
    """Reads and changes the keys, and writes when each was used.

    `monotonic` returns seconds, and `moved_ms` how far the clock that counts is ahead of the store's own. While their
    node is away, so that none can be revoked, the keys that were read last are good for `grace_s`.
    """

    def __init__(
        self,
        client: StoreClient,
        keys: Keys,
        monotonic: Callable[[], float],
        moved_ms: Callable[[], int] = lambda: 0,
        grace_s: float = 0.0,
    ) -> None:
        self._client = client
        self._keys = [keys.api_keys, keys.key_uses]
        self._monotonic = monotonic
        self._moved_ms = moved_ms
        self.latest = KeySet()
        """The keys as they were read last."""
        self._version: int | None = None
        self.read_at = -FRESH_S
        """When the keys were read last, by `monotonic`."""
        self._store_time = 0
        """The time (ms) of the store's own clock at the last read."""
        self.shared_read = SharedRead(
            client,
            "keys_since",
            self._command,
            self._accept,
            monotonic,
            translate=_as_unavailable,
            grace_s=grace_s,
        )
        self._paced_read = PacedRead(self.shared_read.renew, client.timeout_s)
        self.used = set[str]()
        """Ids of keys that were used since `write_uses` was called last."""
        self._minutes_written: dict[str, int] = {}
        self._ended = set[str]()
        """Ids of keys whose end some process has noted."""

    @property
    def is_read(self) -> bool:
        """True if the keys were ever read."""
        return self._version is not None

    async def current(self) -> KeySet:
        """Return keys read within `FRESH_S`, or the grace. Raises StoreDown if they must be read, and cannot be."""
        if self._monotonic() - self.read_at >= FRESH_S:
            await self.shared_read.share_unless_away(self.read_at)
        return self.latest

    async def read(self) -> KeySet:
        """Return the keys as they are now. Raises StoreDown."""
        await self.shared_read.renew()
        return self.latest

    async def reread(self) -> KeySet:
        """Return keys that are read from now on, for a caller whose key `latest` does not have. Raises StoreDown.

        However many keys are guessed, the store is read as often as `PacedRead` says; all that wait for that share it.
        """
        await self._paced_read.wait()
        return self.latest

    def now(self) -> int:
        """Return the store's time (ms) by the last read, which is precise enough for the end of a key."""
        return self._store_time + self._moved_ms() + int((self._monotonic() - self.read_at) * 1000)

    async def change(self, decide: Callable[[KeySet, int], Mapping[str, ApiKey | None]]) -> None:
        """Write the keys that `decide` returns, by their ids, and remove those that are None.

        `decide` gets the keys that the change is made from, and the store's time (ms). If others are changed meanwhile,
        it decides again.

        Raises:
            Conflict: another change was made in the meantime each time.
            StoreDown: whether the keys were changed is not known.
            LaterError: an error of `decide`.
        """
        for _ in range(MAX_STARTS):
            known = await self.read()
            arguments: list[Argument] = [self._version or 0]
            for id, key in decide(known, self.now()).items():
                arguments += [id, b"" if key is None else _encode(_as_stored(key))]
            if await self._client.execute("set_keys", scripts.SET_KEYS.call(self._keys, arguments)) >= 0:
                await self.shared_read.renew_after_change()
                return
        raise Conflict("the keys changed each time they were looked at: try again")

    async def write_uses(self) -> None:
        """Write when the keys were used that are in `used`: each once a minute at most. Raises StoreDown."""
        used, self.used = self.used, set()
        minute = self.now() // MINUTE_MS
        uses: list[Argument] = []
        for id in used:
            if id in self.latest.keys and self._minutes_written.get(id) != minute:
                uses += [id, minute * MINUTE_MS]
        if uses:
            await self._client.execute("write_key_uses", ("HSET", self._keys[1], *uses))
            self._minutes_written = {
                **{id: at for id, at in self._minutes_written.items() if id in self.latest.keys},
                **{str(id): minute for id in uses[::2]},
            }

    async def note_ended(self) -> list[ApiKey]:
        """Return the keys that have ended, each one once: to the process that notes it first. Raises StoreDown."""
        now = self.now()
        ended = [key for key in self.latest.keys.values() if key.id not in self._ended and key.has_ended(now)]
        notes: list[Command] = [("HSETNX", self._keys[1], f"{_ENDED}{key.id}", now) for key in ended]
        answers = await self._client.execute_all("write_key_uses", notes)
        self._ended |= {key.id for key in ended}
        return [key for key, is_first in zip(ended, answers, strict=True) if is_first]

    async def last_uses(self) -> dict[str, int]:
        """Return when (ms, to the minute) each key was used last, by its id. Raises StoreDown."""
        answer = await self._client.execute("key_uses", ("HGETALL", self._keys[1]))
        return {id.decode(): int(at) for id, at in answer.items() if not id.startswith(_ENDED.encode())}

    def _command(self) -> Command:
        """Return the command that reads the keys, if they have changed since the last read."""
        return scripts.KEYS_SINCE.read(self._keys[:1], ["" if self._version is None else self._version])

    def _accept(self, answer: Any, asked_at: float) -> None:
        version, store_time, is_changed, *records = answer
        if is_changed:
            keys = [_parse_record(id.decode(errors="replace"), record) for id, record in pairs(records)]
            # a store that has lost its data, or the version, must not let calls in without a key
            has_had_keys = version > 0 or bool(records) or self.latest.has_had_keys
            self.latest = KeySet([key for key in keys if key is not None], has_had_keys=has_had_keys)
        self._version, self._store_time, self.read_at = version, store_time, asked_at


def _as_unavailable(fault: StoreFault) -> StoreDown:
    """Return the error if something else has written there: as long as nobody can read the keys, none counts."""
    return StoreDown(f"the API keys cannot be read: {fault}")


def _as_stored(key: ApiKey) -> StoredKey:
    scopes = [scope.value for scope in Scope if scope in key.scopes]
    return StoredKey(
        key.digest, key.name, key.namespace, scopes, key.created_at, key.expires_at, key.rate, key.lifetime_ms
    )


def _parse_record(id: str, record: bytes) -> ApiKey | None:
    """Return a key, without the scopes that this version does not know; None if it cannot be read: it opens nothing."""
    try:
        stored = _decode(record)
    except msgspec.MsgspecError:
        return None
    return ApiKey(
        id=id,
        digest=stored.digest,
        name=stored.name,
        namespace=stored.namespace,
        scopes=frozenset(scope for scope in Scope if scope in stored.scopes),
        created_at=stored.created_at,
        expires_at=stored.expires_at,
        rate=stored.rate,
        lifetime_ms=stored.lifetime_ms,
    )
