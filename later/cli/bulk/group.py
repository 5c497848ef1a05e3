"""The group `bulk`. Its commands import Spark only when they run, so that help works without it."""

from __future__ import annotations

import click

from later.cli.bulk.create import cancel, create, verify
from later.cli.bulk.export import export
from later.cli.bulk.report import report
from later.cli.exit import handle_termination_signals
from later.cli.groups import OrderedGroup


@click.group(
    "bulk",
    cls=OrderedGroup,
    epilog="Needs Spark, which is not installed with later: pip install 'later[spark]', and Java 17 or newer. "
    "See docs/spark.md for the setup on a laptop and on a cluster.",
)
@click.pass_context
def bulk(context: click.Context) -> None:
    """Create and manage tasks by the hundred million, with Spark.

    The input is Parquet, CSV, JSON, ORC or a table. Every row becomes one task, or is rejected with a reason. A job
    that is run again, however it ended, creates no task twice.
    """
    context.with_resource(handle_termination_signals())


for command in (create, verify, cancel, export, report):
    bulk.add_command(command)
