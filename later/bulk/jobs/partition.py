"""The functions that Spark's workers run on a partition: Arrow batches of rows in, batches of results out.

Each partition ends with a tally of its own. Spark drops the output of failed and overtaken attempts, so the sums of the
tallies are exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa

from later.bulk.input.due_times import DueTimes
from later.bulk.input.json import NO_ID
from later.bulk.input.payload import Parsed, Payloads
from later.bulk.input.rejects import Reject, redact_row
from later.bulk.input.row_settings import RowSettings
from later.bulk.transport.target import Target
from later.client.transport import TaskStatus

_NUMBER, _TEXT = pa.int64(), pa.string()
CREATE_SCHEMA = pa.schema(
    [(name, _NUMBER) for name in ("rows", "created", "existing", "rejected", *DueTimes._fields)]
    + [(name, _NUMBER if name == "position" else _TEXT) for name in Reject._fields]
)
"""The columns of tallies and of rejected rows: a tally has only the numbers at the beginning, a reject the others."""
STATUS_SCHEMA = pa.schema(
    [(name, _NUMBER) for name in ("rows", *TaskStatus, "unfit")] + [(name, _TEXT) for name in ("key", "id", "row")]
)
"""The columns of tallies and of rows without a task, in the same way."""

Batches = Iterator[pa.RecordBatch]


def tally_fields(schema: pa.Schema) -> list[str]:
    """Return the names of the numbers at a schema's beginning: the columns of its tallies."""
    return [field.name for field in takewhile(lambda field: field.type == _NUMBER, schema)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCreator:
    """A function of a partition that creates its rows' tasks or, with `dry_run`, only validates them.

    It returns at most `max_examples` rejected rows (None: all of them) and the tally, as CREATE_SCHEMA. With a `run`,
    the store also counts what this run of the job creates.
    """

    target: Target
    row_settings: RowSettings
    run: str | None = None
    dry_run: bool = False
    max_examples: int | None = None

    def __call__(self, batches: Batches) -> Batches:
        rows = created = existing = rejected = 0
        due_times = DueTimes()
        with self.target.open_sender(self.row_settings.job, self.run) as sender:
            send = sender.validate if self.dry_run else sender.create
            for parsed in self.row_settings.read_all(batches):
                now = time.time()
                rejects = list(parsed.rejected)
                refused: set[int] = set()
                payloads = parsed.payloads.sort_by_due_time(now)
                for result in send(payloads.bodies):
                    created += result.created
                    existing += len(result.existing)
                    refused |= result.errors.keys()
                    rejects += (payloads.reject(i, e.refusal) for i, e in result.errors.items())
                due_times = due_times.add(payloads.due_times(now), refused, now)
                shown = rejects if self.max_examples is None else rejects[: max(self.max_examples - rejected, 0)]
                rows += len(payloads.bodies) + len(parsed.rejected)
                rejected += len(rejects)
                if shown:
                    yield _result_rows(CREATE_SCHEMA, [reject._asdict() for reject in shown])
        tally = {"rows": rows, "created": created, "existing": existing, "rejected": rejected}
        yield _result_rows(CREATE_SCHEMA, [tally | due_times._asdict()])


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskVerifier:
    """A function of a partition that queries the status of its rows' tasks.

    It returns at most `max_examples` rows without a task (None: all of them) and the tally, as STATUS_SCHEMA.
    """

    target: Target
    row_settings: RowSettings
    max_examples: int | None = None

    def __call__(self, batches: Batches) -> Batches:
        tally, shown = StatusTally(), 0
        with self.target.open_sender(self.row_settings.job) as sender:
            for parsed in self.row_settings.read_all(batches):
                payloads = tally.count_rows(parsed)
                statuses = sender.query(payloads.ids)
                tally.count_statuses(statuses)
                missing = [i for i, status in enumerate(statuses) if status is TaskStatus.MISSING]
                if self.max_examples is not None:
                    missing = missing[: max(self.max_examples - shown, 0)]
                shown += len(missing)
                rows = [
                    {"key": payloads.readable_key(i), "id": payloads.ids[i], "row": redact_row(payloads.row(i))}
                    for i in missing
                ]
                if rows:
                    yield _result_rows(STATUS_SCHEMA, rows)
        yield _result_rows(STATUS_SCHEMA, [tally.counts])


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCanceller:
    """A function of a partition that deletes its rows' pending tasks.

    It returns the tally of the statuses that the tasks had, as STATUS_SCHEMA.
    """

    target: Target
    row_settings: RowSettings

    def __call__(self, batches: Batches) -> Batches:
        tally = StatusTally()
        with self.target.open_sender(self.row_settings.job) as sender:
            for parsed in self.row_settings.read_all(batches):
                tally.count_statuses(sender.cancel(tally.count_rows(parsed).ids))
        yield _result_rows(STATUS_SCHEMA, [tally.counts])


class StatusTally:
    """A tally of a partition's rows, by the status of their tasks. `unfit` rows are without a key or corrupt."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(tally_fields(STATUS_SCHEMA), 0)

    def count_rows(self, parsed: Parsed) -> Payloads:
        """Count a batch's rows and its unfit rows; return the payloads of the others."""
        payloads = parsed.payloads
        fit = [position for position, id in enumerate(payloads.ids) if id != NO_ID]
        rows = len(payloads.ids) + len(parsed.rejected)
        self.counts["rows"] += rows
        self.counts["unfit"] += rows - len(fit)
        return payloads if len(fit) == len(payloads.ids) else payloads.select(fit)

    def count_statuses(self, statuses: list[TaskStatus]) -> None:
        for status in TaskStatus:
            self.counts[status] += statuses.count(status)


def _result_rows(schema: pa.Schema, rows: Sequence[Mapping[str, int | str | None]]) -> pa.RecordBatch:
    """Return the rows as a batch; columns that a row does not have are null."""
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)
