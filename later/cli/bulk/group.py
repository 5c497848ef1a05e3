"""The group `bulk`. Its commands stand in files of their own, and import their heavy half when they run."""

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
    epilog="It needs Spark, which is not installed with later: pip install 'later[spark]', and a Java, 17 or newer. "
    "docs/spark.md has more, for a laptop and for a cluster.",
)
@click.pass_context
def bulk(context: click.Context) -> None:
    """Create and manage tasks by the hundred million, with Spark.

    From Parquet, CSV, JSON, ORC or a table. Every row becomes one task, or one rejected row that says why; a job that
    is run again, after whatever ended it, makes no task twice.
    """
    context.with_resource(handle_termination_signals())


for command in (create, verify, cancel, export, report):
    bulk.add_command(command)
