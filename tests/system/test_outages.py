"""Outages of the store: everything resumes by itself when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.system.api_client import create, get, post
from tests.system.daemons import run_daemon
from tests.system.receivers import Receiver, delayed, done, in_sequence, status
from tests.system.stores import StoreServer
from tests.system.waiting import sleep_until, wait_until

STORE_TIMEOUT_S = 1.0
MARGIN_S = 3.0
AWAY_S = 3.0
RETURN_S = 5.0
"""Everything must resume within this time after the store's return."""


class Outage(NamedTuple):
    """A kind of outage: how it begins and ends, the reason in answers, and whether deliveries go on.

    `attempts` of a task that was in flight: one that cannot be settled before its lease runs out is delivered again.
    """

    begin: Callable[[StoreServer], None]
    end: Callable[[StoreServer], None]
    reason: str
    attempts: tuple[list[int], ...]
    delivers: bool = False


def _limit_memory(store: StoreServer) -> None:
    store.client().config_set("maxmemory", 1)


def _lift_memory_limit(store: StoreServer) -> None:
    store.client().config_set("maxmemory", 0)


def _demote(store: StoreServer) -> None:
    store.client().replicaof("127.0.0.1", "1")


def _promote(store: StoreServer) -> None:
    store.client().replicaof("NO", "ONE")


OUTAGES = {
    "refuses": Outage(StoreServer.kill, StoreServer.start, "the store cannot be reached", ([1, 2],)),
    "hangs": Outage(StoreServer.hang, StoreServer.resume, "the store did not answer within 1 s", ([1], [1, 2])),
    "is full": Outage(
        _limit_memory, _lift_memory_limit, "the store's memory is full (maxmemory)", ([1],), delivers=True
    ),
    "is read-only": Outage(_demote, _promote, "the store is a read-only replica", ([1, 2],)),
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES.keys())
def test_an_outage_is_reported_and_everything_resumes(
    outage: Outage, folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    receiver.rules["/slow"] = in_sequence(delayed(1), done)
    receiver.rules["/fails-once"] = in_sequence(status(500), done)
    options = ("--timeout", "1.5", "--lease", "2.5", "--retry-base", "2.5", "--store-timeout", f"{STORE_TIMEOUT_S}")
    with run_daemon("up", folder, "--redis", store.url, *options) as up:
        wait_until(up.is_ready, "the daemon is ready")
        due = create(up.url, callback=receiver.url(), delay=2.5)
        fails = create(up.url, callback=receiver.url("/fails-once"))
        wait_until(lambda: receiver.calls_of(fails), "the task has failed once")
        slow = create(up.url, callback=receiver.url("/slow"))
        wait_until(lambda: receiver.calls_of(slow), "the task is in flight")

        outage.begin(store)
        ends_at = time.time() + AWAY_S
        wait_until(lambda: post(up.url, "/create", _task(receiver)).status == 503, "creates are refused", 3)
        _assert_refused(up.url, receiver, outage.reason)
        assert get(up.url, "/livez").status == 200
        sleep_until(ends_at)
        assert bool(receiver.calls_of(due)) == outage.delivers
        outage.end(store)
        returned_at = time.time()

        wait_until(lambda: post(up.url, "/create", _task(receiver)).status == 200, "creates are accepted", RETURN_S)
        wait_until(up.is_ready, "the daemon is ready", RETURN_S)
        wait_until(lambda: receiver.calls_of(due), "the due task is delivered", RETURN_S)
        wait_until(lambda: len(receiver.calls_of(fails)) == 2, "the failed task is delivered", RETURN_S)
        wait_until(lambda: _is_gone(up.url, slow), "the task in flight is done", RETURN_S)
        assert time.time() < returned_at + RETURN_S
        assert receiver.attempts(slow) in outage.attempts
        assert up.stop() == 0


def test_a_restart_of_the_store_loses_and_repeats_nothing(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    receiver.rules["/slow"] = delayed(1)
    with run_daemon("up", folder, "--redis", store.url) as up:
        due = [create(up.url, callback=receiver.url(), delay=0.5 + i / 20) for i in range(20)]
        slow = create(up.url, callback=receiver.url("/slow"))
        wait_until(lambda: receiver.calls_of(slow), "the task is in flight")
        store.terminate()
        store.start()
        wait_until(lambda: post(up.url, "/create", _task(receiver)).status == 200, "creates are accepted", RETURN_S)
        wait_until(lambda: all(map(receiver.calls_of, due)), "due tasks are delivered", 1.5 + RETURN_S)
        wait_until(lambda: _is_gone(up.url, slow), "the task in flight is settled")
        assert receiver.repeated_calls() == []
        assert up.stop() == 0


def test_a_daemon_started_before_its_store_waits_for_it(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    store.kill()
    with run_daemon("up", folder, "--redis", store.url) as up:
        assert get(up.url, "/livez").status == 200
        _assert_refused(up.url, receiver, OUTAGES["refuses"].reason)
        store.start()
        wait_until(up.is_ready, "the daemon is ready", RETURN_S)
        id = create(up.url, callback=receiver.url())
        wait_until(lambda: receiver.calls_of(id), "the daemon delivers", RETURN_S)


def test_a_daemon_exits_if_the_store_turns_out_to_be_unsuitable(folder: Path, store: StoreServer) -> None:
    with run_daemon("serve", folder, "--redis", store.url, "--shards", "2") as serve:
        wait_until(serve.is_ready, "the store is laid out")
    store.terminate()
    with run_daemon("worker", folder, "--redis", store.url, "--shards", "4") as worker:
        assert get(worker.url, "/readyz").status == 503
        store.start()
        assert worker.wait_for_exit(5) == 1
        assert "--shards 2" in worker.log.read_text().splitlines()[-1]


def _is_gone(url: str, id: str) -> bool:
    return post(url, "/query", {"id": id}).status == 404


def _task(receiver: Receiver) -> dict[str, object]:
    return {"topic": "other", "callback": receiver.url()}


def _assert_refused(url: str, receiver: Receiver, reason: str) -> None:
    created = post(url, "/create", _task(receiver))
    assert (created.status, created.headers["Content-Type"]) == (503, "application/problem+json")
    assert created.body["detail"].startswith(reason)
    assert int(created.headers["Retry-After"]) >= 1
    assert created.took_s < STORE_TIMEOUT_S + MARGIN_S
    ready = get(url, "/readyz")
    assert ready.status == 503
    assert ready.body["detail"].startswith(reason)
    assert ready.took_s < STORE_TIMEOUT_S + MARGIN_S


def test_creates_beyond_the_limit_of_pending_writes_are_refused_at_once(
    folder: Path, store: StoreServer, receiver: Receiver, processes: int
) -> None:
    callers, room = 300, 50
    options = ("--max-pending-writes", f"{room}", "--store-timeout", "60")
    with run_daemon("serve", folder, "--redis", store.url, *options) as serve:
        wait_until(serve.is_ready, "the daemon is ready")
        store.hang()
        refused = callers - room * processes
        answers = asyncio.run(_create_concurrently(serve.url, receiver, callers, then=(refused, store.resume)))
        assert [answer.status for answer in answers] == [503] * refused + [200] * room * processes
        refusals = [answer.detail for answer in answers if answer.status == 503]
        assert all(detail.endswith(f"(--max-pending-writes {room})") for detail in refusals)


def test_pending_writes_of_a_hanging_store_are_answered_in_time(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    with run_daemon("serve", folder, "--redis", store.url, "--store-timeout", f"{STORE_TIMEOUT_S}") as serve:
        wait_until(serve.is_ready, "the daemon is ready")
        store.hang()
        answers = asyncio.run(_create_concurrently(serve.url, receiver, callers=50))
        assert {answer.status for answer in answers} == {503}
        assert max(answer.took_s for answer in answers) < 2 * STORE_TIMEOUT_S + MARGIN_S
        store.resume()
        wait_until(lambda: post(serve.url, "/create", _task(receiver)).status == 200, "creates continue", RETURN_S)


class CallerAnswer(NamedTuple):
    """An answer to one of many concurrent calls; `took_s` counts from the start of all."""

    status: int
    detail: str
    took_s: float


async def _create_concurrently(
    url: str, receiver: Receiver, callers: int, then: tuple[int, Callable[[], None]] | None = None
) -> list[CallerAnswer]:
    """Send concurrent creates and return the answers in order; `then` is (number of answers, action after them)."""
    started = time.monotonic()

    async def call(session: aiohttp.ClientSession) -> CallerAnswer:
        async with session.post(f"{url}/create", json=_task(receiver)) as answer:
            detail = (await answer.json()).get("detail", "")
            return CallerAnswer(answer.status, detail, time.monotonic() - started)

    answers: list[CallerAnswer] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(30):
        for answer in asyncio.as_completed([call(session) for _ in range(callers)]):
            answers.append(await answer)
            if then is not None and len(answers) == then[0]:
                then[1]()
    return answers
