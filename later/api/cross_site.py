"""Protection from cross-site requests: what a web page makes a browser send is refused.

A daemon on loopback trusts all that reaches it, and every web page that its user opens can reach it. A browser says
where a request comes from: by `Sec-Fetch-Site`, or to a plain-http name that is not loopback by `Origin` alone. A page
whose own name resolves to the daemon (DNS rebinding) is of the same origin, but shows that name in `Host`. Programs
send neither `Sec-Fetch-Site` nor `Origin`, and need nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from aiohttp import web
from aiohttp.hdrs import HOST, METH_GET, METH_HEAD, ORIGIN
from multidict import istr

from later.core.errors import CrossSite
from later.core.validation import format_value

PAGES = ("/console/", "/problems/")
"""The beginnings of the paths of pages. They hold no data, so that links from a chat or a dashboard may open them."""
FIRST_PAGE = "/console"
"""The path that leads to the first page: people write a link without the `/` at its end."""
MAX_KNOWN_HOSTS = 256
SEC_FETCH_SITE = istr("Sec-Fetch-Site")
SEC_FETCH_MODE = istr("Sec-Fetch-Mode")

_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")


class CrossSiteProtection:
    """The checks of every request's headers, before its body is read.

    `hosts` are the names under which the daemon may be called, besides every IP address and `localhost`. `origins` are
    those of pages behind a proxy that rewrites `Host`. While `takes_any_host` returns true, every host is allowed: a
    page of another name has no key.
    """

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        takes_any_host: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hosts = {"localhost", *(host.lower().removesuffix(".") for host in hosts)}
        self._origins = frozenset(origins)
        self._takes_any_host = takes_any_host
        self._known_hosts: set[str] = set()
        """Values of `Host` that are allowed: parsing one takes longer than all other checks."""

    def check(self, request: web.BaseRequest, health_paths: frozenset[str]) -> None:
        """Raise CrossSite if a page of another site may have sent the request, unless it is for a health path."""
        headers = request.headers
        host = headers.get(HOST)
        if host not in self._known_hosts and not self._is_allowed_host(host) and not self._takes_any_host():
            raise CrossSite(
                "Host: expected an IP address, localhost, the name in --listen or one of --allow-host, "
                f"got {format_value(host)}",
                "Host",
            )
        site = headers.get(SEC_FETCH_SITE)
        if site is None:
            origin = headers.get(ORIGIN)
            if origin is not None and not self._is_own_origin(origin, host) and request.path not in health_paths:
                raise CrossSite(
                    f"Origin: expected that of this server's own pages or one of --allow-origin, "
                    f"got {format_value(origin)}",
                    "Origin",
                )
        elif site not in ("same-origin", "none") and not _opens_page(request) and request.path not in health_paths:
            raise CrossSite(
                f"{SEC_FETCH_SITE}: expected a request of a program or of this server's own pages, "
                f"got one of another site's page ({format_value(site)})",
                "Sec-Fetch-Site",
            )

    def is_of_own_page(self, request: web.BaseRequest) -> bool:
        """Return True if the browser proves that one of this server's own pages sent the request."""
        site = request.headers.get(SEC_FETCH_SITE)
        if site is not None:
            return site == "same-origin"
        origin = request.headers.get(ORIGIN)
        return origin is not None and self._is_own_origin(origin, request.headers.get(HOST))

    def _is_allowed_host(self, host: str | None) -> bool:
        """Return True if requests may name this host, with or without a port.

        A request of HTTP/1.0 may name none: browsers do not speak it, and some probes do.
        """
        if host is None:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["v6"] or match["name"].removesuffix(".")).lower()
        if not (_is_ip_address(name, 6 if match["v6"] else 4) or (name in self._hosts and not match["v6"])):
            return False
        if len(self._known_hosts) < MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)
        return True

    def _is_own_origin(self, origin: str, host: str | None) -> bool:
        origin = origin.lower()
        if origin in self._origins:
            return True
        own = "" if host is None else host.lower()
        return origin in (f"http://{own.removesuffix(':80')}", f"https://{own.removesuffix(':443')}")


def _is_ip_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version
    except ValueError:
        return False


def _opens_page(request: web.BaseRequest) -> bool:
    """Return True for a link to one of this server's pages."""
    is_link = request.method in (METH_GET, METH_HEAD) and request.headers.get(SEC_FETCH_MODE) == "navigate"
    return is_link and (request.path.startswith(PAGES) or request.path == FIRST_PAGE)
