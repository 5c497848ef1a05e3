"""Where a job's table goes: a directory of Parquet, new, or in place of one that such a job has written.

It is written beside its place first, and moved there when it is whole: a job that fails, or is killed, leaves what was
there, and a table that was read may be replaced by what came of it. A directory that is there and empty may be all that
there is of a volume, which cannot be moved: there it is written at once, and taken away again where it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from later.bulk.jobs.output_path import escape_glob
from later.bulk.spark.errors import translate_errors
from later.bulk.spark.signals import ignore_signals
from later.core.errors import LaterError

MARK = "_later"
"""A file that says that the directory is of our making; what begins with `_` is no data to Spark."""


class Output(NamedTuple):
    """A directory, local or of another file system, and whether a table of ours that is there is replaced."""

    directory: str
    replaces: bool = False

    def check(self, spark: SparkSession) -> None:
        """Raises LaterError: something is there that is not to be replaced."""
        _Place(spark, self.directory).check(replaces=self.replaces)

    def write(self, frame: DataFrame) -> None:
        """Write the table.

        Raises:
            LaterError: as above.
            PySparkException: it cannot be written.
        """
        spark = frame.sparkSession
        place = _Place(spark, self.directory)
        place.check(replaces=self.replaces)
        if place.is_empty():
            _make(frame, place, place.clear)
            return
        beside = f"{place.name.rstrip('/')}.{uuid4().hex[:8]}"
        fresh = _Place(spark, f"{beside}.new")
        fresh.make()
        _make(frame, fresh, fresh.remove)
        fresh.keep()
        with ignore_signals():
            _replace(place, fresh, _Place(spark, f"{beside}.old"))

    def read(self, spark: SparkSession) -> DataFrame:
        """The table that was written."""
        return spark.read.parquet(escape_glob(self.directory))


def _make(frame: DataFrame, place: _Place, undo: Callable[[], None]) -> None:
    """Write the table there, or nothing."""
    try:
        frame.write.mode("append").parquet(place.name)
        place.mark()
    except BaseException:
        with ignore_signals(), suppress(LaterError), translate_errors():  # or who is gone would hide what went wrong
            undo()
        raise


def _replace(place: _Place, fresh: _Place, aside: _Place) -> None:
    """Move a whole table to its place, and away what is there; from here on nothing that is whole is removed.

    Raises:
        LaterError: it cannot be moved; the text says where it is, and where what was there is, if that is elsewhere.
    """
    try:
        with translate_errors():
            if place.is_there():
                place.move(aside)
            fresh.move(place)
    except LaterError as error:
        with suppress(LaterError), translate_errors():
            if aside.is_there():
                aside.move(place)
        with translate_errors():
            old = f", the old one {aside.name}" if aside.is_there() else ""
        raise LaterError(f"{error}; the new table is {fresh.name}{old}") from error
    with suppress(LaterError), translate_errors():
        aside.remove()


class _Place:
    """A path, in whatever file system it is: as Spark sees it. A link of this machine's stands for what it leads to."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        hadoop: Any = spark._jvm
        path = hadoop.org.apache.hadoop.fs.Path(name)
        self._files: Any = path.getFileSystem(spark._jsc.hadoopConfiguration())
        here: str = path.toUri().getPath() if self._files.getScheme() == "file" else ""
        self.name = os.path.realpath(here) if os.path.islink(here) else name
        self._is_mount = os.path.ismount(here)
        self._path = hadoop.org.apache.hadoop.fs.Path(self.name)
        self._mark = hadoop.org.apache.hadoop.fs.Path(self._path, MARK)

    def check(self, *, replaces: bool) -> None:
        if not self.is_there():
            return
        if not self._files.getFileStatus(self._path).isDirectory():
            raise LaterError(f"{self.name} is no directory")
        if self.is_empty():
            return
        if not replaces:
            raise LaterError(f"{self.name} is there already: --overwrite replaces a table that later has written")
        if not self._files.exists(self._mark):
            raise LaterError(f"{self.name} is no table that later has written (there is no {MARK} in it): remove it")
        if self._is_mount:
            raise LaterError(f"{self.name} is a volume of its own, and cannot be replaced: name a directory in it")

    def is_there(self) -> bool:
        return bool(self._files.exists(self._path))

    def is_empty(self) -> bool:
        """Is it a directory with nothing in it?"""
        return self.is_there() and not len(self._files.listStatus(self._path))

    def make(self) -> None:
        """Make it, and let Java remove it when it leaves: tasks that outlive their job's end write there again."""
        self._files.mkdirs(self._path)
        self._files.deleteOnExit(self._path)

    def mark(self) -> None:
        self._files.create(self._mark).close()

    def keep(self) -> None:
        """Let Java leave it."""
        self._files.cancelDeleteOnExit(self._path)

    def remove(self) -> None:
        self._files.delete(self._path, True)

    def clear(self) -> None:
        """Remove all that is in it."""
        for found in self._files.listStatus(self._path):
            self._files.delete(found.getPath(), True)

    def move(self, to: _Place) -> None:
        """Raises LaterError: it stays where it is. If `to` is there, Hadoop would move it into that."""
        if to.is_there() or not self._files.rename(self._path, to._path):
            raise LaterError(f"{to.name} cannot be written")
