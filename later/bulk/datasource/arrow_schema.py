"""The data source's columns: those of an answer to `/query`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from later.core.errors import Refused
from later.core.task import Task
from later.core.task_view import created_time_s, execute_time_s, retries_used
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
        "context": pa.list_(pa.field("element", pa.string())),
    }
)
"""The fields of an answer to `/query`. A field that the answer omits is null, and so is one that cannot be read. The
types are those that Spark itself makes of such columns."""


def select_columns(names: Iterable[str]) -> pa.Schema:
    """Return the part of SCHEMA with these columns, in their order. Raises Refused: there is no such column."""
    for name in names:
        if name not in SCHEMA.names:
            raise Refused(f"{name}: no such column; there are {', '.join(SCHEMA.names)}", name)
    return pa.schema([SCHEMA.field(name) for name in names])


def batch_from_records(records: Sequence[TaskRecord], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return a row for each record, in their order, with the columns of `schema`. Times are µs since the epoch.

    The batch is built column by column, because a dict for each row takes twice the time.
    """
    tasks = [record.task if isinstance(record.task, Task) else None for record in records]
    columns: dict[str, Callable[[], list[Any]]] = {
        "id": lambda: [record.id for record in records],
        "topic": lambda: [record.topic for record in records],
        "execute_time": lambda: [execute_time_s(task) for task in tasks],
        "max_retry": lambda: [task and task.max_retry for task in tasks],
        "has_retry": lambda: [retries_used(task, record.failure) for task, record in zip(tasks, records, strict=True)],
        "callback": lambda: [(task and task.callback) or None for task in tasks],
        "content": lambda: [task and task.content for task in tasks],
        "creat_time": lambda: [created_time_s(task) for task in tasks],
        "state": lambda: [record.state.value for record in records],
        "due_at": lambda: [None if record.state is Bucket.DEAD else record.due_at * 1000 for record in records],
        "died_at": lambda: [record.score * 1000 if record.state is Bucket.DEAD else None for record in records],
        "attempts": lambda: [record.attempts for record in records],
        "last_error": lambda: [
            failure
            and {
                "reason": failure.reason,
                "status": failure.status,
                "message": failure.message,
                "at": failure.at * 1000,
            }
            for failure in (record.failure for record in records)
        ],
        "headers": lambda: [list(task.headers) if task and task.headers else None for task in tasks],
        "expires_at": lambda: [
            None if task is None or task.expires_at is None else task.expires_at * 1000 for task in tasks
        ],
        "context": lambda: [list(task.context) if task and task.context else None for task in tasks],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name](), f.type) for f in schema], schema=schema)
