"""URLs of the daemon and of the store, and the store's password, which no option may contain.

Options show up in plans, logs and the process list of every machine. So the password comes from the environment of the
process that opens the store, or from a file there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode

from later.address_types import http_url, mask_url, split_sentinel_url, store_url
from later.core.errors import ConfigError
from later.regular_file import read_regular_file
from later.store.settings import StoreSettings

PASSWORD = "LATER_REDIS_PASSWORD"
PASSWORD_FILE = "LATER_REDIS_PASSWORD_FILE"
SENTINEL_PASSWORD = "LATER_REDIS_SENTINEL_PASSWORD"
STORE_SCHEMES = (
    "redis://",
    "rediss://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
    "unix://",
)
SCHEMES_IN_WORDS = "redis://, rediss://, redis+sentinel://, redis+cluster:// or unix://"
_URLS = (
    "http(s)://HOST:PORT of the API, or the store's redis(s)://HOST:PORT/DATABASE, "
    "redis(s)+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE, redis(s)+cluster://HOST:PORT,HOST:PORT or unix:///PATH"
)
_AUTHORITY = re.compile(r"([a-z+]+://)([^/?#]*)(.*)", re.DOTALL)
_IN_QUERY = {"password": PASSWORD, "sentinel_password": SENTINEL_PASSWORD}
"""Parameters that are passwords, and the variables that take their place."""


def is_store_url(url: str) -> bool:
    """Return True if the URL is one of a store, not of a daemon."""
    return url.startswith(STORE_SCHEMES)


def check_url(url: str) -> str:
    """Return a valid URL of the daemon or of the store, without a password. Raises ConfigError."""
    if url.startswith(("http://", "https://")):
        try:
            return str(http_url(url))
        except ValueError as error:
            raise ConfigError(f"url {mask_url(url)}: expected {error}") from None
    head, _, query = url.partition("?")
    userinfo = head.partition("://")[2].rpartition("@")[0]
    given = parse_qs(query, keep_blank_values=True)
    secret = PASSWORD if ":" in userinfo else next((_IN_QUERY[name] for name in _IN_QUERY if name in given), None)
    if secret is not None:  # before any of it may be shown
        raise ConfigError(
            f"url {mask_url(url)}: a password in an option shows up in plans and logs: "
            f"put it into {secret}{_or_file(secret)}, wherever the store is opened"
        )
    try:
        return str(store_url(url))
    except ValueError:  # its text shows where in a URL a password goes
        raise ConfigError(f"url {mask_url(url)}: expected {_URLS}") from None


def check_store_url(url: str) -> str:
    """Return a valid URL of the store, without a password. Raises ConfigError."""
    if not is_store_url(check_url(url)):
        raise ConfigError(f"url {mask_url(url)}: expected the store's: {SCHEMES_IN_WORDS}")
    return url


def _or_file(variable: str) -> str:
    return f", or into a file that {PASSWORD_FILE} names" if variable == PASSWORD else ""


def settings_from_url(url: str, prefix: str, timeout_s: float, environ: Mapping[str, str]) -> StoreSettings:
    """Return the settings of the store at a URL, with the password that the environment has for it, if any.

    Raises:
        ConfigError: the URL is not a store's, or contains a password, or the environment's cannot be read.
    """
    check_store_url(url)
    password = password_from_environ(environ)
    if password is not None:
        scheme, authority, rest = _split_authority(url)
        user, _, host = authority.rpartition("@")
        url = f"{scheme}{user}:{quote(password, safe='')}@{host}{rest}"
    sentinel_password = environ.get(SENTINEL_PASSWORD) or None
    if sentinel_password is not None and split_sentinel_url(url) is not None:
        url += f"{'&' if '?' in url else '?'}sentinel_password={quote(sentinel_password, safe='')}"
    return StoreSettings(url=url, prefix=prefix, timeout_s=timeout_s)


def _split_authority(url: str) -> tuple[str, str, str]:
    """Return the scheme with its `://`, user and hosts, and the rest of a valid URL.

    Releases of Python in which CVE-2025-0938 is mended do not split URLs with an IPv6 address after another host.
    """
    match = _AUTHORITY.fullmatch(url)
    return (match[1], match[2], match[3]) if match is not None else ("", "", url)


def split_secrets(url: str) -> tuple[str, dict[str, str]]:
    """Return a store's URL without its passwords, which must not be passed on, and each by the variable for it."""
    secrets = dict[str, str]()
    scheme, authority, rest = _split_authority(url)
    head, _, host = authority.rpartition("@")
    user, colon, password = head.partition(":")
    if colon:
        secrets[PASSWORD] = unquote(password)
        url = f"{scheme}{user}@{host}{rest}" if user else f"{scheme}{host}{rest}"
    bare, _, query = url.partition("?")
    parameters = parse_qsl(query, keep_blank_values=True)
    kept = [(name, value) for name, value in parameters if name != "sentinel_password"]
    if len(kept) < len(parameters):
        secrets[SENTINEL_PASSWORD] = dict(parameters)["sentinel_password"]
        url = f"{bare}?{urlencode(kept)}" if kept else bare
    return url, secrets


def password_from_environ(environ: Mapping[str, str]) -> str | None:
    """Return the store's password, or None. Raises ConfigError if there are two, or if its file cannot be read."""
    password, file = environ.get(PASSWORD) or None, environ.get(PASSWORD_FILE) or None
    if password is not None and file is not None:
        raise ConfigError(f"{PASSWORD} and {PASSWORD_FILE}: expected one of them, got both")
    if file is None:
        return password
    try:  # only the first line: an editor ends a file with a newline that is not part of the password
        line = read_regular_file(file).decode().partition("\n")[0].removesuffix("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{PASSWORD_FILE} {file}: it cannot be read: {why}") from None
    if not line:
        raise ConfigError(f"{PASSWORD_FILE} {file}: expected the password on its first line, which is empty")
    return line
