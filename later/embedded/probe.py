"""PING and INFO on the embedded server's socket, to see whether it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from later.embedded.paths import socket_path

TIMEOUT_S = 1.0


async def answers_ping(data: Path) -> bool:
    """Return True if the server answers PING in time; one that still loads its data refuses it."""
    with suppress(OSError, RedisError):
        async with _connect(data) as client:
            return bool(await client.ping())
    return False


async def read_info(data: Path, section: str) -> dict[str, Any]:
    """Return a section of INFO, which a server answers while it loads, too; empty if there is no answer in time."""
    with suppress(OSError, RedisError):
        async with _connect(data) as client:
            return dict(await client.info(section))
    return {}


@asynccontextmanager
async def _connect(data: Path) -> AsyncIterator[Redis]:
    client = Redis(unix_socket_path=str(socket_path(data)), driver_info=None, protocol=2, retry=Retry(NoBackoff(), 0))
    async with asyncio.timeout(TIMEOUT_S), client:
        yield client
