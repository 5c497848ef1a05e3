"""Create a reminder for each appointment of a day, some hours before it. A job to start from.

    spark-submit --master MASTER --py-files later.zip reminders.py \
        --appointments s3a://lake/appointments --day 2026-11-22 --url http://later.internal:8080

You can run it again: the job's name contains the day, and each reminder's key is the appointment, so each reminder is
created once. A row that cannot become a task (an appointment without a hook) fails the job, unless --max-rejects allows
it. At the end the job prints one line: the day's appointments, how many of them are not cancelled, and what later
counted.
"""

from __future__ import annotations

import argparse
from datetime import date, timedelta

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from later.bulk.datasource.source import LaterDataSource
from later.bulk.transport.target import Target

TOPIC = "reminders"
RETRY = 5


def main() -> None:
    """Run the job."""
    arguments = parse_arguments()
    job = f"{TOPIC}-{arguments.day}"
    spark = SparkSession.builder.appName(f"reminders {arguments.day}").getOrCreate()
    spark.dataSource.register(LaterDataSource)  # needed if later is shipped as a zip, not installed
    counts = Observation()
    appointments = select_day(spark.read.parquet(arguments.appointments), arguments.day)
    appointments = appointments.observe(
        counts, F.count("*").alias("appointments"), F.count_if("not_cancelled").alias("not_cancelled")
    )
    create_tasks(build_reminders(appointments, arguments.hours_before), job, arguments.url, arguments.max_rejects)
    print(summarize(counts, job, arguments.url))
    spark.stop()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--appointments", required=True, help="Parquet: id, starts_at, hook, customer, cancelled (null means no)"
    )
    parser.add_argument("--day", required=True, type=date.fromisoformat, help="in the session's time zone")
    parser.add_argument("--hours-before", type=int, default=24)
    parser.add_argument("--url", required=True, help="URL of later's API")
    parser.add_argument("--max-rejects", type=int, default=0)
    return parser.parse_args()


def select_day(appointments: DataFrame, day: date) -> DataFrame:
    """Return the day's appointments with a column `not_cancelled`. A null in `cancelled` means no."""
    starts = F.col("starts_at")
    of_the_day = appointments.where((starts >= F.lit(day)) & (starts < F.lit(day + timedelta(days=1))))
    return of_the_day.withColumn("not_cancelled", ~F.coalesce("cancelled", F.lit(False)))


def build_reminders(appointments: DataFrame, hours_before: int) -> DataFrame:
    """Return a task for each appointment that is not cancelled. The columns have the names of `/create`'s fields."""
    content = F.struct(F.col("id").alias("appointment"), "customer", "starts_at")
    return appointments.where("not_cancelled").select(
        F.col("id").alias("key"),
        F.lit(TOPIC).alias("topic"),
        F.col("hook").alias("callback"),
        (F.col("starts_at") - F.make_dt_interval(hours=F.lit(hours_before))).alias("execute_time"),
        F.lit(RETRY).alias("retry"),
        F.to_json(content).alias("content"),
    )


def create_tasks(tasks: DataFrame, job: str, url: str, max_rejects: int) -> None:
    """Create the tasks. Rejected rows are left out; the job fails if there are more than `max_rejects`."""
    writer = tasks.write.format("later").mode("append").option("url", url).option("jobId", job)
    writer.option("onError", "reject").option("maxRejects", max_rejects).save()


def summarize(counts: Observation, job: str, url: str) -> str:
    """Return the number of rows read, and what later counted over all runs of the job, as in `GET /jobs/ID`."""
    total = Target(url=url).counts(job)
    return (
        f"{job}: {counts.get['appointments']:,} appointments, {counts.get['not_cancelled']:,} not cancelled; "
        f"in all runs {total.created:,} created, {total.existing:,} already there, {total.refused:,} refused"
    )


if __name__ == "__main__":
    main()
