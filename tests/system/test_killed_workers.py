"""Repeated kills of workers while thousands of tasks fall due."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tests.system.api_client import build_tasks, create_many
from tests.system.daemons import Daemon, run_daemon
from tests.system.receivers import Call, Receiver, delayed
from tests.system.stores import StoreServer, count_tasks
from tests.system.waiting import sleep_until, wait_until

TASKS, RATE = 3000, 300
KILLS, EVERY_S = 10, 0.9
WORKERS, SLOTS, TIMEOUT_S = 3, 16, 2


def test_killed_workers_lose_no_task_and_only_their_own_are_delivered_twice(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    receiver.rules["/"] = delayed(0.05)
    first = time.time() + 4
    tasks = build_tasks(TASKS, receiver.url(), first, RATE)
    with ExitStack() as running:
        serve = running.enter_context(run_daemon("serve", folder, "--redis", store.url))
        workers = [_start_worker(running, folder, store) for _ in range(WORKERS)]
        create_many(serve.url, tasks)
        kills = []
        wait_until(lambda: receiver.calls, "a worker works")  # or, on a busy machine, kills come before the first call
        for nth in range(KILLS):
            sleep_until(first + (nth + 0.5) * EVERY_S)
            workers[nth % WORKERS].kill()
            kills.append(time.time())
            workers[nth % WORKERS] = _start_worker(running, folder, store)
        wait_until(lambda: len(receiver.ids) == TASKS, "every task is delivered", 60)
        wait_until(lambda: count_tasks(store.client()) == 0, "every delivery is settled")
    _assert_none_early(receiver, {task["id"]: task["execute_time"] for task in tasks})
    assert 0 < len(receiver.repeated_calls()) <= KILLS * SLOTS
    assert [pair for pair in receiver.repeated_calls() if not _was_interrupted(pair, kills)] == []


def _start_worker(running: ExitStack, folder: Path, store: StoreServer) -> Daemon:
    options = ("--redis", store.url, "--timeout", str(TIMEOUT_S), "--lease", "4", "--concurrency", str(SLOTS))
    return running.enter_context(run_daemon("worker", folder, *options))


def _assert_none_early(receiver: Receiver, due: dict[str, float]) -> None:
    assert [call for call in receiver.calls if call.arrived < due[call.id]] == []


def _was_interrupted(pair: tuple[Call, Call], kills: list[float]) -> bool:
    """Return True if the first call was under way at a kill and the second has a higher attempt."""
    first, second = pair
    return second.attempt > first.attempt and any(-0.5 < kill - first.arrived < TIMEOUT_S for kill in kills)
