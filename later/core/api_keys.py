"""API keys: their form, their scopes, and what the store keeps of one, which is never the key itself.

A key is `later_<id>_<secret><check>`: an id of 8 characters, a secret of 32 (190 bits) and a check of 6, all in base
62. The check is the CRC-32 of all before it, so that scanners and the command line can tell a mistyped key by itself.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from zlib import crc32

import msgspec
from msgspec import UNSET, UnsetType

from later.core.clock import rfc3339

BASE_62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KEY_START = "later_"
ID_LENGTH = 8
SECRET_LENGTH = 32
CHECK_LENGTH = 6
KEY_LENGTH = len(KEY_START) + ID_LENGTH + 1 + SECRET_LENGTH + CHECK_LENGTH
EXPECTED_KEY = "a key as `later keys create` prints it: later_ and 47 more characters"

_KEY = re.compile(rf"{KEY_START}[0-9A-Za-z]{{{ID_LENGTH}}}_[0-9A-Za-z]{{{SECRET_LENGTH + CHECK_LENGTH}}}")
_ID = slice(len(KEY_START), len(KEY_START) + ID_LENGTH)


class Scope(StrEnum):
    """A permission, by its effect on tasks. None implies another."""

    CREATE = "create"
    READ = "read"
    EDIT = "edit"
    ADMIN = "admin"
    CLAIM = "claim"
    METRICS = "metrics"


ALL_SCOPES = frozenset(Scope)
READING_SCOPES = frozenset({Scope.READ, Scope.METRICS})
"""The scopes that change nothing."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as the store keeps it. `digest` is the SHA-256 of the whole key, in hexadecimal digits.

    It is bound to a `namespace`, if it has one. Times are ms of the store's clock; `rate` is in tasks a second.
    """

    id: str
    digest: str
    name: str
    namespace: str | None
    scopes: frozenset[Scope]
    created_at: int
    expires_at: int | None
    rate: float | None
    lifetime_ms: int | UnsetType | None = UNSET
    """How long a key that was rotated was made for, None if it had no end; it ends with the overlap instead."""

    def has_ended(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def rotate(self, text: str, now: int, overlap_ms: int) -> tuple[ApiKey, ApiKey]:
        """Return the key `text` with the same permissions, and this one, which ends after the overlap if not before.

        The new key lasts as long as this one was made for, also if this one was rotated before.
        """
        lifetime_ms = self.lifetime_ms
        if lifetime_ms is UNSET:
            lifetime_ms = None if self.expires_at is None else self.expires_at - self.created_at
        successor = msgspec.structs.replace(
            self,
            id=id_in_key(text),
            digest=key_digest(text),
            created_at=now,
            expires_at=None if lifetime_ms is None else now + lifetime_ms,
            lifetime_ms=UNSET,
        )
        end = now + overlap_ms if self.expires_at is None else min(now + overlap_ms, self.expires_at)
        return successor, msgspec.structs.replace(self, expires_at=end, lifetime_ms=lifetime_ms)

    @property
    def end_date(self) -> str:
        """The day (UTC) on which the key ends or has ended; empty if it never does."""
        return "" if self.expires_at is None else rfc3339(self.expires_at)[:10]


def root_key(text: str) -> ApiKey:
    """Return the key that is in no store, and may do everything everywhere."""
    return ApiKey(
        id=id_in_key(text),
        digest=key_digest(text),
        name="root",
        namespace=None,
        scopes=ALL_SCOPES,
        created_at=0,
        expires_at=None,
        rate=None,
    )


# The form


def make_key_text() -> str:
    """Return a new key. It must be shown once, and be kept nowhere."""
    id, secret = (_random_text(length) for length in (ID_LENGTH, SECRET_LENGTH))
    start = f"{KEY_START}{id}_{secret}"
    return start + check_digits(start)


def _random_text(length: int) -> str:
    return "".join(secrets.choice(BASE_62) for _ in range(length))


def check_digits(start: str) -> str:
    """Return the check of a key that begins with `start`: its CRC-32 in base 62, with zeros in front."""
    number, digits = crc32(start.encode()), ""
    for _ in range(CHECK_LENGTH):
        number, digit = divmod(number, len(BASE_62))
        digits = BASE_62[digit] + digits
    return digits


def has_key_form(text: str) -> bool:
    """Return True if the text has the form of a key, whatever its check digits are."""
    return _KEY.fullmatch(text) is not None


def has_valid_check(text: str) -> bool:
    """Return True if the text has the form of a key, and its check digits are right: it is not mistyped."""
    return has_key_form(text) and check_digits(text[:-CHECK_LENGTH]) == text[-CHECK_LENGTH:]


def check_key_text(text: str) -> str:
    """Check a key that somebody has typed or pasted, and return it without the white space around it.

    Raises:
        ValueError: it is no key; the text can follow the word "expected", and never shows the key.
    """
    key = text.strip()
    if not has_key_form(key):
        raise ValueError(EXPECTED_KEY)
    if not has_valid_check(key):
        raise ValueError(f"{EXPECTED_KEY}; this one is mistyped: its check digits are wrong")
    return key


def id_in_key(key: str) -> str:
    """Return the id in a key, which is not secret."""
    return key[_ID]


def key_digest(key: str) -> str:
    """Return what the store keeps of a key: its SHA-256. No slow hash is needed, because 190 bits are not guessed."""
    return sha256(key.encode()).hexdigest()


# Scopes


def format_scopes(scopes: Iterable[Scope]) -> str:
    """Return scopes for people, in their order: `create, read and edit`."""
    names = [scope.value for scope in Scope if scope in frozenset(scopes)]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "nothing"
