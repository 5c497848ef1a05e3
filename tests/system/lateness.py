"""How late the tasks of a topic are whose receivers are well, whatever else goes on."""

from __future__ import annotations

import time

from tests.system.api_client import create_many, many
from tests.system.daemons import Later
from tests.system.receivers import Receiver
from tests.system.waiting import eventually

TASKS, RATE = 200, 40


def p99(up: Later, receiver: Receiver, callback: str) -> float:
    """How late (s) the second latest of 200 tasks is, spread over 5 s."""
    tasks = many(TASKS, callback, time.time() + 0.5, RATE, topic="well")
    create_many(up.url, tasks)
    ids = {str(task["id"]) for task in tasks}
    eventually(lambda: receiver.ids >= ids, "every task of the healthy topic is delivered")
    late = sorted(receiver.of(id)[0].late for id in ids)
    assert late[0] >= 0
    return late[len(late) * 99 // 100 - 1]
