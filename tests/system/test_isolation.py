"""One topic whose receivers never answer does not hold up another, with nothing configured."""

from __future__ import annotations

import time
from pathlib import Path

from tests.system.api_client import create_many, figure, many
from tests.system.daemons import an_up, odd
from tests.system.lateness import p99
from tests.system.receivers import Receiver, hang
from tests.system.waiting import eventually

BACKLOG = 10_000
P99_S = 0.2
TRIES = 3
"""This machine does other things too: the best of these counts."""
HOSTS = [f"host-{i}.hangs.test" for i in range(40)]


def test_a_hanging_receiver_does_not_hold_up_another_topic(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/hangs"] = hang
    backlog = many(BACKLOG, receiver.url("/hangs"), time.time(), topic="stuck")
    with an_up(folder, data, "--timeout", "3") as up:
        create_many(up.url, backlog)
        eventually(lambda: figure(up.url, 'later_deliveries_total{outcome="failed"}') > 0, "some have timed out")
        assert any(p99(up, receiver, receiver.url()) < P99_S for _ in range(TRIES))


def test_names_whose_lookup_hangs_do_not_hold_up_another_topic(folder: Path, data: Path, receiver: Receiver) -> None:
    backlog = many(BACKLOG, receiver.url("/hangs"), time.time(), topic="stuck")
    for i, task in enumerate(backlog):
        task["callback"] = f"http://{HOSTS[i % len(HOSTS)]}/"
    with an_up(folder, data, "--timeout", "3", env=odd("names-hang")) as up:
        create_many(up.url, backlog)
        eventually(lambda: figure(up.url, 'later_deliveries_total{outcome="failed"}') > 0, "some have timed out")
        assert any(p99(up, receiver, receiver.url(host="localhost")) < P99_S for _ in range(TRIES))
