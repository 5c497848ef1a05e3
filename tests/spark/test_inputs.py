"""Input files as Spark reads them, row by row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from later.bulk.input.column_names import CORRUPT_COLUMN, TIME_REQUIRED
from later.bulk.input.csv_checks import NOT_UTF_8, UNCLOSED_QUOTE
from later.bulk.input.payload import Parsed
from later.bulk.input.spark_input import InputFrame, JobInput, read_input
from later.core.errors import Refused
from tests.bulk.validation import NO_TIME_NEEDED

HEADER = "key,topic,content\n"

ReadInput = Callable[..., InputFrame]


@pytest.fixture
def read(spark: SparkSession) -> ReadInput:
    """Read a path in a format, with fields of a `JobInput`."""

    def reading(path: Path, format: str, **fields: Any) -> InputFrame:
        required: dict[str, Any] = {"options": {}, "columns": {}, "constants": {}, "time_rules": NO_TIME_NEEDED}
        return read_input(spark, JobInput(path=str(path), format=format, **(required | fields)), "job")

    return reading


def csv_rows(read: ReadInput, path: Path, **options: str) -> list[tuple[str | None, ...]]:
    rows = read(path, "csv", options=options).frame.collect()
    return [tuple(row[name] for name in ("key", "topic", "content", CORRUPT_COLUMN)) for row in rows]


def parse(input_frame: InputFrame) -> Parsed:
    """Parse all rows in one batch, as a worker does."""
    [batch] = input_frame.frame.toArrow().combine_chunks().to_batches()
    return input_frame.row_settings.build_reader(batch.schema).read(batch)


# CSV


def test_a_line_may_end_within_quotes(read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + '1,order,"he said ""hi""\nand left"\n2,order,x\n')

    assert csv_rows(read, tmp_path / "a.csv") == [
        ("1", "order", 'he said "hi"\nand left', None),
        ("2", "order", "x", None),
    ]


def test_lines_may_end_as_on_windows(read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(HEADER.replace("\n", "\r\n").encode() + b"1,order,x\r\n2,order,y\r\n")

    assert csv_rows(read, tmp_path / "a.csv") == [("1", "order", "x", None), ("2", "order", "y", None)]


@pytest.mark.parametrize("options", [{}, {"multiLine": "false"}])
def test_a_row_with_too_many_or_too_few_columns_is_kept_as_text(
    options: dict[str, str], read: ReadInput, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "1,order\n2,order,x\n3,order,x,y\n")

    one, two, three = csv_rows(read, tmp_path / "a.csv", **options)

    assert (one[-1], two[-1], three[-1]) == ("1,order", None, "3,order,x,y")


def test_each_file_has_a_header(read: ReadInput, tmp_path: Path) -> None:
    for name, key in (("a.csv", "1"), ("b.csv", "2")):
        (tmp_path / name).write_text(f"{HEADER}{key},order,x\n")

    assert sorted(csv_rows(read, tmp_path)) == [("1", "order", "x", None), ("2", "order", "x", None)]


def test_rows_that_are_not_utf_8_are_rejected(read: ReadInput, tmp_path: Path) -> None:
    """Otherwise Müller and Möller would be one key, both with U+FFFD."""
    (tmp_path / "a.csv").write_bytes(HEADER.encode() + b"M\xfcller,order,x\nM\xf6ller,order,y\nMaier,order,caf\xe9\n")
    for options in ({}, {"multiLine": "false"}):
        parsed = parse(read(tmp_path / "a.csv", "csv", options=options))
        assert [reject.reason for reject in parsed.rejected] == [f"key: {NOT_UTF_8}"] * 2 + [f"content: {NOT_UTF_8}"]

    parsed = parse(read(tmp_path / "a.csv", "csv", options={"encoding": "ISO-8859-1"}))

    assert (parsed.payloads.keys, parsed.rejected) == (["Müller".encode(), "Möller".encode(), b"Maier"], [])


@pytest.mark.parametrize("end", ["", '"'])
@pytest.mark.parametrize("sep", [",", ";", "\\t"])
@pytest.mark.parametrize("folder", ["", "retry=5"])
def test_a_row_with_an_unclosed_quote_is_rejected(
    folder: str, sep: str, end: str, read: ReadInput, tmp_path: Path
) -> None:
    """Also in a directory whose name is a column: the rows in its files do not have that."""
    separator = sep.replace("\\t", "\t")
    lines = ["key,topic,hook,content", '1,order,http://h/,"hello', "2,order,http://h/,x", f"3,order,http://h/,bye{end}"]
    lines += ["4,order,http://h/,y"] if end else []
    file = tmp_path / folder / "a.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines).replace(",", separator) + "\n")

    parsed = parse(read(tmp_path, "csv", options={"sep": sep}, columns={"callback": "hook"}))

    assert [(reject.key, reject.reason) for reject in parsed.rejected] == [("1", f"content: {UNCLOSED_QUOTE}")]
    assert parsed.payloads.keys == ([b"4"] if end else [])


@pytest.mark.parametrize(("header", "why"), [("key,topic,", "column 3 has none"), ("key,x,y,X", "two have 'x'")])
def test_a_header_whose_columns_spark_renames_is_refused(
    header: str, why: str, read: ReadInput, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,order,x\n")

    with pytest.raises(Refused, match=f"a.csv: expected a header with a name for each column, {why} "):
        read(tmp_path / "a.csv", "csv")
    by_order = read(tmp_path / "a.csv", "csv", options={"enforceSchema": "true"})
    assert by_order.frame.collect()[0]["key"] == "1"


@pytest.mark.parametrize("header", ["key,x1,x", "key,topic,content2", "key,_c0,x", "key,x2,x1"])
def test_names_that_resemble_sparks_are_accepted(header: str, read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,order,x\n")

    assert read(tmp_path / "a.csv", "csv").frame.count() == 1


# Other formats


@pytest.mark.parametrize("name", ["Delay", " delay", "DELAY "])
def test_a_time_is_found_whatever_its_case_and_the_spaces_around_it(name: str, read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"key,topic,{name}\n1,order,5\n")
    pq.write_table(pa.table({"key": ["1"], "topic": ["order"], name: [5]}), tmp_path / "a.parquet")

    for format in ("csv", "parquet"):
        input_frame = read(tmp_path / f"a.{format}", format, time_rules=TIME_REQUIRED)
        (body,) = parse(input_frame).payloads.bodies
        assert json.loads(body)["delay"] == 5
        assert input_frame.ignored_columns == []


def test_a_mapped_column_is_found_in_another_case(read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Order ID,topic,When\n1,order,5\n")
    columns = {"key": "order id", "execute_time": "when"}
    (body,) = parse(read(tmp_path / "a.csv", "csv", columns=columns, time_rules=TIME_REQUIRED)).payloads.bodies
    assert json.loads(body)["execute_time"] == 5


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("key,topic,delay, Delay", "delay: expected one column of that name, got 'delay' and ' Delay'"),
        ("key,topic,due,x", "execute_time: expected a column execute_time or delay, got neither (did you mean 'due'?"),
        (
            "key,topic,dealy,x",
            "execute_time: expected a column execute_time or delay, got neither (did you mean 'dealy'",
        ),
        ("key,topic,x,y", "execute_time: expected a column execute_time or delay, got neither; with the option now"),
    ],
)
def test_a_table_without_a_clear_time_is_refused(header: str, why: str, read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,order,5,6\n")
    with pytest.raises(Refused, match=f"^{re.escape(why)}"):
        read(tmp_path / "a.csv", "csv", time_rules=TIME_REQUIRED)


def test_a_time_that_all_rows_share_is_a_time(read: ReadInput, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,topic\n1,order\n")
    assert parse(read(tmp_path / "a.csv", "csv", constants={"delay": "5"}, time_rules=TIME_REQUIRED)).rejected == []
    with pytest.raises(Refused, match=r"^execute_time: "):
        read(tmp_path / "a.csv", "csv", constants={"delay": ""}, time_rules=TIME_REQUIRED)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_column_that_only_some_files_have_is_read(format: str, read: ReadInput, tmp_path: Path) -> None:
    write = pq.write_table if format == "parquet" else pyarrow.orc.write_table
    write(pa.table({"key": ["a"], "topic": ["t"]}), tmp_path / f"1.{format}")
    write(pa.table({"key": ["b"], "topic": ["t"], "execute_time": [5.5]}), tmp_path / f"2.{format}")

    rows = read(tmp_path, format).frame.collect()

    assert {(row["key"], row["execute_time"]) for row in rows} == {("a", None), ("b", 5.5)}


def test_json_objects_get_no_columns_of_the_directories_names(read: ReadInput, tmp_path: Path) -> None:
    for folder in ("topic=order/day=1", "topic=mail/day=1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.ndjson").write_text('{"key":1}\n')

    with pytest.raises(Refused, match=r"topic: a column of the directories' names \(topic=…\)"):
        read(tmp_path, "ndjson")
    for fields in ({"constants": {"topic": "order"}}, {"columns": {"topic": "kind"}}):
        input_frame = read(tmp_path, "ndjson", **fields)
        assert (input_frame.frame.columns[0], sorted(input_frame.ignored_columns)) == ("value", ["day", "topic"])


# All formats


def test_a_constant_is_in_no_query_plan(read: ReadInput, tmp_path: Path) -> None:
    """A plan is shown in Spark's UI and its logs, and a constant may be a secret."""
    (tmp_path / "a.csv").write_text(HEADER + "1,order,x\n")

    input_frame = read(tmp_path / "a.csv", "csv", constants={"headers": '{"Authorization":"secret"}'})

    assert "secret" not in input_frame.frame._jdf.queryExecution().toString()
    assert b'"headers":{"Authorization":"secret"}' in parse(input_frame).payloads.bodies[0]


def test_rows_without_any_used_column_are_rows_too(read: ReadInput, tmp_path: Path) -> None:
    pq.write_table(pa.table({"note": ["a", "b"]}), tmp_path / "a.parquet")
    constants = {"topic": "order", "callback": "http://127.0.0.1:9/"}

    input_frame = read(tmp_path / "a.parquet", "parquet", constants=constants, allow_duplicates=True)

    assert len(parse(input_frame).payloads.ids) == 2


@pytest.mark.parametrize(
    ("columns", "field"), [({"key": [1], "day": [1]}, "execute_time"), ({"order": [1], "delay": [1]}, "key")]
)
def test_a_missing_column_is_refused_with_those_that_there_are(
    columns: dict[str, list[int]], field: str, read: ReadInput, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")

    with pytest.raises(Refused, match=f"; the columns are {', '.join(columns)}$") as error:
        read(tmp_path / "a.parquet", "parquet", time_rules=TIME_REQUIRED)
    assert error.value.field == field


# Files of different schemas


def test_columns_that_are_not_taken_need_not_agree(read: ReadInput, tmp_path: Path) -> None:
    for name, note in (("a", [1]), ("b", ["x"])):
        pq.write_table(pa.table({"key": [name], "delay": [5], "note": note}), tmp_path / f"{name}.parquet")

    rows = read(tmp_path, "parquet").frame.collect()

    assert sorted((row["key"], row["delay"]) for row in rows) == [("a", 5), ("b", 5)]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_column_of_smaller_numbers_in_some_files_is_widened(format: str, read: ReadInput, tmp_path: Path) -> None:
    write = pq.write_table if format == "parquet" else pyarrow.orc.write_table
    for name, kind in (("a", pa.int32()), ("b", pa.int64()), ("c", pa.int32())):
        write(pa.table({"key": [name], "delay": pa.array([5], kind)}), tmp_path / f"{name}.{format}")

    rows = read(tmp_path, format).frame.collect()

    assert sorted((row["key"], row["delay"]) for row in rows) == [("a", 5), ("b", 5), ("c", 5)]


def test_a_file_that_does_not_fit_is_named(read: ReadInput, tmp_path: Path) -> None:
    for name, delay in (("a", [5]), ("b", ["5"]), ("c", [5])):
        pq.write_table(pa.table({"key": [name], "delay": delay}), tmp_path / f"{name}.parquet")

    with pytest.raises(
        Refused,
        match=r"^delay: expected one type in all files, got bigint in .*/a\.parquet and string in .*/b\.parquet$",
    ):
        read(tmp_path, "parquet")


@pytest.mark.parametrize("format", ["parquet", "orc", "csv", "json", "ndjson"])
def test_an_empty_directory_is_refused_unless_it_is_allowed(format: str, read: ReadInput, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"expected files in it, got none \(--allow-empty takes that for 0 rows\)"):
        read(tmp_path, format)
    assert read(tmp_path, format, allow_empty=True).frame.count() == 0
