"""A topic with hanging receivers does not delay another one, with nothing configured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.system.api_client import build_tasks, create_many, read_metric
from tests.system.daemons import run_up, simulated_fault
from tests.system.lateness import measure_p99_lateness
from tests.system.receivers import Receiver, hang
from tests.system.waiting import wait_until

BACKLOG = 10_000
P99_S = 0.2
TRIES = 3
"""The best of several tries counts because the machine has other work."""
HOSTS = [f"host-{i}.hangs.test" for i in range(40)]


@pytest.mark.alone
def test_a_hanging_receiver_does_not_delay_another_topic(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules["/hangs"] = hang
    backlog = build_tasks(BACKLOG, receiver.url("/hangs"), time.time(), topic="stuck")
    with run_up(folder, data, "--timeout", "3") as up:
        create_many(up.url, backlog)
        wait_until(lambda: read_metric(up.url, 'later_deliveries_total{outcome="failed"}') > 0, "some have timed out")
        assert any(measure_p99_lateness(up, receiver, receiver.url()) < P99_S for _ in range(TRIES))


@pytest.mark.alone
def test_hanging_name_lookups_do_not_delay_another_topic(folder: Path, data: Path, receiver: Receiver) -> None:
    backlog = build_tasks(BACKLOG, receiver.url("/hangs"), time.time(), topic="stuck")
    for i, task in enumerate(backlog):
        task["callback"] = f"http://{HOSTS[i % len(HOSTS)]}/"
    with run_up(folder, data, "--timeout", "3", env=simulated_fault("names-hang")) as up:
        create_many(up.url, backlog)
        wait_until(lambda: read_metric(up.url, 'later_deliveries_total{outcome="failed"}') > 0, "some have timed out")
        assert any(measure_p99_lateness(up, receiver, receiver.url(host="localhost")) < P99_S for _ in range(TRIES))
