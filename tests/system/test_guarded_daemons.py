"""The address guard of real daemons: on by default, said at the start; what it refused can be redriven."""

from __future__ import annotations

from pathlib import Path

from tests.system.api_client import create, post
from tests.system.daemons import run_command, run_daemon, run_up
from tests.system.receivers import Receiver
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

NOT_ALLOWED = {"LATER_GUARD_ALLOW": "10.0.0.0/8"}
LOOPBACK = "this host's address may not be called: loopback"


def test_a_worker_refuses_loopback_until_it_is_allowed_and_a_redrive_brings_the_task_back(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    options = ("--redis", store.url, "--shards", "16")
    with run_daemon("serve", folder, *options, env=NOT_ALLOWED) as serve:
        refused = post(serve.url, "/create", {"topic": "order", "callback": receiver.url()})
        assert (refused.status, refused.body["field"], refused.body["detail"]) == (
            400,
            "callback",
            "callback: this daemon does not call 127.0.0.1 (loopback); its operator can allow it with --guard-allow",
        )
        assert serve.wait_for_event("address guard")["guard"] == "on"
        with run_daemon("worker", folder, *options, env=NOT_ALLOWED) as worker:
            id = create(serve.url, callback=receiver.url(host="localhost"), retry=0)
            dead = worker.wait_for_event("task dead")
            line = worker.wait_for_event("callback refused")
        assert (dead["id"], dead["reason"], dead["message"]) == (id, "address", f"1 failure: {LOOPBACK}")
        assert (line["host"], line["why"]) == ("localhost", "loopback")
        assert line["allow"] in ("--guard-allow 127.0.0.1/32", "--guard-allow ::1/128")
        assert receiver.calls == []
        with run_daemon("worker", folder, *options, "--guard-allow", "localhost"):
            command = ("dead", "redrive", "--topic", "order", "--reason", "address", "--yes", "--url", serve.url)
            assert run_command(*command).stdout == "1 task redriven\n"
            wait_until(lambda: receiver.ids == {id}, "the task is delivered")


def test_an_up_on_loopback_calls_receivers_on_its_own_machine(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data, env=NOT_ALLOWED) as up:
        said = up.wait_for_event("address guard")
        create(up.url, callback=receiver.url())
        wait_until(lambda: len(receiver.calls) == 1, "the task is delivered")
    assert (said["guard"], len([event for event in up.events() if event["event"] == "address guard"])) == ("off", 1)


def test_keys_in_the_store_turn_the_guard_on_even_if_no_call_needs_one(folder: Path, data: Path) -> None:
    """A caller with a key is not the operator, and may call as everybody else."""
    assert run_command("keys", "create", "--scopes", "create", "--data", str(data)).returncode == 0
    with run_up(folder, data, "--auth", "off") as up:
        assert up.wait_for_event("address guard")["guard"] == "on"
