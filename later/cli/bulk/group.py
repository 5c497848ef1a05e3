"""The group `bulk`. Its commands stand in files of their own, and import their heavy half when they run."""

from __future__ import annotations

import click

from later.cli.bulk.create import cancel, create, verify
from later.cli.bulk.export import export
from later.cli.bulk.report import report
from later.cli.exit import stoppable
from later.cli.options import InOrder


@click.group(
    "bulk",
    cls=InOrder,
    epilog="It needs Spark, which is not installed with later: pip install 'later[spark]', and a Java, 17 or newer. "
    "docs/spark.md has more, for a laptop and for a cluster.",
)
@click.pass_context
def of_bulk(context: click.Context) -> None:
    """Create and look after tasks by the hundred million, with Spark.

    From Parquet, CSV, JSON, ORC or a table. Every row becomes one task, or one rejected row that says why; a job that
    is run again, after whatever ended it, makes no task twice.
    """
    context.with_resource(stoppable())


for command in (create, verify, cancel, export, report):
    of_bulk.add_command(command)
