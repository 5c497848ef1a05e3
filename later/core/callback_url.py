"""The URL of a callback: only one that can be called is admitted."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

from yarl import URL

from later.core.errors import Refused
from later.core.host_address import parse_host_address
from later.core.validation import EXPECTED, MAX_CALLBACK_CHARS, format_value, refusal, utf8_size

MAX_HOST_CHARS = 253
"""The longest name that the DNS has (RFC 1035, section 2.3.4, without the lengths of its first and last label)."""

_FORBIDDEN = re.compile(r"[\s\\\x00-\x1f\x7f-\x9f]")
"""White space, control characters and the backslash: parsers disagree on their meaning in a URL."""
_CHANGED_BY_IDNA_2003 = "ßς"
"""Letters that IDNA 2003 replaces, and IDNA 2008 keeps (UTS 46): `straße.example` would be `strasse.example`."""
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_PORT = re.compile(r"[0-9]{1,5}")


@lru_cache(maxsize=4096)
def check_callback(text: str) -> str:
    """Check a callback's URL, and return it.

    Raises:
        Refused: it is not an absolute http(s) URL, it has user:password@ or a fragment, or no receiver can have its
            host or port.
    """
    if len(text) > MAX_CALLBACK_CHARS or _FORBIDDEN.search(text):
        raise refusal("callback", text)
    utf8_size("callback", text)
    try:
        split = urlsplit(text)
        if "@" in split.netloc:
            raise Refused("callback: expected a URL without user:password@, got one with it", "callback")
        if split.scheme not in ("http", "https") or not split.netloc:
            raise refusal("callback", text)
        check_host_and_port(split.netloc)
    except ValueError as error:
        raise Refused(
            f"callback: expected {EXPECTED['callback']}, got {format_value(text)}: {error}", "callback"
        ) from None
    if "#" in text:
        raise Refused(f"callback: expected a URL without a fragment, got {format_value(text)}", "callback")
    return text


@lru_cache(maxsize=4096)
def check_host_and_port(netloc: str) -> None:
    """Raise ValueError unless a receiver can have this host and, if there is one, this port."""
    _, colon, port = netloc.rpartition("]")[2].partition(":")
    if colon and port and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65_535):
        raise ValueError("a port is a number from 1 to 65535")
    url = URL(f"http://{netloc}/")
    if not url.raw_host or not url.host:  # `host` is decoded: a bad `xn--` raises
        raise ValueError("the host is missing")
    if any(letter in netloc and letter not in url.host for letter in _CHANGED_BY_IDNA_2003):
        # yarl falls back on IDNA 2003 if one label is not allowed by IDNA 2008, such as `_a`
        raise ValueError("a host with ß or ς is a name of IDNA 2008, in all of its labels")
    if not {"%", "?", "#"}.isdisjoint(netloc):
        raise ValueError("a host has no %, ? or # in it")
    if parse_host_address(url.raw_host) is None:
        name = "" if "[" in netloc else url.raw_host.removesuffix(".")
        if len(name) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, name.split("."))):
            raise ValueError(
                f"a host is a name of at most {MAX_HOST_CHARS} characters, "
                "in labels of 1 to 63 letters, digits, hyphens and underscores"
            )
