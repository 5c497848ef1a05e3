"""One topic whose receivers never answer does not hold up another, with nothing configured."""

from __future__ import annotations

import time
from pathlib import Path

from tests.system.calls import create_many, figure, many
from tests.system.daemons import Later, an_up, odd
from tests.system.receivers import Receiver, hang
from tests.system.waiting import eventually

BACKLOG = 10_000
TASKS, RATE = 200, 40
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
        assert any(_p99(up, receiver, receiver.url()) < P99_S for _ in range(TRIES))


def test_names_whose_lookup_hangs_do_not_hold_up_another_topic(folder: Path, data: Path, receiver: Receiver) -> None:
    backlog = many(BACKLOG, receiver.url("/hangs"), time.time(), topic="stuck")
    for i, task in enumerate(backlog):
        task["callback"] = f"http://{HOSTS[i % len(HOSTS)]}/"
    with an_up(folder, data, "--timeout", "3", env=odd("names-hang")) as up:
        create_many(up.url, backlog)
        eventually(lambda: figure(up.url, 'later_deliveries_total{outcome="failed"}') > 0, "some have timed out")
        assert any(_p99(up, receiver, receiver.url(host="localhost")) < P99_S for _ in range(TRIES))


def _p99(up: Later, receiver: Receiver, callback: str) -> float:
    """How late (s) the second latest of 200 tasks is, spread over 5 s."""
    tasks = many(TASKS, callback, time.time() + 0.5, RATE, topic="well")
    create_many(up.url, tasks)
    ids = {str(task["id"]) for task in tasks}
    eventually(lambda: receiver.ids >= ids, "every task of the other topic is delivered")
    late = sorted(receiver.of(id)[0].late for id in ids)
    assert late[0] >= 0
    return late[len(late) * 99 // 100 - 1]
