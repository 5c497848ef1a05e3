"""Purges and redrives of many tasks that a kill interrupts: a second call completes them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from tests.system.api_client import build_tasks, call, create_many, post
from tests.system.daemons import Daemon, run_command, run_daemon, shards_option
from tests.system.receivers import Receiver, status
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

MANY = 10_000


def count_tasks(daemon: Daemon) -> dict[str, int]:
    return dict(call(daemon.url, "GET", "/topics/order").body)


def kill_during(daemon: Daemon, path: str, body: object, bucket: str) -> None:
    """Call, and kill the daemon as soon as some tasks have left the bucket."""

    def send() -> None:
        with suppress(OSError, HTTPException):
            post(daemon.url, path, body)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: count_tasks(daemon)[bucket] < MANY, "the operation is under way")
    daemon.kill()
    thread.join()


def test_an_interrupted_purge_continues_when_repeated(
    folder: Path, store: StoreServer, receiver: Receiver, processes: int
) -> None:
    with run_daemon("serve", folder, "--redis", store.url, *shards_option(processes)) as serve:
        create_many(serve.url, build_tasks(MANY, receiver.url(), time.time() + 3600))
        create_many(serve.url, build_tasks(5, receiver.url(), time.time() + 3600, topic="other"))
        kill_during(serve, "/topics/order/purge", {}, "delay")
    with run_daemon("serve", folder, "--redis", store.url, *shards_option(processes)) as serve:
        wait_until(serve.is_ready, "the daemon is ready")
        left = count_tasks(serve)["delay"]
        assert left < MANY
        assert post(serve.url, "/topics/order/purge", {}).body == {"purged": left}
        assert (count_tasks(serve)["delay"], call(serve.url, "GET", "/topics/other").body["delay"]) == (0, 5)
    assert run_command("doctor", "--redis", store.url).returncode == 0


def test_an_interrupted_redrive_continues_without_loss_or_duplicates(
    folder: Path, store: StoreServer, receiver: Receiver, processes: int
) -> None:
    receiver.rules["/gone"] = status(410)
    tasks = build_tasks(MANY, receiver.url("/gone"), time.time())
    with run_daemon("up", folder, "--redis", store.url, *shards_option(processes), "--concurrency", "500") as up:
        create_many(up.url, tasks)
        wait_until(lambda: count_tasks(up)["dead"] == MANY, "all are dead", 60)
        assert up.stop() == 0
    redrive = {"topic": "order", "reason": "gone", "rate": 1}
    with run_daemon("serve", folder, "--redis", store.url, *shards_option(processes)) as serve:
        kill_during(serve, "/redrive", redrive, "dead")
    with run_daemon("serve", folder, "--redis", store.url, *shards_option(processes)) as serve:
        wait_until(serve.is_ready, "the daemon is ready")
        left = count_tasks(serve)["dead"]
        assert left < MANY
        assert post(serve.url, "/redrive", redrive).body == {"redriven": left}
        found = count_tasks(serve)
        assert (found["delay"], found["dead"], found["unack"], found["error"]) == (MANY, 0, 0, 0)
        ids = [task["id"] for task in tasks]
        answers = [
            post(serve.url, "/query/batch", [{"id": id} for id in ids[n : n + 1000]]) for n in range(0, MANY, 1000)
        ]
        results = [result for answer in answers for result in answer.body["results"]]
        assert {result["state"] for result in results} == {"delay"}
        assert {result["has_retry"] for result in results} == {0}
    assert run_command("doctor", "--redis", store.url).returncode == 0
