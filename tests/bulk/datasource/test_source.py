"""A writer on an executor, and its end on the driver: without Spark, but with its classes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from later.bulk.datasource.source import LaterStreamWriter, LaterWriter, WriteMessage, describe_reject
from later.bulk.datasource.write_options import WriteOptions, parse_write_options
from later.bulk.input.rejects import build_reject
from later.core.errors import LaterError, Refused
from tests.bulk.validation import CALLBACK
from tests.cases import each_case
from tests.client.api_servers import ApiServer, api_server, problem, stub_server

REASON = "delay: expected a number of seconds ≥ 0, got -5"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as api:
        yield api


def options(url: str, **given: str) -> WriteOptions:
    return parse_write_options({"url": url, "jobId": "j", "batchSize": "2", "retries": "0"} | given)


def rows(*delays: float, **columns: list[Any]) -> pa.RecordBatch:
    count = len(delays)
    fields = {"key": list("abcdefgh"[:count]), "topic": ["order"] * count, "callback": [CALLBACK] * count}
    return pa.record_batch(fields | {"delay": list(delays)} | columns)


def write(options: WriteOptions, *batches: pa.RecordBatch) -> WriteMessage:
    """Write as an executor does: only the message returns, pickled."""
    written: WriteMessage = pickle.loads(pickle.dumps(LaterWriter(options).write(iter(batches))))
    return written


def test_a_partitions_result_returns_to_the_driver(api: ApiServer) -> None:
    written = WriteMessage(rows=5, created=3, rejected=0, example=None)  # two rows have the keys of others
    assert write(options(api.url), rows(1, 2, 3), rows(4, 5)) == written


def test_tasks_that_the_store_has_lost_fail_the_job_at_its_end(api: ApiServer) -> None:
    writer = LaterWriter(options(api.url))
    messages = [writer.write(iter([rows(1, 2, 3)])), writer.write(iter([rows(1, 2)]))]
    writer.commit(messages)
    api.run(api.fixture.client.execute("test", ("FLUSHALL",)))
    with pytest.raises(LaterError, match=r"^the store has lost at least 3 of 3 tasks that it had confirmed"):
        writer.commit(messages)


def test_a_partition_without_rows_has_an_empty_result(api: ApiServer) -> None:
    assert write(options(api.url)) == WriteMessage()


def test_the_first_rejected_row_fails_the_job_and_is_named(api: ApiServer) -> None:
    with pytest.raises(LaterError) as failed:
        write(options(api.url), rows(1, -5, -6))
    assert str(failed.value) == f"the row with the key 'b' was rejected: {REASON} (onError=reject leaves such rows out)"


def test_with_on_error_reject_rows_are_left_out_and_counted(api: ApiServer) -> None:
    written = write(options(api.url, onError="reject"), rows(1, -5, 3), rows(4, 5, 6, key=["x", None, "z"]))
    assert (written.rows, written.rejected) == (6, 2)
    assert written.example is not None
    assert (written.example.key, written.example.reason) == ("b", REASON)


@each_case(("most", "fails"), [(None, False), ("0", True), ("2", True), ("3", False)])
def test_more_rejects_than_allowed_fail_the_job_at_its_end(most: str | None, fails: bool) -> None:
    given = options("http://127.0.0.1:1", onError="reject", **({} if most is None else {"maxRejects": most}))
    bad = WriteMessage(rows=9, rejected=2, example=build_reject(b"{}", b"b", Refused(REASON, "delay")))
    messages = [WriteMessage(rows=5), bad, None, WriteMessage(rows=9, rejected=1, example=bad.example)]
    for commit in (LaterWriter(given).commit, lambda some: LaterStreamWriter(given).commit(some, 7)):
        if fails:
            with pytest.raises(
                LaterError, match=r"^3 rows were rejected, more than maxRejects=\d; .* key 'b' was rejected: delay: "
            ):
                commit(messages)
        else:
            commit(messages)


def test_a_frame_without_a_key_is_refused(api: ApiServer) -> None:
    with pytest.raises(Refused, match="key: expected a column of that name"):
        write(options(api.url), pa.record_batch({"topic": ["a"]}))
    without_key = pa.record_batch({"topic": ["a"], "callback": [CALLBACK]})
    write(options(api.url, allowDuplicates="true", now="true"), without_key)


def test_a_frame_without_a_time_is_refused_unless_now_is_given(api: ApiServer) -> None:
    without_time = pa.record_batch({"key": ["a"], "topic": ["a"], "callback": [CALLBACK]})
    with pytest.raises(Refused, match=r"^execute_time: expected a column execute_time or delay, got neither"):
        write(options(api.url), without_time)
    assert write(options(api.url, now="true"), without_time).rows == 1


def test_a_row_whose_time_is_null_is_rejected_unless_null_times_are_now(api: ApiServer) -> None:
    batch = rows(1, 2, execute_time=[None, None]).set_column(3, "delay", pa.array([None, 5.0]))
    with pytest.raises(LaterError, match=r"^the row with the key 'a' was rejected: delay: expected a time"):
        write(options(api.url), batch)
    assert write(options(api.url, onError="reject"), batch).rejected == 1
    assert write(options(api.url, nullTime="now"), batch).rejected == 0


def test_an_unavailable_server_fails_the_partition() -> None:
    with stub_server(problem(503, "the store is gone")) as api, pytest.raises(LaterError, match=r"^the store is gone$"):
        write(options(api.url), rows(1))


@each_case(
    ("key", "row"),
    [
        (None, "a row without a key"),
        (b"a\nb", r"the row with the key 'a\nb'"),
        (b"k" * 999, f"the row with the key '{'k' * 200}'"),
    ],
)
def test_a_rejected_row_is_described_in_one_line_without_its_content(key: bytes | None, row: str) -> None:
    reject = build_reject(b'{"content":"secret"}', key, Refused(REASON, "delay"))
    assert describe_reject(reject) == f"{row} was rejected: {REASON}"
