"""Tasks as columns: what a query shows of them, for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from later.core.retry import Failure
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
"""The fields of an answer to `/query`. What it leaves out is null, and so is what cannot be read. It must be to the
letter what Spark makes of the same columns."""


def batch_of(found: Sequence[TaskRecord]) -> pa.RecordBatch:
    """A row for each task, in their order, with the columns of SCHEMA."""
    columns = _columns(found, [one.task if isinstance(one.task, Task) else None for one in found])
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _columns(found: Sequence[TaskRecord], tasks: Sequence[Task | None]) -> dict[str, list[Any]]:
    """Times are µs since the epoch."""
    return {
        "id": [one.id for one in found],
        "topic": [one.topic for one in found],
        "execute_time": [one.execute_time_s for one in found],
        "max_retry": [task and task.max_retry for task in tasks],
        "has_retry": [one.retries_used for one in found],
        "callback": [task and task.callback for task in tasks],
        "content": [task and task.content for task in tasks],
        "creat_time": [one.created_time_s for one in found],
        "state": [one.state.value for one in found],
        "due_at": [None if one.state is Bucket.DEAD else one.score * 1000 for one in found],
        "died_at": [one.score * 1000 if one.state is Bucket.DEAD else None for one in found],
        "attempts": [one.attempts for one in found],
        "last_error": [_last_error(one.failure) for one in found],
        "headers": [list(task.headers) if task and task.headers else None for task in tasks],
        "expires_at": [None if task is None or task.expires_at is None else task.expires_at * 1000 for task in tasks],
    }


def _last_error(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "reason": failure.reason,
        "status": failure.status,
        "message": failure.message,
        "at": failure.at * 1000,
    }
