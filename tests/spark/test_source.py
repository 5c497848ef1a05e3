"""`df.write.format("later")`: its options, the tasks it creates, and its errors in one line."""

from __future__ import annotations

import re
from datetime import datetime
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.spark.errors import translate_errors
from later.core.errors import LaterError
from tests.spark.faulty_proxy import run_proxy
from tests.spark.later_server import UNUSED_CALLBACK, LaterServer, free_port, later_writer, rows, task_ids
from tests.system.api_client import call, query

COUNT = 10
OPTIONS = (
    "url, jobId, batchSize, timeout, retries, onError, maxRejects, allowDuplicates, now, nullTime, prefix, keyFile, ca"
)
FIELDS = "topic, callback, content, delay, execute_time, retry, ttl, remember, headers, context"


def refusal(writer: DataFrameWriter) -> str:
    """Return the error, as the commands print it."""
    with pytest.raises(LaterError) as raised, translate_errors():
        writer.save()
    assert "\n" not in str(raised.value)
    return str(raised.value)


# Options


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("jobId", None, "expected an id for the job, the same whenever the same rows are written again"),
        ("url", None, "expected the URL of later, such as http://127.0.0.1:8080"),
        ("batch", "7", f"unknown option; there are {OPTIONS}"),
        ("batchSize", "0", 'expected an integer from 1 to 10000, got "0"'),
        ("onError", "ignore", 'expected fail or reject, got "ignore"'),
    ],
)
def test_a_wrong_option_is_named(
    option: str, value: str | None, why: str, spark: SparkSession, server: LaterServer
) -> None:
    options = {"url": server.url, "jobId": "wrong", option: value}
    given = {name: text for name, text in options.items() if text is not None}
    advice = f': .option("{option}", …)' if value is None else ""

    error = refusal(rows(spark, "wrong", COUNT).write.format("later").mode("append").options(**given))

    assert error == f"{option}: {why}{advice}"
    assert server.topic_ids("wrong") == []


def test_a_url_with_a_password_is_refused(spark: SparkSession) -> None:
    error = refusal(later_writer(rows(spark, "wrong", COUNT), "redis://:secret@h/0", "wrong"))

    assert error.startswith(
        "url redis://***@h/0: a password in an option shows up in plans and logs: put it into LATER_"
    )


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("note", "'x'", f"unknown column; expected {FIELDS} or key"),
        ("topic", "1", "expected strings (to_json makes them of others), got a column of int32"),
        (
            "execute_time",
            "date'2030-01-01'",
            "expected Unix seconds, timestamps (with a time zone: cast) or RFC 3339 text, got a column of date32[day]",
        ),
        (
            "key",
            "1.5D",
            "expected strings, integers, decimals, dates, timestamps or structs of these, got a column of double",
        ),
        ("ttl", "interval 1 month", "a column of interval month cannot be a field of a task"),
    ],
)
def test_an_unusable_column_is_named(
    column: str, value: str, why: str, spark: SparkSession, server: LaterServer
) -> None:
    frame = rows(spark, "wrong", COUNT).withColumn(column, F.expr(value))

    assert refusal(later_writer(frame, server.url, "wrong")) == f"{column}: {why}"
    assert server.topic_ids("wrong") == []


def test_nothing_is_overwritten(spark: SparkSession, server: LaterServer) -> None:
    writer = later_writer(rows(spark, "wrong", COUNT), server.url, "wrong")

    assert refusal(writer.mode("overwrite")) == 'later cannot overwrite: use .mode("append")'
    assert refusal(writer.mode("errorifexists")).startswith(
        'The data source "later" cannot be written in the "ErrorIfExists" mode. Please use either the "Append"'
    )


def test_rows_without_a_key_need_allow_duplicates(spark: SparkSession, server: LaterServer) -> None:
    keyless = rows(spark, "keyless", COUNT).drop("key")

    error = refusal(later_writer(keyless, server.url, "keyless"))
    assert error.startswith("key: expected a column of that name, which identifies a row: without it a row that")
    assert "allowDuplicates" in error
    for _ in range(2):
        later_writer(keyless, server.url, "keyless", allowDuplicates=True).save()

    assert len({*server.topic_ids("keyless")}) == 2 * COUNT


# Tasks

TYPES = {
    "k": "timestamp'2030-01-01 00:00:00.25Z' execute_time, 7Y retry, map('X-A', 'a', 'X-B', '') headers, "
    "map('tenant', 'a') context, '{}' content",
    "kk": "100.125BD delay, 3BD retry, 7200.5BD ttl",
    '["k",2]': "interval '25:30:00.5' hour to second delay, interval 30 hour ttl, "
    "struct('a' `X-A`) headers, '{}' context",
    "12.50": "'2030-01-01T01:00:00.25+01:00' execute_time, '4' retry, '{\"X-A\": \"a\"}' headers",
    "2026-11-21": "'1e2' delay, cast(null as int) retry, null headers",
}
"""Columns by the key of their row."""
KEYS = ("'k'", "X'6b6b'", "struct('k' a, 2 b)", "12.50BD", "date'2026-11-21'")


@pytest.mark.parametrize("transport", ["api", "store"])
def test_columns_of_many_types_keep_their_values(transport: str, spark: SparkSession, server: LaterServer) -> None:
    job = f"types-{transport}"
    for key, columns in zip(KEYS, TYPES.values(), strict=True):
        frame = spark.sql(f"select {key} key, '{job}' topic, '{UNUSED_CALLBACK}' callback, {columns}")
        later_writer(frame, server.url if transport == "api" else server.store_url, job).save()

    mapped, decimal, interval, text, nothing = (query(server.url, task_ids(job, [key])[0]) for key in TYPES)
    assert (mapped["due_at"], mapped["max_retry"], mapped["content"]) == ("2030-01-01T00:00:00.250Z", 7, "{}")
    assert (mapped["headers"], mapped["context"]) == (["X-A", "X-B"], ["tenant"])
    assert decimal["max_retry"] == 3
    assert seconds(decimal, "due_at", "expires_at") == 7200.5 - 100.125
    assert interval["headers"] == ["X-A"]
    assert seconds(interval, "due_at", "expires_at") == 30 * 3600 - (25.5 * 3600 + 0.5)
    assert (text["due_at"], text["max_retry"], text["headers"]) == ("2030-01-01T00:00:00.250Z", 4, ["X-A"])
    assert nothing["execute_time"] - nothing["creat_time"] in (100, 101)
    assert (nothing["max_retry"], "headers" in nothing) == (3, False)


@pytest.mark.parametrize("transport", ["api", "store"])
def test_rows_need_no_callback_where_the_policy_has_one(
    transport: str, spark: SparkSession, server: LaterServer
) -> None:
    topic = f"without-{transport}"
    assert call(server.url, "PATCH", f"/topics/{topic}/policy", {"callback": UNUSED_CALLBACK}).status == 200
    frame = rows(spark, topic, COUNT).drop("callback").withColumn("context", F.lit('{"tenant": "a"}'))
    later_writer(frame, server.url if transport == "api" else server.store_url, topic).save()
    ids = server.topic_ids(topic)
    assert len(ids) == COUNT
    task = query(server.url, ids[0])
    assert (task["callback"], task["context"]) == (None, ["tenant"])


def seconds(task: dict[str, Any], since: str, until: str) -> float:
    return (datetime.fromisoformat(task[until]) - datetime.fromisoformat(task[since])).total_seconds()


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("count", [0, 1])
def test_frames_with_few_rows_are_written(
    count: int, partitions: int, spark: SparkSession, server: LaterServer
) -> None:
    """Most partitions are empty."""
    job = topic = f"little-{count}-{partitions}"

    later_writer(rows(spark, topic, count, partitions), server.url, job).save()

    assert server.topic_ids(topic) == task_ids(job, range(count))


def test_the_batch_size_is_kept(spark: SparkSession, server: LaterServer) -> None:
    with run_proxy(server.url) as proxy:
        later_writer(rows(spark, "batches", 100, partitions=1), proxy.url, "batches", batchSize=30).save()

    assert [len(batch.splitlines()) for batch in proxy.batches] == [30, 30, 30, 10]
    assert server.topic_ids("batches") == task_ids("batches", range(100))


def test_a_rejected_row_fails_the_job(spark: SparkSession, server: LaterServer) -> None:
    frame = rows_with_three_wrong_delays(spark, "fail")

    assert re.fullmatch(
        r"the row with the key '[012]' was rejected: delay: expected a number of seconds ≥ 0, got -1 "
        r"\(onError=reject leaves such rows out\)",
        refusal(later_writer(frame, server.url, "fail")),
    )


def test_rejected_rows_are_left_out_with_on_error_reject(spark: SparkSession, server: LaterServer) -> None:
    """If there are more than maxRejects, the job fails in the end."""
    left = task_ids("reject", range(3, COUNT))
    three = rows_with_three_wrong_delays(spark, "reject")

    later_writer(three, server.url, "reject", onError="reject").save()
    assert server.topic_ids("reject") == left
    later_writer(three, server.url, "reject", onError="reject", maxRejects=3).save()
    error = refusal(later_writer(three, server.url, "reject", onError="reject", maxRejects=2))

    assert error.startswith(
        "3 rows were rejected, more than maxRejects=2; the tasks of the others are created. One of them: "
    )
    assert server.topic_ids("reject") == left
    assert server.job_counts("reject") == (len(left), 0, 3)


def rows_with_three_wrong_delays(spark: SparkSession, topic: str) -> DataFrame:
    return rows(spark, topic, COUNT).withColumn("delay", F.when(F.col("key") < 3, -1).otherwise(F.col("delay")))


def test_a_wrong_url_fails_at_once_in_one_line(spark: SparkSession) -> None:
    """Retries are for a daemon that goes away, not for a wrong URL."""
    url = f"http://127.0.0.1:{free_port()}"

    error = refusal(later_writer(rows(spark, "unreachable", COUNT), url, "unreachable"))

    assert error.startswith(f"{url} did not answer: Connection refused")
    assert "tried" not in error


def test_a_second_thread_can_write_if_the_session_is_active_in_it(spark: SparkSession, server: LaterServer) -> None:
    """Spark looks for Python data sources in the active session, which is a property of the thread."""

    def write() -> None:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]  # of a connection
        later_writer(rows(spark, "thread", COUNT), server.url, "thread").save()

    thread = Thread(target=write)
    thread.start()
    thread.join()

    assert server.topic_ids("thread") == task_ids("thread", range(COUNT))
