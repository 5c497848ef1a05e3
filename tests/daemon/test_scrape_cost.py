"""A scrape of /metrics costs the store nothing, however many topics there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from later.api.health import HealthSource
from later.config import load
from later.daemon import shared_census
from later.daemon.service import Service
from later.metrics import Exposition, Metrics
from later.metrics.topic_labels import MAX_TOPICS, OTHER
from tests.builders import a_task
from tests.round_trips import count_round_trips
from tests.store_fixture import StoreFixture, open_store

TOPICS = 20_000
"""As many as a census counts at once."""
SHARDS = 4
SCRAPES = 10


@pytest.fixture
async def store(server_url: str) -> AsyncIterator[StoreFixture]:
    """An empty store with a few shards: a scrape that looked at topics would run commands for each."""
    async with open_store(server_url, SHARDS, timeout_s=60) as store:
        yield store


@pytest.fixture(autouse=True)
def period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other census become due, however long a busy machine takes for the test."""
    monkeypatch.setattr(shared_census, "PERIOD_MS", 3_600_000)


class ScrapedDaemon:
    """A service that is listening. Its tickers do not run, so that the store gets the commands of a test alone."""

    def __init__(self, service: Service, url: str, http: ClientSession) -> None:
        self.service = service
        self._url = url
        self._http = http

    async def scrape(self) -> dict[tuple[str, str], float]:
        """Return what /metrics shows: the values by name and topic."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            assert answer.status == 200
            families = text_string_to_metric_families(await answer.text())
        return {
            (sample.name, sample.labels.get("topic", "")): sample.value
            for family in families
            for sample in family.samples
            if sample.labels.get("state", "delay") == "delay"
        }

    async def commands_of_update(self) -> list[str]:
        """Let the ticker of the store's gauges run once; return the commands that it ran."""
        async with count_round_trips(self.service._store) as round_trips:
            await self.service.store_metrics.tick(0)
        return [str(command[0]) for commands in round_trips for command in commands]

    async def commands_of_scrapes(self) -> list[str]:
        """Scrape; return the commands that this ran."""
        async with count_round_trips(self.service._store) as round_trips:
            for _ in range(SCRAPES):
                await self.scrape()
        return [str(command[0]) for commands in round_trips for command in commands]


@asynccontextmanager
async def a_daemon(url: str) -> AsyncIterator[ScrapedDaemon]:
    metrics = Metrics()

    async def exposition(accept: str) -> Exposition:
        return metrics.exposition(accept)

    health = HealthSource(why_not_ready=AsyncMock(), exposition=exposition)
    options = {"redis": url, "shards": str(SHARDS), "listen": "127.0.0.1:0", "auth": "off", "store_timeout": "60"}
    service = Service(load("serve", options, {}), metrics, health=health, fail=AsyncMock())
    try:
        await service.open()
        (address,) = await service.http_server.listen()
        async with ClientSession() as http:
            yield ScrapedDaemon(service, f"http://{address}", http)
    finally:
        await service.stop()


async def test_a_scrape_runs_no_command_and_a_census_is_read_in_two_however_many_topics_there_are(
    store: StoreFixture, server_url: str
) -> None:
    for start in range(0, TOPICS, 5000):
        await store.tasks.create([a_task(topic=f"t{n}", delay=86_400) for n in range(start, start + 5000)])
    async with a_daemon(server_url) as counting, a_daemon(server_url) as reading:
        assert len(await counting.commands_of_update()) > TOPICS / 500
        assert await reading.commands_of_update() == ["HGET", "HGET"]
        assert await reading.commands_of_update() == ["HGET"]
        for daemon in (counting, reading):
            assert await daemon.commands_of_scrapes() == []
            shown = await daemon.scrape()
            assert shown["later_topics", ""] == TOPICS
            of_topics = {topic: value for (name, topic), value in shown.items() if name == "later_tasks"}
            assert len(of_topics) == MAX_TOPICS + 1
            assert of_topics[OTHER] == TOPICS - MAX_TOPICS
