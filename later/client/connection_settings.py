"""The settings of a client: the API's URL, a key, the authorities that it trusts, and how long it tries."""

from __future__ import annotations

from typing import NamedTuple

from later.address_types import http_url
from later.core.api_keys import check_key_text
from later.core.durations import Seconds, to_seconds
from later.core.errors import ConfigError


class ConnectionSettings(NamedTuple):
    """The settings of a client. The file `ca` has authorities that are trusted besides the machine's."""

    url: str
    key: str | None
    ca: str | None
    patience_s: float


def check_settings(url: str, key: str | None, ca: str | None, patience: Seconds) -> ConnectionSettings:
    """Return the arguments of a client, checked.

    Raises:
        ConfigError: the URL or the key is none. No text shows a key.
        Refused: `patience` is no duration.
    """
    try:
        return ConnectionSettings(
            url=http_url(url),
            key=None if key is None else check_key_text(key),
            ca=ca,
            patience_s=max(to_seconds("patience", patience), 0.0),
        )
    except ValueError as error:
        raise ConfigError(f"expected {error}") from None
