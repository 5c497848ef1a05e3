"""The virtual clock answers and does what a daemon does: tests/system/test_conformance.py has the same cases."""

from __future__ import annotations

from datetime import UTC, datetime

from later import Later
from later.testing import VirtualClock, virtual_clock
from tests.cases import each_case
from tests.conformance.cases import CASES
from tests.conformance.world import Case, World

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


class ClockWorld(World):
    """A virtual clock."""

    def __init__(self, tasks: Later, case: str, clock: VirtualClock) -> None:
        super().__init__(tasks, case)
        self._clock = clock

    async def now(self) -> datetime:
        return self._clock.now

    async def move(self, by_s: float) -> None:
        await self._clock.advance(by_s)


@each_case("case", CASES, ids=[case.__name__ for case in CASES])
async def test_on_a_virtual_clock(case: Case) -> None:
    tasks = Later()
    with virtual_clock(tasks, start=START) as clock:
        await case(ClockWorld(tasks, case.__name__, clock))
