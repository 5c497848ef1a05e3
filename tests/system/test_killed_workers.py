"""Workers are killed, again and again, while thousands of tasks fall due."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tests.system.api_client import create_many, many
from tests.system.daemons import Later, a_later
from tests.system.receivers import Call, Receiver, after
from tests.system.stores import Server, tasks_in
from tests.system.waiting import eventually, until

TASKS, RATE = 3000, 300
KILLS, EVERY_S = 10, 0.9
WORKERS, HANDS, TIMEOUT_S = 3, 16, 2


def test_killed_workers_lose_nothing_and_double_only_what_they_held(
    folder: Path, store: Server, receiver: Receiver
) -> None:
    receiver.rules["/"] = after(0.05)
    first = time.time() + 4
    tasks = many(TASKS, receiver.url(), first, RATE)
    with ExitStack() as running:
        serve = running.enter_context(a_later("serve", folder, "--redis", store.url))
        workers = [_a_worker(running, folder, store) for _ in range(WORKERS)]
        create_many(serve.url, tasks)
        kills = []
        for nth in range(KILLS):
            until(first + (nth + 0.5) * EVERY_S)
            workers[nth % WORKERS].kill()
            kills.append(time.time())
            workers[nth % WORKERS] = _a_worker(running, folder, store)
        eventually(lambda: len(receiver.ids) == TASKS, "every task is delivered", 60)
        eventually(lambda: tasks_in(store.client()) == 0, "every delivery is settled")
    _assert_none_early(receiver, {task["id"]: task["execute_time"] for task in tasks})
    assert 0 < len(receiver.repeats()) <= KILLS * HANDS
    assert [pair for pair in receiver.repeats() if not _was_cut(pair, kills)] == []


def _a_worker(running: ExitStack, folder: Path, store: Server) -> Later:
    options = ("--redis", store.url, "--timeout", str(TIMEOUT_S), "--lease", "4", "--concurrency", str(HANDS))
    return running.enter_context(a_later("worker", folder, *options))


def _assert_none_early(receiver: Receiver, due: dict[str, float]) -> None:
    assert [call for call in receiver.calls if call.arrived < due[call.id]] == []


def _was_cut(pair: tuple[Call, Call], kills: list[float]) -> bool:
    """Was the first of the two under way when a worker was killed? And does the second know that it is a second?"""
    first, second = pair
    return second.attempt > first.attempt and any(-0.5 < kill - first.arrived < TIMEOUT_S for kill in kills)
