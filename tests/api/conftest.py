"""The fixture of the frontend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.frontend import Frontend, serve_frontend


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    """A frontend on an empty store of one shard."""
    async with serve_frontend() as built:
        yield built
