"""The running API that a command calls."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from later.config import load

if TYPE_CHECKING:
    from later.client.http import Client


def client_of(flags: Mapping[str, str | None]) -> Client:
    """The API at --url. Raises ConfigError."""
    config = load("query", flags, os.environ)
    from later.client.http import Client  # noqa: PLC0415  # heavy: only where a command runs

    return Client(config.url, config.wait_ms / 1000, time.time)
