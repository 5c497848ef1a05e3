"""What Spark's workers do with a partition: Arrow batches of rows in, batches of what came of them out.

Each partition ends with a tally of its own, so that the sums are exact: a failed or overtaken attempt's does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from later.bulk.input.json import NO_ID
from later.bulk.input.payload import Parsed, Payloads, Reject
from later.bulk.input.table import Table
from later.bulk.transport.target import Target
from later.client.transport import TaskStatus

CREATED = (
    "rows bigint, created bigint, existing bigint, rejected bigint, key string, row string, field string, reason string"
)
FOUND = (
    "rows bigint, pending bigint, dead bigint, ended bigint, missing bigint, unfit bigint, "
    "key string, id string, row string"
)

_INT, _TEXT = pa.int64(), pa.string()
_CREATED = pa.schema(
    [(name, _INT) for name in ("rows", "created", "existing", "rejected")]
    + [(name, _TEXT) for name in ("key", "row", "field", "reason")]
)
_FOUND = pa.schema(
    [(name, _INT) for name in ("rows", "pending", "dead", "ended", "missing", "unfit")]
    + [(name, _TEXT) for name in ("key", "id", "row")]
)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, kw_only=True, slots=True)
class Create:
    """Creates tasks of a partition's rows, or with `dry_run` says what would be refused.

    Answers what was refused, at most `told` rows (None: all), and the tally, as `CREATED`.
    """

    target: Target
    table: Table
    dry_run: bool = False
    told: int | None = None

    def __call__(self, batches: Batches) -> Batches:
        rows = created = existing = rejected = 0
        with self.target.batches(self.table.job) as out:
            send = out.judge if self.dry_run else out.create
            for read in self.table.read_all(batches):
                rejects = list(read.rejected)
                for part in send(read.payloads):
                    created += part.created
                    existing += part.existing
                    rejects += part.rejects
                told = rejects if self.told is None else rejects[: max(self.told - rejected, 0)]
                rows += len(read.payloads.bodies) + len(read.rejected)
                rejected += len(rejects)
                if told:
                    yield _told(told)
        yield _tally(_CREATED, rows=rows, created=created, existing=existing, rejected=rejected)


@dataclass(frozen=True, kw_only=True, slots=True)
class Find:
    """Finds out where the tasks of a partition's rows are.

    Answers the rows whose tasks are missing, at most `told` (None: all), and the tally, as `FOUND`.
    """

    target: Target
    table: Table
    told: int | None = None

    def __call__(self, batches: Batches) -> Batches:
        tally = _FoundTally()
        with self.target.batches(self.table.job) as out:
            for read in self.table.read_all(batches):
                there = tally.fit(read)
                missing = tally.add(there, out.find(there.ids))
                told = missing if self.told is None else missing[: max(self.told - tally.told, 0)]
                tally.told += len(told)
                if told:
                    yield _missing(there, told)
        yield tally.batch()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Deletes the tasks of a partition's rows that are pending. Answers the tally, as `FOUND`: where each was."""

    target: Target
    table: Table

    def __call__(self, batches: Batches) -> Batches:
        tally = _FoundTally()
        with self.target.batches(self.table.job) as out:
            for read in self.table.read_all(batches):
                there = tally.fit(read)
                tally.add(there, out.cancel(there.ids))
        yield tally.batch()


class _FoundTally:
    """Counts a partition's rows by where their tasks are; `unfit` rows can have none: without a key, or corrupt."""

    def __init__(self) -> None:
        self.rows = self.unfit = self.told = 0
        self.standing = dict.fromkeys(TaskStatus, 0)

    def fit(self, read: Parsed) -> Payloads:
        there = [position for position, id in enumerate(read.payloads.ids) if id != NO_ID]
        self.rows += len(read.payloads.ids) + len(read.rejected)
        self.unfit += len(read.payloads.ids) + len(read.rejected) - len(there)
        return read.payloads if len(there) == len(read.payloads.ids) else read.payloads.select(there)

    def add(self, lines: Payloads, found: list[TaskStatus]) -> list[int]:
        """Count what was found; the positions of what is missing."""
        for standing in TaskStatus:
            self.standing[standing] += found.count(standing)
        return [position for position, standing in enumerate(found) if standing is TaskStatus.MISSING]

    def batch(self) -> pa.RecordBatch:
        counts = {standing.value: count for standing, count in self.standing.items()}
        return _tally(_FOUND, rows=self.rows, unfit=self.unfit, **counts)


def _tally(schema: pa.Schema, **counts: int) -> pa.RecordBatch:
    return pa.record_batch({name: [counts.get(name)] for name in schema.names}, schema=schema)


def _told(rejects: list[Reject]) -> pa.RecordBatch:
    columns = dict(zip(Reject._fields, zip(*rejects, strict=True), strict=True))
    return _of(_CREATED, len(rejects), {name: list(values) for name, values in columns.items()})


def _missing(lines: Payloads, positions: list[int]) -> pa.RecordBatch:
    some = lines.select(positions)
    rows = [some.reject(i, None, "").row for i in range(len(positions))]
    keys = [some.readable_key(i) for i in range(len(positions))]
    return _of(_FOUND, len(positions), {"key": keys, "id": list(some.ids), "row": list(rows)})


def _of(schema: pa.Schema, count: int, columns: dict[str, list[str | None]]) -> pa.RecordBatch:
    return pa.record_batch({name: columns.get(name, [None] * count) for name in schema.names}, schema=schema)
