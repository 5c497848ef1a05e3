"""The origin of a callback: scheme, host and port."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from yarl import URL

from later.core.host_address import parse_host_address

DEFAULT_PORTS = {"http": 80, "https": 443}

_SCHEME_AND_AUTHORITY = re.compile(r"(https?)://([^/?#]+)", re.IGNORECASE)


class Origin(NamedTuple):
    """The scheme, host and port of a URL.

    The host is the one that is called: a name in its ASCII form, or an address in its usual one (127.0.0.1 for `127.1`,
    an IPv6 address without brackets), so that no resolver reads it as something else.
    """

    scheme: str
    host: str
    port: int

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(callback: str) -> Origin:
        """Return the origin of a callback.

        Raises:
            ValueError: it is no http(s) URL with a host that can be called.
        """
        return _parse_callback(callback)

    @property
    def url_host(self) -> str:
        """The host as a URL has it: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """The host and, unless it is the scheme's own, the port: as the header Host has them."""
        host = self.url_host.removesuffix(".")
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@lru_cache(maxsize=1024)
def _parse_callback(callback: str) -> Origin:
    match = _SCHEME_AND_AUTHORITY.match(callback)
    if match is None:
        raise ValueError("a callback is an http(s) URL with a host")
    return _parse_origin(*match.groups())


@lru_cache(maxsize=4096)
def _parse_origin(scheme: str, authority: str) -> Origin:
    url = URL(f"{scheme}://{authority}/")
    if not url.raw_host or not url.port or "@" in authority:
        raise ValueError("a callback has a host, and no user")
    address = parse_host_address(url.raw_host)
    return Origin(url.scheme, url.raw_host if address is None else str(address), url.port)
