"""Each row is one task, whatever fails between Spark and the store, and whatever is repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from tests.spark import faulty_proxy
from tests.spark.faulty_proxy import Fault, ProxiedRequest, run_proxy
from tests.spark.later_server import (
    DAY_S,
    UNUSED_CALLBACK,
    CommandResult,
    LaterServer,
    job_counts,
    kill_session,
    later_writer,
    rows,
    run_bulk,
    run_process,
    task_ids,
    write_parquet,
)
from tests.system.api_client import post
from tests.system.daemons import COMMAND
from tests.system.receivers import Receiver, run_receiver
from tests.system.waiting import wait_until

COUNT = 3000
BATCH = 300
WRONG = 3


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Let Spark give its workers few rows at a time, so that a test's partition has a middle."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.parametrize(("dies", "transport"), [(False, "api"), (True, "store")])
@pytest.mark.usefixtures("small_batches")
def test_a_partition_that_fails_in_its_middle_is_repeated(
    dies: bool, transport: str, spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    """It raises an error, or its worker dies."""
    job = topic = f"fails-{transport}"
    failed, url = tmp_path / "failed", server.url

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fail once, when some of this partition's tasks are in the store."""
        for number, batch in enumerate(batches):
            if number == 6 and not failed.exists():
                wait_until(lambda: job_counts(url, job)[0], "a batch is created")
                failed.touch()
                if dies:
                    os._exit(9)
                raise RuntimeError("in the middle")
            yield batch

    frame = rows(spark, topic, COUNT, partitions=1).withColumn("content", F.repeat(F.lit("x"), F.lit(1000)))
    url_of_target = server.url if transport == "api" else server.store_url
    later_writer(frame.mapInArrow(fail_once, frame.schema), url_of_target, job, batchSize=BATCH).save()

    assert failed.exists()
    assert server.topic_ids(topic) == task_ids(job, range(COUNT))
    assert server.job_counts(job) == (COUNT, 0, 0)


FAULTS: dict[str, Fault] = {
    "lost": faulty_proxy.drop_answer,
    "503": faulty_proxy.reject_for_now(503),
    "half-done": faulty_proxy.create_half,
    "429": faulty_proxy.reject_for_now(429),
    "cut": faulty_proxy.truncate_answer,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_batch_whose_answer_was_lost_is_sent_again(name: str, spark: SparkSession, server: LaterServer) -> None:
    job = topic = f"faulty-{name}"

    with run_proxy(server.url, faulty_proxy.pass_through, FAULTS[name], FAULTS[name]) as proxy:
        later_writer(rows(spark, topic, COUNT), proxy.url, job, batchSize=BATCH).save()

    assert len(proxy.batches) == COUNT / BATCH + 2
    assert server.topic_ids(topic) == task_ids(job, range(COUNT))
    assert server.job_counts(job) == (COUNT, 0, 0)


def test_a_command_succeeds_although_batches_fail(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """One attempt of Spark fails, because one of its batches is refused."""
    orders = write_input(tmp_path, "failing")

    with run_proxy(server.url, faulty_proxy.pass_through, faulty_proxy.reject, *FAULTS.values()) as proxy:
        result = create(spark, orders, proxy.url, "failing")

    assert len(proxy.batches) >= COUNT / BATCH + 5
    assert result.status == 0, result.err
    assert counts(result) == (COUNT, COUNT, 0, 0)
    assert server.topic_ids("failing") == task_ids("failing", range(COUNT))
    assert server.job_counts("failing")[0] == COUNT


def test_a_job_waits_for_a_store_that_was_killed(spark: SparkSession, server: LaterServer) -> None:
    """Meanwhile the daemon rejects batches with 503."""

    def kill(request: ProxiedRequest) -> None:
        request.forward()
        server.store_server.kill()

    def start(request: ProxiedRequest) -> None:
        faulty_proxy.pass_through(request)
        server.store_server.start()

    with run_proxy(server.url, faulty_proxy.pass_through, faulty_proxy.pass_through, kill, start) as proxy:
        later_writer(rows(spark, "outage", COUNT, partitions=1), proxy.url, "outage", batchSize=BATCH).save()

    assert proxy.batches[2] == proxy.batches[3] == proxy.batches[4]
    assert server.topic_ids("outage") == task_ids("outage", range(COUNT))
    assert server.job_counts("outage") == (COUNT, 0, 0)


def test_a_killed_job_can_be_run_again(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """The same command completes it, although some rows are bad."""
    orders = write_input(tmp_path, "killed", delay=lambda key: -1 if key < WRONG else DAY_S)
    options = ("--rejects", tmp_path / "rejects", "--max-rejects", WRONG)

    with run_proxy(server.url) as proxy:
        proxy.hold_after(4)
        command = (*COMMAND, *create_arguments(orders, proxy.url, "killed"), *options)
        with run_process(*command, log=tmp_path / "driver.log") as driver:
            wait_until(
                lambda: proxy.is_holding.is_set() and sum(server.job_counts("killed")) == 4 * BATCH,
                "four batches are created",
                60,
            )
            kill_session(driver)
    before, _, _ = server.job_counts("killed")
    result = create(spark, orders, server.url, "killed", *options)

    assert result.status == 0, result.err
    assert counts(result) == (COUNT, COUNT - before - WRONG, before, WRONG)
    assert server.topic_ids("killed") == task_ids("killed", range(WRONG, COUNT))
    assert server.job_counts("killed") == (COUNT - WRONG, 0, WRONG)
    assert sorted(pq.read_table(tmp_path / "rejects")["key"].to_pylist()) == list(map(str, range(WRONG)))


def test_a_repeated_job_does_not_create_delivered_tasks_again(
    spark: SparkSession, server: LaterServer, receiver: Receiver, tmp_path: Path
) -> None:
    """A third of the tasks are due at once."""
    orders = write_input(tmp_path, "again", callback=receiver.url(), delay=lambda key: 0 if key < COUNT / 3 else DAY_S)
    every, third = task_ids("again", range(COUNT)), task_ids("again", range(COUNT // 3))

    create(spark, orders, server.url, "again")
    wait_until(lambda: len(server.topic_ids("again")) == len(every) - len(third), "a third is delivered")
    by_command = create(spark, orders, server.url, "again")
    later_writer(spark.read.parquet(str(orders)), server.url, "again").save()

    assert counts(by_command) == (COUNT, 0, COUNT, 0)
    assert server.topic_ids("again") == sorted({*every} - {*third})
    for id in server.topic_ids("again")[:50]:
        post(server.url, "/run-now", {"id": id})
    wait_until(lambda: len(server.topic_ids("again")) == len(every) - len(third) - 50, "the next are delivered")
    assert len(receiver.ids) == len(third) + 50
    assert receiver.repeated_calls() == []


def write_input(
    folder: Path,
    topic: str,
    callback: str = UNUSED_CALLBACK,
    delay: Callable[[int], int] = lambda key: DAY_S + key % 100,
) -> Path:
    """Write a Parquet table of two files."""
    keys = range(COUNT)
    return write_parquet(
        folder / "orders",
        2,
        key=list(keys),
        topic=[topic] * COUNT,
        callback=[callback] * COUNT,
        delay=[delay(key) for key in keys],
    )


def create_arguments(orders: Path, url: str, job: str) -> Sequence[object]:
    """Return the arguments of `bulk create`."""
    return "bulk", "create", orders, "--job", job, "--url", url, "--batch", BATCH, "--master", "local[2,4]"


def create(spark: SparkSession, orders: Path, url: str, job: str, *options: object) -> CommandResult:
    return run_bulk(spark, *create_arguments(orders, url, job)[1:], "--json", *options)


def counts(result: CommandResult) -> tuple[int, int, int, int]:
    """Return the summary's rows, created, existing and rejected."""
    summary = result.counts
    return summary["rows"], summary["created"], summary["existing"], summary["rejected"]
