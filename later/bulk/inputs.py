"""The input of a job, as Spark reads it: files of some format, or a table, with columns named as a task's.

Nothing is cast here but what every value survives: what a column cannot be is found out row by row, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from later.bulk.keys import KEY
from later.bulk.objects import TEXT
from later.bulk.rows import CORRUPT, FIELDS, NUMBERS
from later.bulk.work import Table
from later.core.errors import Refused

COUNTED = frozenset({"parquet", "orc", "table"})
"""Formats whose rows Spark counts by their metadata."""
OBJECTS = frozenset({"json", "ndjson"})
FORMATS = ("parquet", "csv", "json", "ndjson", "orc", "table")

CSV = {"header": "true", "escape": '"'}
"""As RFC 4180 has it: a quote within quotes is doubled. (Spark's own default is a backslash.)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What is read: a path or a table's name, its format, Spark's options for that, and what column is what.

    `columns` says which of a task's fields, or `key`, is which column, where that is not the one of the same name;
    `constants` are values that all rows have.
    """

    path: str
    format: str
    options: Mapping[str, str]
    columns: Mapping[str, str]
    constants: Mapping[str, str]
    spread_s: float = 0
    keyless: bool = False
    strangers: bool = True


class Found(NamedTuple):
    """The input's rows, how the workers read them, and its columns that are no task's."""

    frame: DataFrame
    table: Table
    unused: list[str]


def read(spark: SparkSession, given: Input, job: str) -> Found:
    """The input, not yet read.

    Raises:
        Refused: a column is not there, or no task has such a field.
        PySparkException: Spark cannot read it.
    """
    for name in (*given.columns, *given.constants):
        if name not in (*FIELDS, KEY):
            raise Refused(f"{name}: no field of a task; there are {', '.join(FIELDS)} and {KEY}", name)
    table = Table(job=job, keyless=given.keyless, spread_s=given.spread_s, strangers=given.strangers)
    return _objects(spark, given, table) if given.format in OBJECTS else _columns(spark, given, table)


def row_count(spark: SparkSession, given: Input) -> int | None:
    """How many rows there are, where that is known without reading them."""
    return _frame(spark, given).count() if given.format in COUNTED else None


# Objects


def _objects(spark: SparkSession, given: Input, table: Table) -> Found:
    documents = given.format == "json"
    options = {"wholetext": "true"} if documents else {}
    frame = spark.read.options(**{**options, **given.options}).format("text").load(given.path).select(TEXT)
    constants = {name: _json(name, text) for name, text in given.constants.items()}
    table = replace(table, documents=documents, sources=dict(given.columns), constants=constants)
    return Found(frame, table, [])


def _json(field: str, text: str) -> bytes:
    """A constant as it stands in JSON: of a number's field a number, if it is one."""
    if field in NUMBERS or field == "headers":
        try:
            msgspec.json.decode(text)
            return text.encode()
        except ValueError:
            pass
    return msgspec.json.encode(text)


# Columns


def _columns(spark: SparkSession, given: Input, table: Table) -> Found:
    frame = _frame(spark, given)
    taken = _taken([name for name in frame.columns if name != CORRUPT], given)
    columns = [_column(frame, source).alias(field) for field, source in taken.items()]
    constants = [F.lit(text).alias(field) for field, text in given.constants.items()]
    corrupt = [frame[CORRUPT]] if CORRUPT in frame.columns else []
    unused = [name for name in frame.columns if name not in (*taken.values(), CORRUPT)]
    return Found(_by_due_time(_with_zones(frame.select(*columns, *constants, *corrupt))), table, unused)


def _taken(names: Sequence[str], given: Input) -> dict[str, str]:
    """Which column each field is."""
    for field, source in given.columns.items():
        if source.partition(".")[0] not in names and source not in names:
            raise Refused(f"{field}: there is no column {source}; there are {', '.join(names)}", field)
    same = {name: name for name in names if name in (*FIELDS, KEY) and name not in given.columns.values()}
    return {field: source for field, source in {**same, **given.columns}.items() if field not in given.constants}


def _column(frame: DataFrame, name: str) -> Column:
    """A column by its name, or a field of a struct, with dots."""
    return frame[f"`{name}`"] if name in frame.columns else frame[name]


def _with_zones(frame: DataFrame) -> DataFrame:
    """Timestamps that say no time zone are in the session's, as everywhere in Spark."""
    zoneless = [field.name for field in frame.schema.fields if isinstance(field.dataType, T.TimestampNTZType)]
    return frame.withColumns({name: frame[name].cast("timestamp") for name in zoneless if name in FIELDS})


def _by_due_time(frame: DataFrame) -> DataFrame:
    """In the order in which the store keeps them, partition by partition: it takes them half as fast again."""
    due = [_sortable(frame, name) for name in ("execute_time", "delay") if name in frame.columns]
    return frame.sortWithinPartitions(*due) if due else frame


def _sortable(frame: DataFrame, name: str) -> Column:
    kind = frame.schema[name].dataType
    if isinstance(kind, T.StringType):
        return frame[name].try_cast("double")
    return frame[name]


def _frame(spark: SparkSession, given: Input) -> DataFrame:
    if given.format == "table":
        return spark.read.options(**given.options).table(given.path)
    if given.format == "csv":
        return _csv(spark, given)
    return spark.read.options(**given.options).format(given.format).load(given.path)


def _csv(spark: SparkSession, given: Input) -> DataFrame:
    """All columns are texts, read in one pass; a row of too many or too few is corrupt, and its text kept."""
    options = {**CSV, **given.options}
    names = spark.read.options(**options).csv(given.path).columns
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, CORRUPT)])
    strict = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "columnPruning": "false"}
    return spark.read.options(**{**options, **strict}).schema(schema).csv(given.path)
