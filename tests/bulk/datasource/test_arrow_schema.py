"""The columns of the data source: the same values as in an answer to `/query`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from later.bulk.datasource.arrow_schema import SCHEMA, batch_from_records
from later.core.errors import UnreadableBody
from later.core.retry import Failure
from later.core.task import Task
from later.core.task_view import task_view
from later.store.keys import Bucket
from later.store.types import TaskRecord
from tests.builders import NOW, a_task
from tests.cases import each_case

FAILURE = Failure(5, "exhausted", None, "5 failures, the last: no answer", NOW + 1, None, 5)
TIMES = ("due_at", "died_at", "expires_at")


def task_record(task: Task | UnreadableBody | None = None, state: Bucket = Bucket.DELAY, **changes: Any) -> TaskRecord:
    task = task or a_task()
    id = task.id if isinstance(task, Task) else "a"
    return msgspec.structs.replace(TaskRecord(id, "order", task, state, NOW + 15_001, 0, None), **changes)


def read_row(record: TaskRecord) -> dict[str, Any]:
    [row] = batch_from_records([record]).to_pylist()
    return dict(row)


def query_row(record: TaskRecord) -> dict[str, Any]:
    """Return the answer to a query as a row."""
    answer: dict[str, Any] = msgspec.to_builtins(task_view(record))
    row = {name: answer.get(name) for name in SCHEMA.names}
    for name in TIMES:
        row[name] = answer.get(name) and datetime.fromisoformat(answer[name])
    if row["last_error"]:
        row["last_error"]["at"] = datetime.fromisoformat(row["last_error"]["at"])
    return row


@each_case(
    "record",
    [
        task_record(),
        task_record(
            a_task(delay=15.001, ttl=60, headers={"X-A": "b", "X-B": "c"}, own_id=True, id="job:1", context={"a": ""})
        ),
        task_record(a_task(created_at=NOW + 999, content="é\x00 \U0001f600"), attempts=2, failure=FAILURE),
        task_record(state=Bucket.UNACK, attempts=1),
        task_record(state=Bucket.ERROR, attempts=4, failure=FAILURE),
        task_record(state=Bucket.DEAD, attempts=5, failure=FAILURE),
        task_record(UnreadableBody("no"), failure=FAILURE, attempts=5),
        task_record(UnreadableBody("no"), state=Bucket.DEAD),
    ],
    ids=["plain", "full", "retried", "unack", "error", "dead", "unreadable", "unreadable and dead"],
)
def test_a_row_has_the_values_of_a_query(record: TaskRecord) -> None:
    assert read_row(record) == query_row(record)


def test_a_row_has_every_field_of_a_query_but_the_earlier_failures() -> None:
    full = task_record(a_task(ttl=60, headers={"X-A": "b"}, context={"a": "b"}), state=Bucket.DEAD, failure=FAILURE)
    fields = msgspec.to_builtins(task_view(full)).keys() | msgspec.to_builtins(task_view(task_record())).keys()
    assert fields - {"failures"} == set(SCHEMA.names)  # an export has the last failure of each task


def test_rows_keep_the_order_of_the_records() -> None:
    records = [task_record(a_task(id=f"t{n}")) for n in range(50)]
    assert batch_from_records(records).column("id").to_pylist() == [f"t{n}" for n in range(50)]


def test_no_records_make_no_rows() -> None:
    assert batch_from_records([]).num_rows == 0


def test_spark_makes_the_same_types_of_the_columns() -> None:
    assert to_arrow_schema(from_arrow_schema(SCHEMA), timezone="UTC") == SCHEMA
