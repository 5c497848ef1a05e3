"""Dead-letter topics while workers are killed: no dead task is lost, and none is there twice."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.system.api_client import build_tasks, call, get, post
from tests.system.daemons import Daemon, run_command, run_daemon
from tests.system.receivers import Receiver, delayed, status
from tests.system.stores import StoreServer
from tests.system.waiting import sleep_until, wait_until

TASKS, RATE = 600, 300
EXPIRING = 200
KILLS, EVERY_S = 4, 0.5
WORKERS = 2
ALL = TASKS + EXPIRING


def test_killed_workers_move_each_dead_task_once(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    """Some die by their receiver, others by their ttl, both while workers are killed. A consumer gets all of them."""
    receiver.rules["/"] = delayed(0.02, status(410))
    with ExitStack() as running:
        serve = running.enter_context(run_daemon("serve", folder, "--redis", store.url))
        for topic, fields in (("failed", {"deliver": "pull"}), ("order", {"dead_to": "failed"})):
            assert call(serve.url, "PATCH", f"/topics/{topic}/policy", fields).status == 200
        workers = [_start_worker(running, folder, store) for _ in range(WORKERS)]
        first = time.time() + 2
        called = build_tasks(TASKS, receiver.url(), first, RATE)
        expiring = [
            {**task, "execute_time": first + 3600, "ttl": 2 + 2 * number / EXPIRING}
            for number, task in enumerate(build_tasks(EXPIRING, receiver.url(), first))
        ]
        for start in range(0, ALL, 300):  # without secrets in their headers, which consumers get
            some = (called + expiring)[start : start + 300]
            assert post(serve.url, "/create/batch", some).body["created"] == len(some)
        for nth in range(KILLS):
            sleep_until(first + (nth + 0.5) * EVERY_S)
            workers[nth % WORKERS].kill()
            workers[nth % WORKERS] = _start_worker(running, folder, store)
        wait_until(lambda: _count(serve, "failed") == ALL, "every dead task moves", 60)
        assert sum(get(serve.url, "/topics/order").body[state] for state in ("delay", "unack", "error", "dead")) == 0
        assert run_command("doctor", "--redis", store.url).returncode == 0
        claimed: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        while tasks := post(serve.url, "/claim", {"topic": "failed", "max": 500, "lease": 60}).body["tasks"]:
            claimed.update(task["id"] for task in tasks)
            reasons.update(task["dead_letter"]["reason"] for task in tasks)
            assert {(task["attempt"], task["dead_letter"]["topic"]) for task in tasks} == {(1, "order")}
            leases = [task["lease"] for task in tasks]
            assert post(serve.url, "/ack", {"leases": leases}).body == {"acked": len(leases), "lost": []}
        assert claimed == Counter(str(task["id"]) for task in called + expiring)
        assert reasons == {"gone": TASKS, "expired": EXPIRING}


def _start_worker(running: ExitStack, folder: Path, store: StoreServer) -> Daemon:
    options = ("--redis", store.url, "--timeout", "1", "--lease", "2", "--concurrency", "16")
    return running.enter_context(run_daemon("worker", folder, *options))


def _count(serve: Daemon, topic: str) -> int:
    return int(get(serve.url, f"/topics/{topic}").body["delay"])
