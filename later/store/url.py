"""Where tasks go and come from: the daemon's URL or the store's, and the store's password, which no option may hold.

Options stand in plans, logs and the process list of every machine. So the environment of the process that opens the
store has the password, or a file there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from later.core.errors import ConfigError
from later.option_types import http_url, masked, store_url
from later.store.settings import StoreSettings

PASSWORD = "LATER_REDIS_PASSWORD"
PASSWORD_FILE = "LATER_REDIS_PASSWORD_FILE"
STORE_SCHEMES = ("redis://", "rediss://", "unix://")
_URLS = "http(s)://HOST:PORT of the API, or the store's redis(s)://HOST:PORT/DATABASE or unix:///PATH"


def is_store_url(url: str) -> bool:
    """Does it name the store, and not the daemon?"""
    return url.startswith(STORE_SCHEMES)


def check_url(url: str) -> str:
    """A URL of the daemon or the store, without a password. Raises ConfigError."""
    if url.startswith(("http://", "https://")):
        return _api_url(url)
    if _has_password(url):
        raise ConfigError(
            f"url {masked(url)}: a password in an option shows up in plans and logs: "
            f"put it into {PASSWORD}, or into a file that {PASSWORD_FILE} names, wherever the store is opened"
        )
    try:
        return str(store_url(url))
    except ValueError:  # its words show where in a URL a password goes
        raise ConfigError(f"url {masked(url)}: expected {_URLS}") from None


def check_store_url(url: str) -> str:
    """A URL of the store, without a password. Raises ConfigError."""
    if not is_store_url(check_url(url)):
        raise ConfigError(f"url {masked(url)}: expected the store's: redis://, rediss:// or unix://")
    return url


def settings_from_url(url: str, prefix: str, timeout_s: float, environ: Mapping[str, str]) -> StoreSettings:
    """The store at a URL, with the password that the environment has for it, if any.

    Raises:
        ConfigError: the URL is none of a store or holds a password, or the environment's cannot be read.
    """
    check_store_url(url)
    password = password_from_environ(environ)
    return StoreSettings(url=url if password is None else _with(url, password), prefix=prefix, timeout_s=timeout_s)


def split_password(url: str) -> tuple[str, str | None]:
    """A URL of the store without its password, which does not travel, and the password, if it has one."""
    netloc = urlsplit(url).netloc
    head, _, place = netloc.rpartition("@")
    user, colon, password = head.partition(":")
    if not colon:
        return url, None
    return url.replace(netloc, f"{user}@{place}" if user else place, 1), unquote(password)


def password_from_environ(environ: Mapping[str, str]) -> str | None:
    """The store's password; None where there is none. Raises ConfigError: two of them, or a file that is none."""
    password, file = environ.get(PASSWORD) or None, environ.get(PASSWORD_FILE) or None
    if password is not None and file is not None:
        raise ConfigError(f"{PASSWORD} and {PASSWORD_FILE}: expected one of them, got both")
    return password if file is None else _from(file)


def _from(file: str) -> str:
    """Its first line: an editor ends a file with a newline that is no part of the password."""
    try:
        line = Path(file).read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{PASSWORD_FILE} {file}: it cannot be read: {why}") from None
    if not line:
        raise ConfigError(f"{PASSWORD_FILE} {file}: expected the password on its first line, which is empty")
    return line


def _api_url(url: str) -> str:
    try:
        return str(http_url(url))
    except ValueError as error:
        raise ConfigError(f"url {masked(url)}: expected {error}") from None


def _has_password(url: str) -> bool:
    """Also in a URL that is none: before its text may be shown."""
    head, _, query = url.partition("?")
    return ":" in head.partition("://")[2].rpartition("@")[0] or "password" in parse_qs(query, keep_blank_values=True)


def _with(url: str, password: str) -> str:
    split = urlsplit(url)
    user, _, place = split.netloc.rpartition("@")
    return urlunsplit(split._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))
