"""Failed deliveries and their retries in a real daemon."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.system.api_client import create, post, query
from tests.system.daemons import Daemon, kill_orphaned_store, run_daemon, run_up
from tests.system.receivers import Call, Receiver, Rule, code, delayed, done, hang, in_sequence, run_receiver, status
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

BASE_S = 0.2
TOLERANCE_S = 1.0
"""Tolerance for lateness on a busy machine."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("retries") / "data"
    yield data
    kill_orphaned_store(data)


@pytest.fixture(scope="module")
def up(data: Path) -> Iterator[Daemon]:
    with run_up(data.parent, data, "--retry-base", str(BASE_S)) as up:
        yield up


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


@pytest.fixture
def path() -> str:
    """A path that no other test uses."""
    return f"/{uuid.uuid4()}"


def test_pauses_double_until_the_task_is_dead(up: Daemon, receiver: Receiver, path: str) -> None:
    receiver.rules[path] = status(500)
    id = create(up.url, callback=receiver.url(path), retry=3)
    wait_until(lambda: query(up.url, id)["state"] == "dead", "the task is dead")
    assert receiver.attempts(id) == [1, 2, 3, 4]
    for pause, expected in zip(_pauses(receiver.calls_of(id)), (BASE_S, 2 * BASE_S, 4 * BASE_S), strict=True):
        assert expected <= pause < expected + TOLERANCE_S
    dead = query(up.url, id)
    assert (dead["has_retry"], dead["attempts"], dead["last_error"]["reason"]) == (3, 4, "exhausted")


def test_a_task_in_error_shows_its_last_failure(up: Daemon, receiver: Receiver, path: str) -> None:
    receiver.rules[path] = in_sequence(status(500), delayed(1, status(500)), done)
    id = create(up.url, callback=receiver.url(path))
    first = wait_until(lambda: _find_in_state("error", up, id), "the first attempt fails")
    wait_until(lambda: _find_in_state("unack", up, id), "the second is under way")
    second = wait_until(lambda: _find_in_state("error", up, id), "the task has failed")
    assert (first["has_retry"], second["has_retry"]) == (1, 2)
    assert first["last_error"]["reason"] == "status"
    assert first["last_error"]["status"] == 500
    wait_until(lambda: _is_gone(up, id), "the task is done")
    assert receiver.attempts(id) == [1, 2, 3]


def test_a_receiver_says_when_and_why_and_holds_no_other_task(up: Daemon, receiver: Receiver, path: str) -> None:
    says = {"Retry-After": "3600", "later-after": "2.5", "later-reason": "not%20before%20noon"}
    receiver.rules[path] = in_sequence(status(503, headers=says), status(500, headers=says), done)
    id = create(up.url, callback=receiver.url(path), retry=1)
    busy = wait_until(lambda: _find_in_state("error", up, id), "the receiver is busy")
    assert (busy["has_retry"], busy["last_error"]["message"]) == (0, "not before noon")
    explained = post(up.url, "/explain", {"id": id}).body
    assert "last answer 503: not before noon" in explained["sentence"]
    other = create(up.url, callback=receiver.url("/"))
    wait_until(lambda: receiver.calls_of(other), "another task of the topic is delivered", 2.5)
    wait_until(lambda: _is_gone(up, id), "the task is done")
    assert all(2.5 <= pause < 2.5 + TOLERANCE_S for pause in _pauses(receiver.calls_of(id)))
    assert [call.headers["later-failures"] for call in receiver.calls_of(id)] == ["0", "0", "1"]
    assert {call.headers["later-max-retry"] for call in receiver.calls_of(id)} == {"1"}


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (code(101), BASE_S),
        (status(429), BASE_S),
        (status(503), BASE_S),
        (status(429, "1"), 1),
        (status(503, "1"), 1),
    ],
    ids=["code-101", "429", "503", "429-after-1", "503-after-1"],
)
def test_a_busy_answer_is_retried_and_spends_no_retry(
    busy: Rule, expected: float, up: Daemon, receiver: Receiver, path: str
) -> None:
    receiver.rules[path] = in_sequence(busy, busy, hang)
    id = create(up.url, callback=receiver.url(path), retry=0)
    wait_until(lambda: len(receiver.calls_of(id)) == 3, "the task is delivered again")
    for pause in _pauses(receiver.calls_of(id)):
        assert expected <= pause < expected + TOLERANCE_S
    assert query(up.url, id)["has_retry"] == 0
    assert post(up.url, "/delete", {"id": id}).status == 200


def test_an_answer_410_makes_the_task_dead_at_once(up: Daemon, receiver: Receiver, path: str) -> None:
    receiver.rules[path] = status(410)
    id = create(up.url, callback=receiver.url(path))
    dead = wait_until(lambda: _find_in_state("dead", up, id), "the task is dead")
    assert dead["last_error"]["reason"] == "gone"
    assert receiver.attempts(id) == [1]


def test_a_task_deleted_in_flight_is_not_delivered_again(up: Daemon, receiver: Receiver, path: str) -> None:
    receiver.rules[path] = delayed(0.5, status(500))
    deleted = create(up.url, callback=receiver.url(path))
    wait_until(lambda: receiver.calls_of(deleted), "the task is in flight")
    assert post(up.url, "/delete", {"id": deleted}).status == 200
    assert _is_gone(up, deleted)
    other = create(up.url, callback=receiver.url(path))  # it fails after the deleted task and is delivered again
    wait_until(lambda: len(receiver.calls_of(other)) == 2, "the other task is delivered again")
    assert receiver.attempts(deleted) == [1]
    assert _is_gone(up, deleted)
    assert post(up.url, "/delete", {"id": other}).status == 200


@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_lost_lease_spends_no_retry(
    fate: str, folder: Path, store: StoreServer, receiver: Receiver, path: str
) -> None:
    receiver.rules[path] = in_sequence(hang, delayed(1), hang)
    options = ("--redis", store.url, "--timeout", "1.5", "--lease", "2")
    with run_daemon("serve", folder, *options[:2]) as serve, run_daemon("worker", folder, *options) as first:
        id = create(serve.url, callback=receiver.url(path), retry=0)
        wait_until(lambda: receiver.calls_of(id), "the task is in flight")
        with run_daemon("worker", folder, *options):
            _disable(first, fate)
            wait_until(lambda: len(receiver.calls_of(id)) == 2, "another worker claims the task")
            again = query(serve.url, id)
            if fate == "stopped":
                first.send_all(signal.SIGCONT)  # its deadline has passed, so its settle is too late
                wait_until(
                    lambda: any(e["event"] == "settle rejected: lease lost" for e in first.events()),
                    "its settle is rejected",
                )
            wait_until(lambda: _is_gone(serve, id), "the task is done")
    assert (again["has_retry"], again["attempts"]) == (0, 2)
    assert receiver.attempts(id) == [1, 2]


def _disable(worker: Daemon, fate: str) -> None:
    if fate == "killed":
        worker.kill()
    else:
        worker.send_all(signal.SIGSTOP)


def _pauses(calls: list[Call]) -> list[float]:
    return [second.arrived - first.arrived for first, second in pairwise(calls)]


def _find_in_state(state: str, up: Daemon, id: str) -> dict[str, Any]:
    """Return the task if it is in this state, otherwise an empty object."""
    found = query(up.url, id)
    return found if found["state"] == state else {}


def _is_gone(up: Daemon, id: str) -> bool:
    return post(up.url, "/query", {"id": id}).status == 404
