"""The store is killed under load: what it acknowledged, it keeps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.servers import SERVERS
from tests.system.creating_clients import creating
from tests.system.daemons import a_later
from tests.system.receivers import Receiver
from tests.system.stores import a_store, tasks_in
from tests.system.waiting import eventually

KILLS, EVERY_S, AWAY_S = 4, 0.8, 0.3


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_killed_store_keeps_what_was_accepted(name: str, folder: Path, receiver: Receiver) -> None:
    with (
        a_store(name, folder, "--appendonly", "yes", "--appendfsync", "always") as store,
        a_later("up", folder, "--redis", store.url, "--timeout", "2", "--lease", "4") as up,
    ):
        kills = []
        with creating(up.url, receiver.url()) as creator:
            for _ in range(KILLS):
                time.sleep(EVERY_S)
                kills.append(time.time())
                store.kill()
                time.sleep(AWAY_S)
                store.start()
            accepted = len(creator.accepted)
            eventually(lambda: len(creator.accepted) > accepted, "creating goes on")
        eventually(lambda: receiver.ids >= creator.accepted.keys(), "every accepted task is delivered")
        eventually(lambda: tasks_in(store.client()) == 0, "every delivery is settled", 60)
    assert creator.turned_away > 0, "the store was killed between two creates only"
    assert [c for c in receiver.calls if c.arrived < creator.accepted[c.id]] == []
    cut = [first.arrived for first, _ in receiver.repeats()]
    assert [at for at in cut if not any(-0.5 < kill - at < 1 for kill in kills)] == []
