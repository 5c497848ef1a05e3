"""How the values of options are written: durations, sizes, addresses, URLs.

A reader makes a value of a text, or raises ValueError with what it takes, in words that go after "expected".
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

LONGEST_MS = 3653 * 86_400_000
"""Ten years: no duration is longer."""

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|m|h|d)?")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATIONS = "15, 500ms, 15s, 10m, 2h or 7d"
_SIZE = re.compile(r"([0-9]+)(KiB|MiB)?")
_SIZE_BYTES = {"KiB": 1024, "MiB": 1024 * 1024}
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_PREFIX = re.compile(r"[^\s{}*?\[\]\\^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PLACE = re.compile(r"(\[[^\[\]]*\]|[^:\[\]/]*)(:[0-9]*)?(/.*)?")
_IN_NO_URL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_REDIS_PARAMETERS = {"db", "username", "password"}
_TLS_PARAMETERS = {"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}
"""Of the URL's query. The client takes more, and fails on each connection for those it does not know."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads a text; `shape` is what help calls it, `takes` says how the value may stand in a TOML file."""

    read: Callable[[str], Any]
    shape: str
    takes: tuple[str, ...] = ("a string",)

    def __call__(self, text: str) -> Any:
        """Raises ValueError: with what it takes."""
        return self.read(text)


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Can this machine alone reach it?"""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


# Numbers


def milliseconds(text: str) -> int:
    """A duration in ms, rounded up. Raises ValueError: it is none, or longer than ten years."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"a duration, like {_DURATIONS}")
    number, unit = match.groups()
    ms = Decimal(number) * _DURATION_MS[unit or "s"]
    if ms > LONGEST_MS:
        raise ValueError("a duration of at most ten years")
    return math.ceil(ms)


def duration(least_ms: int, most_ms: int | None = None) -> Reader:
    """A duration in ms, between these."""
    least = f"{least_ms / 1000:g}"
    span = f"of at least {least}" if most_ms is None else f"from {least} to {most_ms // 1000}"
    expected = f"a duration {span} s"

    def read(text: str) -> int:
        if not _DURATION.fullmatch(text):
            raise ValueError(f"{expected}, like {_DURATIONS}")
        ms = milliseconds(text)
        if not least_ms <= ms <= (most_ms or LONGEST_MS):
            raise ValueError(expected)
        return ms

    return Reader(read, "DURATION", ("a number", "a string"))


def integer(least: int, most: int) -> Reader:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
            raise ValueError(f"an integer from {least} to {most}")
        return int(text)

    return Reader(read, "NUMBER", ("an integer",))


def count_or_auto(most: int) -> Reader:
    """From 1 up; `auto` is the number of cores that this process may use."""

    def read(text: str) -> int:
        if text == "auto":
            return min(_cores(), most)
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= most):
            raise ValueError(f"auto or an integer from 1 to {most}")
        return int(text)

    return Reader(read, "NUMBER|auto", ("an integer", "a string"))


def _cores() -> int:
    """Those that it may run on, or fewer where its control group grants less time than that (in a container, say)."""
    there_are = os.cpu_count() or 1
    may_run_on = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there_are
    try:
        granted_us, period_us = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        granted = math.ceil(int(granted_us) / int(period_us))
    except (OSError, ValueError):  # there is no limit, or `max` is it
        granted = there_are
    return max(1, min(may_run_on, granted))


def _fraction(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]*", text) or not re.search("[0-9]", text) or float(text) > 1:
        raise ValueError("a number from 0 to 1")
    return float(text)


fraction = Reader(_fraction, "SHARE", ("a number",))


def rate(least: float, most: int) -> Reader:
    """A number, with a fraction or without; or 0."""

    def read(text: str) -> float:
        number = float(text) if re.fullmatch(r"[0-9]{1,18}(\.[0-9]*)?|\.[0-9]+", text) else -1.0
        if number and not least <= number <= most:
            raise ValueError(f"0, or a number from {least:g} to {most}")
        return number

    return Reader(read, "NUMBER", ("a number",))


def size(least: int, most: int) -> Reader:
    """A number of bytes."""

    def read(text: str) -> int:
        match = _SIZE.fullmatch(text)
        number = int(match[1][:18]) * _SIZE_BYTES.get(match[2], 1) if match else -1
        if not least <= number <= most:
            raise ValueError(f"a size from {least} bytes to {most // 1024 // 1024}MiB, like 65536, 512KiB or 1MiB")
        return number

    return Reader(read, "SIZE", ("an integer", "a string"))


# Names


def choice(*words: str) -> Reader:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return text

    return Reader(read, "|".join(words))


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("on or off")
    return text == "on"


switch = Reader(_switch, "on|off")


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError(r"1 to 64 characters without white space, control characters or any of {}*?[]\^")
    return text


prefix = Reader(_prefix, "TEXT")


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("a path")
    return Path(text)


path = Reader(_path, "DIR")


# Places


def _address(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535 or not (match["host"] or _is_v6(match["v6"])):
        raise ValueError("HOST:PORT, like 127.0.0.1:8080, localhost:8080 or [::1]:8080")
    return Address(match["host"] or match["v6"], int(match["port"]))


def _is_v6(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


address = Reader(_address, "HOST:PORT")
address_or_off = Reader(lambda text: None if text == "off" else _address(text), "HOST:PORT")


def _http_url(text: str) -> str:
    url = _split(text)
    if url is None or url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise ValueError("an http or https URL with a host and without user:password@")
    if url.query or url.fragment:
        raise ValueError("a URL without query and fragment")
    return text.rstrip("/")


http_url = Reader(_http_url, "URL")


def _store_url(text: str) -> str:
    scheme = text.partition("://")[0]
    if scheme in ("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"):
        raise ValueError(f"a redis://, rediss:// or unix:// URL: {scheme}:// is not supported yet")
    url = _split(text)
    if url is None or url.scheme not in ("redis", "rediss", "unix") or url.fragment:
        raise ValueError(
            "a redis://, rediss:// or unix:// URL, like redis://user:password@127.0.0.1:6379/0, "
            "with what is special in the password percent-encoded"
        )
    if url.scheme == "unix":
        _check_socket(url)
    elif not url.hostname or not re.fullmatch(r"(/[0-9]{0,9})?", url.path):
        raise ValueError(f"{url.scheme}://HOST:PORT/DATABASE, the database a number")
    _check_parameters(url)
    return text


def _check_socket(url: SplitResult) -> None:
    if url.hostname or len(url.path) < 2:
        raise ValueError("unix:///PATH, with three slashes")


def _check_parameters(url: SplitResult) -> None:
    allowed = _REDIS_PARAMETERS | (_TLS_PARAMETERS if url.scheme == "rediss" else set())
    parameters = dict(parse_qsl(url.query, keep_blank_values=True))
    if not allowed.issuperset(parameters):
        raise ValueError(f"no parameters in a {url.scheme}:// URL but {', '.join(sorted(allowed))}")
    if not re.fullmatch("[0-9]{1,9}", parameters.get("db", "0")):
        raise ValueError("a number as the URL's db")


store_url = Reader(_store_url, "URL")


def _split(text: str) -> SplitResult | None:
    """None where it is no URL, or one that parsers disagree on."""
    if _IN_NO_URL.search(text):
        return None
    try:
        url = urlsplit(text)
        _ = url.port  # raises where it is no port
        return url
    except ValueError:
        return None


def masked(url: str) -> str:
    """A URL, also a broken one, without anything that may be a secret: userinfo, query, what cannot be told apart."""
    scheme = _SCHEME.match(url)
    start = scheme[0] if scheme else ""
    head, question, tail = url[len(start) :].partition("?")
    if "@" in tail:  # an unescaped ? in the password, or an @ in the query: who knows
        return f"{start}***"
    _, at, place = head.rpartition("@")
    if not _PLACE.fullmatch(place):
        place = "***"
    return start + ("***@" if at else "") + place + ("?***" if question else "")
