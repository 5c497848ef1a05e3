"""`later bulk export`: the tasks of a store as they stand, or a part of them, to Parquet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.datasource.source import NAME, LaterDataSource
from later.bulk.jobs.output import Output
from later.bulk.jobs.progress import Heard, watched
from later.bulk.spark.errors import translate_errors
from later.store.keys import Bucket


class Exported(NamedTuple):
    """How many tasks were written, by state."""

    states: dict[str, int]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(self.states.values())


def export(spark: SparkSession, options: Mapping[str, str], to: Output, heard: Heard) -> Exported:
    """Write what a reader with these options reads.

    `heard` is told now and then how many parts are written, and of how many.

    Raises:
        LaterError: the directory is there already, or is to be overwritten and holds what is no export's; the store
            cannot be reached; whatever Spark says went wrong.
    """
    with translate_errors():
        to.check(spark)
    started = time.monotonic()
    states = Observation()
    counts = [F.count_if(F.col("state") == bucket.value).alias(bucket.value) for bucket in Bucket]
    with translate_errors(), watched(spark.sparkContext, heard):
        spark.dataSource.register(LaterDataSource)
        tasks = spark.read.format(NAME).options(**options).load().observe(states, *counts)
        to.write(tasks)
    return Exported(states.get, time.monotonic() - started)
