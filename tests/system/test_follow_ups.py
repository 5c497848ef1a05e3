"""Follow-up tasks while workers are killed: each task that ends makes one, and no other is made."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.system.api_client import build_tasks, call, get, post
from tests.system.daemons import Daemon, run_command, run_daemon
from tests.system.receivers import Receiver, delayed, status
from tests.system.stores import StoreServer
from tests.system.waiting import sleep_until, wait_until

CALLED, EXPIRING, RATE = 400, 100, 300
GONE_EVERY = 4
KILLS, EVERY_S = 3, 0.5
WORKERS = 2


def test_killed_workers_make_one_task_for_each_end(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    """Some are done, some die by their receiver, and others by their ttl. A consumer gets a task for each of them."""
    receiver.rules["/"] = delayed(0.02)
    receiver.rules["/gone"] = delayed(0.02, status(410))
    with ExitStack() as running:
        serve = running.enter_context(run_daemon("serve", folder, "--redis", store.url))
        policies = {"events": {"deliver": "pull"}, "order": {"on_done": "events", "on_dead": "events"}}
        for topic, fields in policies.items():
            answer = call(serve.url, "PATCH", f"/topics/{topic}/policy", fields)
            assert (answer.status, answer.body) == (200, fields)
        workers = [_start_worker(running, folder, store) for _ in range(WORKERS)]
        first = time.time() + 2
        tasks = build_tasks(CALLED, receiver.url(), first, RATE)
        ends = {str(task["id"]): "done" for task in tasks}
        for task in tasks[::GONE_EVERY]:
            task["callback"], ends[str(task["id"])] = receiver.url("/gone"), "dead"
        for number, task in enumerate(build_tasks(EXPIRING, receiver.url(), first + 3600)):
            tasks.append({**task, "ttl": 2 + 2 * number / EXPIRING})
            ends[str(task["id"])] = "dead"
        for start in range(0, len(tasks), 300):
            some = tasks[start : start + 300]
            assert post(serve.url, "/create/batch", some).body["created"] == len(some)
        for nth in range(KILLS):
            sleep_until(first + (nth + 0.5) * EVERY_S)
            workers[nth % WORKERS].kill()
            workers[nth % WORKERS] = _start_worker(running, folder, store)
        wait_until(lambda: _left(serve) == 0, "every task ends", 60)
        assert run_command("doctor", "--redis", store.url).returncode == 0
        ended: Counter[tuple[str, str]] = Counter()
        while claimed := post(serve.url, "/claim", {"topic": "events", "max": 500, "lease": 60}).body["tasks"]:
            contents = [json.loads(task["content"]) for task in claimed]
            ended.update((content["id"], content["state"]) for content in contents)
            leases = [task["lease"] for task in claimed]
            assert post(serve.url, "/ack", {"leases": leases}).body == {"acked": len(leases), "lost": []}
        assert ended == Counter(ends.items())


def _start_worker(running: ExitStack, folder: Path, store: StoreServer) -> Daemon:
    options = ("--redis", store.url, "--timeout", "1", "--lease", "2", "--concurrency", "16")
    return running.enter_context(run_daemon("worker", folder, *options))


def _left(serve: Daemon) -> int:
    counts = get(serve.url, "/topics/order").body
    return sum(int(counts[state]) for state in ("delay", "unack", "error"))
