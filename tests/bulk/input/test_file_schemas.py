"""Schemas of files that differ: the type that holds the values of both, if there is one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T  # noqa: N812  # its usual name

from later.bulk.input.file_schemas import merge_schemas, widen
from tests.cases import each_case


@each_case(
    ("one", "other", "wider"),
    [
        (T.IntegerType(), T.LongType(), T.LongType()),
        (T.LongType(), T.ShortType(), T.LongType()),
        (T.FloatType(), T.DoubleType(), T.DoubleType()),
        (T.StringType(), T.StringType(), T.StringType()),
        (T.IntegerType(), T.StringType(), None),
        (T.LongType(), T.DoubleType(), None),
    ],
)
def test_the_wider_type_holds_the_values_of_both(one: T.DataType, other: T.DataType, wider: T.DataType | None) -> None:
    assert widen(one, other) == wider


def test_files_that_spark_can_merge_are_read_once() -> None:
    reads: list[list[str]] = []

    def read(files: Sequence[str]) -> T.StructType:
        reads.append([*files])
        return T.StructType([T.StructField("key", T.LongType())])

    merged = merge_schemas(["a", "b", "c"], read)

    assert (merged.schema.names, merged.conflicts, reads) == (["key"], {}, [["a", "b", "c"]])
