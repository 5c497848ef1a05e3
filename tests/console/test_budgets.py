"""The cost of each page of the console on a store of a million tasks in 10,000 topics on 16 shards.

It is counted in round trips, and no command may take longer than a millisecond: then a page delays no delivery.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from later.api import forecast, overview
from later.core.clock import rfc3339
from later.core.task import Task
from later.daemon import pace
from later.store.scripts import Command
from scripts.bench.seed import create_all
from tests.api.api_fixture import ApiFixture, serve_api
from tests.builders import NOW, a_task
from tests.console.page_calls import EVERY_PAGE, FORECAST, FORECAST_ROUND_TRIPS, PAGES
from tests.round_trips import count_round_trips

pytestmark = pytest.mark.system

SHARDS, TOPICS, TASKS = 16, 10_000, 1_000_000
LARGE, IN_LARGE = "order", 100_000
"""The topic whose pages are opened, and its tasks; all other topics have as many as each other."""
SPREAD_S, DUE_S = 6 * 3600, 60
REPETITIONS = 5
LONGEST_MS = 1.0
OWN_STATISTICS = {"cmdstat_info", "cmdstat_config|resetstat"}
"""The commands of this test itself."""


class Cost(NamedTuple):
    """The cost of one call: its round trips and commands, and the time (ms) that the longest of these takes."""

    round_trips: int
    commands: int
    longest_ms: float


def all_tasks() -> Iterator[Task]:
    """Yield the tasks. They are due over six hours, a few of them already."""
    of_others = (TASKS - IN_LARGE) // (TOPICS - 1) + 1
    for number in range(TASKS):
        other = number - IN_LARGE
        topic = LARGE if other < 0 else f"shop/{other // of_others:05}"
        yield a_task(id=f"t{number}", topic=topic, execute_at=NOW + (number * 7919 % SPREAD_S - DUE_S) * 1000)


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiFixture]:
    """The API over the full store. It answers nothing again that it has answered before."""
    monkeypatch.setattr(overview, "KEPT_S", 0)
    monkeypatch.setattr(forecast, "fresh_for_s", lambda took_s: 0)
    monkeypatch.setattr(pace, "AT_ONCE", TASKS)  # otherwise a census goes on beside what is measured
    async with serve_api(shards=SHARDS) as api:
        await create_all(api.store.tasks, all_tasks())
        yield api
        await api.redis.flushall(asynchronous=True)


async def make(api: ApiFixture, call: str) -> None:
    """Make a call of the table."""
    names = {"TOPIC": LARGE, "TASK": "t1", "SINCE": rfc3339(NOW - 3_600_000)}
    for placeholder, value in names.items():
        call = call.replace(placeholder, value)
    method, path, *body = call.split(" ", 2)
    status, answer = await api.request(method, path, *(json.loads(text) for text in body))
    assert status == 200, (call, answer)


async def measure(api: ApiFixture, call: str) -> Cost:
    await make(api, call)  # loads scripts, makes the census, reads past slots
    async with count_round_trips(api.store) as round_trips:
        await make(api, call)
    commands = [command for trip in round_trips for command in trip]
    longest_ms = max([await command_ms(api, command) for command in commands], default=0.0)
    return Cost(len(round_trips), len(commands), longest_ms)


async def command_ms(api: ApiFixture, command: Command) -> float:
    """Return how long the store takes for a command that only reads: the shortest time is that of a calm machine."""
    times_us: list[int] = []
    for _ in range(REPETITIONS):
        await api.redis.config_resetstat()
        await api.store.client.execute("test", command)
        stats: dict[str, dict[str, int]] = await api.redis.info("commandstats")
        times_us.append(max(stat["usec"] for name, stat in stats.items() if name not in OWN_STATISTICS))
    return min(times_us) / 1000


@pytest.mark.timeout(900)
async def test_each_page_is_within_its_budget(api: ApiFixture) -> None:
    calls = dict.fromkeys([EVERY_PAGE, *(call for page in PAGES.values() for call in page.calls)])
    costs = {call: await measure(api, call) for call in calls}
    for call, cost in costs.items():
        print(f"{call:.60}: {cost}")
    over = {
        name: found
        for name, page in PAGES.items()
        if (found := sum(costs[call].round_trips for call in page.calls if call != FORECAST)) > page.round_trips
    }
    assert not over
    assert costs[EVERY_PAGE].round_trips == 0
    assert costs[FORECAST].round_trips <= FORECAST_ROUND_TRIPS
    assert {call: cost.longest_ms for call, cost in costs.items() if cost.longest_ms > LONGEST_MS} == {}
