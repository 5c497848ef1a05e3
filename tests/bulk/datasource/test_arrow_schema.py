"""An export shows of a task what a query does."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from later.api.schemas import task_view
from later.bulk.datasource.arrow_schema import SCHEMA, batch_from_records
from later.core.errors import UnreadableBody
from later.core.retry import Failure
from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import TaskRecord
from tests.builders import NOW, a_task

FAILURE = Failure(5, "exhausted", None, "5 failures, the last: no answer", NOW + 1, None, 5)
TIMES = ("due_at", "died_at", "expires_at")


def found(task: Task | UnreadableBody | None = None, state: Bucket = Bucket.DELAY, **changes: Any) -> TaskRecord:
    task = task or a_task()
    id = task.id if isinstance(task, Task) else "a"
    return TaskRecord(id, "order", task, state, NOW + 15_001, 0, None)._replace(**changes)


def row(one: TaskRecord) -> dict[str, Any]:
    [told] = batch_from_records([one]).to_pylist()
    return dict(told)


def query(one: TaskRecord) -> dict[str, Any]:
    """What a query answers, as a row."""
    told: dict[str, Any] = msgspec.to_builtins(task_view(one))
    row = {name: told.get(name) for name in SCHEMA.names}
    for name in TIMES:
        row[name] = told.get(name) and datetime.fromisoformat(told[name])
    if row["last_error"]:
        row["last_error"]["at"] = datetime.fromisoformat(row["last_error"]["at"])
    return row


@pytest.mark.parametrize(
    "one",
    [
        found(),
        found(a_task(delay=15.001, ttl=60, headers={"X-A": "b", "X-B": "c"}, own_id=True, id="job:1", max_retry=0)),
        found(a_task(created_at=NOW + 999, content="é\x00 \U0001f600"), attempts=2, failure=FAILURE),
        found(state=Bucket.UNACK, attempts=1),
        found(state=Bucket.ERROR, attempts=4, failure=FAILURE),
        found(state=Bucket.DEAD, attempts=5, failure=FAILURE),
        found(UnreadableBody("no"), failure=FAILURE, attempts=5),
        found(UnreadableBody("no"), state=Bucket.DEAD),
    ],
    ids=["plain", "full", "retried", "unack", "error", "dead", "unreadable", "unreadable and dead"],
)
def test_a_row_tells_what_a_query_does(one: TaskRecord) -> None:
    assert row(one) == query(one)


def test_a_row_has_a_field_for_all_that_a_query_can_tell() -> None:
    full = found(a_task(ttl=60, headers={"X-A": "b"}), state=Bucket.DEAD, failure=FAILURE)
    told = msgspec.to_builtins(task_view(full)).keys() | msgspec.to_builtins(task_view(found())).keys()
    assert told == set(SCHEMA.names)


def test_rows_are_in_the_order_of_the_tasks() -> None:
    some = [found(a_task(id=f"t{n}")) for n in range(50)]
    assert batch_from_records(some).column("id").to_pylist() == [f"t{n}" for n in range(50)]


def test_no_tasks_are_no_rows() -> None:
    assert batch_from_records([]).num_rows == 0


def test_the_columns_are_to_the_letter_those_that_spark_makes_of_them() -> None:
    assert to_arrow_schema(from_arrow_schema(SCHEMA), timezone="UTC") == SCHEMA
