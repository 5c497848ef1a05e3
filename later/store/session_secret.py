"""The secret by which sessions of the console are signed, which all daemons on the store share.

It is read when a session needs it, and again after a while, so deleting it ends all sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from later.core.console_session import SECRET_BYTES
from later.core.errors import StoreDown, StoreFault
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.scripts import Command
from later.store.shared_read import FRESH_S, SharedRead

MISSING_FRESH_S = 0.1
"""A secret that was missing is read again after this time: another daemon makes it when somebody signs in there, whose
next call may come here."""


class SessionSecret:
    """Reads the secret, and makes it for the first session. `monotonic` returns seconds.

    While its node is away, and only then, the secret that was read last is good for `grace_s`.
    """

    def __init__(self, client: StoreClient, keys: Keys, monotonic: Callable[[], float], grace_s: float = 0.0) -> None:
        self._client = client
        self._key = keys.session_secret
        self._monotonic = monotonic
        self._read_at = -FRESH_S
        self._shared_read = SharedRead(
            client,
            "session_secret",
            self._command,
            self._accept,
            monotonic,
            translate=_as_unavailable,
            grace_s=grace_s,
        )
        self.latest: bytes | None = None
        """The secret as it was read last; None if the store had none."""

    @property
    def is_fresh(self) -> bool:
        """True if `latest` was read a moment ago, or is good while its node is away."""
        if self.latest is None:
            return self._monotonic() - self._read_at < MISSING_FRESH_S
        return self._monotonic() - self._read_at < FRESH_S or self._shared_read.is_good(self._read_at)

    async def read(self) -> None:
        """Read the secret, unless it is fresh. Raises StoreDown."""
        if not self.is_fresh:
            await self._shared_read.share_unless_away(self._read_at)

    async def make(self) -> bytes:
        """Return the secret; if there is none, make it. Raises StoreDown."""
        await self.read()
        if self.latest is None:
            secret = secrets.token_bytes(SECRET_BYTES)
            await self._client.execute("session_secret", ("SET", self._key, secret, "NX"))
            await self._shared_read.renew()
        if self.latest is None:
            raise StoreDown("the secret of sessions is gone again: try once more")
        return self.latest

    def _command(self) -> Command:
        return ("GET", self._key)

    def _accept(self, answer: Any, asked_at: float) -> None:
        if answer is not None and len(answer) != SECRET_BYTES:
            raise StoreDown(f"the secret of sessions has {len(answer)} bytes, not {SECRET_BYTES}: delete its key")
        self.latest, self._read_at = answer, self._monotonic()


def _as_unavailable(fault: StoreFault) -> StoreDown:
    """Return the error if something else has written there: no session counts then."""
    return StoreDown(f"the secret of sessions cannot be read: {fault}")
