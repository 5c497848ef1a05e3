"""Kills of all of `later up`, or of its store alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.api_client import build_tasks, call, create, create_many, get, post
from tests.system.creating_clients import run_creating_clients
from tests.system.daemons import embedded_store_pid, kill_orphaned_store, run_command, run_up
from tests.system.receivers import Receiver, delayed
from tests.system.waiting import wait_until

SHORT = ("--timeout", "2", "--lease", "4")


@pytest.mark.parametrize("store_dies_too", [False, True], ids=["daemon", "daemon-and-store"])
def test_a_killed_daemon_finds_every_task_after_a_restart(
    store_dies_too: bool, folder: Path, data: Path, receiver: Receiver, processes: int
) -> None:
    receiver.rules["/"] = delayed(0.05)
    with run_up(folder, data, *SHORT) as up:
        tasks = build_tasks(1500, receiver.url(), time.time() + 1, 300)
        create_many(up.url, tasks)
        with run_creating_clients(up.url, receiver.url()) as clients:
            wait_until(lambda: len(clients.accepted) > 50 and len(receiver.ids) > 300, "the daemon is under load")
            up.kill()
            if store_dies_too:
                kill_orphaned_store(data)
            killed_at = time.time()
            accepted = {str(task["id"]) for task in tasks} | clients.accepted.keys()
            left = len(accepted - receiver.ids)
            with run_up(folder, data, *SHORT) as again:
                assert int(again.wait_for_event("store found")["tasks"]) >= left
                clients.switch_to(again.url)
                clients.stop()
                wait_until(lambda: receiver.ids >= accepted | clients.accepted.keys(), "every task is delivered")
                assert again.stop() == 0
    repeated = [first for first, _ in receiver.repeated_calls()]
    assert [call for call in repeated if not -0.5 < killed_at - call.arrived < 2] == []
    assert len(repeated) <= 256 * processes


def test_leases_of_consumers_outlive_a_killed_daemon(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        call(up.url, "PATCH", "/topics/jobs/policy", {"deliver": "pull"})
        time.sleep(2)  # every process sees the change
        tasks = [{"topic": "jobs", "id": f"t{number}"} for number in range(40)]
        assert post(up.url, "/create/batch", tasks).body["created"] == 40
        kept = post(up.url, "/claim", {"topic": "jobs", "max": 10, "lease": 60}).body["tasks"]
        lost = post(up.url, "/claim", {"topic": "jobs", "max": 10, "lease": 1}).body["tasks"]
        leases = [task["lease"] for task in kept]
        assert post(up.url, "/ack", {"leases": leases[:5]}).body == {"acked": 5, "lost": []}
        up.kill()
        with run_up(folder, data) as again:
            assert post(again.url, "/ack", {"leases": leases}).body == {"acked": 5, "lost": leases[:5]}
            attempts: dict[str, int] = {}
            deadline = time.monotonic() + 30
            while len(attempts) < 30 and time.monotonic() < deadline:
                for task in post(again.url, "/claim", {"topic": "jobs", "max": 50, "lease": 60, "wait": 5}).body[
                    "tasks"
                ]:
                    assert attempts.setdefault(task["id"], task["attempt"]) == task["attempt"]
            assert attempts.keys() == {f"t{number}" for number in range(40)} - {task["id"] for task in kept}
            assert {id for id, attempt in attempts.items() if attempt == 2} == {task["id"] for task in lost}
            assert again.stop() == 0


def test_a_second_daemon_on_the_same_data_is_refused(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        second = run_command("up", "--data", str(data), "--listen", "127.0.0.1:0", "--log-level", "error")
        wait_until(up.is_ready, "the daemon continues")
        assert up.stop() == 0
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1, second.stderr
    assert "is in use" in second.stderr
    assert str(up.pid) in second.stderr


def test_a_killed_embedded_store_is_restarted(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data) as up:
        tasks = build_tasks(600, receiver.url(), time.time() + 0.5, 200)
        create_many(up.url, tasks)
        wait_until(lambda: len(receiver.ids) > 50, "the daemon is under load")
        os.kill(embedded_store_pid(data) or 0, signal.SIGKILL)
        reason = "the embedded store exited (exit status -9)"
        wait_until(lambda: reason in _why_not_ready(up.url), "the exit of the store is reported", 5)
        wait_until(up.is_ready, "the store is restarted", 10)
        last = create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.ids == {last, *(task["id"] for task in tasks)}, "everything is delivered")
        assert up.stop() == 0


def _why_not_ready(url: str) -> str:
    answer = get(url, "/readyz")
    return "" if answer.status == 200 else str(answer.body["detail"])
