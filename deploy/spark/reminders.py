"""A reminder for each appointment of a day, some hours before it: a job to start from.

    spark-submit --master MASTER --py-files later.zip reminders.py \
        --appointments s3a://lake/appointments --day 2026-11-22 --url http://later.internal:8080

Run it as often as you like: the job is called by the day, and an appointment's reminder by the appointment, so that
each is made once. What cannot become a task (an appointment without a hook) fails the job, unless --max-rejects says
how many of them there may be. At the end it prints one line: how many appointments the day has, how many of them stand,
and what later has counted of the job.
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from later.bulk.datasource.source import LaterDataSource
from later.bulk.transport.target import Way

TOPIC = "reminders"
RETRY = 5


def main() -> None:
    """What spark-submit runs."""
    given = parsed()
    spark = SparkSession.builder.appName(f"reminders {given.day}").getOrCreate()
    spark.dataSource.register(LaterDataSource)  # found without it only where later is installed, not shipped
    read = Observation()
    day = of_day(spark.read.parquet(given.appointments), given.day)
    send(reminders(counted(day, read), given.hours_before), given)
    print(told(read, given))
    spark.stop()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--appointments", required=True, help="Parquet: id, starts_at, hook, customer, cancelled (null is no)"
    )
    parser.add_argument("--day", required=True, type=date.fromisoformat, help="in the session's time zone")
    parser.add_argument("--hours-before", type=int, default=24)
    parser.add_argument("--url", required=True, help="where later's API answers")
    parser.add_argument("--max-rejects", type=int, default=0)
    return parser.parse_args()


def of_day(appointments: DataFrame, day: date) -> DataFrame:
    """The day's appointments, with `stands`: one of which nobody says that it is cancelled does."""
    starts = F.col("starts_at")
    that_day = appointments.where((starts >= F.lit(day)) & (starts < F.lit(day + timedelta(days=1))))
    return that_day.withColumn("stands", ~F.coalesce("cancelled", F.lit(False)))


def counted(day: DataFrame, read: Observation) -> DataFrame:
    """The same, and they are counted as they are read."""
    return day.observe(read, F.count("*").alias("appointments"), F.count_if("stands").alias("standing"))


def reminders(day: DataFrame, hours_before: int) -> DataFrame:
    """A task for each appointment that still stands. Columns are named as the fields of `/create`."""
    content = F.struct(F.col("id").alias("appointment"), "customer", "starts_at")
    return day.where("stands").select(
        F.col("id").alias("key"),
        F.lit(TOPIC).alias("topic"),
        F.col("hook").alias("callback"),
        (F.col("starts_at") - F.make_dt_interval(hours=F.lit(hours_before))).alias("execute_time"),
        F.lit(RETRY).alias("retry"),
        F.to_json(content).alias("content"),
    )


def send(tasks: DataFrame, given: argparse.Namespace) -> None:
    """Create them. A row that is refused is left out, and fails the job if there are too many."""
    writer = tasks.write.format("later").mode("append")
    writer = writer.option("url", given.url).option("jobId", job_of(given))
    writer.option("onError", "reject").option("maxRejects", given.max_rejects).save()


def told(read: Observation, given: argparse.Namespace) -> str:
    """What was read beside what later counts of the job: as `GET /jobs/ID`, over all its runs."""
    come = Way(url=given.url).counts(job_of(given))
    return (
        f"{job_of(given)}: {read.get['appointments']:,} appointments, {read.get['standing']:,} of them stand; "
        f"in all runs {come.created:,} created, {come.existing:,} already there, {come.refused:,} refused"
    )


def job_of(given: argparse.Namespace) -> str:
    """The same for the same day."""
    return f"{TOPIC}-{given.day}"


if __name__ == "__main__":
    main()
