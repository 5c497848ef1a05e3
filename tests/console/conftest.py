"""The fixture of the API with its console."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.api_fixture import ApiFixture, serve_api


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    async with serve_api() as built:
        yield built
