"""The fixture of the API, and the event loops: asyncio's, and for tests of the server below it uvloop's, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.api.api_fixture import ApiFixture, serve_api


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API on an empty store of one shard."""
    async with serve_api() as built:
        yield built


@pytest.fixture
def both_loops() -> None:
    """A test that uses this runs with each event loop."""


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the event loops of a test."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if any("both_loops" in mark.args for mark in item.iter_markers("usefixtures")):
        loops["uvloop"] = uvloop.new_event_loop
    return loops
