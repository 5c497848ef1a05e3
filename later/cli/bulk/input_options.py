"""What the input of a bulk job is, as options say it."""
# ruff: noqa: PLC0415  # what help needs is little

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

FORMATS = ("parquet", "csv", "json", "ndjson", "orc", "table")
ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".orc": "orc",
}  # fmt: skip

Command = TypeVar("Command", bound=Callable[..., Any])


def named(context: click.Context, parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, str]:
    """`name=value`, again and again."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair}: expected NAME=VALUE")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = value
    return found


def a_job(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """The job's id."""
    from later.bulk.input.task_ids import check_job
    from later.core.errors import Refused

    try:
        return check_job(text)
    except Refused as error:
        raise click.BadParameter(f"{text}: {error.detail}") from None


def format_of(path: str) -> str:
    """By the path's ending, or the one before that of a compression."""
    for suffix in reversed(Path(path).suffixes):
        if suffix.lower() in ENDINGS:
            return ENDINGS[suffix.lower()]
    return "parquet"


def of_input(command: Command) -> Command:
    """Give a command the options that say what its input is and how it is sent, as `given` (an `Input`) and `job`."""

    @wraps(command)
    def with_input(
        *, path: str, format: str | None, column: dict[str, str], constants: dict[str, str], option: dict[str, str],
        ignore_others: bool, job: str, spread: float = 0, allow_duplicates: bool = False, **rest: Any,
    ) -> int:  # fmt: skip
        from later.bulk.input.reader import JobInput, check_input
        from later.core.errors import Refused

        if column.keys() & constants.keys():
            raise click.UsageError(f"{min(column.keys() & constants.keys())}: either --column or --set.")
        given = JobInput(
            path=path,
            format=format or format_of(path),
            options=option,
            columns=column,
            constants=constants,
            spread_s=spread,
            allow_duplicates=allow_duplicates,
            send_unknown_fields=not ignore_others,
        )
        try:
            check_input(given)
        except Refused as error:
            raise click.UsageError(f"{error}.") from None
        result: int = command(given=given, job=job, **rest)
        return result

    decorated: Any = with_input
    for option in reversed(_OF_INPUT):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click keeps what it decorates


_OF_INPUT: tuple[Callable[[Any], Any], ...] = (
    click.argument("path", metavar="INPUT"),
    click.option(
        "--job", required=True, callback=a_job, metavar="TEXT",
        help="The job's id, of which its tasks' ids are made: the same whenever the same rows are meant.",
    ),
    click.option("--format", type=click.Choice(FORMATS), help="[default: by the path's ending; parquet]"),
    click.option(
        "--column", callback=named, metavar="FIELD=COLUMN", multiple=True,
        help="Which column a task's field is, or `key`, where it has another name; repeatable.",
    ),
    click.option(
        "--set", "constants", callback=named, metavar="FIELD=VALUE", multiple=True,
        help="What a field is for all rows; repeatable.",
    ),
    click.option(
        "--option", callback=named, metavar="NAME=VALUE", multiple=True,
        help="An option of Spark's reader of that format, like sep=';'; repeatable.",
    ),
    click.option("--ignore-others", is_flag=True, help="Take JSON objects whose other fields no task has."),
    click.option(
        "--batch", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Rows sent at once."
    ),
    click.option(
        "--retries", type=click.IntRange(0, 100), default=8, show_default=True,
        help="How often a batch is sent again that did not get through, before Spark tries the partition anew.",
    ),
)  # fmt: skip


def overwrites(table: str) -> Callable[[Any], Any]:
    """Give a command that writes a table --overwrite."""
    return click.option("--overwrite", is_flag=True, help=f"Replace a table that is at --{table}.")
