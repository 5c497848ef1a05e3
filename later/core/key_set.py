"""All API keys at one time, and the caller that each stands for."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

from later.core.api_keys import ApiKey, id_in_key
from later.core.caller import Caller


class KeySet:
    """An immutable snapshot of the keys. `has_had_keys` is true from the store's first key on, even if none is left."""

    def __init__(self, keys: Iterable[ApiKey] = (), *, has_had_keys: bool = False) -> None:
        self.keys = {key.id: key for key in keys}
        self.has_had_keys = has_had_keys
        self._callers = {key.id: Caller.of_key(key) for key in self.keys.values()}

    def find(self, text: str) -> ApiKey | None:
        """Return the key that a caller has sent, if it is one of these."""
        key = self.keys.get(id_in_key(text))
        if key is None or not text.isascii():
            return None
        return key if compare_digest(sha256(text.encode()).hexdigest(), key.digest) else None

    def caller(self, key: ApiKey) -> Caller:
        """Return the caller that one of these keys stands for."""
        return self._callers[key.id]
