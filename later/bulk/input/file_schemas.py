"""Schemas of files that do not agree. They are merged column by column: only the columns that are taken must fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import types as T  # noqa: N812  # its usual name

ReadSchema = Callable[[Sequence[str]], T.StructType]
"""A function that returns the schema of some files. It raises Py4JJavaError if Spark cannot merge them."""

_CANNOT_MERGE = "[CANNOT_MERGE_SCHEMAS]"
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")


class FileGroup(NamedTuple):
    """Files whose schemas Spark can merge, and the merged one."""

    files: Sequence[str]
    schema: T.StructType


class TypeConflict(NamedTuple):
    """Two types of one column that cannot both be read, and the files that have them."""

    first: FileGroup
    second: FileGroup


class MergedSchema(NamedTuple):
    """The columns of all files, with the widest of their types; those in `conflicts` have the first type."""

    schema: T.StructType
    conflicts: dict[str, TypeConflict]


def is_merge_error(error: Py4JJavaError) -> bool:
    """Return True if Spark could not merge the schemas of files."""
    return _CANNOT_MERGE in str(error.java_exception)


def merge_schemas(files: Sequence[str], read: ReadSchema) -> MergedSchema:
    """Merge the schemas of files. Raises Py4JJavaError: a file cannot be read."""
    fields: dict[str, T.StructField] = {}
    sources: dict[str, FileGroup] = {}
    conflicts: dict[str, TypeConflict] = {}
    for group in _group_files(files, read):
        for field in group.schema.fields:
            known = fields.setdefault(field.name, field)
            first = sources.setdefault(field.name, group)
            kind = widen(known.dataType, field.dataType)
            if kind is None:
                conflicts.setdefault(field.name, TypeConflict(first, group))
            elif kind is not known.dataType:
                fields[field.name], sources[field.name] = T.StructField(field.name, kind), group
    return MergedSchema(T.StructType(list(fields.values())), conflicts)


def describe_conflict(column: str, conflict: TypeConflict, read: ReadSchema) -> str:
    """Return which two files have the column, and its type in each."""
    found = []
    for group in conflict:
        file = next(file for file in group.files if column in read([file]).names)
        found.append(f"{group.schema[column].dataType.simpleString()} in {file}")
    return " and ".join(found)


def widen(one: T.DataType, other: T.DataType) -> T.DataType | None:
    """Return the type that holds the values of both, as Spark's readers widen them; None if there is none."""
    if one.simpleString() == other.simpleString():
        return one
    for kinds in (_INTEGERS, _FLOATS):
        if one.simpleString() in kinds and other.simpleString() in kinds:
            return max(one, other, key=lambda kind: kinds.index(kind.simpleString()))
    return None


def _group_files(files: Sequence[str], read: ReadSchema) -> list[FileGroup]:
    """Return groups of files that Spark can merge, found by halving. A few files that differ take few reads."""
    try:
        return [FileGroup(files, read(files))]
    except Py4JJavaError as error:
        if len(files) == 1 or not is_merge_error(error):
            raise
    middle = len(files) // 2
    return _group_files(files[:middle], read) + _group_files(files[middle:], read)
