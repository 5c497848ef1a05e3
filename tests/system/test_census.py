"""The census of very many topics: one daemon makes it, and another one when that is killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.store.client import StoreClient
from later.store.connections import connect
from later.store.keys import Keys
from later.store.open import build_store
from tests.builders import a_task
from tests.system.api_client import get
from tests.system.daemons import Daemon, run_daemon
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

TOPICS = 60_000
"""More than are counted at once: the census takes more than four seconds."""
SHARDS = 4
TAKEOVER_S = 60


def test_another_daemon_takes_over_the_census_of_one_that_is_killed(folder: Path, store: StoreServer) -> None:
    asyncio.run(create_topics(store.url))
    keys, server = Keys("later", SHARDS), store.client()
    options = ("--redis", store.url, "--shards", str(SHARDS))
    with run_daemon("serve", folder, *options) as first:
        wait_until(lambda: server.exists(keys.counting), "the first daemon counts")
        first.kill()
        killed_at = time.monotonic()
    assert not server.exists(keys.snapshot)
    with run_daemon("serve", folder, *options) as second:
        wait_until(lambda: server.exists(keys.snapshot), "the second daemon has counted", TAKEOVER_S)
        assert time.monotonic() - killed_at < TAKEOVER_S
        wait_until(lambda: f"later_topics {float(TOPICS)}" in scrape(second), "it shows what it has counted")


def scrape(daemon: Daemon) -> str:
    return str(get(daemon.url, "/metrics").body)


async def create_topics(url: str) -> None:
    clock = Clock(time.monotonic, time.time)
    client = StoreClient(connect(url, clock, 60), clock, timeout_s=60)
    tasks = build_store(client, clock, Keys("later", SHARDS), DEFAULT_POLICY).tasks
    for start in range(0, TOPICS, 5000):
        await tasks.create([a_task(topic=f"t{number}", delay=86_400) for number in range(start, start + 5000)])
    await client.aclose()
