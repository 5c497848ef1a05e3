"""Headers of a reply that say more than its status: `later-after`, `later-reason`, `Location` and `Proxy-Status`."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes, urlsplit

from later.core.validation import MAX_AHEAD_MS, to_milliseconds

MAX_REASON_CHARS = 200
MAX_LOCATION_CHARS = 100

_PROXY_ERROR = re.compile(r";[ \t]*error[ \t]*=")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that change the direction of the text around them, and what is no character."""


def parse_later_after(text: str) -> int | None:
    """Return the pause in ms that a `later-after` asks for this task alone, rounded up, at most ten years.

    Return None if it is not a number of seconds ≥ 0. Fractions are allowed.
    """
    text = text.strip()
    if not _SECONDS.fullmatch(text):
        return None
    seconds = float(text)
    return MAX_AHEAD_MS if seconds >= MAX_AHEAD_MS / 1000 else to_milliseconds(seconds)


def decode_reason(text: str) -> str:
    """Return the text of a `later-reason`, percent-encoded UTF-8, as one line of at most 200 characters.

    A receiver writes what it likes: bytes that are not UTF-8 and control characters are replaced by U+FFFD, and white
    space by one space. A byte that is not UTF-8 and not percent-encoded comes as a lone surrogate.
    """
    encoded = unquote_to_bytes(_SURROGATE.sub("\ufffd", text).encode())
    return _one_line(encoded.decode("utf-8", "replace"), MAX_REASON_CHARS)


def describe_location(text: str) -> str:
    """Return where a `Location` points, without its user, password, query and fragment, which may be secrets."""
    try:
        split = urlsplit(text)
    except ValueError:
        return ""
    authority = split.netloc.rpartition("@")[2]
    origin = f"{split.scheme}:" if split.scheme else ""
    origin += f"//{authority}" if authority else ""
    return _one_line(origin + split.path, MAX_LOCATION_CHARS)


def has_proxy_error(text: str) -> bool:
    """Return True if a `Proxy-Status` (RFC 9209) says that the proxy next to the caller has made the answer.

    Each proxy on the way appends an entry, so that proxy's is the last; one with the parameter `error` made the answer.
    """
    return _PROXY_ERROR.search(_QUOTED.sub('""', text).rpartition(",")[2]) is not None


def _one_line(text: str, max_chars: int) -> str:
    text = _UNSAFE.sub("\ufffd", " ".join(text.split()))
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
