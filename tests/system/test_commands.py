"""Commands against a running daemon, and the refusals of commands."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from later.core.task import decode_task
from later.store.keys import Keys
from tests.system.daemons import COMMAND, Daemon, environment, run_command, run_daemon, run_daemon_as_given, run_up
from tests.system.receivers import Receiver
from tests.system.stores import StoreServer, count_tasks
from tests.system.waiting import wait_until

LINES = 5000
UNSIGNED = "deliveries are not signed"
"""The warning of a worker without a signing key."""


def test_a_task_is_created_queried_and_deleted_from_a_shell(
    folder: Path, data: Path, receiver: Receiver, processes: int
) -> None:
    with run_up(folder, data) as up:
        to = ("--url", up.url)
        created = run_command("create", *to, "--topic", "order", "--callback", receiver.url(), "--delay", "1h")
        id = created.stdout.strip()
        found = run_command("query", *to, "--json", id)
        status = run_command("status", "--json", "--data", str(data))
        deleted = run_command("delete", *to, id)
        gone = run_command("query", *to, id)
    assert [done.returncode for done in (created, found, status, deleted, gone)] == [0, 0, 0, 0, 1]
    assert (json.loads(found.stdout)["state"], deleted.stdout.strip()) == ("delay", id)
    report = json.loads(status.stdout)
    assert (report["tasks"]["delay"], report["warnings"]) == (1, [])
    assert [worker["alive"] for worker in report["workers"]] == [True] * processes
    assert gone.stderr.count("\n") == 1


def test_a_file_is_created_once_even_if_the_store_is_killed_meanwhile(folder: Path, store: StoreServer) -> None:
    task = {"topic": "order", "callback": "http://127.0.0.1:1/", "execute_time": time.time() + 3600}
    file = folder / "tasks.ndjson"
    file.write_text("".join(json.dumps({**task, "content": str(i)}) + "\n" for i in range(LINES)))
    with run_daemon("serve", folder, "--redis", store.url) as serve:
        command = [*COMMAND, "create", "--url", serve.url, "--from", str(file), "--batch", "50"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ) as sending:
            try:
                wait_until(lambda: count_tasks(store.client()) > LINES / 5, "some are created")
                store.kill()
                time.sleep(0.5)
                store.start()
                out, err = sending.communicate(timeout=60)
            finally:
                sending.kill()
    assert (sending.returncode, out.strip()) == (0, f"{LINES} created, 0 existing, 0 refused, 0 failed")
    assert "trying again" in err
    assert sorted(map(int, _read_contents(store))) == list(range(LINES))


def _read_contents(store: StoreServer) -> list[str]:
    bodies = store.client().hvals(Keys("later", 1).shards[0].pool)
    return [decode_task("", body).content for body in bodies if isinstance(body, bytes)]


def test_another_number_of_shards_is_refused(folder: Path, store: StoreServer) -> None:
    with run_daemon("up", folder, "--redis", store.url) as up:
        wait_until(up.is_ready, "the daemon is ready")
        second = run_command("worker", "--redis", store.url, "--health", "off", "--shards", "4")
        assert up.is_ready()
    assert "--shards 1" in _failure_reason(second)


def test_the_limits_of_the_last_daemon_are_in_the_store_and_it_warns(
    folder: Path, store: StoreServer, processes: int
) -> None:
    def admission_limits() -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(store.client().hget("later:meta", "admission") or b"{}")
        return {name: fields.get(name) for name in ("max_body", "remember", "max_delay", "retry")}

    with (
        run_daemon("serve", folder, "--redis", store.url, "--max-body", "2KiB", "--remember", "1h") as first,
        run_daemon("worker", folder, "--redis", store.url, "--retry", "9") as worker,
    ):
        wait_until(lambda: first.is_ready() and worker.is_ready(), "both are ready")
        assert admission_limits() == {"max_body": 2048, "remember": 3600, "max_delay": 0, "retry": 3}
        with run_daemon("up", folder, "--redis", store.url, "--max-delay", "1m", "--retry", "5") as second:
            assert second.wait_for_event("admission limits replaced")["options"] == [
                "max_body",
                "remember",
                "max_delay",
                "retry",
            ]
            assert admission_limits() == {"max_body": 1_048_576, "remember": 604_800, "max_delay": 60, "retry": 5}
    assert [event for event in first.events() + worker.events() if "admission" in event["event"]] == []


def test_a_store_that_may_evict_keys_is_refused(store: StoreServer) -> None:
    store.client().config_set("maxmemory-policy", "allkeys-lru")
    assert "maxmemory-policy is allkeys-lru" in _failure_reason(
        run_command("worker", "--redis", store.url, "--health", "off")
    )


@pytest.mark.parametrize(("command", "option"), [("up", "--listen"), ("worker", "--health")])
def test_a_port_in_use_is_refused(store: StoreServer, command: str, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert address in _failure_reason(run_command(command, "--redis", store.url, option, address))


def test_two_workers_run_on_one_machine_by_default(folder: Path, store: StoreServer, processes: int) -> None:
    with (
        run_daemon_as_given("worker", folder, "--redis", store.url) as one,
        run_daemon_as_given("worker", folder, "--redis", store.url) as two,
    ):
        wait_until(lambda: len(_alive_instances(store)) == 2 * processes, "both send heartbeats")
        warnings = wait_until(
            lambda: {event for event in (*_warning_events(one), *_warning_events(two)) if event != UNSIGNED},
            "one of them finds that the address is in use",
        )
        assert (one.stop(), two.stop()) == (0, 0)
    assert {event.split(":")[0] for event in warnings} == {"health address in use"}


def _warning_events(daemon: Daemon) -> list[str]:
    return [event["event"] for event in daemon.events() if event["level"] == "warning"]


def _alive_instances(store: StoreServer) -> list[str]:
    report = json.loads(run_command("status", "--json", "--redis", store.url).stdout)
    return [worker["instance"] for worker in report["workers"] if worker["alive"]]


@pytest.mark.parametrize("processes", [1], indirect=True, ids=["alone"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("up", "--nonsense"),
        ("up", "--concurrency", "0"),
        ("create", "--callback", "http://shop.example/"),
        ("query",),
    ],
)
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    done = run_command(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def _failure_reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the reason of a failed daemon: one line after its log."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    reasons = [line for line in done.stderr.splitlines() if line.startswith("later: ")]
    assert len(reasons) == 1, done.stderr
    assert done.stderr.endswith(reasons[0] + "\n")
    return reasons[0]
