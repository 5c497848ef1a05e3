"""Fixtures: a real store server, and an opened store on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from tests.environment import PROFILE
from tests.servers import SERVERS, run_server
from tests.store_fixture import StoreFixture, open_store

MANY_SHARDS = 4 if PROFILE == "quick" else 16
"""In `make test` as few as show what one does not: each runs scripts, and 16 would take a tenth of the CPU of all."""

# The default writes a table in colours, which takes twenty times as long.
structlog.configure(processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer()])


@pytest.fixture(scope="session", params=["valkey"] if PROFILE == "quick" else sorted(SERVERS))
def server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real store server, started once for all tests: of each that there is, in `make test` of one."""
    with run_server(request.param, tmp_path_factory.mktemp(request.param)) as (url, _):
        yield url


@pytest.fixture(params=[1, MANY_SHARDS], ids=["1-shard", f"{MANY_SHARDS}-shards"])
def shards(request: pytest.FixtureRequest) -> int:
    """The number of shards: every test of the store runs with one and with many."""
    return int(request.param)


@pytest.fixture
async def store(server_url: str, shards: int) -> AsyncIterator[StoreFixture]:
    """An empty, opened store."""
    async with open_store(server_url, shards) as built:
        yield built
