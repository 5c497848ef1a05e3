"""Where a job's table goes: a directory of Parquet, new, or in place of one that such a job has written.

It is written beside its place first, and moved there when it is whole: a job that fails, or is killed, leaves what was
there, and a table that was read may be replaced by what came of it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from later.bulk.faults import translated
from later.bulk.names import literal
from later.bulk.signals import undisturbed
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
        fresh = _Place(spark, f"{self.directory.rstrip('/')}.{uuid4().hex[:8]}.new")
        try:
            fresh.make()
            frame.write.mode("append").parquet(fresh.name)
            fresh.mark()
            place.remove()
            fresh.move(place)
        except BaseException:
            with undisturbed(), suppress(LaterError), translated():  # or who is gone would hide what went wrong
                fresh.remove()
            raise

    def read(self, spark: SparkSession) -> DataFrame:
        """The table that was written."""
        return spark.read.parquet(literal(self.directory))


class _Place:
    """A path, in whatever file system it is: as Spark sees it."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        hadoop: Any = spark._jvm
        self._path = hadoop.org.apache.hadoop.fs.Path(name)
        self._mark = hadoop.org.apache.hadoop.fs.Path(self._path, MARK)
        self._files: Any = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def check(self, *, replaces: bool) -> None:
        if not self._files.exists(self._path):
            return
        if not self._files.getFileStatus(self._path).isDirectory():
            raise LaterError(f"{self.name} is no directory")
        if not len(self._files.listStatus(self._path)):
            return
        if not replaces:
            raise LaterError(f"{self.name} is there already: --overwrite replaces a table that later has written")
        if not self._files.exists(self._mark):
            raise LaterError(f"{self.name} is no table that later has written (there is no {MARK} in it): remove it")

    def make(self) -> None:
        """Make it, and let Java remove it when it leaves: tasks that outlive their job's end write there again."""
        self._files.mkdirs(self._path)
        self._files.deleteOnExit(self._path)

    def mark(self) -> None:
        self._files.create(self._mark).close()

    def remove(self) -> None:
        self._files.delete(self._path, True)

    def move(self, to: _Place) -> None:
        if not self._files.rename(self._path, to._path):
            raise LaterError(f"{to.name} cannot be written")
