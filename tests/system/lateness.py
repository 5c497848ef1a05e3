"""The lateness of a topic with healthy receivers, beside other load."""

from __future__ import annotations

import time

from tests.system.api_client import build_tasks, create_many
from tests.system.daemons import Daemon
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

TASKS, RATE = 200, 40


def measure_p99_lateness(up: Daemon, receiver: Receiver, callback: str, topic: str = "healthy") -> float:
    """Deliver 200 tasks spread over 5 s and return the 99th percentile of their lateness, in seconds."""
    tasks = build_tasks(TASKS, callback, time.time() + 0.5, RATE, topic=topic)
    create_many(up.url, tasks)
    ids = {str(task["id"]) for task in tasks}
    wait_until(lambda: receiver.ids >= ids, "every task of the healthy receiver is delivered")
    latenesses = sorted(receiver.calls_of(id)[0].lateness for id in ids)
    assert latenesses[0] >= 0
    return latenesses[len(latenesses) * 99 // 100 - 1]
