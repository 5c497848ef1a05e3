"""Workers share the work: nothing is delivered twice, and nobody goes without."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.api_client import create_many, figure, many
from tests.system.daemons import a_later
from tests.system.receivers import Receiver, after
from tests.system.stores import Server, tasks_in
from tests.system.waiting import eventually

TASKS, WORKERS = 5000, 3


@pytest.mark.parametrize("shards", [1, 16])
def test_three_workers_deliver_each_task_once_and_share_the_work(
    shards: int, folder: Path, store: Server, receiver: Receiver
) -> None:
    receiver.rules["/"] = after(0.05)
    options = ("--redis", store.url, "--shards", str(shards))
    with ExitStack() as running:
        serve = running.enter_context(a_later("serve", folder, *options))
        workers = [
            running.enter_context(a_later("worker", folder, *options, "--concurrency", "32")) for _ in range(WORKERS)
        ]
        urls = [worker.url for worker in workers]
        create_many(serve.url, many(TASKS, receiver.url(), time.time() + 3))
        eventually(lambda: len(receiver.ids) == TASKS, "every task is delivered", 60)
        eventually(lambda: tasks_in(store.client(), shards) == 0, "every delivery is settled")
        shares = [figure(url, 'later_deliveries_total{outcome="done"}') for url in urls]
    assert len(receiver.calls) == TASKS
    assert sum(shares) == TASKS
    assert min(shares) >= TASKS / 5, shares
