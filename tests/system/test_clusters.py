"""A store in a cluster, of which a primary dies and slots move under load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from later.core.hash_slots import key_slot
from later.store.keys import Keys
from tests.cluster_service import ClusterService, run_cluster
from tests.system.api_client import get, post
from tests.system.creating_clients import CLIENTS, DELAY_S, run_creating_clients
from tests.system.daemons import run_command, run_daemon
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

SHARDS = 16
UNDER_LOAD_S = 1.5
LOST_S = 0.5
"""Tasks sent in this time before the death of a primary may be lost: it answers before its replica has them."""
BEFORE_S, AFTER_S = 0.5, 10.0
"""Tasks that arrived in this time around the death of a primary may arrive again: their settle was lost with it."""
WORKER = ("--timeout", "2", "--lease", "4")


@pytest.fixture
def cluster(folder: Path) -> Iterator[ClusterService]:
    with run_cluster(folder, 3, replicas=1, options=("--cluster-require-full-coverage", "no")) as service:
        yield service


def tasks_in(cluster: ClusterService) -> int:
    """Return how many tasks the pools hold."""
    slots = {shard.pool: key_slot(shard.pool) for shard in Keys("later", SHARDS, tags=2).shards}
    owners = cluster.slot_owners()
    return sum(
        int(cluster.run(node, "HLEN", pool))
        for pool, slot in slots.items()
        for node, ranges in owners.items()
        if any(low <= slot <= high for low, high in ranges)
    )


def test_what_was_accepted_is_delivered_though_a_primary_dies(
    folder: Path, receiver: Receiver, cluster: ClusterService
) -> None:
    options = ("--redis", cluster.url, "--shards", str(SHARDS))
    with (
        run_daemon("serve", folder, *options) as serve,
        run_daemon("worker", folder, *options, *WORKER) as first,
        run_daemon("worker", folder, *options, *WORKER) as second,
    ):
        for daemon in (serve, first, second):
            _ = daemon.url
        with run_creating_clients(serve.url, receiver.url()) as clients:
            time.sleep(UNDER_LOAD_S)
            killed_at = time.time()
            cluster.kill_and_wait(cluster.first_primaries[1])
            served_at = time.time()
            accepted = len(clients.accepted)
            wait_until(lambda: len(clients.accepted) > accepted + 20, "creates continue")
        at_risk = {id for id, due_at in clients.accepted.items() if killed_at - LOST_S < due_at - DELAY_S < killed_at}
        wait_until(lambda: receiver.ids >= clients.accepted.keys() - at_risk, "what was accepted is delivered")
        wait_until(lambda: tasks_in(cluster) == 0, "every delivery is settled", 60)
        assert get(serve.url, "/readyz").status == 200
    assert len(clients.accepted.keys() - receiver.ids) <= CLIENTS, "each has one create under way"
    assert [call for call in receiver.calls if call.arrived < clients.accepted[call.id]] == []
    repeated = [first_call.arrived for first_call, _ in receiver.repeated_calls()]
    assert [at for at in repeated if not killed_at - BEFORE_S < at < served_at + AFTER_S] == []


@pytest.mark.parametrize("way", ["at once", "key by key"])
def test_what_was_accepted_is_delivered_once_though_slots_move(
    folder: Path, receiver: Receiver, cluster: ClusterService, way: str
) -> None:
    options = ("--redis", cluster.url, "--shards", str(SHARDS))
    source, target, _ = cluster.first_primaries
    slots = [key_slot(shard.pool) for shard in Keys("later", SHARDS, tags=2).shards]
    with (
        run_daemon("serve", folder, *options) as serve,
        run_daemon("worker", folder, *options, *WORKER) as worker,
    ):
        _ = worker.url
        with run_creating_clients(serve.url, receiver.url()) as clients:
            time.sleep(UNDER_LOAD_S)
            if way == "at once":
                cluster.migrate_slots(source, target, cluster.slot_owners()[source])
            else:
                for slot in [slot for slot in slots if cluster.owner_of(slot) == source]:
                    cluster.migrate_slot_by_keys(slot, target)
            time.sleep(UNDER_LOAD_S)
        assert all(cluster.owner_of(slot) != source for slot in slots)
        wait_until(lambda: receiver.ids >= clients.accepted.keys(), "what was accepted is delivered")
        wait_until(lambda: tasks_in(cluster) == 0, "every delivery is settled", 60)
    assert [call for call in receiver.calls if call.arrived < clients.accepted[call.id]] == []
    assert receiver.repeated_calls() == []
    assert clients.refused == 0


def test_commands_take_the_url_of_a_cluster(folder: Path, cluster: ClusterService) -> None:
    with run_daemon("up", folder, "--redis", cluster.url) as up:
        created = post(up.url, "/create", {"topic": "order", "callback": "http://127.0.0.1:1/", "delay": 3600})
        assert created.status == 200
        status = run_command("status", "--redis", cluster.url)
        assert status.returncode == 0, status.stderr
        assert "3 primaries" in status.stdout
        assert "256 shards" in status.stdout
        doctor = run_command("doctor", "--redis", cluster.url)
        assert doctor.returncode == 0, doctor.stderr
        assert "1 task" in doctor.stdout


def test_a_node_is_no_server_and_a_server_is_no_node(folder: Path, cluster: ClusterService) -> None:
    node = cluster.first_primaries[0]
    refused = run_command("status", "--redis", f"redis://{node}")
    assert refused.returncode != 0
    assert "this is a node of a cluster: use redis+cluster://" in refused.stderr
    few = run_command("serve", "--redis", cluster.url, "--shards", "4", "--listen", "127.0.0.1:0")
    assert few.returncode != 0
    assert "16 to 1024 shards" in few.stderr
