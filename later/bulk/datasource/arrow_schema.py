"""The data source's columns: those of an answer to `/query`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from later.core.task import Task
from later.store.keys import Bucket
from later.store.types import TaskRecord

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "topic": pa.string(),
        "execute_time": pa.int64(),
        "max_retry": pa.int32(),
        "has_retry": pa.int32(),
        "callback": pa.string(),
        "content": pa.string(),
        "creat_time": pa.int64(),
        "state": pa.string(),
        "due_at": _TIME,
        "died_at": _TIME,
        "attempts": pa.int64(),
        "last_error": pa.struct({"reason": pa.string(), "status": pa.int32(), "message": pa.string(), "at": _TIME}),
        "headers": pa.list_(pa.field("element", pa.string())),
        "expires_at": _TIME,
    }
)
"""The fields of an answer to `/query`. A field that the answer omits is null, and so is one that cannot be read. The
types are those that Spark itself makes of such columns."""


def batch_from_records(records: Sequence[TaskRecord]) -> pa.RecordBatch:
    """Return a row for each record, in their order, with the columns of SCHEMA."""
    return pa.RecordBatch.from_pylist([row_from_record(record) for record in records], schema=SCHEMA)


def row_from_record(record: TaskRecord) -> dict[str, Any]:
    """Return a record's columns; those that are missing are null. Times are µs since the epoch."""
    row: dict[str, Any] = {
        "id": record.id,
        "topic": record.topic,
        "has_retry": record.retries_used,
        "state": record.state.value,
        "died_at" if record.state is Bucket.DEAD else "due_at": record.score * 1000,
        "attempts": record.attempts,
    }
    task, failure = record.task, record.failure
    if isinstance(task, Task):
        row |= {
            "execute_time": record.execute_time_s,
            "max_retry": task.max_retry,
            "callback": task.callback,
            "content": task.content,
            "creat_time": record.created_time_s,
            "headers": list(task.headers) or None,
            "expires_at": None if task.expires_at is None else task.expires_at * 1000,
        }
    if failure is not None:
        row["last_error"] = {
            "reason": failure.reason,
            "status": failure.status,
            "message": failure.message,
            "at": failure.at * 1000,
        }
    return row
