"""A daemon with a wrong clock follows the store's clock."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from tests.system.api_client import create, get, query
from tests.system.daemons import run_up, simulated_fault
from tests.system.receivers import Receiver
from tests.system.simulated_faults.sitecustomize import AHEAD_S
from tests.system.waiting import wait_until

LATE_S = 1.0


def test_a_clock_that_is_an_hour_ahead_delivers_neither_early_nor_late(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    with run_up(folder, data, env=simulated_fault("clock-ahead")) as up:
        assert _clock_of(up.url) - time.time() > AHEAD_S - 5
        created = time.time()
        due = created + 1.5
        ids = [
            create(up.url, callback=receiver.url(), delay=1.5),
            create(up.url, callback=receiver.url(), execute_time=due),
        ]
        assert abs(query(up.url, ids[0])["creat_time"] - created) < 2
        wait_until(lambda: receiver.ids == set(ids), "both are delivered")
        assert up.stop() == 0
    for call in receiver.calls:
        assert abs(int(call.headers["webhook-timestamp"]) - due) < 2
        assert due - 0.001 <= call.arrived < due + LATE_S


def _clock_of(url: str) -> float:
    """Return the time of the daemon's own clock, in Unix seconds."""
    return parsedate_to_datetime(get(url, "/livez").headers["Date"]).timestamp()
