"""Fixtures: the frontend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.front import Front, a_front


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """The frontend on an empty store of one shard, listening."""
    async with a_front() as built:
        yield built
