"""The command `bulk export`. It imports Spark and what needs it only when it runs."""
# ruff: noqa: PLC0415  # imports inside functions

from __future__ import annotations

import click

from later.cli.bulk.job_options import (
    LaterAddress,
    SparkOptions,
    parse_output_directory,
    secrets_in_environment,
    spark_options,
    store_options,
)
from later.cli.bulk.summary import CommandOutcome, current_summary
from later.cli.options import examples, json_option
from later.cli.times import DUE_TIME_HELP, due_time_options
from later.store.keys import Bucket


@click.command(
    epilog=examples(
        "later bulk export exports/pool",
        "later bulk export s3a://lake/later/dead-orders --redis redis://10.0.0.5:6379/0 --topic order --state dead",
        "later bulk export exports/tonight --state delay --state error --due-before 12h --overwrite",
        about=DUE_TIME_HELP,
    )
)
@click.argument("directory", callback=parse_output_directory, metavar="DIR")
@click.option("--topic", metavar="TEXT", help="Export this topic's tasks only.  [default: all]")
@click.option("--state", "states", type=click.Choice([bucket.value for bucket in Bucket]), multiple=True,
              help="Export tasks in this state only; repeatable.  [default: all]")  # fmt: skip
@due_time_options
@click.option("--overwrite", is_flag=True, help="Replace an existing export in DIR.")
@click.option("--partition-rows", type=click.IntRange(1000, 10_000_000), metavar="NUMBER", default=100_000,
              show_default=True, help="Tasks that one partition reads and one file holds, approximately.")  # fmt: skip
@spark_options
@store_options
@json_option
def export(
    *, directory: str, topic: str | None, states: tuple[str, ...], due_after: float | None, due_before: float | None,
    overwrite: bool, partition_rows: int, spark: SparkOptions, address: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Write the store's tasks to Parquet, with the columns of /query.

    Exports all tasks, or those of a topic, in some states, or due in a range of time. The range applies in unack to the
    end of the lease, in error to the time of the next attempt, in dead to the time of death. Each row is right when
    it is read: a task that moves during the export may be there twice, in both states, or not at all. The store stays
    available: it is read in steps of a millisecond.
    """
    from later.bulk.datasource.read_options import parse_read_options
    from later.bulk.jobs.export import export as write
    from later.bulk.jobs.output import Output
    from later.bulk.spark.session import open_session
    from later.cli.progress import counting_bar

    summary = current_summary()
    summary.set_target(address.url, address.prefix)
    summary.output = directory
    values = {
        "topic": topic,
        "state": ",".join(states) or None,
        "dueAfter": due_after,
        "dueBefore": due_before,
        "url": address.url,
        "prefix": address.prefix,
        "timeout": address.timeout_s,
        "partitionRows": partition_rows,
    }
    read_options = {name: str(value) for name, value in values.items() if value is not None}
    with secrets_in_environment(address):
        parse_read_options(read_options)  # refuses wrong values before Spark starts
        with (
            open_session(spark.master, spark.conf, "later bulk export") as session,
            counting_bar("partitions", None) as bar,
        ):
            summary.start_job()
            exported = write(session, read_options, Output(directory, overwrite), bar.update)
    summary.finish_job(exported.seconds)
    summary.counts = {"rows": exported.rows, **exported.states}
    if not as_json:
        per_second = round(exported.rows / exported.seconds) if exported.seconds else 0
        counts = ", ".join(f"{count:,} {state}" for state, count in exported.states.items() if count)
        print(f"{exported.rows:,} rows{': ' if counts else ''}{counts}; {exported.seconds:.1f} s, {per_second:,}/s")
        print(f"from {summary.target} to {directory}")
    return summary.end(CommandOutcome.DONE)
