"""Types of option values that are addresses, host names, origins or URLs; URLs without their secrets."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from later.option_types import OptionType, option_type

_ADDRESS_TEXT = r"(?:\[[^\[\]]*\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_USERINFO = r"(?:%[0-9A-Fa-f]{2}|[A-Za-z0-9._~!$&'()*+,;=-])*"
_PROXY = re.compile(rf"https?://(?:{_USERINFO}(?::{_USERINFO})?@)?{_ADDRESS.pattern}/?", re.IGNORECASE)
_HOST_NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?P<port>:[0-9]{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_PORT_PATH = re.compile(r"(\[[^\[\]]*\]|[^:\[\]/]*)(:[0-9]*)?(/.*)?")
_HOSTS_PATH = re.compile(rf"{_ADDRESS_TEXT}(,{_ADDRESS_TEXT})*(/[A-Za-z0-9._/-]*)?")
_NOT_IN_URL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_REDIS_PARAMETERS = {"db", "username", "password"}
_TLS_PARAMETERS = {"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}
"""Parameters allowed in a store URL. The client of Redis accepts any, but an unknown one fails each connection."""
_SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_SENTINEL_PARAMETERS = ("sentinel_user", "sentinel_password")
_SENTINELS = re.compile(
    r"(?P<userinfo>[^/?#@]*@)?(?P<hosts>[^/?#@]+)/(?P<service>[A-Za-z0-9._-]{1,100})(/(?P<database>[0-9]{1,9})?)?"
    r"(\?(?P<query>[^#]*))?"
)
_SENTINEL_FORM = (
    "redis+sentinel://user:password@HOST:PORT,HOST:PORT/SERVICE/DATABASE: the sentinels, each with its port, and the "
    "name of the service that they watch"
)
_CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_NODES = re.compile(r"(?P<userinfo>[^/?#@]*@)?(?P<hosts>[^/?#@]+)(?:/(?P<database>[^?#]*))?(\?(?P<query>[^#]*))?")
_CLUSTER_FORM = "redis+cluster://user:password@HOST:PORT,HOST:PORT: some nodes of the cluster, each with its port"
SHARDS_IN_CLUSTER = 256
"""Shards of a new store in a cluster, which stay for good: a billion tasks are four million a shard."""
_STORE_FORM = (
    "a redis://, rediss://, redis+sentinel://, redis+cluster:// or unix:// URL, "
    "like redis://user:password@127.0.0.1:6379/0, with special characters of the password percent-encoded"
)


class Address(NamedTuple):
    """A TCP address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@option_type("HOST:PORT")
def address(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    with suppress(ValueError):
        if match is not None and int(match["port"]) <= 65_535:
            if match["v6"]:
                ipaddress.IPv6Address(match["v6"])  # raises ValueError
            return Address(match["host"] or match["v6"], int(match["port"]))
    raise ValueError("HOST:PORT, like 127.0.0.1:8080, localhost:8080 or [::1]:8080")


address_or_off = OptionType(lambda text: None if text == "off" else address(text), "HOST:PORT")


@option_type("NAME", "a string", "an array")
def host_names(text: str) -> frozenset[str]:
    if text == "none":
        return frozenset()
    names = [name.strip().removesuffix(".").lower() for name in text.split(",")]
    if not all(_HOST_NAME.fullmatch(name) for name in names):
        raise ValueError("a host's name without a port, like later.internal; several with commas between them")
    return frozenset(names)


@option_type("ORIGIN", "a string", "an array")
def origins(text: str) -> frozenset[str]:
    if text == "none":
        return frozenset()
    read: set[str] = set()
    for origin in text.split(","):
        match = _ORIGIN.fullmatch(origin.strip().lower())
        if match is None:
            raise ValueError("a page's origin, like https://later.internal; several with commas between them")
        port = "" if match["port"] == _DEFAULT_PORTS[match["scheme"]] else match["port"] or ""  # as browsers write it
        read.add(f"{match['scheme']}://{match['host']}{port}")
    return frozenset(read)


@option_type("URL")
def http_url(text: str) -> str:
    url = _split_url(text)
    if url is None or url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise ValueError("an http or https URL with a host and without user:password@")
    if url.query or url.fragment:
        raise ValueError("a URL without query and fragment")
    return text.rstrip("/")


collector_url = OptionType(lambda text: None if text == "none" else http_url(text), "URL")


@option_type("URL")
def proxy_url(text: str) -> str | None:
    """Read the URL of a forward proxy, which may have a user and a password; `none` is none."""
    if text == "none":
        return None
    match = _PROXY.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        raise ValueError(
            "http://HOST:PORT, like http://proxy.internal:3128 or http://user:password@proxy.internal:3128, "
            "or https://, with special characters of the password percent-encoded"
        )
    return text


class SentinelUrl(NamedTuple):
    """The parts of a URL of sentinels: `redis+sentinel://[user:password@]HOST:PORT[,HOST:PORT…]/SERVICE[/DATABASE]`."""

    sentinels: tuple[Address, ...]
    service: str
    server_url: str
    """The URL of the primary, with everything but its host: `redis://user:password@primary/0`."""
    username: str | None
    password: str | None
    """The user and the password that sentinels ask for."""


def split_sentinel_url(text: str) -> SentinelUrl | None:
    """Return the parts of a URL of sentinels; None for other URLs.

    Raises:
        ValueError: a part is missing or wrong; the text says what is expected.
    """
    scheme, _, rest = text.partition("://")
    if scheme not in _SENTINEL_SCHEMES:
        return None
    match = _SENTINELS.fullmatch(rest)
    if match is None:
        raise ValueError(_SENTINEL_FORM)
    try:
        sentinels = tuple(address(host) for host in match["hosts"].split(","))
    except ValueError:
        raise ValueError(_SENTINEL_FORM) from None
    parameters = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    login = {name: parameters.pop(name, None) or None for name in _SENTINEL_PARAMETERS}
    query = f"?{urlencode(parameters)}" if parameters else ""
    server_url = f"{_SENTINEL_SCHEMES[scheme]}://{match['userinfo'] or ''}primary/{match['database'] or 0}{query}"
    return SentinelUrl(sentinels, match["service"], server_url, login["sentinel_user"], login["sentinel_password"])


class ClusterUrl(NamedTuple):
    """The parts of a URL of a cluster: `redis+cluster://[user:password@]HOST:PORT[,HOST:PORT…]`."""

    seeds: tuple[Address, ...]
    """The nodes that are asked first. They tell the rest."""
    server_url: str
    """The URL of a node, with everything but its host: `redis://user:password@node/0`."""

    @property
    def uses_tls(self) -> bool:
        return self.server_url.startswith("rediss://")


def split_cluster_url(text: str) -> ClusterUrl | None:
    """Return the parts of a URL of a cluster; None for other URLs.

    Raises:
        ValueError: a part is missing or wrong; the text says what is expected.
    """
    scheme, _, rest = text.partition("://")
    if scheme not in _CLUSTER_SCHEMES:
        return None
    match = _NODES.fullmatch(rest)
    if match is None:
        raise ValueError(_CLUSTER_FORM)
    try:
        seeds = tuple(address(host) for host in match["hosts"].split(","))
    except ValueError:
        raise ValueError(_CLUSTER_FORM) from None
    parameters = parse_qsl(match["query"] or "", keep_blank_values=True)
    if (match["database"] or "0") != "0" or dict(parameters).get("db", "0") != "0":
        raise ValueError(f"no database but 0 in a {scheme}:// URL, as a cluster has no other")
    query = f"?{urlencode(parameters)}" if parameters else ""
    return ClusterUrl(seeds, f"{_CLUSTER_SCHEMES[scheme]}://{match['userinfo'] or ''}node/0{query}")


def default_shards(url: str) -> int:
    """Return how many shards a new store at a URL has, if nobody says."""
    return 1 if split_cluster_url(url) is None else SHARDS_IN_CLUSTER


@option_type("URL")
def events_url(text: str) -> str | None:
    """Read the URL of a receiver of operator events, which may have a query; `none` is none."""
    if text == "none":
        return None
    url = _split_url(text)
    if url is None or url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or "#" in text:
        raise ValueError("an http(s) URL without user:password@ and fragment, like https://ops.example/later")
    return text


@option_type("URL")
def store_url(text: str) -> str:
    if _NOT_IN_URL.search(text):
        raise ValueError(_STORE_FORM)
    of_servers = split_sentinel_url(text) or split_cluster_url(text)
    _check_server_url(text if of_servers is None else of_servers.server_url)
    return text


def _check_server_url(text: str) -> None:
    """Check the URL of one server. Raises ValueError."""
    url = _split_url(text)
    if url is None or url.scheme not in ("redis", "rediss", "unix") or url.fragment:
        raise ValueError(_STORE_FORM)
    if url.scheme == "unix":
        if url.hostname or len(url.path) < 2:
            raise ValueError("unix:///PATH, with three slashes")
    elif not url.hostname or not re.fullmatch(r"(/[0-9]{0,9})?", url.path):
        raise ValueError(f"{url.scheme}://HOST:PORT/DATABASE, with a number as DATABASE")
    allowed = _REDIS_PARAMETERS | (_TLS_PARAMETERS if url.scheme == "rediss" else set())
    parameters = dict(parse_qsl(url.query, keep_blank_values=True))
    if not allowed.issuperset(parameters):
        raise ValueError(f"only these parameters in a {url.scheme}:// URL: {', '.join(sorted(allowed))}")
    if not re.fullmatch("[0-9]{1,9}", parameters.get("db", "0")):
        raise ValueError("a number as the URL's db")


def _split_url(text: str) -> SplitResult | None:
    """Return the parts of a URL, or None if it is not one or if parsers disagree about it."""
    if _NOT_IN_URL.search(text):
        return None
    try:
        url = urlsplit(text)
        _ = url.port  # raises ValueError if it is not a port
        return url
    except ValueError:
        return None


def mask_url(url: str) -> str:
    """Return a URL, valid or not, without what may be secret: userinfo, query, and parts that may be either."""
    scheme = _SCHEME.match(url)
    start = scheme[0] if scheme else ""
    head, question, tail = url[len(start) :].partition("?")
    if "@" in tail:  # either an unescaped ? in the password, or an @ in the query
        return f"{start}***"
    _, at, location = head.rpartition("@")
    form = _HOSTS_PATH if start.removesuffix("://") in {*_SENTINEL_SCHEMES, *_CLUSTER_SCHEMES} else _HOST_PORT_PATH
    if not form.fullmatch(location):
        location = "***"
    return start + ("***@" if at else "") + location + ("?***" if question else "")
