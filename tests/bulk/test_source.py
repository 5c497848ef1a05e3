"""What a writer does on an executor, and at the end on the driver: without Spark, but for the words of its classes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from later.bulk.datasource.source import LaterStreamWriter, LaterWriter, Written, told
from later.bulk.datasource.write_options import WriteOptions, write_options
from later.bulk.input.payload import Reject
from later.core.errors import LaterError, Refused
from tests.bulk.answers import Served, problem, served
from tests.bulk.answers import told as an_api
from tests.bulk.validation import CALLBACK

REASON = "delay: expected a number of seconds ≥ 0, got -5"


@pytest.fixture
def api() -> Iterator[Served]:
    with served() as api:
        yield api


def options(url: str, **given: str) -> WriteOptions:
    return write_options({"url": url, "jobId": "j", "batchSize": "2", "retries": "0"} | given)


def rows(*delays: float, **columns: list[Any]) -> pa.RecordBatch:
    count = len(delays)
    there = {"key": list("abcdefgh"[:count]), "topic": ["order"] * count, "callback": [CALLBACK] * count}
    return pa.record_batch(there | {"delay": list(delays)} | columns)


def write(options: WriteOptions, *batches: pa.RecordBatch) -> Written:
    """On an executor, whence only the message comes back."""
    written: Written = pickle.loads(pickle.dumps(LaterWriter(options).write(iter(batches))))
    return written


def test_what_a_partition_came_to_travels(api: Served) -> None:
    assert write(options(api.url), rows(1, 2, 3), rows(4, 5)) == Written(rows=5, rejected=0, example=None)


def test_a_partition_without_rows_has_come_to_nothing(api: Served) -> None:
    assert write(options(api.url)) == Written()


def test_the_first_row_that_is_refused_fails_the_job_and_is_named(api: Served) -> None:
    with pytest.raises(LaterError) as failed:
        write(options(api.url), rows(1, -5, -6))
    assert str(failed.value) == f"the row with the key 'b' was refused: {REASON} (onError=reject leaves such rows out)"


def test_or_is_left_out_and_counted(api: Served) -> None:
    written = write(options(api.url, onError="reject"), rows(1, -5, 3), rows(4, 5, 6, key=["x", None, "z"]))
    assert (written.rows, written.rejected) == (6, 2)
    assert written.example is not None
    assert (written.example.key, written.example.reason) == ("b", REASON)


@pytest.mark.parametrize(("most", "fails"), [(None, False), ("0", True), ("2", True), ("3", False)])
def test_more_of_them_than_there_may_be_fail_the_job_at_its_end(most: str | None, fails: bool) -> None:
    given = options("http://127.0.0.1:1", onError="reject", **({} if most is None else {"maxRejects": most}))
    bad = Written(rows=9, rejected=2, example=Reject("b", "{}", "delay", REASON))
    messages = [Written(rows=5), bad, None, Written(rows=9, rejected=1, example=bad.example)]
    for commit in (LaterWriter(given).commit, lambda some: LaterStreamWriter(given).commit(some, 7)):
        if fails:
            with pytest.raises(LaterError, match=r"^3 rows were refused, \d may be .* key 'b' was refused: delay: "):
                commit(messages)
        else:
            commit(messages)


def test_a_frame_that_no_tasks_can_be_made_of_is_refused(api: Served) -> None:
    with pytest.raises(Refused, match="key: expected a column of that name"):
        write(options(api.url), pa.record_batch({"topic": ["a"]}))
    write(options(api.url, allowDuplicates="true"), pa.record_batch({"topic": ["a"], "callback": [CALLBACK]}))


def test_what_cannot_be_sent_fails_the_partition() -> None:
    with an_api(problem(503, "the store is gone")) as api, pytest.raises(LaterError, match=r"^the store is gone$"):
        write(options(api.url), rows(1))


@pytest.mark.parametrize(
    ("key", "whom"),
    [
        (None, "a row without a key"),
        ("a\nb", r"the row with the key 'a\nb'"),
        ("k" * 999, f"the row with the key '{'k' * 200}'"),
    ],
)
def test_a_row_is_told_of_in_one_line_without_its_content(key: str | None, whom: str) -> None:
    assert told(Reject(key, '{"content":"secret"}', "delay", REASON)) == f"{whom} was refused: {REASON}"
