"""Fixtures: a real store server, and an opened store on it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest
import structlog

from tests.servers import SERVERS, run_server
from tests.store_fixture import StoreFixture, open_store

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)
"""For `make test`: new examples each time, but fewer. `make check` has as many as CI."""
PROFILE = "ci" if os.environ.get("CI") else os.environ.get("HYPOTHESIS_PROFILE", "dev")
hypothesis.settings.load_profile(PROFILE)

MANY_SHARDS = 4 if PROFILE == "quick" else 16
"""In `make test` as few as show what one does not: each runs scripts, and 16 would take a tenth of the CPU of all."""

# Clients trust nobody, because reading the machine's authorities takes up to 25 ms. A test of TLS names its own.
os.environ["SSL_CERT_FILE"] = os.devnull
# The default writes a table in colours, which takes twenty times as long.
structlog.configure(processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer()])
gc.disable()


def pytest_configure() -> None:
    """Let what tests start begin with the default action of SIGHUP, as in a terminal, also if pytest runs under nohup.

    A signal that is ignored would stay ignored in them. One that is handled does not, and pytest outlives it too.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_collection_finish() -> None:
    """Keep what was collected out of garbage collections, and let few be of all objects: a tenth of the CPU."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


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
