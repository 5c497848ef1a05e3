"""A reminder for each appointment of a day, some hours before it: a job to start from.

    spark-submit --master MASTER --py-files later.zip reminders.py \
        --appointments s3a://lake/appointments --day 2026-11-22 --url http://later.internal:8080

Run it as often as you like: the job is called by the day, and an appointment's reminder by the appointment, so that
each is made once. What cannot become a task (an appointment without a hook) fails the job, unless --max-rejects says
how many of them there may be.
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.source import LaterDataSource

TOPIC = "reminders"
RETRY = 5


def main() -> None:
    """What spark-submit runs."""
    given = parsed()
    spark = SparkSession.builder.appName(f"reminders {given.day}").getOrCreate()
    spark.dataSource.register(LaterDataSource)  # found without it only where later is installed, not shipped
    appointments = spark.read.parquet(given.appointments)
    send(reminders(appointments, given.day, given.hours_before), given)
    spark.stop()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--appointments", required=True, help="Parquet: id, starts_at, hook, customer, cancelled")
    parser.add_argument("--day", required=True, type=date.fromisoformat, help="in the session's time zone")
    parser.add_argument("--hours-before", type=int, default=24)
    parser.add_argument("--url", required=True, help="where later's API answers")
    parser.add_argument("--max-rejects", type=int, default=0)
    return parser.parse_args()


def reminders(appointments: DataFrame, day: date, hours_before: int) -> DataFrame:
    """A task for each appointment of the day that still stands. Columns are named as the fields of `/create`."""
    starts = F.col("starts_at")
    content = F.struct(F.col("id").alias("appointment"), "customer", "starts_at")
    return appointments.where(
        (starts >= F.lit(day)) & (starts < F.lit(day + timedelta(days=1))) & ~F.col("cancelled")
    ).select(
        F.col("id").alias("key"),
        F.lit(TOPIC).alias("topic"),
        F.col("hook").alias("callback"),
        (starts - F.make_dt_interval(hours=F.lit(hours_before))).alias("execute_time"),
        F.lit(RETRY).alias("retry"),
        F.to_json(content).alias("content"),
    )


def send(tasks: DataFrame, given: argparse.Namespace) -> None:
    """Create them. A row that is refused is left out, and fails the job if there are too many."""
    writer = tasks.write.format("later").mode("append")
    writer = writer.option("url", given.url).option("jobId", f"{TOPIC}-{given.day}")
    writer.option("onError", "reject").option("maxRejects", given.max_rejects).save()


if __name__ == "__main__":
    main()
