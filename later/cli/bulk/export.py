"""The command `bulk export`. It imports its heavy half when it runs."""
# ruff: noqa: PLC0415  # that is why: what help needs is little

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from later.cli.bulk.options import LaterAddress, of_store, on_spark
from later.cli.options import examples, json_option
from later.cli.paths import parse_directory
from later.cli.times import DUE_TIMES, due_time_options

if TYPE_CHECKING:
    from later.bulk.jobs.export import Exported

STATES = ("delay", "unack", "error", "dead")


@click.command(
    epilog=examples(
        "later bulk export exports/pool",
        "later bulk export s3a://lake/later/dead-orders --redis redis://10.0.0.5:6379/0 --topic order --state dead",
        "later bulk export exports/tonight --state delay --state error --due-before 12h --overwrite",
        about=DUE_TIMES,
    )
)
@click.argument("directory", callback=parse_directory, metavar="DIR")
@click.option("--topic", metavar="TEXT", help="This topic's tasks alone.  [default: all]")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True,
              help="Tasks in this state alone; repeatable.  [default: all]")  # fmt: skip
@due_time_options
@click.option("--overwrite", is_flag=True, help="Replace an export that is in DIR.")
@click.option("--partition-rows", type=click.IntRange(1000, 10_000_000), default=100_000, show_default=True,
              help="About how many tasks are read in one go, and stand in one file.")  # fmt: skip
@on_spark
@of_store
@json_option
def export(
    *, directory: str, topic: str | None, states: tuple[str, ...], due_after: float | None, due_before: float | None,
    overwrite: bool, partition_rows: int, master: str, conf: dict[str, str], target: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Write the tasks of the store to Parquet, with the columns of /query.

    All of them, or those of a topic, in some states, due in a range of time (in unack: whose lease ends then; dead:
    that died then). Each row was true when it was read; a task that moves meanwhile may be there twice, as it was each
    time, or be missing. The store goes on serving: it is read in steps of a millisecond.
    """
    asked = {"topic": topic, "state": ",".join(states) or None, "dueAfter": due_after, "dueBefore": due_before}
    asked |= {"url": target.url, "prefix": target.prefix, "timeout": target.timeout_s, "partitionRows": partition_rows}
    options = {name: str(value) for name, value in asked.items() if value is not None}
    from later.bulk.datasource.read_options import wanted
    from later.bulk.jobs.export import export as write
    from later.bulk.jobs.output import Output
    from later.bulk.spark.session import open_session
    from later.cli.progress import counting_bar

    wanted(options)  # what is wrong with them is known before Spark has started
    with open_session(master, conf, "later bulk export") as spark, counting_bar("parts", None) as bar:
        exported = write(spark, options, Output(directory, overwrite), bar.update)
    _tell(exported, directory, as_json=as_json)
    return 0


def _tell(exported: Exported, directory: str, *, as_json: bool) -> None:
    per_second = round(exported.rows / exported.seconds) if exported.seconds else 0
    if as_json:
        told = {"directory": directory, "rows": exported.rows, "tasks": exported.states}
        print(json.dumps({**told, "seconds": round(exported.seconds, 3), "rows_per_second": per_second}))
        return
    counts = ", ".join(f"{count:,} {state}" for state, count in exported.states.items() if count)
    told_counts = f": {counts}" if counts else ""
    print(f"{exported.rows:,} rows{told_counts}; {exported.seconds:.1f} s, {per_second:,}/s")
