"""Schedules under kills, with many instances, in great numbers, and where a zone's clocks are set."""

from __future__ import annotations

import random
import re
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from later.core.caller import ANYBODY
from later.core.schedule import ScheduleDraft, build_schedule, put_schedule
from later.store.keys import Keys, schedule_member
from tests.system.api_client import call, get, post
from tests.system.daemons import Daemon, run_daemon
from tests.system.receivers import Receiver
from tests.system.stores import StoreServer, count_tasks, run_store
from tests.system.waiting import sleep_until, wait_until

SCHEDULES, FIRINGS, KILLS = 20, 8, 6
MANY = 10_000
WORKERS = 3


@pytest.fixture(scope="module")
def processes() -> int:
    """One: there are several daemons, and `later dev` has no option for more."""
    return 1


def put(url: str, id: str, **fields: Any) -> dict[str, Any]:
    answer = call(url, "PUT", f"/schedules/{id}", {"topic": "report", **fields})
    assert answer.status == 200, answer
    return dict(answer.body)


def start_worker(running: ExitStack, folder: Path, store: StoreServer, *options: str) -> Daemon:
    worker = running.enter_context(run_daemon("worker", folder, "--redis", store.url, *options))
    _ = worker.url
    return worker


def test_each_time_fires_once_while_daemons_and_the_store_are_killed_at_that_moment(
    folder: Path, receiver: Receiver
) -> None:
    """A task that was created twice would be called twice as a first attempt, or under an id that is not expected."""
    ids = [f"n{n}" for n in range(SCHEDULES)]
    options, points = ("--timeout", "2", "--lease", "4"), random.Random(18)
    with run_store("valkey", folder, "--appendonly", "yes", "--appendfsync", "always") as store, ExitStack() as running:
        serve = running.enter_context(run_daemon("serve", folder, "--redis", store.url))
        workers = [start_worker(running, folder, store, *options) for _ in range(WORKERS)]
        first = int(time.time()) + 5
        expected: set[str] = set()
        for id in ids:
            timing = {"every": 1, "start": first, "end": first + FIRINGS - 1, "catch_up": "all"}
            times = put(serve.url, id, callback=receiver.url(), **timing)["next"]
            expected |= {f"s:{id}:{round(datetime.fromisoformat(at).timestamp())}" for at in times}
        for nth in range(KILLS):
            sleep_until(first + nth + points.uniform(-0.005, 0.05))  # while workers create tasks and move schedules on
            if nth % 2:
                store.kill()
                store.start()
            else:
                workers[nth % WORKERS].kill()
                workers[nth % WORKERS] = start_worker(running, folder, store, *options)
        wait_until(lambda: receiver.ids >= expected, "every firing is delivered", 60)
        wait_until(lambda: count_tasks(store.client()) == 0, "every delivery is settled", 60)
        assert get(serve.url, f"/schedules/{ids[0]}").body["next"] == []
    assert receiver.ids == expected
    assert [pair for pair in receiver.repeated_calls() if pair[1].attempt <= pair[0].attempt] == []
    assert [call for call in receiver.calls if call.arrived < int(call.id.rpartition(":")[2])] == []


def write_schedules(store: StoreServer, count: int, first: int) -> list[str]:
    """Write schedules of one minute into the store as they are after they were put, a minute before `first` (s)."""
    now, shard, ids = (first - 60) * 1000, Keys("later", 1).shards[0], [f"n{n}" for n in range(count)]
    definitions, states, times, members = {}, {}, {}, {}
    for id in ids:
        draft = ScheduleDraft(topic="pulled", every=60, start=first - 60, end=first, catch_up="all")
        schedule = put_schedule(build_schedule(draft, id, ANYBODY), None, now)
        definitions[id] = msgspec.json.encode(schedule.definition)
        states[id] = msgspec.json.encode(schedule.state)
        times[id] = now
        members[schedule_member("default", id)] = 0
    with store.client() as client:
        client.hset(shard.schedules, mapping=definitions)
        client.hset(shard.schedule_states, mapping=states)
        client.zadd(shard.schedule_index, members)
        client.zadd(shard.firings, times)
    return ids


def count_firings(worker: Daemon) -> int:
    text = get(worker.url, "/metrics").body.decode()
    found = re.search(r'^later_firings_total\{result="created"\} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_ten_thousand_schedules_of_one_minute_fire_once_each_minute_on_three_instances(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    """Also those of the minute before the workers started. Meanwhile, a task is delivered as ever."""
    with run_daemon("serve", folder, "--redis", store.url) as serve, ExitStack() as running:
        assert call(serve.url, "PUT", "/topics/pulled/policy", {"deliver": "pull"}).status == 200
        first = int(time.time()) + 4
        ids = write_schedules(store, MANY, first)
        workers = [start_worker(running, folder, store) for _ in range(WORKERS)]
        created = post(serve.url, "/create", {"topic": "other", "callback": receiver.url(), "id": "other"})
        assert created.status == 200
        shard, client = Keys("later", 1).shards[0], store.client()
        wait_until(lambda: client.zcard(shard.firings) == 0, "all have fired and moved on", 90)
        wait_until(lambda: receiver.ids == {"other"} and count_tasks(client) == 2 * MANY, "the task is delivered")
        expected = {f"s:{id}:{at}".encode() for id in ids for at in (first - 60, first)}
        assert set(client.hkeys(shard.pool)) == expected
        assert sum(map(count_firings, workers)) <= 2 * MANY
        client.close()


def test_a_schedule_fires_once_on_the_days_on_which_a_zones_clocks_are_set(folder: Path, receiver: Receiver) -> None:
    """In Berlin: at the end of the hour that is skipped in March, and in the first of two equal hours in October."""
    with run_daemon("dev", folder) as dev:

        def move_to(moment: str) -> None:
            answer = post(dev.url, "/dev/clock", {"to": moment, "settle": True}, timeout_s=60)
            assert (answer.status, answer.body["settled"]) == (200, True), answer

        move_to("2040-03-24T12:00:00Z")
        answer = put(dev.url, "nightly", cron="30 2 * * *", zone="Europe/Berlin", callback=receiver.url())
        assert answer["next"][:3] == [f"2040-03-{time}:00.000Z" for time in ("25T01:00", "26T00:30", "27T00:30")]
        for moment in ("2040-03-25T00:59:00Z", "2040-03-25T01:01:00Z", "2040-03-25T12:00:00Z", "2040-03-26T12:00:00Z"):
            move_to(moment)
        assert scheduled(receiver) == ["2040-03-25T01:00:00.000Z", "2040-03-26T00:30:00.000Z"]

        # everything else until October was missed: the last night alone comes late
        move_to("2040-10-27T12:00:00Z")
        shown = get(dev.url, "/schedules/nightly").body["next"]
        assert shown[:2] == ["2040-10-28T00:30:00.000Z", "2040-10-29T01:30:00.000Z"]
        for moment in ("2040-10-28T00:31:00Z", "2040-10-28T01:31:00Z", "2040-10-28T12:00:00Z", "2040-10-29T02:00:00Z"):
            move_to(moment)
    assert scheduled(receiver)[2:] == [
        "2040-10-27T00:30:00.000Z", "2040-10-28T00:30:00.000Z", "2040-10-29T01:30:00.000Z",
    ]  # fmt: skip
    assert receiver.repeated_calls() == []


def scheduled(receiver: Receiver) -> list[str]:
    return [call.headers["later-scheduled"] for call in receiver.calls]
