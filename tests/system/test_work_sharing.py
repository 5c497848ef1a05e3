"""Several workers share the work; no task is delivered twice."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.api_client import build_tasks, create_many, read_metric
from tests.system.daemons import run_daemon
from tests.system.receivers import Receiver, delayed
from tests.system.stores import StoreServer, count_tasks
from tests.system.waiting import wait_until

TASKS, WORKERS = 5000, 3


@pytest.mark.parametrize("shards", [1, 16])
def test_three_workers_deliver_each_task_once_and_share_the_work(
    shards: int, folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    receiver.rules["/"] = delayed(0.05)
    options = ("--redis", store.url, "--shards", str(shards))
    with ExitStack() as running:
        serve = running.enter_context(run_daemon("serve", folder, *options))
        workers = [
            running.enter_context(run_daemon("worker", folder, *options, "--concurrency", "32")) for _ in range(WORKERS)
        ]
        urls = [worker.url for worker in workers]
        create_many(serve.url, build_tasks(TASKS, receiver.url(), time.time() + 3))
        wait_until(lambda: len(receiver.ids) == TASKS, "every task is delivered", 60)
        wait_until(lambda: count_tasks(store.client(), shards) == 0, "every delivery is settled")
        shares = [read_metric(url, 'later_deliveries_total{outcome="done"}') for url in urls]
    assert len(receiver.calls) == TASKS
    assert sum(shares) == TASKS
    assert min(shares) >= TASKS / 5, shares
