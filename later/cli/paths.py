"""Where a command of `bulk` writes a table, as an option says it."""

from __future__ import annotations

import click


def a_directory(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """A directory for a table. Its name is known to be wrong before Spark has started, and anything is created."""
    from later.bulk.jobs.output_path import check_output_path  # noqa: PLC0415  # what help needs is little
    from later.core.errors import Refused  # noqa: PLC0415  # as above

    if name is None:
        return None
    try:
        return check_output_path(name)
    except Refused as error:
        raise click.BadParameter(f"{name}: {error.detail}" if name else error.detail) from None
