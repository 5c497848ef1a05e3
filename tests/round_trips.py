"""The round trips that a part of the program makes, with their commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from later.store.open import Store
from later.store.scripts import Command

RoundTrips = list[Sequence[Command]]
"""The commands of each round trip."""


@asynccontextmanager
async def count_round_trips(store: Store) -> AsyncIterator[RoundTrips]:
    """Collect the round trips of a store's client while the block runs."""
    round_trips: RoundTrips = []
    execute = store.client._execute

    async def record(verb: str, commands: Sequence[Command], *positional: Any, **named: Any) -> list[Any]:
        round_trips.append(commands)
        return await execute(verb, commands, *positional, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.client, "_execute", record)
        yield round_trips
