"""Arguments that are a directory for Spark to write a table to."""

from __future__ import annotations

import click

from later.bulk.jobs.output_path import check_output_path
from later.core.errors import Refused


def parse_directory(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Check the directory's name, before Spark starts and anything is created."""
    if name is None:
        return None
    try:
        return check_output_path(name)
    except Refused as error:
        raise click.BadParameter(f"{name}: {error.detail}" if name else error.detail) from None
