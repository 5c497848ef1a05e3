"""Events for operators, from daemons that share a store: each once, none of themselves, whatever is killed or away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from standardwebhooks.webhooks import Webhook

from later.store.keys import Bucket, Keys
from tests.system.api_client import build_tasks, create, create_many, get, list_dead, post, read_metric
from tests.system.daemons import Daemon, run_command, run_daemon, run_up, secret_of
from tests.system.receivers import Call, Receiver, once_set, status
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

OPS = "/ops"
SHARDS = 4
PATIENCE = ("--store-timeout", "30s")
"""For daemons whose counts are to be exact: one whose answer is lost is added again."""
CENSUS_WITHIN_S = 60
"""How soon a census is made and its event delivered, on a busy machine: at most 15 s, but for slow starts."""
END_QUIET_TIMES = """
for _, subject in ipairs(redis.call('HKEYS', KEYS[1])) do
  local ended = string.gsub(redis.call('HGET', KEYS[1], subject), '^%d+', '0')
  redis.call('HSET', KEYS[1], subject, ended)
end
"""
"""A script that lets the quiet times end at once: no event was made before."""


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[int]:
    """The number of processes of each daemon. Each process counts by itself, whichever daemon it belongs to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATER_PROCESSES", "1")
        yield 1


@contextmanager
def run_three(folder: Path, store: StoreServer, receiver: Receiver) -> Iterator[list[Daemon]]:
    """Run an API and two workers on a store, all of them with the same receiver of events."""
    options = ("--redis", store.url, "--shards", str(SHARDS), "--events", receiver.url(OPS), *PATIENCE)
    with ExitStack() as running:
        yield [
            running.enter_context(run_daemon(command, folder, *options)) for command in ("serve", "worker", "worker")
        ]


def events_at(receiver: Receiver, type: str = "") -> list[Call]:
    """Return the events of a type that the receiver got, each once, in their order."""
    calls = {call.id: call for call in receiver.calls.copy() if call.path == OPS}
    return [call for call in calls.values() if not type or call.body["type"] == type]


def count_deaths(receiver: Receiver, topic: str = "order") -> int:
    """Return how many deaths of tasks in a topic the events tell of."""
    bodies = [call.body["data"] for call in events_at(receiver, "later.tasks.dead")]
    return sum(data["count"] for data in bodies if data["topic"] == topic)


def count_added(store: StoreServer, topic: str = "order") -> int:
    """Return how many deaths of tasks in a topic were added in the store, and are not yet in any event."""
    with store.client() as client:
        counts: dict[bytes, bytes] = client.hgetall(Keys("later", SHARDS).event_counts)
    prefix = f"later.tasks.dead\0{topic}\0".encode()
    return sum(int(count.split(b"\0")[1]) for subject, count in counts.items() if subject.startswith(prefix))


def tell_the_rest(store: StoreServer, url: str) -> None:
    """Let the rest of a storm be told now, not in a minute: a daemon looks at once when a topic is paused at it."""
    with store.client() as client:
        client.eval(END_QUIET_TIMES, 1, Keys("later", SHARDS).event_counts)
    pause(url, "letters")


def count_dead(store: StoreServer, topic: str = "order") -> int:
    """Return how many tasks of a topic are dead."""
    with store.client() as client:
        shards = Keys("later", SHARDS).shards
        return sum(int(client.zcard(shard.bucket(Bucket.DEAD, topic.encode()))) for shard in shards)


def have_died(store: StoreServer, least: int) -> bool:
    """Return True if so many tasks are dead."""
    return count_dead(store) >= least


def pause(url: str, topic: str) -> None:
    answer = post(url, f"/topics/{quote(topic, safe='')}/pause", {})
    assert answer.status == 200, answer


def count_waiting(url: str) -> int:
    """Return how many events wait."""
    return int(get(url, "/topics/later%2Fevents").body["delay"])


def make_late(store: StoreServer, topic: str, seconds: int) -> None:
    """Make the waiting tasks of a topic due so many seconds earlier."""
    with store.client() as client:
        for shard in Keys("later", SHARDS).shards:
            bucket = shard.bucket(Bucket.DELAY, topic.encode())
            found: Any = client.zrange(bucket, 0, -1)
            for id in found:
                client.zincrby(bucket, -1000 * seconds, id)


def forget_census(store: StoreServer) -> None:
    """Let the next daemon that starts make a census at once, also if one was killed that was making one."""
    keys = Keys("later", SHARDS)
    with store.client() as client:
        client.delete(keys.snapshot, keys.counting)


def expiring_tasks(count: int, receiver: Receiver, ttl_s: float = 1.0, spread_s: float = 0.0) -> list[dict[str, Any]]:
    """Return tasks that die undelivered, because their topic is paused, in the time of `spread_s` after `ttl_s`."""
    tasks = build_tasks(count, receiver.url("/never"), time.time() + 3600)
    return [{**task, "ttl": ttl_s + spread_s * number / count} for number, task in enumerate(tasks)]


def test_a_storm_of_deaths_on_three_instances_is_a_handful_of_events(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    deaths = 10_000
    with run_three(folder, store, receiver) as [serve, _, _]:
        pause(serve.url, "order")
        wait_until(lambda: events_at(receiver, "later.topic.paused"), "the pause is told")
        began = time.monotonic()
        create_many(serve.url, expiring_tasks(deaths, receiver))
        wait_until(lambda: count_deaths(receiver) + count_added(store) == deaths, "all deaths are counted", 90)
        minutes = (time.monotonic() - began) / 60
        assert 1 <= len(events_at(receiver, "later.tasks.dead")) <= 1 + minutes
        assert len(events_at(receiver, "later.topic.paused")) == 1
        tell_the_rest(store, serve.url)
        wait_until(lambda: count_deaths(receiver) == deaths, "all deaths are told")
        told = events_at(receiver, "later.tasks.dead")
        assert len(told) <= 2 + minutes
        assert [call.body["data"]["reason"] for call in told] == ["expired"] * len(told)
        assert [pair for pair in receiver.repeated_calls() if pair[0].path == OPS] == []


def test_killed_workers_lose_at_most_what_they_had_not_yet_added(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    deaths, seconds, kills = 2000, 8, 3
    options = ("--redis", store.url, "--shards", str(SHARDS), "--events", receiver.url(OPS), *PATIENCE)
    with run_three(folder, store, receiver) as [serve, *workers], ExitStack() as running:
        pause(serve.url, "order")
        create_many(serve.url, expiring_tasks(deaths, receiver, ttl_s=3, spread_s=seconds))
        wait_until(lambda: count_dead(store), "tasks die")
        most_lost = 0
        for number in range(1, kills + 1):
            wait_until(partial(have_died, store, number * deaths // (kills + 1)), "more tasks have died")
            kept = count_deaths(receiver) + count_added(store)
            workers.pop(0).kill()
            most_lost += count_dead(store) - kept  # what the others have not yet added, too
            workers.append(running.enter_context(run_daemon("worker", folder, *options)))
        wait_until(lambda: count_dead(store) == deaths, "all tasks have died", 90)
        least = deaths - most_lost
        wait_until(lambda: count_deaths(receiver) + count_added(store) >= least, "the others are counted")
        tell_the_rest(store, serve.url)
        wait_until(lambda: count_deaths(receiver) >= least, "the others are told")
        assert count_deaths(receiver) + count_added(store) <= deaths
        bodies: dict[str, set[bytes]] = {}
        for call in receiver.calls.copy():
            bodies.setdefault(call.id, set()).add(call.content)
        assert {id: contents for id, contents in bodies.items() if len(contents) > 1} == {}


def test_deaths_and_pauses_of_events_make_no_events_and_disturb_no_delivery(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    receiver.rules[OPS] = status(410)
    with run_up(folder, data, "--events", receiver.url(OPS)) as up:
        for topic in ("order", "mail"):
            pause(up.url, topic)
        wait_until(lambda: len(list_dead(up.url, "later/events")) == 2, "both events have died")
        pause(up.url, "later/events")
        pause(up.url, "letters")
        wait_until(lambda: get(up.url, "/topics/later%2Fevents").body["delay"] == 1, "an event waits")
        refused = post(up.url, "/create", {"topic": "later/events", "callback": receiver.url()})
        assert refused.status == 400
        assert "later/events" in [row["topic"] for row in get(up.url, "/topics").body["topics"]]
        create_many(up.url, build_tasks(100, receiver.url(), time.time(), topic="parcel"))
        wait_until(lambda: len(receiver.ids) == 102, "the other topics are delivered")
        time.sleep(3)  # three more ticks: an event of an event would have come
        types = {call.body["type"] for call in events_at(receiver)}
        assert (types, len(events_at(receiver))) == ({"later.topic.paused"}, 2)
        assert get(up.url, "/topics/later%2Fevents").body["delay"] == 1
        created = [
            read_metric(up.url, f'later_operator_events_total{{type="later.topic.{what}"}}')
            for what in ("paused", "late")
        ]
        assert created == [3, 0]


def test_a_receiver_that_hangs_holds_up_nothing_and_gets_signed_events_later(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    may_answer = threading.Event()
    receiver.rules |= {OPS: once_set(may_answer), "/gone": status(410)}
    with run_up(folder, data, "--events", receiver.url(OPS)) as up:
        create(up.url, id="order-1", callback=receiver.url("/gone"))
        wait_until(lambda: events_at(receiver), "the event is being delivered")
        create_many(up.url, build_tasks(100, receiver.url(), time.time()))
        wait_until(lambda: len(receiver.ids) == 102, "other tasks are delivered meanwhile")
        may_answer.set()
        [call] = events_at(receiver)
        wait_until(lambda: call.id in receiver.answered, "the event is done")
        secret = secret_of(data, "--namespace", "later")
    event: Any = Webhook(secret).verify(call.content, dict(call.headers))
    assert (event["type"], event["timestamp"]) == ("later.tasks.dead", call.body["timestamp"])
    data_fields = {name: event["data"][name] for name in ("topic", "reason", "count", "first_id")}
    assert data_fields == {"topic": "order", "reason": "gone", "count": 1, "first_id": "order-1"}


def test_late_topics_are_told_once_though_all_instances_see_them(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    options: tuple[str, ...] = ("--redis", store.url, "--shards", str(SHARDS))
    with run_daemon("serve", folder, *options) as before:
        pause(before.url, "mail")
        for topic in ("order", "mail"):
            create_many(before.url, build_tasks(5, receiver.url(), time.time(), topic=topic))
            make_late(store, topic, seconds=300)
    forget_census(store)
    options += ("--events", receiver.url(OPS))
    with run_daemon("serve", folder, *options) as one, run_daemon("serve", folder, *options) as two:
        pause(one.url, "letters")
        wait_until(lambda: count_waiting(two.url) == 2, "a pause and a late topic are told", CENSUS_WITHIN_S)
        with run_daemon("worker", folder, *options):
            wait_until(lambda: len(events_at(receiver)) == 2, "both are delivered")
            [late] = events_at(receiver, "later.topic.late")
            assert (late.body["data"]["topic"], late.body["data"]["due"]) == ("order", 5)
            assert 300 <= late.body["data"]["lateness_s"] < 300 + CENSUS_WITHIN_S
            wait_until(lambda: len(receiver.ids) == 7, "the topic is delivered")
        assert count_waiting(two.url) == 0


def test_a_store_that_is_nearly_full_is_told_and_one_that_is_full_keeps_the_events(
    folder: Path, store: StoreServer, receiver: Receiver
) -> None:
    receiver.rules["/gone"] = status(410)
    options = ("--redis", store.url, "--shards", str(SHARDS), "--events", receiver.url(OPS))
    with run_daemon("up", folder, *options) as before, store.client() as client:
        _ = before.url
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", int(used * 1.15))
    forget_census(store)
    with run_daemon("up", folder, *options) as up, store.client() as client:
        wait_until(lambda: events_at(receiver, "later.store.full"), "the store is nearly full", CENSUS_WITHIN_S)
        [full] = events_at(receiver, "later.store.full")
        assert full.body["data"]["max_memory"] == int(used * 1.15)
        client.config_set("maxmemory", 0)
        ids = [create(up.url, callback=receiver.url("/gone"), delay=3) for _ in range(5)]
        client.config_set("maxmemory", 100_000)
        wait_until(lambda: {*ids} <= receiver.ids, "tasks are delivered by a full store")
        time.sleep(3)  # three ticks
        assert events_at(receiver, "later.tasks.dead") == []
        client.config_set("maxmemory", 0)
        pause(up.url, "letters")  # the daemon looks at once
        wait_until(lambda: count_deaths(receiver) == 5, "the event comes when there is room", CENSUS_WITHIN_S)


def test_a_url_that_the_guard_refuses_ends_the_start(folder: Path, store: StoreServer) -> None:
    options = ("--redis", store.url, "--guard", "on", "--guard-allow", "10.0.0.0/8")
    done = run_command("serve", "--listen", "127.0.0.1:0", *options, "--events", "http://127.0.0.1:9/ops?key=hunter2")
    assert done.returncode != 0
    assert "--events: " in done.stderr
    assert "loopback" in done.stderr
    assert "hunter2" not in done.stderr
