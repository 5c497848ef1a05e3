"""The verification of calls: Standard Webhooks, `v1` (https://www.standardwebhooks.com)."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence

from later.core.durations import Seconds, to_seconds
from later.core.signing import SECRET_PREFIX, Secret, format_signatures, prepare_context

_TIMESTAMP = re.compile(r"[0-9]{1,12}")


class NotVerified(Exception):
    """A call that none of the secrets has signed, or that is too old. The text says why, and nothing of the call."""


class Signed:
    """The secrets of which one must have signed a call, each `whsec_` and base64: two while one replaces the other.

    Calls whose time is more than `tolerance` away are refused: somebody may have recorded them.

    Raises:
        ValueError: there is no secret, or one is none. The text does not show it.
        Refused: `tolerance` is no duration.
    """

    def __init__(self, keys: Sequence[str], tolerance: Seconds = 300) -> None:
        if isinstance(keys, str) or not keys:
            raise ValueError("keys: expected a list of one secret or more, as `later secrets show` prints them")
        self._contexts = [prepare_context(_parse_secret(key, number)) for number, key in enumerate(keys, 1)]
        self._tolerance_s = to_seconds("tolerance", tolerance)

    def __repr__(self) -> str:
        return f"Signed({len(self._contexts)} keys)"

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Check a call by its headers and the bytes of its body. Names are in lower case, `now` is in Unix seconds.

        Raises:
            NotVerified: it has no signature of these secrets, or is too old or too new.
        """
        id, timestamp, signatures = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
        if not (id and signatures and _TIMESTAMP.fullmatch(timestamp)):
            raise NotVerified("the call is not signed: webhook-id, webhook-timestamp or webhook-signature is missing")
        if abs(now - int(timestamp)) > self._tolerance_s:
            raise NotVerified(f"the call's time is more than {self._tolerance_s:g} s away")
        try:
            return self._verify(id, int(timestamp), signatures, body)
        except UnicodeEncodeError:  # aiohttp has bytes that are not UTF-8 as lone surrogates
            raise NotVerified("webhook-id or webhook-signature is not Unicode text") from None

    def _verify(self, id: str, timestamp: int, signatures: str, body: bytes) -> None:
        given = [signature.encode() for signature in signatures.split(" ")]
        for context in self._contexts:
            expected = format_signatures([context], id, timestamp, body).encode()
            if any([hmac.compare_digest(expected, signature) for signature in given]):  # noqa: C419  # in constant time
                return
        raise NotVerified("no secret of this application has signed the call")


def _parse_secret(text: str, number: int) -> Secret:
    try:
        key = b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError(f"keys: number {number} is no secret: expected {SECRET_PREFIX} and base64")
    return Secret(key)
