"""The export job of `later bulk`: all tasks of a store, or some of them, to Parquet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.datasource.source import NAME, LaterDataSource
from later.bulk.jobs.output import Output
from later.bulk.jobs.progress import OnProgress, report_progress
from later.bulk.spark.errors import translate_errors
from later.store.keys import Bucket


class ExportReport(NamedTuple):
    """The numbers of tasks written, by state."""

    states: dict[str, int]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(self.states.values())


def export(spark: SparkSession, options: Mapping[str, str], output: Output, on_progress: OnProgress) -> ExportReport:
    """Write the tasks that the data source reads with these options.

    Raises:
        LaterError: The directory exists and may not be replaced, the store cannot be reached, or Spark failed.
    """
    with translate_errors():
        output.check(spark)
    started = time.monotonic()
    states = Observation()
    counts = [F.count_if(F.col("state") == bucket.value).alias(bucket.value) for bucket in Bucket]
    with translate_errors(), report_progress(spark, on_progress):
        spark.dataSource.register(LaterDataSource)
        tasks = spark.read.format(NAME).options(**options).load().observe(states, *counts)
        output.write(tasks)
    return ExportReport(states.get, time.monotonic() - started)
