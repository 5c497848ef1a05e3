"""The data source `later`: `df.write.format("later")`, `writeStream`, and `spark.read` from the store.

What a writer's `write` puts on itself is lost: it runs on the executors, and only its message travels. What these say
is too low where an attempt was repeated, so they decide nothing but how many rows were refused: the ids see to it that
each row is one task, and the store counts the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from later.bulk.datasource.write_options import WriteOptions, write_options
from later.bulk.input.payload import Reject
from later.core.errors import LaterError, Refused

NAME = "later"


@dataclass
class Written(WriterCommitMessage):
    """What a partition came to, in the attempt that counts; `example` is the first row that was refused."""

    rows: int = 0
    rejected: int = 0
    example: Reject | None = None


class LaterDataSource(DataSource):
    """Tasks as rows: columns named as `/create`'s fields and `key` go in, those of `/query` come out."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from later.bulk.datasource.reader import SCHEMA  # noqa: PLC0415  # what the store takes, executors that write need not have

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from later.bulk.datasource.reader import LaterReader  # noqa: PLC0415

        return LaterReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise LaterError('there is nothing to overwrite: .mode("append")')
        options = _checked(self, schema)
        options.target.counts(options.table.job)  # or nobody is there
        return LaterWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's
        if overwrite:
            raise LaterError('there is nothing to overwrite: .outputMode("append")')
        return LaterStreamWriter(_checked(self, schema))


def _checked(source: DataSource, schema: StructType) -> WriteOptions:
    """The options, of a frame that tasks can be made of."""
    options = write_options(source.options)
    try:
        options.table.build_reader(_in_arrow(schema))
    except Refused as error:
        raise LaterError(error.detail) from None
    return options


def _in_arrow(schema: StructType) -> pa.Schema:
    """The columns as they will come. Raises Refused: Spark can hand on none of that type."""
    for field in schema:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkTypeError:
            raise Refused(
                f"{field.name}: no task has a column of {field.dataType.simpleString()}", field.name
            ) from None
    return to_arrow_schema(schema, timezone="UTC")


class LaterWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return written(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        check_rejects(self._options, messages)


class LaterStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream. One that is written again makes no task twice, whatever the checkpoint says."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return written(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        check_rejects(self._options, messages)


def written(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Create the tasks of a partition's rows.

    Raises:
        LaterError: they cannot be sent; or a row was refused, and that is to fail the job.
    """
    message = Written()
    with options.target.batches(options.table.job) as out:
        for read in options.table.read_all(batches):
            _note(options, message, read.rejected)
            for sent in out.create(read.payloads):
                _note(options, message, sent.rejects)
            message.rows += len(read.payloads.bodies) + len(read.rejected)
    return message


def _note(options: WriteOptions, message: Written, rejects: Sequence[Reject]) -> None:
    if rejects and options.fails:
        raise LaterError(f"{told(rejects[0])} (onError=reject leaves such rows out)")
    message.rejected += len(rejects)
    if message.example is None and rejects:
        message.example = rejects[0]


def check_rejects(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raises LaterError: more rows were refused than may be. The tasks of the others are there all the same."""
    counts = [message for message in messages if isinstance(message, Written)]
    rejected = sum(message.rejected for message in counts)
    if options.max_rejects is not None and rejected > options.max_rejects:
        example = next(message.example for message in counts if message.example is not None)
        raise LaterError(
            f"{rejected} rows were refused, {options.max_rejects} may be (maxRejects); the others are created. "
            f"One of them: {told(example)}"
        )


def told(reject: Reject) -> str:
    """A row that was refused, in one line without its content."""
    whom = "a row without a key" if reject.key is None else f"the row with the key {reject.key[:200]!r}"
    return f"{whom} was refused: {reject.reason}"
