"""Policies in a real daemon: their effects, how soon all processes see a change, and that changes are atomic."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.system.api_client import call, create, post, query
from tests.system.daemons import Daemon, kill_orphaned_store, run_daemon, run_up, shards_option
from tests.system.receivers import Receiver, code, delayed, run_receiver, status
from tests.system.stores import StoreServer
from tests.system.waiting import PROPAGATION_S, wait_until

TOLERANCE_S = 1.0
"""Tolerance for lateness on a busy machine."""
PULSAR_PATH = "/admin/v2/persistent/public/default/order/delayedDelivery"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[Daemon]:
    """Run `later up` with one process and one shard, or several of both."""
    data = tmp_path_factory.mktemp("policies") / "data"
    with run_up(data.parent, data, *shards_option(processes), "--retry-base", "0.2") as up:
        yield up
    kill_orphaned_store(data)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


def put_policy(url: str, topic: str, **fields: Any) -> None:
    answer = call(url, "PUT", f"/topics/{topic.replace('/', '%2F')}/policy", fields)
    assert answer.status == 200, answer
    wait_until_all_processes_know()


def wait_until_all_processes_know() -> None:
    """Wait until all processes see a change: the next request may reach another process."""
    if os.environ["LATER_PROCESSES"] != "1":
        time.sleep(PROPAGATION_S)


def seconds_from_due_to_expiry(found: dict[str, Any]) -> float:
    """Return the seconds from a task's first due time to its expiry: they depend on two fields of its policy."""
    due, ends = (datetime.fromisoformat(found[field]).timestamp() for field in ("due_at", "expires_at"))
    return round(ends - due, 3)


def test_a_task_expires_within_two_seconds_of_its_ttl_in_every_bucket(up: Daemon, receiver: Receiver) -> None:
    receiver.rules["/failing"] = status(500)
    put_policy(up.url, "ages", ttl=2)
    put_policy(up.url, "retries", ttl=2, retry_base=900)
    waiting = create(up.url, topic="ages", callback=receiver.url("/never"), delay=900)
    failing = create(up.url, topic="retries", callback=receiver.url("/failing"))
    wait_until(lambda: query(up.url, failing)["state"] == "error", "the task has failed")
    for id in (waiting, failing):
        dead = wait_until(lambda id=id: (found := query(up.url, id))["state"] == "dead" and found, "the task is dead")  # type: ignore[misc]  # one of the two
        ended, died = (datetime.fromisoformat(dead[field]).timestamp() for field in ("expires_at", "died_at"))
        assert dead["last_error"]["reason"] == "expired"
        assert ended <= died < ended + 2 + TOLERANCE_S
    assert receiver.calls_of(waiting) == []
    assert receiver.attempts(failing) == [1]
    metrics = call(up.url, "GET", "/metrics").body.decode()
    deaths = re.findall(r'^later_topic_dead_total\{reason="expired",topic=".*"\} (\d+)', metrics, re.MULTILINE)
    assert sum(map(int, deaths)) == 2


def test_a_ttl_that_ends_before_the_due_time_is_accepted_with_a_warning(up: Daemon, receiver: Receiver) -> None:
    answer = post(up.url, "/create", {"topic": "x", "callback": receiver.url(), "delay": 900, "ttl": 60})
    assert (answer.status, "warning" in answer.body) == (200, True)


def test_dead_tasks_are_removed_after_dead_keep_and_their_ids_remembered(up: Daemon, receiver: Receiver) -> None:
    receiver.rules["/gone"] = status(410)
    put_policy(up.url, "brief", dead_keep=1)
    put_policy(up.url, "long", dead_keep=3600)
    ids = {
        topic: create(up.url, topic=topic, callback=receiver.url("/gone"), id=f"{topic}-1")
        for topic in ("brief", "long")
    }
    wait_until(lambda: post(up.url, "/query", {"id": ids["brief"]}).status == 404, "the dead task is removed")
    assert post(up.url, "/query", {"id": ids["brief"]}).body["ended"] is True
    again = {"topic": "brief", "callback": receiver.url("/gone"), "id": ids["brief"]}
    assert post(up.url, "/create", again).body["created"] is False
    assert query(up.url, ids["long"])["state"] == "dead"


def test_a_topics_timeout_is_the_deadline_of_its_deliveries(up: Daemon, receiver: Receiver) -> None:
    receiver.rules["/slow"] = delayed(3)
    put_policy(up.url, "short", timeout=1, retry=0)
    put_policy(up.url, "long-wait", timeout=60)
    short = create(up.url, topic="short", callback=receiver.url("/slow"))
    long = create(up.url, topic="long-wait", callback=receiver.url("/slow"))
    wait_until(lambda: query(up.url, short)["state"] == "dead", "the task is dead")
    assert "no complete answer within 1 s" in query(up.url, short)["last_error"]["message"]
    lease = datetime.fromisoformat(query(up.url, long)["due_at"]).timestamp() - query(up.url, long)["creat_time"]
    assert 75 <= lease <= 77 + TOLERANCE_S
    wait_until(lambda: post(up.url, "/query", {"id": long}).status == 404, "the task is done")
    assert receiver.attempts(long) == [1]


def test_a_topic_has_its_own_retry_policy(up: Daemon, receiver: Receiver) -> None:
    receiver.rules["/failing"] = status(500)
    put_policy(up.url, "stubborn", retry=3, retry_base=0.1, retry_cap=0.1)
    id = create(up.url, topic="stubborn", callback=receiver.url("/failing"))
    wait_until(lambda: query(up.url, id)["state"] == "dead", "the task is dead")
    assert receiver.attempts(id) == [1, 2, 3, 4]


@pytest.mark.parametrize(("ack", "state"), [("auto", "dead"), ("code", "dead"), ("status", None)])
def test_a_topics_ack_decides_how_answers_are_judged(
    up: Daemon, receiver: Receiver, ack: str, state: str | None
) -> None:
    receiver.rules["/code"] = code(7)
    put_policy(up.url, f"ack-{ack}", ack=ack, retry=0)
    id = create(up.url, topic=f"ack-{ack}", callback=receiver.url("/code"))
    wait_until(lambda: post(up.url, "/query", {"id": id}).body.get("state") == state, "the task is settled")


def test_pulsar_and_native_routes_show_the_same_policy(up: Daemon, receiver: Receiver) -> None:
    body = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
    assert call(up.url, "POST", PULSAR_PATH, body).status == 204
    wait_until_all_processes_know()
    assert call(up.url, "GET", "/topics/order/policy").body["max_delay"] == 5
    task = {"topic": "order", "callback": receiver.url(), "delay": 5.001}
    answer = post(up.url, "/create", task)
    assert (answer.status, answer.body["detail"]) == (400, "Exceeds max allowed delivery delay of 5000 milliseconds")
    assert post(up.url, "/create", {**task, "delay": 5}).status == 200
    assert call(up.url, "DELETE", PULSAR_PATH).status == 204
    assert call(up.url, "GET", PULSAR_PATH).body is None
    wait_until_all_processes_know()
    assert post(up.url, "/create", task).status == 200


def test_a_policy_survives_a_kill(folder: Path, data: Path, receiver: Receiver) -> None:
    with run_up(folder, data) as up:
        put_policy(up.url, "shop/order", max_delay=5)
        up.kill()
    with run_up(folder, data) as up:
        wait_until(up.is_ready, "the daemon is ready")
        task = {"topic": "shop/order", "callback": receiver.url(), "delay": 6}
        assert post(up.url, "/create", task).status == 400


OLD = {"default_delay": 100, "max_delay": 200, "ttl": 1000}
NEW = {"default_delay": 300, "max_delay": 400, "ttl": 3000}


def test_no_create_sees_a_mix_of_old_and_new_policy_with_three_daemons(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    """After two seconds, only the new policy applies."""
    with ExitStack() as stack:
        serves = [stack.enter_context(run_daemon("serve", folder, "--redis", store.url)) for _ in range(3)]
        for serve in serves:
            wait_until(serve.is_ready, "the daemon is ready")
        put_policy(serves[0].url, "order", **OLD)
        time.sleep(PROPAGATION_S)
        changed_at, created = _create_during_change(serves, receiver)
        seen = [(at, seconds_from_due_to_expiry(query(serves[0].url, id))) for at, id in created]
        assert {seconds for _, seconds in seen} == {900, 2700}
        assert {seconds for at, seconds in seen if at < changed_at} == {900}
        assert {seconds for at, seconds in seen if at > changed_at + PROPAGATION_S} == {2700}


def _create_during_change(serves: list[Daemon], receiver: Receiver) -> tuple[float, list[tuple[float, str]]]:
    """Create tasks during a change of policy; return its time and (start of the create, id) of each task."""
    created: list[tuple[float, str]] = []
    stopping = threading.Event()

    def create_all_the_time(url: str) -> None:
        while not stopping.is_set():
            started_at = time.monotonic()
            created.append((started_at, create(url, callback=receiver.url())))

    threads = [threading.Thread(target=create_all_the_time, args=(serve.url,)) for serve in serves]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    before = time.monotonic()
    put_policy(serves[0].url, "order", **NEW)
    changed_at = time.monotonic()
    time.sleep(PROPAGATION_S + 0.5)
    stopping.set()
    for thread in threads:
        thread.join()
    return changed_at, [(at, id) for at, id in created if not before <= at <= changed_at]
