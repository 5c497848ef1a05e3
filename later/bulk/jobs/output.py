"""The table that a job writes: a directory of Parquet, new or in place of one that such a job has written.

The table is written to a directory beside its own and renamed when it is complete. So a job that fails or is killed
leaves the old table, and a job may read the table that it replaces. An empty directory that exists may be a mount
point, which cannot be renamed: the table is written directly to it, and removed again if the job fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from later.bulk.spark.errors import translate_errors
from later.bulk.spark.path_syntax import escape_glob
from later.core.errors import InputUnreadable, LaterError
from later.signals import ignore_signals

RUN = "run="
"""The beginning of a directory's name that Spark reads as the value of a column `run`."""
MARKER = "_later"
"""A file that marks a directory as written by later. Spark ignores files whose names begin with `_`."""


class Output(NamedTuple):
    """An output directory in any file system of Spark's. With `overwrite`, a table of later's there is replaced.

    `runs_of` is the directory above it, if that has nothing but such a table for each run of a job.
    """

    directory: str
    overwrite: bool = False
    runs_of: str | None = None

    def check(self, spark: SparkSession) -> None:
        """Raise LaterError if something is there that may not be replaced, or anything but runs beside it."""
        if self.runs_of is not None:
            OutputDirectory(spark, self.runs_of).check_runs()
        OutputDirectory(spark, self.directory).check(overwrite=self.overwrite)

    def write(self, frame: DataFrame) -> None:
        """Write the table.

        Raises:
            LaterError: As `check`, or the table cannot be moved to its place.
            PySparkException: It cannot be written.
        """
        spark = frame.sparkSession
        self.check(spark)
        final = OutputDirectory(spark, self.directory)
        if final.is_empty():
            _write(frame, final, undo=final.clear)
            return
        parent, slash, last = final.name.rstrip("/").rpartition("/")
        beside = f"{parent}{slash}_{last}.{uuid4().hex[:8]}"  # a reader of the directory above ignores such a name
        new = OutputDirectory(spark, f"{beside}.new")
        new.make_temporary()
        _write(frame, new, undo=new.remove)
        new.make_permanent()
        with ignore_signals():
            _replace(final, new, OutputDirectory(spark, f"{beside}.old"))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the table that was written."""
        return spark.read.parquet(escape_glob(self.directory))


def run_output(directory: str, run: str) -> Output:
    """Return the output of one run in a directory of all runs. Spark reads that as one table, with a column `run`."""
    return Output(f"{directory.rstrip('/')}/{RUN}{run}", runs_of=directory)


def read_table(spark: SparkSession, directory: str, kind: str, columns: dict[str, str]) -> DataFrame:
    """Return a table that later has written. `columns` are the types of the columns that it must have.

    Raises:
        InputUnreadable: The directory does not exist, or has no such table.
    """
    with translate_errors():
        try:
            table = spark.read.parquet(escape_glob(directory))
        except AnalysisException as error:
            if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
                raise InputUnreadable(f"{directory} is not {kind}: no Parquet in it") from None
            raise
        problem = describe_missing_columns(columns, {field.name: field.dataType.typeName() for field in table.schema})
    if problem:
        raise InputUnreadable(f"{directory} is not {kind}: {problem}")
    return table


def describe_missing_columns(expected: dict[str, str], found: dict[str, str]) -> str:
    """Return which columns a table lacks or has with another type; empty if it has all of them."""
    missing = [name for name in expected if name not in found]
    if missing:
        return f"no column {', '.join(missing)}"
    other = [f"{name} is a {found[name]}, not a {kind}" for name, kind in expected.items() if found[name] != kind]
    return ", ".join(other)


def _write(frame: DataFrame, directory: OutputDirectory, *, undo: Callable[[], None]) -> None:
    """Write the table to the directory, or leave nothing there."""
    try:
        frame.write.mode("append").parquet(directory.name)
        directory.add_marker()
    except BaseException:
        with ignore_signals(), suppress(LaterError), translate_errors():  # an error here would hide the first one
            undo()
        raise


def _replace(final: OutputDirectory, new: OutputDirectory, old: OutputDirectory) -> None:
    """Move the table at `final`, if there is one, to `old`, and `new` to `final`; then remove `old`.

    Raises:
        LaterError: A move failed. The text says where the new table is and, if it was moved, the old one.
    """
    try:
        with translate_errors():
            if final.exists():
                final.move(old)
            new.move(final)
    except LaterError as error:
        with suppress(LaterError), translate_errors():
            if old.exists():
                old.move(final)
        with translate_errors():
            where_old = f", the old one {old.name}" if old.exists() else ""
        raise LaterError(f"{error}; the new table is {new.name}{where_old}") from error
    with suppress(LaterError), translate_errors():
        old.remove()


class OutputDirectory:
    """A directory in any file system that Spark knows. A local symbolic link is resolved."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(name)
        self._files: Any = path.getFileSystem(spark._jsc.hadoopConfiguration())
        local: str = path.toUri().getPath() if self._files.getScheme() == "file" else ""
        self.name = os.path.realpath(local) if os.path.islink(local) else name
        self._is_mount = os.path.ismount(local)
        self._path = jvm.org.apache.hadoop.fs.Path(self.name)
        self._marker = jvm.org.apache.hadoop.fs.Path(self._path, MARKER)

    def check(self, *, overwrite: bool) -> None:
        """Raise LaterError if a table cannot be written here."""
        if not self.exists():
            return
        if not self._files.getFileStatus(self._path).isDirectory():
            raise LaterError(f"{self.name} is not a directory")
        if self.is_empty():
            return
        if not overwrite:
            raise LaterError(f"{self.name} exists: --overwrite replaces a table that later has written")
        if not self._files.exists(self._marker):
            raise LaterError(f"{self.name} was not written by later (it has no file {MARKER}): remove it first")
        if self._is_mount:
            raise LaterError(f"{self.name} is a mount point and cannot be replaced: name a directory in it")

    def check_runs(self) -> None:
        """Raise LaterError if there is anything in the directory but the tables of runs, and what Spark ignores."""
        if not self.exists():
            return
        names = [str(status.getPath().getName()) for status in self._files.listStatus(self._path)]
        others = sorted(name for name in names if not name.startswith((RUN, "_", ".")))
        if others:
            raise LaterError(f"{self.name} has more in it than tables of rejects by run, such as {others[0]}: "
                             "name another directory")  # fmt: skip

    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def is_empty(self) -> bool:
        """Return True if the directory exists and has nothing in it."""
        return self.exists() and not len(self._files.listStatus(self._path))

    def make_temporary(self) -> None:
        """Create the directory, and let Java delete it at exit: Spark tasks may outlive their job and write to it."""
        self._files.mkdirs(self._path)
        self._files.deleteOnExit(self._path)

    def make_permanent(self) -> None:
        """Let Java keep the directory at exit."""
        self._files.cancelDeleteOnExit(self._path)

    def add_marker(self) -> None:
        self._files.create(self._marker).close()

    def remove(self) -> None:
        self._files.delete(self._path, True)

    def clear(self) -> None:
        """Remove everything in the directory."""
        for status in self._files.listStatus(self._path):
            self._files.delete(status.getPath(), True)

    def move(self, target: OutputDirectory) -> None:
        """Rename the directory. If the target exists, Hadoop would move it into the target.

        Raises:
            LaterError: It was not moved.
        """
        if target.exists() or not self._files.rename(self._path, target._path):
            raise LaterError(f"{target.name} cannot be written")
