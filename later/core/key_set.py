"""All API keys at one time, and the caller that each stands for."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from later.core.api_keys import ID_LENGTH, KEY_START, ApiKey
from later.core.caller import Caller

_ID = slice(len(KEY_START), len(KEY_START) + ID_LENGTH)


class KeyEntry(NamedTuple):
    """A key, the caller that it stands for, and its digest as bytes: all is made once, not at each call."""

    key: ApiKey
    caller: Caller
    digest: bytes
    has_limits: bool
    """True if the key has an end or a rate."""

    @classmethod
    def of(cls, key: ApiKey) -> KeyEntry:
        has_limits = key.expires_at is not None or key.rate is not None
        return cls(key, Caller.of_key(key), _digest(key), has_limits)


class KeySet:
    """An immutable snapshot of the keys. `has_had_keys` is true from the store's first key on, even if none is left."""

    def __init__(self, keys: Iterable[ApiKey] = (), *, has_had_keys: bool = False) -> None:
        self.keys = {key.id: key for key in keys}
        self.has_had_keys = has_had_keys
        self._entries = {id: KeyEntry.of(key) for id, key in self.keys.items()}

    def get(self, id: str) -> KeyEntry | None:
        """Return the key of this id."""
        return self._entries.get(id)

    def find(self, text: str) -> KeyEntry | None:
        """Return the key that a caller has sent, if it is one of these."""
        entry = self._entries.get(text[_ID])
        if entry is None or not text.isascii() or not compare_digest(sha256(text.encode()).digest(), entry.digest):
            return None
        return entry


def _digest(key: ApiKey) -> bytes:
    """Return a key's digest as bytes; of one that is damaged in the store, what no text has."""
    try:
        return bytes.fromhex(key.digest)
    except ValueError:
        return b""
