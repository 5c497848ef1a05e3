"""Daemons that wait for the durability of writes, also while their store loses its primary."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import redis

from later.core.task import pack_id
from later.store.keys import Keys
from tests.delayed_link import Cut
from tests.redis_users import run_configured_server, url_as
from tests.sentinel_service import run_sentinel_service
from tests.servers import run_replicated_server
from tests.system.api_client import create, get, post
from tests.system.daemons import Daemon, run_daemon, run_up
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

DELAY_S = 0.02
UNDER_LOAD_S = 1.0
CLIENTS = 16
SHARDS = 4
TASK = {"topic": "orders", "callback": "http://127.0.0.1:1/", "delay": 3600}
CASES = [("replica", how) for how in (Cut.ALL, Cut.ALL_BUT_LATER, Cut.ALL_BUT_LATER_SILENTLY)] + [
    ("replica-disk", Cut.ALL_BUT_LATER_SILENTLY),
    ("primary", Cut.ALL_BUT_LATER),
    ("primary", Cut.ALL_BUT_LATER_SILENTLY),
]


@pytest.mark.parametrize(("level", "how"), CASES, ids=lambda value: value.value if isinstance(value, Cut) else value)
def test_a_lost_primary_loses_what_was_acknowledged_only_if_no_replica_was_waited_for(
    folder: Path, level: str, how: Cut
) -> None:
    with run_sentinel_service(folder, delay_s=DELAY_S, durable=level == "replica-disk") as service:
        options = ("--redis", service.url, "--shards", str(SHARDS), "--durability", level)
        with run_daemon("serve", folder, *options) as serve, ThreadPoolExecutor(CLIENTS) as clients:
            is_over = Event()
            creating = [clients.submit(create_until, is_over, serve.url) for _ in range(CLIENTS)]
            time.sleep(UNDER_LOAD_S)
            service.lose_first(how)
            newest = service.wait_for_another(service.first)
            serve.wait_for_event("store failed over")
            wait_until(lambda: post(serve.url, "/create", TASK).status == 200, "the new primary has a replica")
            is_over.set()
            acknowledged = [id for future in creating for id in future.result()]
        with service.connect(newest) as primary:
            lost = [id for id in acknowledged if not primary.hexists(pool_of(id), pack_id(id))]
    assert len(acknowledged) > CLIENTS
    assert bool(lost) == (level == "primary"), (len(lost), len(acknowledged))


def create_until(is_over: Event, url: str) -> list[str]:
    """Create tasks, and return the ids of those that were acknowledged."""
    acknowledged = list[str]()
    while not is_over.is_set():
        answer = post(url, "/create", TASK)
        if answer.status == 200:
            acknowledged.append(answer.body["id"])
    return acknowledged


def pool_of(id: str) -> bytes:
    return Keys("later", SHARDS).shard_of(id).pool


def test_slots_are_free_only_when_settles_have_their_level_or_it_was_waited_for_in_vain(
    folder: Path, receiver: Receiver
) -> None:
    with run_replicated_server("valkey", folder) as server:
        options = ("--redis", server.primary_url, "--settle-durability", "replica", "--durability-timeout", "2s")
        with run_daemon("up", folder, *options) as later:
            wait_until(later.is_ready, "the daemon is ready")
            create(later.url, id="a", topic="orders", callback=receiver.url())
            wait_until(lambda: waits_of(later)[0] == 1, "the settle has reached a replica")
            reached = waits_of(later)
            with server.stopped_replica():
                create(later.url, id="b", topic="orders", callback=receiver.url())
                wait_until(lambda: "b" in receiver.ids and is_ended(later, "b"), "it is settled")
                in_use = metric(later, "later_delivery_slots_in_use")
                wait_until(lambda: waits_of(later)[1] == 1, "the replica was waited for in vain")
                wait_until(lambda: metric(later, "later_delivery_slots_in_use") == 0, "the slot is free")
            assert later.stop() == 0
    assert (reached, in_use) == ((1, 0), 1)


def test_settles_do_not_wait_for_a_level_that_the_store_does_not_offer(folder: Path, receiver: Receiver) -> None:
    options = ("--settle-durability", "replica", "--durability", "replica-disk", "--durability-timeout", "5s")
    with run_up(folder, folder / "data", *options) as later:
        refused = post(later.url, "/create", {"topic": "orders", "callback": receiver.url()})
        warned = [event for event in later.events() if event["event"] == "durability not on offer"]
    reason = "it has no replica, and min-replicas-to-write is 0"
    assert (refused.status, refused.body["field"]) == (400, "durability")
    assert {(event["level"], event["durability"], *event["asked_by"], event["reason"]) for event in warned} == {
        ("warning", "replica", "--settle-durability", reason),
        ("warning", "replica-disk", "--durability", reason),
    }


def test_a_store_that_allows_no_config_offers_what_its_operator_says(folder: Path) -> None:
    with run_configured_server(folder, "valkey") as url:
        with redis.Redis.from_url(url_as("admin", url)) as admin:
            admin.acl_setuser("later-api", enabled=True, reset=False, commands=["-config|get"])
        task = TASK | {"durability": "disk"}
        env = {"LATER_REDIS": url_as("later-api", url)}
        with run_daemon("serve", folder, env=env) as serve:
            refused = post(serve.url, "/create", task)
        with run_daemon("serve", folder, "--store-offers", "disk", env=env) as serve:
            believed = post(serve.url, "/create", task)
            beyond = post(serve.url, "/create", task | {"durability": "replica"})
    assert (refused.status, refused.body["detail"].partition(": ")[2]) == (
        400, "disk cannot be had from this store: CONFIG is not allowed there; --store-offers says what it offers",
    )  # fmt: skip
    assert (believed.status, believed.body["durability"], beyond.status) == (200, "disk", 400)


def metric(daemon: Daemon, name: str) -> float:
    lines = get(daemon.url, "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def waits_of(daemon: Daemon) -> tuple[float, float]:
    """Return how many settles have waited for a replica, and how many of them in vain."""
    waits = metric(daemon, 'later_durability_wait_duration_seconds_count{level="replica"}')
    return waits, metric(daemon, 'later_durability_missed_total{level="replica"}')


def is_ended(daemon: Daemon, id: str) -> bool:
    return post(daemon.url, "/query", {"id": id}).status == 404
