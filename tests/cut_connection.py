"""A connection to the store that is cut in one round trip: before it is sent, or before its answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis.exceptions

from later.store.connections import Connections, RoundTrip
from later.store.scripts import Command


class CutConnection:
    """A connection to the store that fails in one round trip and works again after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.round_trips = 0
        self.cut_at = -1
        self.answer_lost = False
        original = Connections.pipeline

        async def cut(connections: Connections, commands: Sequence[Command], round_trip: RoundTrip) -> list[Any]:
            number, self.round_trips = self.round_trips, self.round_trips + 1
            if number != self.cut_at:
                return await original(connections, commands, round_trip)
            if self.answer_lost:
                await original(connections, commands, round_trip)
            raise redis.exceptions.ConnectionError("the connection is cut")

        monkeypatch.setattr(Connections, "pipeline", cut)
