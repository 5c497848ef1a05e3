"""Input of a job as Spark reads it: files of some format, or a table, with columns named as a task's fields.

Nothing is cast here that could lose a value. Values of a wrong type are found row by row, and rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from later.bulk.input.column_names import (
    CORRUPT_COLUMN,
    FIELDS,
    TIME_REQUIRED,
    TimeRules,
    canonical_name,
    check_time,
    match_columns,
    source_columns,
)
from later.bulk.input.columns import column_decoder
from later.bulk.input.csv_checks import CsvLayout
from later.bulk.input.file_schemas import describe_conflict, is_merge_error, merge_schemas
from later.bulk.input.json import TEXT_COLUMN
from later.bulk.input.rejects import Reject
from later.bulk.input.row_keys import KEY
from later.bulk.input.row_origins import ORIGIN_COLUMN
from later.bulk.input.row_settings import RowSettings, RowShape
from later.bulk.spark.path_syntax import escape_glob
from later.core.errors import Refused

METADATA_FORMATS = frozenset({"parquet", "orc"})
"""Formats whose files contain their schema and their number of rows. (A table may be a view, without either.)"""
MERGE_SCHEMA = {"mergeSchema": "true"}
"""The option to read the columns of all files: by default Spark reads those of one file and drops all others."""
JSON_FORMATS = frozenset({"json", "ndjson"})
COUNTED_FORMATS = JSON_FORMATS | {"csv"}
"""Formats whose rows are counted as they arrive, to say where each is. So only the workers sort them, in batches."""
ORIGIN_DDL = "struct<file: string, block: bigint, position: bigint>"
"""`ORIGIN_TYPE` as Spark writes it."""

CSV_OPTIONS = {
    "header": "true",
    "escape": '"',
    "multiLine": "true",
    "enforceSchema": "false",
    "inputBufferSize": str(64 * 1024),
}
"""The options to read CSV as in RFC 4180: a quote within quotes is doubled (Spark's default is a backslash), and a line
may end within quotes (otherwise the first half of such a row would become a task). Each file must have the header of
the first file: by default Spark takes the columns in that order, whatever the file's header says. With Spark's default
buffer, a million characters for each file, 2,000 small files take twice the processor time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInput:
    """An input: a path or a table's name, its format, Spark's options for it, and the mapping of its columns.

    `columns` maps a task's field, or `key`, to a column of another name; `constants` are values of all rows.
    """

    path: str
    format: str
    options: Mapping[str, str]
    columns: Mapping[str, str]
    constants: Mapping[str, str]
    spread_s: float = 0
    time_rules: TimeRules = TIME_REQUIRED
    allow_duplicates: bool = False
    send_unknown_fields: bool = True
    allow_empty: bool = False


class LoadedInput(NamedTuple):
    """The columns of an input, and the one with the texts of corrupt rows if the format has one.

    `check_column` raises Refused if the files' types of a column, which is to be read, do not fit together.
    """

    frame: DataFrame
    corrupt: str | None = None
    check_column: Callable[[str], None] = lambda column: None


class InputFrame(NamedTuple):
    """The input's rows, the settings by which workers read them, and the columns that are ignored."""

    frame: DataFrame
    row_settings: RowSettings
    ignored_columns: list[str]


def check_input(job_input: JobInput) -> None:
    """Check what is known of an input before Spark has started.

    Raises:
        Refused: A field does not exist, or cannot be the same for all rows; or the input can be read only once.
    """
    for name in (*job_input.columns, *job_input.constants):
        if name not in (*FIELDS, KEY):
            raise Refused(f"{name}: unknown field; expected {', '.join(FIELDS)} or {KEY}", name)
    path = Path(job_input.path.removeprefix("file://"))
    if job_input.format != "table" and path.exists() and not path.is_file() and not path.is_dir():
        raise Refused(f"{job_input.path}: expected a file or a directory, because Spark reads in parts and repeatedly")
    if KEY in job_input.constants:
        raise Refused("key: expected a column, because rows with the same key are one task", KEY)


def read_input(spark: SparkSession, job_input: JobInput, job: str) -> InputFrame:
    """Return the input as a frame, which Spark has not read yet.

    Raises:
        Refused: As `check_input` does; or a column is missing.
        PySparkException: Spark cannot read the input.
    """
    check_input(job_input)
    constants: dict[str, bytes] = {}
    for field, text in job_input.constants.items():  # as the same text in a column
        (value,) = column_decoder(field, pa.string())(pa.array([text]))
        constants[field] = msgspec.json.encode(value)
    row_settings = RowSettings(
        job=job,
        allow_duplicates=job_input.allow_duplicates,
        spread_s=job_input.spread_s,
        time_rules=job_input.time_rules,
        send_unknown_fields=job_input.send_unknown_fields,
        constants=constants,
    )
    try:
        if job_input.format in JSON_FORMATS:
            return _read_json(spark, job_input, row_settings)
        loaded = _load(spark, job_input)
    except AnalysisException as error:
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        return _empty_input(spark, job_input, row_settings)
    if job_input.format == "parquet" and {*Reject._fields} <= {*loaded.frame.columns}:
        return _read_rejects(loaded.frame, job_input, row_settings)
    return _read_columns(loaded, job_input, row_settings)


def row_count(spark: SparkSession, job_input: JobInput) -> int | None:
    """Return the number of rows if it is known without reading them."""
    if job_input.format not in METADATA_FORMATS:
        return None
    try:
        return _load(spark, job_input).frame.count()
    except AnalysisException:  # an empty directory
        return 0


def _read_json(spark: SparkSession, job_input: JobInput, row_settings: RowSettings) -> InputFrame:
    shape = RowShape.DOCUMENTS if job_input.format == "json" else RowShape.OBJECTS
    options = {"wholetext": "true"} if shape is RowShape.DOCUMENTS else {}
    frame = spark.read.options(**{**options, **job_input.options}).format("text").load(job_input.path)
    files: Any = frame._jdf.inputFiles()  # the frame's own method would fetch the names of all files, one by one
    if not len(files):
        return _empty_input(spark, job_input, row_settings)
    for name in frame.columns:
        if name in source_columns(job_input.columns).values() and name not in job_input.constants:
            raise Refused(
                f"{name}: a column of the directories' names ({name}=…), which JSON objects do not get: read one "
                f"directory at a time, with --set",
                name,
            )
    row_settings = replace(row_settings, shape=shape, sources=dict(job_input.columns))
    unused = [name for name in frame.columns if name != TEXT_COLUMN]
    return InputFrame(frame.select(TEXT_COLUMN, _origin(frame, job_input.format)), row_settings, unused)


def _empty_input(spark: SparkSession, job_input: JobInput, row_settings: RowSettings) -> InputFrame:
    """Return no rows, of a directory without files. Raises Refused: that is not allowed, because it is seldom meant."""
    if not job_input.allow_empty:
        raise Refused(f"{job_input.path}: expected files in it, got none (--allow-empty takes that for 0 rows)")
    frame = spark.createDataFrame([], f"{TEXT_COLUMN} string")
    return InputFrame(frame, replace(row_settings, shape=RowShape.OBJECTS), [])


def _read_rejects(frame: DataFrame, job_input: JobInput, row_settings: RowSettings) -> InputFrame:
    """Read the rows of a table of rejects, which somebody has mended: JSON with the fields' own names.

    They keep the origin that they had in the input they were rejected from.
    """
    for given, option in ((job_input.columns, "--column"), (job_input.spread_s, "--spread")):
        if given:
            raise Refused(f"{option}: expected none for {job_input.path}, a table of rejects: its rows have it already")
    block = F.lit(None).cast("long").alias("block")
    origin = F.struct("file", block, "position").alias(ORIGIN_COLUMN)
    rows = frame.select(frame["row"].alias(TEXT_COLUMN), origin)
    return InputFrame(rows, replace(row_settings, shape=RowShape.OBJECTS), [])


def _origin(frame: DataFrame, format: str) -> Column:
    """Return the column of the rows' origins. Spark knows the positions in Parquet only; a table may have no files."""
    if format == "table":
        return F.lit(None).cast(ORIGIN_DDL).alias(ORIGIN_COLUMN)
    metadata = frame.metadataColumn("_metadata")
    position = metadata["row_index"] + 1 if format == "parquet" else F.lit(None)
    block = metadata["file_block_start"] if format in COUNTED_FORMATS else F.lit(None)
    return F.struct(metadata["file_path"], block, position).cast(ORIGIN_DDL).alias(ORIGIN_COLUMN)


def _read_columns(loaded: LoadedInput, job_input: JobInput, row_settings: RowSettings) -> InputFrame:
    frame, corrupt = loaded.frame, loaded.corrupt
    names = [name for name in frame.columns if name != corrupt]
    sources = _find_sources(names, job_input)
    if not job_input.time_rules.all_now:
        given = (*sources, *(field for field, value in (row_settings.constants or {}).items() if value != b"null"))
        with _list_columns(names):
            check_time(given, names)
    for source in sources.values():
        loaded.check_column(_top_column(names, source))
    columns = [
        frame[_quote(source) if source in names else source].alias(field)  # unquoted: a field of a struct
        for field, source in sources.items()
    ]
    if corrupt is not None:
        columns.append(frame[_quote(corrupt)].alias(CORRUPT_COLUMN))
    elif not columns:  # without any column Spark would hand on no rows
        columns.append(F.lit(None).cast("string").alias(CORRUPT_COLUMN))
    rows = frame.select(*columns, _origin(frame, job_input.format))
    for field in rows.schema.fields:  # timestamps without a time zone are in the session's, as everywhere in Spark
        if isinstance(field.dataType, T.TimestampNTZType) and field.name in FIELDS:
            rows = rows.withColumn(field.name, rows[field.name].cast("timestamp"))
    if job_input.format == "csv":
        spark_options = {name.lower(): value for name, value in job_input.options.items()}
        separator = spark_options.get("sep", spark_options.get("delimiter", ",")).replace("\\t", "\t") or ","
        columns_of_files = _columns_of_files(frame, names)
        callback = sources.get("callback")
        index = columns_of_files.index(callback) if callback in columns_of_files else None
        row_settings = replace(row_settings, csv=CsvLayout(separator, len(columns_of_files), index))
    with _list_columns(names):  # refuse here, not in a worker four times
        row_settings.build_reader(to_arrow_schema(rows.schema, timezone="UTC"))
    used = {_top_column(names, source) for source in sources.values()}
    unused = [name for name in names if name not in used and canonical_name(name) not in job_input.constants]
    # Each partition is sorted by due time, because the store inserts sorted tasks about 1.5 times as fast.
    due: list[Column] = []
    for name in ("execute_time", "delay"):
        if name in rows.columns and job_input.format not in COUNTED_FORMATS:
            is_string = isinstance(rows.schema[name].dataType, T.StringType)
            due.append(rows[name].try_cast("double") if is_string else rows[name])
    return InputFrame(rows.sortWithinPartitions(*due) if due else rows, row_settings, unused)


@contextmanager
def _list_columns(names: Sequence[str]) -> Iterator[None]:
    """Add the columns that there are to a refusal that misses one."""
    try:
        yield
    except Refused as error:
        if "expected a column" not in error.detail:
            raise
        raise Refused(f"{error.detail}; the columns are {', '.join(names)}", error.field) from None


def _find_sources(names: Sequence[str], job_input: JobInput) -> dict[str, str]:
    """Return the column of each field that has one.

    Raises:
        Refused: A mapped column is missing, or two columns have the name of one field.
    """
    mapped = {field: _match_name(names, source) for field, source in job_input.columns.items()}
    for field, source in mapped.items():
        if _top_column(names, source) not in names:
            raise Refused(f"{field}: no such column: {source}; the columns are {', '.join(names)}", field)
    given = mapped.keys() | job_input.constants.keys()
    own_names = match_columns(name for name in names if canonical_name(name) not in given)
    sources = source_columns(mapped, own_names)
    return {field: source for field, source in sources.items() if field not in job_input.constants}


def _match_name(names: Sequence[str], source: str) -> str:
    """Return the one column that has the name in another case or with spaces around it; otherwise the name itself."""
    similar = [name for name in names if canonical_name(name) == canonical_name(source)]
    return similar[0] if source not in names and len(similar) == 1 else source


def _columns_of_files(frame: DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that are in the files themselves, not in their directories' names (`topic=order/`)."""
    files: Any = frame._jdf.inputFiles()  # the frame's own method would fetch the names of all files, one by one
    path = unquote(files[0]) if len(files) else ""
    return [name for name in names if f"/{name}=" not in path]


def _top_column(names: Sequence[str], source: str) -> str:
    """Return the column itself, or the struct's column for one of its fields (`struct.field`)."""
    return source if source in names else source.partition(".")[0]


def _quote(name: str) -> str:
    """Quote a column's name for Spark, whatever is in it: spaces, dots, backticks."""
    return f"`{name.replace('`', '``')}`"


def _load(spark: SparkSession, job_input: JobInput) -> LoadedInput:
    reader = spark.read.options(**job_input.options)
    if job_input.format == "table":
        return LoadedInput(reader.table(job_input.path))
    if job_input.format == "csv":
        return LoadedInput(*_load_csv(spark, job_input))
    options = {**MERGE_SCHEMA, **job_input.options}
    try:
        return LoadedInput(spark.read.options(**options).format(job_input.format).load(job_input.path))
    except Py4JJavaError as error:
        if not is_merge_error(error):
            raise
    return _load_merged(spark, job_input, options)


def _load_merged(spark: SparkSession, job_input: JobInput, options: Mapping[str, str]) -> LoadedInput:
    """Load files whose columns differ in their types, with the widest of them."""

    def read_schema(files: Sequence[str]) -> T.StructType:
        return spark.read.options(**options).format(job_input.format).load([*files]).schema

    one_schema = {**options, "mergeSchema": "false"}
    some = spark.read.options(**one_schema).format(job_input.format).load(job_input.path)
    merged = merge_schemas([escape_glob(unquote(file)) for file in sorted(some.inputFiles())], read_schema)

    def check(column: str) -> None:
        if column in merged.conflicts:
            types = describe_conflict(column, merged.conflicts[column], read_schema)
            raise Refused(f"{column}: expected one type in all files, got {types}", column)

    reader = spark.read.options(**one_schema).schema(merged.schema).format(job_input.format)
    return LoadedInput(reader.load(job_input.path), check_column=check)


# CSV


def _load_csv(spark: SparkSession, job_input: JobInput) -> tuple[DataFrame, str]:
    """Read all columns as strings, in one pass. A row of too many or too few columns is corrupt; its text is kept."""
    options = {**CSV_OPTIONS, **job_input.options}
    whole_files = {**options, "multiLine": "true"}  # to find the header in lines, Spark would read all files
    names = spark.read.options(**whole_files).csv(job_input.path).columns
    if not names:
        raise Refused(f"{job_input.path}: expected a header, got nothing")
    if str(options["enforceSchema"]).lower() == "false":
        _check_header(names, job_input.path)
    used = {name.lower() for name in names}  # Spark ignores the case of names
    corrupt = next(name for name in (CORRUPT_COLUMN + "_" * more for more in count()) if name not in used)
    schema = T.StructType([T.StructField(name, T.StringType()) for name in (*names, corrupt)])
    corrupt_options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt, "columnPruning": "false"}
    return spark.read.options(**{**options, **corrupt_options}).schema(schema).csv(job_input.path), corrupt


def _check_header(names: Sequence[str], path: str) -> None:
    """Raise Refused if Spark renamed a column, one without a name or one of two with the same name.

    The renamed column would then be missing from the header that each file must have.
    """
    for index, name in enumerate(names):
        base = name.removesuffix(str(index)).lower()
        if name == f"_c{index}":
            reason = f"column {index + 1} has none"
        elif name != base and any(other.lower() == f"{base}{i}" for i, other in enumerate(names) if i != index):
            reason = f"two have {base!r}"
        else:
            continue
        raise Refused(
            f"{path}: expected a header with a name for each column, {reason} (--option enforceSchema=true takes "
            "columns by their order, whatever the other files' headers say)"
        )
