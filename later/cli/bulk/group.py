"""The group `bulk`. Its commands import Spark only when they run, so that help works without it."""

from __future__ import annotations

import click

from later.cli.bulk.create import cancel, create, verify
from later.cli.bulk.export import export
from later.cli.bulk.report import report
from later.cli.bulk.summary import SummaryGroup


@click.group(
    "bulk",
    cls=SummaryGroup,
    epilog="Needs Spark, which is not installed with later: pip install 'later[spark]', and Java 17 or newer. "
    "See docs/spark.md for the setup on a laptop and on a cluster.",
)
def bulk() -> None:
    """Create and manage tasks by the hundred million, with Spark.

    The input is Parquet, CSV, JSON, ORC or a table. Every row becomes one task, or is rejected with a reason. A job
    that is run again, however it ended, creates no task twice.

    Exit status: 0 done; 1 more rows were rejected or are missing than allowed, or Spark failed; 2 wrong options or
    input; 3 later was not reached; 4 its store is full; 5 it has lost tasks. With --json, each command prints one
    object, whatever happens.
    """


for command in (create, verify, cancel, export, report):
    bulk.add_command(command)
