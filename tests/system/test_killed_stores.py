"""Kills of the store under load: acknowledged writes are kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.servers import SERVERS
from tests.system.creating_clients import run_creating_clients
from tests.system.daemons import run_daemon
from tests.system.receivers import Receiver
from tests.system.stores import count_tasks, run_store
from tests.system.waiting import wait_until

KILLS, EVERY_S, AWAY_S = 4, 0.8, 0.3


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_killed_store_keeps_what_was_accepted(name: str, folder: Path, receiver: Receiver) -> None:
    with (
        run_store(name, folder, "--appendonly", "yes", "--appendfsync", "always") as store,
        run_daemon("up", folder, "--redis", store.url, "--timeout", "2", "--lease", "4") as up,
    ):
        outages = []
        with run_creating_clients(up.url, receiver.url()) as clients:
            for _ in range(KILLS):
                time.sleep(EVERY_S)
                killed_at = time.time()
                store.kill()
                time.sleep(AWAY_S)
                store.start()
                outages.append((killed_at, time.time()))
            accepted = len(clients.accepted)
            wait_until(lambda: len(clients.accepted) > accepted, "creates continue")
        wait_until(lambda: receiver.ids >= clients.accepted.keys(), "every accepted task is delivered")
        wait_until(lambda: count_tasks(store.client()) == 0, "every delivery is settled", 60)
    assert clients.refused > 0, "the store was killed between two creates only"
    assert [c for c in receiver.calls if c.arrived < clients.accepted[c.id]] == []
    interrupted_at = [first.arrived for first, _ in receiver.repeated_calls()]
    assert [at for at in interrupted_at if not any(gone - 1 < at < back + 0.5 for gone, back in outages)] == []
