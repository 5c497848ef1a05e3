"""Pulled topics under faults and changes: a killed process, a full store, and a policy that changes under load."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.system.api_client import call, get, list_dead, post, query
from tests.system.daemons import run_command, run_daemon, shards_option, simulated_fault
from tests.system.receivers import Receiver
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until


def set_policy(url: str, **fields: object) -> None:
    assert call(url, "PATCH", "/topics/jobs/policy", fields).status == 200


def create_tasks(url: str, ids: Iterable[str]) -> list[str]:
    """Create tasks without headers, which a claim shows."""
    for id in ids:
        assert post(url, "/create", {"topic": "jobs", "id": id}).status == 200
    return list(ids)


def claim(url: str, **fields: object) -> list[dict[str, Any]]:
    answer = post(url, "/claim", {"topic": "jobs", "max": 100, **fields})
    assert answer.status == 200, answer
    return list(answer.body["tasks"])


def is_quiet(url: str) -> bool:
    """Return True if every task of the topic is done or dead."""
    counts = get(url, "/topics/jobs").body
    return not (counts["delay"] or counts["unack"] or counts["error"])


def assert_sound(store: StoreServer) -> None:
    """The doctor finds nothing."""
    checked = run_command("doctor", "--redis", store.url)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


def test_tasks_that_were_claimed_when_their_process_was_killed_come_again(
    folder: Path, store: StoreServer, processes: int
) -> None:
    options = ("--redis", store.url, *shards_option(processes))
    fault = {**simulated_fault("dies-in-claim"), "SIMULATED_DEATH": str(folder / "died")}
    with run_daemon("up", folder, *options, env=fault) as up:
        set_policy(up.url, deliver="pull", claim_lease=1)
        ids = create_tasks(up.url, "abcde")
        with pytest.raises((OSError, HTTPException)):
            claim(up.url)
        assert (folder / "died").exists()
    with run_daemon("up", folder, *options) as up:
        tasks: list[dict[str, Any]] = []
        while len(tasks) < len(ids):
            tasks += claim(up.url, wait=20, lease=60)
        assert sorted(task["id"] for task in tasks) == sorted(ids)
        attempts = {task["attempt"] for task in tasks}
        assert {2} <= attempts <= {1, 2}  # the one that was created last may not have been due yet
        assert post(up.url, "/ack", {"leases": [task["lease"] for task in tasks]}).body["acked"] == len(ids)
        assert is_quiet(up.url)
    assert_sound(store)


def test_consumers_go_on_while_the_store_is_full(folder: Path, store: StoreServer, processes: int) -> None:
    with run_daemon("up", folder, "--redis", store.url, *shards_option(processes)) as up:
        set_policy(up.url, deliver="pull")
        create_tasks(up.url, "abcdef")
        store.client().config_set("maxmemory", 1)
        refused = post(up.url, "/create", {"topic": "jobs"})
        assert (refused.status, refused.body["type"]) == (503, "/problems/store-full")
        leases = [task["lease"] for task in claim(up.url, max=4)]
        for number, (path, fields) in enumerate(
            [("/ack", {}), ("/nack", {"delay": 0}), ("/release", {}), ("/extend", {"lease": 600})]
        ):
            answer = post(up.url, path, {"leases": [leases[number]], **fields})
            assert (answer.status, answer.body["lost"]) == (200, []), path
        wait_until(lambda: query(up.url, "b")["state"] == "delay", "the failed task to be due again")
        work = run_command("work", "jobs", "--until-empty", "--url", up.url, "--", "true")
        assert work.returncode == 0, work.stderr
        assert [get_state(up.url, id) for id in "abcdef"] == ["gone", "gone", "gone", "unack", "gone", "gone"]
        assert post(up.url, "/claim", {"topic": "jobs", "done": [leases[3]]}).body == {"tasks": [], "lost": []}
        store.client().config_set("maxmemory", 0)
        assert is_quiet(up.url)
    assert_sound(store)


def get_state(url: str, id: str) -> str:
    answer = post(url, "/query", {"id": id})
    return str(answer.body["state"]) if answer.status == 200 else "gone"


class Load:
    """Callers that create tasks with and without a callback, and a consumer that acks what it gets."""

    def __init__(self, url: str, callback: str) -> None:
        self.created: dict[str, bool] = {}
        """Whether each task has a callback."""
        self.acked: list[str] = []
        self._url = url
        self._callback = callback
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self._wrong: list[object] = []

    @contextmanager
    def run(self) -> Iterator[None]:
        threads = [threading.Thread(target=target) for target in (self._create, self._create, self._consume)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(30)
        assert not self._wrong

    def _create(self) -> None:
        while not self._ended.is_set():
            number = next(self._numbers)
            callback = {"callback": self._callback} if number % 2 else {}
            answer = post(self._url, "/create", {"topic": "jobs", "id": f"t{number}", "delay": number % 3, **callback})
            if answer.status == 200:
                self.created[f"t{number}"] = bool(callback)
            elif (answer.status, answer.body.get("field")) != (400, "callback"):
                self._wrong.append(answer)

    def _consume(self) -> None:
        while not self._ended.is_set():
            answer = post(self._url, "/claim", {"topic": "jobs", "max": 10, "wait": 0.2})
            if answer.status == 200:
                leases = {task["lease"]: task["id"] for task in answer.body["tasks"]}
                lost = post(self._url, "/ack", {"leases": [*leases]}).body["lost"]
                self.acked += [id for lease, id in leases.items() if lease not in lost]
                self._wrong += lost
            elif answer.status == 409:
                time.sleep(0.05)
            else:
                self._wrong.append(answer)


def test_no_task_is_lost_or_done_twice_while_its_topic_changes_between_push_and_pull(
    folder: Path, store: StoreServer, receiver: Receiver, processes: int
) -> None:
    with run_daemon("up", folder, "--redis", store.url, *shards_option(processes)) as up:
        load = Load(up.url, receiver.url())
        with load.run():
            for deliver in ("push", "pull") * 3:
                set_policy(up.url, deliver=deliver)
                time.sleep(1)
            set_policy(up.url, deliver="push")
        wait_until(lambda: is_quiet(up.url), "every task to be delivered or dead")
        dead = {task["id"]: task["last_error"]["reason"] for task in list_dead(up.url, "jobs")}
        delivered, acked = set(receiver.answered), set(load.acked)
        assert set(dead.values()) == {"no callback"}
        assert not any(load.created[id] for id in dead)
        assert receiver.repeated_calls() == []
        assert sorted([*delivered, *load.acked, *dead]) == sorted(load.created)
        assert {load.created[id] for id in acked} == {True, False}
        set_policy(up.url, deliver="pull")
        assert post(up.url, "/redrive", {"topic": "jobs"}).body["redriven"] == len(dead)
        again = [task for _ in range(len(dead) // 100 + 1) for task in claim(up.url)]
        assert sorted(task["id"] for task in again) == sorted(dead)
        assert post(up.url, "/ack", {"leases": [task["lease"] for task in again]}).body["acked"] == len(dead)
    assert_sound(store)
