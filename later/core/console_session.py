"""Sessions of the console: what the cookie of one holds, and when it is valid. Nothing of a session is stored.

A cookie is `<id of a key>.<end, in ms>.<nonce>.<signature>`. The signature is an HMAC of all before it and of the key's
digest, so a session ends with its key, and with any other key under the same id.
"""

from __future__ import annotations

import hmac
import re
import secrets
from hashlib import sha256

from later.core.api_keys import ID_LENGTH, ApiKey

SESSION_MS = 12 * 3600 * 1000
"""How long a session lasts."""
SECRET_BYTES = 32

_NONCE_BYTES = 16
_SESSION = re.compile(rf"(([0-9A-Za-z]{{{ID_LENGTH}}})\.([0-9]{{1,15}})\.[0-9A-Za-z_-]{{22}})\.([0-9a-f]{{64}})")


def make_session(key: ApiKey, secret: bytes, now: int) -> str:
    """Return the cookie of a new session of a key. `now` is in ms."""
    head = f"{key.id}.{now + SESSION_MS}.{secrets.token_urlsafe(_NONCE_BYTES)}"
    return f"{head}.{_sign(head, key, secret)}"


def key_id_in_session(cookie: str) -> str | None:
    """Return the id of the key that a cookie names, valid or not; None if it is no cookie of a session."""
    match = _SESSION.fullmatch(cookie)
    return None if match is None else match[2]


def is_valid_session(cookie: str, key: ApiKey, secret: bytes, now: int) -> bool:
    """Return True if the cookie was made for this key, by this secret, and has not ended."""
    match = _SESSION.fullmatch(cookie)
    if match is None:
        return False
    head, id, end, signature = match.groups()
    is_signed = hmac.compare_digest(signature, _sign(head, key, secret))
    return is_signed and id == key.id and now < int(end)


def _sign(head: str, key: ApiKey, secret: bytes) -> str:
    return hmac.new(secret, f"later console session {head} {key.digest}".encode(), sha256).hexdigest()
