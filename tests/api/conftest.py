"""The fixture of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.api_fixture import ApiFixture, serve_api


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API on an empty store of one shard."""
    async with serve_api() as built:
        yield built
