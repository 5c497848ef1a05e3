"""The data source `later`: `df.write.format("later")`, `writeStream`, and `spark.read` from the store.

A writer's `write` runs on the executors. Attributes that it sets are lost; only its message reaches the driver. If an
attempt was repeated, the messages count too few created tasks. So they are used only to count rejected rows: the ids
make each row one task, and the store counts the job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from later.bulk.datasource.write_options import WriteOptions, parse_write_options
from later.bulk.input.rejects import Reject
from later.bulk.input.task_ids import new_run_id
from later.core.errors import LaterError, Refused

NAME = "later"
NO_TABLE = (
    "later cannot be a table of the catalog, because Spark would drop its options: use CREATE TEMPORARY VIEW … USING "
    'later OPTIONS (…), or spark.read.format("later")'
)
NO_STREAM = (
    "later cannot be read as a stream, because a store keeps no order of changes: read it again by "
    'spark.read.format("later"), or let later call your receiver'
)


class LaterDataSource(DataSource):
    """Tasks as rows. Writers take the fields of `/create` and `key` as columns, readers give those of `/query`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # An executor that writes needs no redis.
        from later.bulk.datasource.arrow_schema import SCHEMA, select_columns  # noqa: PLC0415
        from later.bulk.datasource.read_options import parse_read_options  # noqa: PLC0415

        if "provider" in self.options:  # Spark gives a CREATE TABLE its properties, too, and drops all options
            raise LaterError(NO_TABLE)
        columns = None if "columns" not in self.options else parse_read_options(self.options).columns
        return from_arrow_schema(SCHEMA if columns is None else select_columns(columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        from later.bulk.datasource.reader import LaterReader  # noqa: PLC0415  # as above

        return LaterReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        return RefusedStreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise LaterError('later cannot overwrite: use .mode("append")')
        options = _parse_options(self, schema)
        options.target.check_admission(options.row_settings.job)
        options.target.counts(options.row_settings.job)  # fail before Spark starts if nothing answers
        return LaterWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's
        if overwrite:
            raise LaterError('later cannot overwrite: use .outputMode("append")')
        return LaterStreamWriter(_parse_options(self, schema))


def _parse_options(source: DataSource, schema: StructType) -> WriteOptions:
    """Return the writer's options, if tasks can be made of rows of this schema. Raises LaterError."""
    options = parse_write_options(source.options)
    for field in schema:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkTypeError:
            kind = field.dataType.simpleString()
            raise Refused(f"{field.name}: a column of {kind} cannot be a field of a task", field.name) from None
    options.row_settings.build_reader(to_arrow_schema(schema, timezone="UTC"))
    return options


class RefusedStreamReader(DataSourceStreamReader):
    """A reader of no stream: it refuses to begin. (If the data source itself raised, Spark would hide its error.)"""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's
        raise LaterError(NO_STREAM)

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        raise LaterError(NO_STREAM)


class LaterWriter(DataSourceArrowWriter):
    """A writer of a DataFrame: a run of its own, whose tasks the store counts."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = new_run_id(time.time())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        return write_partition(self._options, iterator, self._run)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        check_rejects(self._options, messages)
        check_lost(self._options, messages, self._run)


class LaterStreamWriter(DataSourceStreamArrowWriter):
    """A writer of a stream's batches. A batch that is written again creates no task twice, whatever the checkpoint."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        return write_partition(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        check_rejects(self._options, messages)


@dataclass
class WriteMessage(WriterCommitMessage):
    """The result of a partition, from the attempt that counts. `example` is its first rejected row."""

    rows: int = 0
    created: int = 0
    rejected: int = 0
    example: Reject | None = None


def write_partition(options: WriteOptions, batches: Iterator[pa.RecordBatch], run: str | None = None) -> WriteMessage:
    """Create the tasks of a partition's rows, in a run of the job if there is one.

    Raises:
        LaterError: A batch cannot be sent; or a row was rejected, and that fails the job.
    """
    message = WriteMessage()
    with options.target.open_sender(options.row_settings.job, run) as sender:
        for parsed in options.row_settings.read_all(batches):
            _add_rejects(options, message, parsed.rejected)
            for result in sender.create(parsed.payloads.bodies):
                message.created += result.created
                rejects = [parsed.payloads.reject(i, e.refusal) for i, e in result.errors.items()]
                _add_rejects(options, message, rejects)
            message.rows += len(parsed.payloads.bodies) + len(parsed.rejected)
    return message


def _add_rejects(options: WriteOptions, message: WriteMessage, rejects: Sequence[Reject]) -> None:
    if rejects and options.fail_fast:
        raise LaterError(f"{describe_reject(rejects[0])} (onError=reject leaves such rows out)")
    message.rejected += len(rejects)
    if message.example is None and rejects:
        message.example = rejects[0]


def check_rejects(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise LaterError if more rows were rejected than allowed. The tasks of the other rows exist nevertheless."""
    results = [message for message in messages if isinstance(message, WriteMessage)]
    rejected = sum(result.rejected for result in results)
    if options.max_rejects is not None and rejected > options.max_rejects:
        example = next(result.example for result in results if result.example is not None)
        raise LaterError(
            f"{rejected} rows were rejected, more than maxRejects={options.max_rejects}; the tasks of the others are "
            f"created. One of them: {describe_reject(example)}"
        )


def check_lost(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], run: str) -> None:
    """Raise LaterError if the store counts fewer tasks of a run than it had confirmed as created."""
    confirmed = sum(message.created for message in messages if isinstance(message, WriteMessage))
    try:
        counted = options.target.count_created(options.row_settings.job, run) if confirmed else 0
    except LaterError:  # all rows are written; only the check is impossible
        return
    if counted < confirmed:
        raise LaterError(
            f"the store has lost at least {confirmed - counted} of {confirmed} tasks that it had confirmed as created: "
            "write the rows again, or find those without a task with `later bulk verify`"
        )


def describe_reject(reject: Reject) -> str:
    """Return one line about a rejected row, without its content."""
    row = "a row without a key" if reject.key is None else f"the row with the key {reject.key[:200]!r}"
    return f"{row} was rejected: {reject.reason}"
