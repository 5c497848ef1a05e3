"""The doctor beside running workers: no false findings, and every real one is repaired."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis

from later.core.task import pack_id
from later.store.keys import Bucket, Keys
from tests.system.api_client import build_tasks, create, create_many
from tests.system.creating_clients import run_creating_clients
from tests.system.daemons import run_command, run_daemon
from tests.system.receivers import Receiver, delayed, done, in_sequence, status
from tests.system.stores import StoreServer
from tests.system.waiting import wait_until

TASKS, RUNS = 2000, 2


def test_beside_busy_workers_there_are_no_findings(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    receiver.rules["/"] = in_sequence(delayed(0.02, status(500)), status(503), done)
    with run_daemon("up", folder, "--redis", store.url, "--retry-base", "0.5") as up:
        create_many(up.url, build_tasks(TASKS, receiver.url(), time.time(), 500))
        with run_creating_clients(up.url, receiver.url()) as clients:  # there are tasks to move until the doctor ends
            wait_until(lambda: len(receiver.ids) > 100, "the workers are busy")
            runs = []
            for _ in range(RUNS):
                accepted, called = len(clients.accepted), len(receiver.calls)
                runs.append(run_command("doctor", "--redis", store.url))
                assert len(clients.accepted) > accepted
                assert len(receiver.calls) > called
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * RUNS
    assert all("nothing is wrong" in run.stdout for run in runs)


def test_inconsistencies_are_found_and_repaired(folder: Path, store: StoreServer, receiver: Receiver) -> None:
    with run_daemon("up", folder, "--redis", store.url) as up:
        ids = [create(up.url, callback=receiver.url(), delay=3600) for _ in range(4)]
        create(up.url, topic="asleep", callback=receiver.url(), delay=3600)
        _make_inconsistent(store.client(), *(pack_id(id) for id in ids[:3]))
        assert _kinds(_run_doctor(store, "--shards", "0")) >= {"several", "nowhere", "bodiless", "wake-missing"}
        no_such_shard = run_command("doctor", "--shards", "0-1", "--redis", store.url)
        assert (no_such_shard.returncode, no_such_shard.stdout) == (2, "")
        assert "there is no shard 1; those of the store are 0-0" in no_such_shard.stderr
        found, repaired, after = (_run_doctor(store, *repair) for repair in ((), ("--repair",), ()))
        assert (found[0], repaired[0], after[0]) == (1, 0, 0)
        assert _kinds(found) >= {"several", "nowhere", "bodiless", "wake-missing"}
        assert all(finding["mended"] for finding in repaired[1])
        assert (_kinds(repaired), after[1]) == (_kinds(found), [])
        last = create(up.url, callback=receiver.url())
        wait_until(lambda: last in receiver.answered, "deliveries continue")


def _make_inconsistent(client: redis.Redis, doubled: bytes, lost: bytes, bodiless: bytes) -> None:
    shard = Keys("later", 1).shards[0]
    client.zadd(shard.bucket(Bucket.ERROR, b"order"), {doubled: 2e12})
    client.zrem(shard.bucket(Bucket.DELAY, b"order"), lost)
    client.hdel(shard.pool, bodiless)
    client.zrem(shard.wakes[Bucket.DELAY], b"asleep")


def _run_doctor(store: StoreServer, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status and the findings."""
    done = run_command("doctor", "--json", "--redis", store.url, *options)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()[:-1]]


def _kinds(result: tuple[int, list[dict[str, Any]]]) -> set[str]:
    return {finding["kind"] for finding in result[1]}
