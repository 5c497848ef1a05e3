"""The log of a daemon: JSON lines without secrets."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from tests.system.api_client import create, get, post
from tests.system.daemons import Daemon, run_command, run_daemon_as_given, run_up
from tests.system.receivers import Receiver, code, hang, status
from tests.system.waiting import wait_until

SECRET = "hunter2"


def test_a_log_is_json_and_holds_no_secret(folder: Path, data: Path, receiver: Receiver) -> None:
    receiver.rules |= {"/fails": status(500), "/gone": status(410), "/odd": code(7), "/hangs": hang}
    callbacks = [receiver.url(f"{path}?token={SECRET}") for path in ("/", "/fails", "/gone", "/odd", "/hangs")]
    callbacks += [f"http://127.0.0.1:1/?token={SECRET}", f"http://no-such-name.invalid/?token={SECRET}"]
    with run_up(folder, data, "--log-level", "debug", "--retry-base", "0.1", "--timeout", "1") as up:
        for callback in callbacks:
            _run_to_end(up, callback)
        for wrong in ({"topic": SECRET}, {"topic": "order", "headers": SECRET}, {SECRET: 1}, SECRET):
            assert post(up.url, "/create", wrong).status == 400
        assert get(up.url, f"/no/such/path?token={SECRET}").status == 404
        up.send(signal.SIGTERM)
        assert up.wait_for_exit() == 0
    lines = up.log.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert {"listening", "delivered", "task dead", "stopped"} <= {event["event"] for event in events}
    assert [line for line in lines if SECRET in line] == []


def _run_to_end(up: Daemon, callback: str) -> None:
    """Create a task and wait until it has ended."""
    id = create(up.url, callback=callback, content=SECRET, headers={"X-Key": SECRET}, retry=1)

    def has_ended() -> bool:
        answer = post(up.url, "/query", {"id": id})
        return answer.status == 404 or answer.body["state"] == "dead"

    wait_until(has_ended, "the task is done or dead")


def test_audit_events_are_logged_at_every_level_and_stay_in_the_store(folder: Path, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    options = ("--listen", address, "--data", str(data), "--log-level", "error")
    with run_daemon_as_given("up", folder, *options) as up:
        wait_until(lambda: answers(f"http://{address}"), "the API answers")
        assert post(f"http://{address}", "/topics/shop%2Forder/pause", {}).status == 200
        up.send(signal.SIGTERM)
        assert up.wait_for_exit() == 0
    (event,) = up.events()
    assert (event["logger"], event["event"], event["topic"]) == ("later.audit", "topic paused", "shop/order")
    with run_up(folder, data):
        done = run_command("audit", "--data", str(data), "--json")
    (kept,) = map(json.loads, done.stdout.splitlines())
    own = {"logger", "level", "timestamp", "process"}
    assert kept == {"time": kept["time"], **{name: value for name, value in event.items() if name not in own}}


def answers(url: str) -> bool:
    try:
        return get(url, "/readyz").status == 200
    except OSError:
        return False
