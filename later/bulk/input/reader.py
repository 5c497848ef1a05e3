"""The input of a job, as Spark reads it: files of some format, or a table, with columns named as a task's.

Nothing is cast here but what every value survives: what a column cannot be is found out row by row, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from later.bulk.input.columns import CORRUPT_COLUMN, FIELDS, column_decoder, source_columns
from later.bulk.input.csv_checks import CsvLayout
from later.bulk.input.json import TEXT_COLUMN
from later.bulk.input.row_keys import KEY
from later.bulk.input.table import RowShape, Table
from later.core.errors import Refused

COUNTED_FORMATS = frozenset({"parquet", "orc"})
"""Formats whose rows Spark counts by their metadata. (A table may be a view, whose rows it would have to make.)"""
MERGE_SCHEMAS = {"mergeSchema": "true"}
"""The columns of all files: by default Spark takes those of one, and a column that only others have is dropped."""
JSON_FORMATS = frozenset({"json", "ndjson"})

CSV_OPTIONS = {"header": "true", "escape": '"', "multiLine": "true", "enforceSchema": "false"}
"""As RFC 4180 has it: a quote within quotes is doubled (Spark's own default is a backslash), and a line may end within
quotes (or such a row would be a task of its first half). Each file must have the first one's header: by default Spark
takes the columns in that order, whatever the file says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInput:
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
    allow_duplicates: bool = False
    send_unknown_fields: bool = True


class InputFrame(NamedTuple):
    """The input's rows, how the workers read them, and its columns that are no task's."""

    frame: DataFrame
    table: Table
    unused: list[str]


def check_input(given: JobInput) -> None:
    """Look at what can be known of an input before Spark has started.

    Raises:
        Refused: no task has such a field, or it cannot be the same for all rows.
    """
    for name in (*given.columns, *given.constants):
        if name not in (*FIELDS, KEY):
            raise Refused(f"{name}: no field of a task; there are {', '.join(FIELDS)} and {KEY}", name)
    if given.format != "table" and _is_stream(given.path):
        raise Refused(f"{given.path}: expected a file or a directory, which Spark reads in parts and more than once")
    if KEY in given.constants:
        raise Refused("key: expected a column, for rows that all have the same key are one task", KEY)


def _is_stream(path: str) -> bool:
    """Is it a pipe, a terminal or the like, of this machine?"""
    local = Path(path.removeprefix("file://"))
    return local.exists() and not local.is_file() and not local.is_dir()


def read_input(spark: SparkSession, given: JobInput, job: str) -> InputFrame:
    """The input, not yet read.

    Raises:
        Refused: as above, or a column is not there.
        PySparkException: Spark cannot read it.
    """
    check_input(given)
    table = Table(
        job=job,
        allow_duplicates=given.allow_duplicates,
        spread_s=given.spread_s,
        send_unknown_fields=given.send_unknown_fields,
        constants={name: _json(name, text) for name, text in given.constants.items()},
    )
    return _objects(spark, given, table) if given.format in JSON_FORMATS else _columns(spark, given, table)


def row_count(spark: SparkSession, given: JobInput) -> int | None:
    """How many rows there are, where that is known without reading them."""
    return _frame(spark, given)[0].count() if given.format in COUNTED_FORMATS else None


# Objects


def _objects(spark: SparkSession, given: JobInput, table: Table) -> InputFrame:
    shape = RowShape.DOCUMENTS if given.format == "json" else RowShape.OBJECTS
    options = {"wholetext": "true"} if shape is RowShape.DOCUMENTS else {}
    frame = spark.read.options(**{**options, **given.options}).format("text").load(given.path)
    table = replace(table, shape=shape, sources=dict(given.columns))
    for name in frame.columns:
        if name in source_columns(given.columns).values() and name not in given.constants:
            raise Refused(
                f"{name}: a column of the directories' names ({name}=…), which objects of JSON are not given: read one "
                f"directory at a time, with --set",
                name,
            )
    return InputFrame(frame.select(TEXT_COLUMN), table, [name for name in frame.columns if name != TEXT_COLUMN])


def _json(field: str, text: str) -> bytes:
    """A constant as JSON: what it would be in a column of texts."""
    (value,) = column_decoder(field, pa.string())(pa.array([text]))
    return msgspec.json.encode(value)


# Columns


def _columns(spark: SparkSession, given: JobInput, table: Table) -> InputFrame:
    frame, corrupt = _frame(spark, given)
    names = [name for name in frame.columns if name != corrupt]
    taken = _taken(names, given)
    columns = [frame[_reference(names, source)].alias(field) for field, source in taken.items()]
    told = [] if corrupt is None else [frame[_quoted(corrupt)].alias(CORRUPT_COLUMN)]
    if not columns and not told:  # without any, Spark has no rows to hand on
        told = [F.lit(None).cast("string").alias(CORRUPT_COLUMN)]
    rows = _with_zones(frame.select(*columns, *told))
    if given.format == "csv":
        table = replace(table, csv=_looks(given, names, taken))
    table.build_reader(to_arrow_schema(rows.schema, timezone="UTC"))  # now: or it is refused in a worker, four times
    used = {_whole(names, source) for source in taken.values()}
    unused = [name for name in names if name not in used and name not in given.constants]
    return InputFrame(_by_due_time(rows), table, unused)


def _taken(names: Sequence[str], given: JobInput) -> dict[str, str]:
    """Which column each field is."""
    for field, source in given.columns.items():
        if _whole(names, source) not in names:
            raise Refused(f"{field}: there is no column {source}; there are {', '.join(names)}", field)
    return {
        field: source
        for field, source in source_columns(given.columns).items()
        if field not in given.constants and (field in given.columns or source in names)
    }


def _whole(names: Sequence[str], source: str) -> str:
    """The column that a field of a struct, with dots, is in."""
    return source if source in names else source.partition(".")[0]


def _reference(names: Sequence[str], source: str) -> str:
    """A column as Spark wants to have it called; a field of a struct as it stands."""
    return _quoted(source) if source in names else source


def _quoted(name: str) -> str:
    """Whatever is in the name: spaces, dots, backticks."""
    return f"`{name.replace('`', '``')}`"


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


def _frame(spark: SparkSession, given: JobInput) -> tuple[DataFrame, str | None]:
    """The rows, and the column that has the texts of corrupt ones, where there may be such."""
    reader = spark.read.options(
        **({**MERGE_SCHEMAS, **given.options} if given.format in COUNTED_FORMATS else given.options)
    )
    if given.format == "table":
        return reader.table(given.path), None
    return _csv(spark, given) if given.format == "csv" else (reader.format(given.format).load(given.path), None)


def _csv(spark: SparkSession, given: JobInput) -> tuple[DataFrame, str]:
    """All columns are texts, read in one pass; a row of too many or too few is corrupt, and its text kept."""
    options = {**CSV_OPTIONS, **given.options}
    names = spark.read.options(**options).csv(given.path).columns
    if not names:
        raise Refused(f"{given.path}: expected a header, got nothing")
    if str(options["enforceSchema"]).lower() == "false":
        _check_header(names, given.path)
    corrupt = _free_name(names)
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, corrupt)])
    strict = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt, "columnPruning": "false"}
    return spark.read.options(**{**options, **strict}).schema(schema).csv(given.path), corrupt


def _looks(given: JobInput, names: Sequence[str], taken: Mapping[str, str]) -> CsvLayout:
    options = {name.lower(): value for name, value in given.options.items()}
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    callback = taken.get("callback")
    return CsvLayout(separator or ",", len(names), names.index(callback) if callback in names else None)


def _check_header(names: Sequence[str], path: str) -> None:
    """Raises Refused: Spark has renamed a column that has no name, or another's, and would not know it any more."""
    for at, name in enumerate(names):
        base = name.removesuffix(str(at)).lower()
        if name == f"_c{at}":
            wrong = f"column {at + 1} has none"
        elif name != base and any(other.lower() == f"{base}{i}" for i, other in enumerate(names) if i != at):
            wrong = f"two have {base!r}"
        else:
            continue
        raise Refused(
            f"{path}: expected a header with a name for each column, {wrong} (--option enforceSchema=true takes "
            "columns by their order, whatever the other files' headers say)"
        )


def _free_name(names: Sequence[str]) -> str:
    """That no column has, whatever its case, for Spark does not heed it."""
    taken = {name.lower() for name in names}
    return next(name for name in (CORRUPT_COLUMN + "_" * more for more in count()) if name not in taken)
