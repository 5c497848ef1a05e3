"""A data directory for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from tests.embedded.stores import send


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that does not exist yet. It is not below pytest's tmp_path, which may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="later-", dir="/tmp", ignore_cleanup_errors=True) as parent:
        yield Path(parent) / "data"
        with suppress(redis.RedisError):  # a failed test leaves its server running
            send(Path(parent) / "data", "SHUTDOWN", "NOSAVE")
