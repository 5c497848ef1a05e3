"""`later bulk verify` reports the status of each row's task; `cancel` deletes only pending tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from later.store.keys import Bucket
from tests.spark.later_server import (
    DAY_S,
    UNUSED_CALLBACK,
    CommandResult,
    LaterServer,
    run_bulk,
    run_server,
    task_ids,
    write_parquet,
)
from tests.system.api_client import post
from tests.system.receivers import Receiver, hang, run_receiver, status
from tests.system.stores import count_bucket
from tests.system.waiting import wait_until

COUNT = 200
KEYS_BY_PATH = {"/done": range(40), "/gone": range(40, 60), "/fails": range(60, 65), "/hangs": range(65, 70)}
"""The keys of rows that are due at once, by the path of their callback; the other rows wait."""
WAITING = range(70, COUNT)
DELETED = (100, 101, 102)
PENDING = 5 + 5 + len(WAITING) - len(DELETED)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaterServer]:
    with run_server(tmp_path_factory.mktemp("verify"), "--timeout", "100") as server:
        yield server


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        receiver.rules |= {"/gone": status(410), "/fails": status(500), "/hangs": hang}
        yield receiver


@pytest.fixture(params=["api", "store"])
def transport(request: pytest.FixtureRequest) -> str:
    """How the command reaches the tasks: by the API, or in the store."""
    return str(request.param)


def test_each_row_is_pending_ended_dead_or_missing(
    transport: str, spark: SparkSession, server: LaterServer, receiver: Receiver, tmp_path: Path
) -> None:
    job = f"verify-{transport}"
    orders = create_job(spark, server, receiver, tmp_path / "orders", job)

    result = run(spark, "verify", orders, server, transport, job, "--missing", tmp_path / "missing")

    assert result.status == 1
    expected = {"rows": COUNT, "pending": PENDING, "ended": 40, "dead": 20, "missing": 3, "unfit": 0}
    assert result.counts == expected
    assert (result.json["outcome"], result.json["output"]) == ("missing", str(tmp_path / "missing"))
    missing = pq.read_table(tmp_path / "missing").sort_by("key").to_pylist()
    assert [row["key"] for row in missing] == list(map(str, DELETED))
    assert [row["id"] for row in missing] == [task_ids(job, [key])[0] for key in DELETED]
    row = {"topic": job, "callback": UNUSED_CALLBACK, "delay": DAY_S}
    assert [json.loads(reject["row"]) for reject in missing] == [{"key": str(key), **row} for key in DELETED]


def test_cancelling_leaves_tasks_that_have_ended_or_are_dead(
    transport: str, spark: SparkSession, server: LaterServer, receiver: Receiver, tmp_path: Path
) -> None:
    """The job may be created again: tasks that cancelling left are not created twice."""
    job = f"cancel-{transport}"
    orders = create_job(spark, server, receiver, tmp_path / "orders", job)

    cancelled = run(spark, "cancel", orders, server, transport, job, "--yes")

    expected = {
        "rows": COUNT,
        "cancelled": PENDING - 5,
        "in_flight": 5,
        "ended": 40,
        "dead": 20,
        "missing": 3,
        "unfit": 0,
    }
    assert (cancelled.status, cancelled.counts) == (0, expected)
    assert "later: in flight when cancelled: 5; their receivers may get the attempt under way\n" in cancelled.err
    assert server.topic_ids(job) == task_ids(job, KEYS_BY_PATH["/gone"])
    assert count_bucket(server.redis, Bucket.DEAD, job) == 20
    created_again = run(spark, "create", orders, server, transport, job)
    assert (created_again.counts["created"], created_again.counts["existing"]) == (PENDING + len(DELETED), 60)


def test_a_job_is_not_cancelled_without_confirmation(
    spark: SparkSession, server: LaterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    orders = lines(tmp_path / "few.ndjson", [build_line(1, "unasked")])
    run(spark, "create", orders, server, "api", "unasked")

    result = run_bulk(spark, "cancel", orders, "--job", "unasked", "--url", server.url)

    assert (result.status, result.out) == (2, "")
    assert "--yes" in result.err
    assert server.topic_ids("unasked") == task_ids("unasked", [1])


def test_missing_rows_are_printed(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """Rows without a key and corrupt rows cannot have a task."""
    few = lines(tmp_path / "few.ndjson", [build_line(1, "printed"), build_line(2, "printed")])
    more = lines(
        tmp_path / "more.ndjson", [build_line(1, "printed"), build_line(3, "printed"), '{"topic": "printed"}', "{"]
    )
    run(spark, "create", few, server, "api", "printed")

    all_there = run_bulk(spark, "verify", few, "--job", "printed", "--url", server.url)
    missing = run_bulk(spark, "verify", more, "--job", "printed", "--url", server.url)

    assert (all_there.status, all_there.err) == (0, "")
    assert all_there.out.startswith("2 rows: 2 pending, 0 ended, 0 dead, 0 missing, 0 without a key or corrupt; ")
    assert missing.status == 1
    assert missing.out.startswith("4 rows: 1 pending, 0 ended, 0 dead, 1 missing, 2 without a key or corrupt; ")
    printed = missing.err.splitlines()
    assert printed[0].startswith(f"later: missing: key 3: {task_ids('printed', [3])[0]}: {{")
    assert printed[1:] == ["later: use --missing DIR to write all rows without a task"]


def create_job(spark: SparkSession, server: LaterServer, receiver: Receiver, path: Path, job: str) -> Path:
    """Create an input whose tasks have different statuses; the topic has the job's name."""
    callbacks = {key: receiver.url(path) for path, keys in KEYS_BY_PATH.items() for key in keys}
    orders = write_parquet(
        path,
        2,
        key=list(range(COUNT)),
        topic=[job] * COUNT,
        callback=[callbacks.get(key, UNUSED_CALLBACK) for key in range(COUNT)],
        delay=[DAY_S if key in WAITING else 0 for key in range(COUNT)],
    )
    assert run(spark, "create", orders, server, "api", job).status == 0
    for id in task_ids(job, DELETED):
        assert post(server.url, "/delete", {"id": id}).status == 200
    expected = {Bucket.DELAY: len(WAITING) - len(DELETED), Bucket.UNACK: 5, Bucket.ERROR: 5, Bucket.DEAD: 20}
    wait_until(
        lambda: expected == {b: count_bucket(server.redis, b, job) for b in Bucket}, "all tasks are in their buckets"
    )
    return orders


def run(
    spark: SparkSession, verb: str, orders: Path, server: LaterServer, transport: str, job: str, *options: object
) -> CommandResult:
    url = server.url if transport == "api" else server.store_url
    return run_bulk(spark, verb, orders, "--job", job, "--url", url, "--json", *options)


def lines(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows))
    return path


def build_line(key: int, topic: str) -> str:
    return json.dumps({"key": key, "topic": topic, "callback": UNUSED_CALLBACK, "delay": DAY_S})
