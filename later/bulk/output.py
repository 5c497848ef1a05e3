"""Where a job's table goes: a directory of Parquet, new, or in place of one that such a job has written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from later.core.errors import LaterError


class Output(NamedTuple):
    """A directory, local or of another file system, and whether what is there is replaced."""

    directory: str
    replaces: bool = False

    def check(self) -> None:
        """Raises LaterError: it is to be replaced, and holds what no job has written; Spark would remove it, too."""
        if self.replaces:
            check_replaceable(Path(self.directory.removeprefix("file:")))

    def write(self, frame: DataFrame) -> None:
        """Write the table.

        Raises:
            LaterError: the directory is there already.
            PySparkException: it cannot be written.
        """
        try:
            frame.write.mode("overwrite" if self.replaces else "error").parquet(self.directory)
        except AnalysisException as error:
            if error.getCondition() != "PATH_ALREADY_EXISTS":
                raise
            raise LaterError(f"{self.directory} is there already: --overwrite replaces it") from error


def check_replaceable(directory: Path) -> None:
    """Raises LaterError: more is in it than a table of Spark's."""
    if not directory.exists():  # or it is in another file system
        return
    if not directory.is_dir():
        raise LaterError(f"{directory} is no directory")
    for found in sorted(directory.iterdir()):
        if not found.name.startswith(("part-", "_", ".")):
            raise LaterError(f"{directory} is to be replaced, but {found.name} in it is of no table that Spark wrote")
