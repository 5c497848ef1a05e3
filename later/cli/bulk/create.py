"""`bulk create`, `verify` and `cancel`: the tasks of an input's rows. Each imports its heavy half when it runs."""
# ruff: noqa: PLC0415  # that is why: what help needs is little

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from later.cli.bulk.input_options import of_input, overwrites
from later.cli.bulk.options import LaterAddress, on_spark, to_later
from later.cli.console import notify, printable
from later.cli.options import DURATION, examples, json_option
from later.cli.paths import parse_directory

if TYPE_CHECKING:
    from later.bulk.input.reader import InputFrame, JobInput
    from later.bulk.jobs.output import Output
    from later.bulk.jobs.run import Created, Standings
    from later.bulk.transport.target import Target
    from later.client.transport import Counts

LONGEST_ROW = 200
"""Characters of a row that is shown."""


@click.command(
    epilog=examples(
        "later bulk create s3a://lake/orders/2026-11-21 --job orders-2026-11-21 --column key=order_id \\\n"
        "    --column callback=hook_url --set topic=order --rejects s3a://lake/rejects/orders-2026-11-21",
        "later bulk create reminders.csv --job reminders-7 --spread 6h --dry-run",
        about="A row's task has the fields of /create, from columns of their names: topic, callback, delay or "
        "execute_time, retry, content, headers, ttl; and `key` says which row it is.",
    )
)
@of_input
@click.option(
    "--spread", type=DURATION, default="0",
    help="Put off each task by its part of this window, evenly, and the same whenever it is sent.",
)  # fmt: skip
@click.option("--rejects", callback=parse_directory, metavar="DIR",
              help="Where rejected rows go: Parquet with key, row, field and reason.")  # fmt: skip
@overwrites("rejects")
@click.option(
    "--max-rejects", type=click.IntRange(0), default=0, show_default=True, help="More of them: exit status 1."
)
@click.option("--allow-duplicates", is_flag=True, help="Take rows without a key, though one sent twice is two tasks.")
@click.option("--dry-run", is_flag=True, help="Create nothing: say what would be refused.")
@on_spark
@to_later
@json_option
def create(
    *, given: JobInput, job: str, batch: int, retries: int, rejects: str | None, overwrite: bool, max_rejects: int,
    dry_run: bool, master: str, conf: dict[str, str], target: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Create a task of each row.

    Rows that /create would refuse are left out and told, the others go on. Run again with the same --job, it creates
    what is not there yet, and nothing twice. Exit status 1 if more was rejected than --max-rejects.
    """
    from later.bulk.jobs import run
    from later.cli.progress import counting_bar

    way = _way(target, batch, retries)
    with _found(given, job, master, conf) as found:
        if dry_run:
            with counting_bar("parts", None) as parts:
                came = run.judge(found, way, _output(rejects, overwrite), parts.update)
        else:
            with _RowsBar(given, found) as bar, _told_what_there_is(bar):
                came = run.create(found, way, _output(rejects, overwrite), bar)
    _tell_created(came, job, rejects, dry_run=dry_run, as_json=as_json)
    return 1 if came.rejected > max_rejects else 0


@click.command(epilog=examples("later bulk verify orders.parquet --job orders-2026-11-21 --column key=order_id"))
@of_input
@click.option(
    "--max-missing", type=click.IntRange(0), default=0, show_default=True, help="More of them: exit status 1."
)
@click.option("--missing", callback=parse_directory, metavar="DIR",
              help="Where rows without a task go: Parquet with key, id and row.")  # fmt: skip
@overwrites("missing")
@on_spark
@to_later
@json_option
def verify(
    *, given: JobInput, job: str, batch: int, retries: int, missing: str | None, overwrite: bool,
    max_missing: int, master: str, conf: dict[str, str], target: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Say of each row whether its task is pending, has ended, is dead or missing.

    Missing is what was rejected, deleted, or forgotten (--remember after it had ended). Exit status 1 if more is than
    --max-missing, with the rows that say no key or are corrupt.
    """
    from later.bulk.jobs import run
    from later.cli.progress import counting_bar

    with _found(given, job, master, conf) as found, counting_bar("parts", None) as bar:
        standings = run.find(found, _way(target, batch, retries), _output(missing, overwrite), bar.update)
    _tell_standings(standings, "pending", as_json=as_json)
    for row in () if as_json else standings.examples:
        notify(f"missing: {_whose(row.key)}{row.id}: {_short(row.row)}")
    if standings.missing and not as_json:
        notify(_where(missing, "missing"))
    _hint(standings)
    return 1 if standings.missing + standings.unfit > max_missing else 0


@click.command(epilog=examples("later bulk cancel orders.parquet --job orders-2026-11-21 --column key=order_id --yes"))
@of_input
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_spark
@to_later
@json_option
def cancel(
    *, given: JobInput, job: str, batch: int, retries: int, yes: bool,
    master: str, conf: dict[str, str], target: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Delete the tasks of the rows that are still pending.

    What has ended or is dead stays as it is. A cancelled task is forgotten: creating the job again makes it anew. Exit
    status 1 if there is no such job.
    """
    from later.bulk.jobs import run
    from later.cli.progress import counting_bar

    if not yes and not _sure(given, job):
        notify("nothing was cancelled")
        return 1
    with _found(given, job, master, conf) as found, counting_bar("parts", None) as bar:
        standings = run.cancel(found, _way(target, batch, retries), bar.update)
    _tell_standings(standings, "cancelled", as_json=as_json)
    return 1 if _hint(standings) and not standings.known else 0


def _hint(standings: Standings) -> bool:
    """Say so where no row has a task: that is seldom meant."""
    nothing = bool(standings.rows) and not standings.pending + standings.ended + standings.dead
    if nothing:
        notify("none of the rows has a task: --job and the column that is the key must be those that create was given")
    return nothing


def _sure(given: JobInput, job: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on: --yes to cancel unasked.")
    question = f"delete the pending tasks of the job {job}, of all rows of {given.path}?"
    return click.confirm(printable(question), err=True)


def _way(target: LaterAddress, batch: int, retries: int) -> Target:
    from later.bulk.transport.target import Target

    return Target(url=target.url, prefix=target.prefix, timeout_s=target.timeout_s, batch=batch, retries=retries)


def _output(directory: str | None, replaces: bool) -> Output | None:
    from later.bulk.jobs.output import Output

    return None if directory is None else Output(directory, replaces)


@contextmanager
def _found(given: JobInput, job: str, master: str, conf: dict[str, str]) -> Iterator[InputFrame]:
    """The input, in a session that ends with it. Raises LaterError: whatever Spark says went wrong."""
    from later.bulk.input import reader
    from later.bulk.spark.errors import translate_errors
    from later.bulk.spark.session import open_session

    with open_session(master, conf, f"later bulk {job}") as spark, translate_errors():
        found = reader.read_input(spark, given, job)
        if found.unused:
            notify(f"columns that are no task's, and are not used: {', '.join(found.unused)}")
        yield found


class _RowsBar:
    """A bar in rows, by what the store has counted, beside how far Spark is. A context: its end takes the bar away."""

    def __init__(self, given: JobInput, found: InputFrame) -> None:
        from rich.progress import TextColumn

        from later.bulk.input.reader import row_count
        from later.cli.progress import counting_bar

        total = row_count(found.frame.sparkSession, given) if sys.stderr.isatty() else None
        self._bar = counting_bar("rows", total, TextColumn("{task.description}"))
        self._rows = 0
        self._trouble = ""
        self.created = 0
        """Tasks, as far as it was told."""

    def __enter__(self) -> _RowsBar:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def hear(self, counts: Counts) -> None:
        """What the store has counted since the job began; of a job that is run again, little: it knows the batches."""
        self._trouble = ""
        rows = sum(counts)
        self.created = max(counts.created, self.created)
        if rows > self._rows:
            self._bar.advance(rows - self._rows)
            self._rows = rows

    def parts(self, done: int, of: int) -> None:
        """How far Spark is."""
        self._bar.set_description(f"{done}/{of} parts")

    def trouble(self, reason: str) -> None:
        """Said once, until there was none: the workers go on trying for minutes."""
        if reason != self._trouble:
            self._trouble = reason
            self._bar.notify(f"{reason}; the workers try again")


@contextmanager
def _told_what_there_is(bar: _RowsBar) -> Iterator[None]:
    """Say of a job that ends too early that it did something, and that nothing is to be done but to run it again."""
    try:
        yield
    except BaseException:
        if bar.created:
            notify(f"{bar.created:,} tasks or more were created; the same command goes on where this ended")
        raise


def _tell_created(came: Created, job: str, rejects: str | None, *, dry_run: bool, as_json: bool) -> None:
    per_second = round(came.rows / came.seconds) if came.seconds else 0
    valid = came.rows - came.rejected
    if as_json:
        counts = {"valid": valid} if dry_run else {"created": came.created, "existing": came.existing}
        told = {"job": job, "rows": came.rows, **counts, "rejected": came.rejected}
        print(json.dumps({**told, "seconds": round(came.seconds, 3), "rows_per_second": per_second}))
    else:
        counts_told = f"{valid:,} valid" if dry_run else f"{came.created:,} created, {came.existing:,} already there"
        print(f"{came.rows:,} rows: {counts_told}, {came.rejected:,} rejected; {came.seconds:.1f} s, {per_second:,}/s")
    for reject in came.examples:
        notify(f"rejected: {_whose(reject.key)}{reject.reason}: {_short(reject.row)}")
    if came.rejected:
        notify(_where(rejects, "rejects"))
    if came.existing and not came.known:
        notify(f"{came.existing:,} were there already, though the job is new: rows that have the same key are one task")


def _tell_standings(standings: Standings, pending: str, *, as_json: bool) -> None:
    if as_json:
        told = standings._asdict()
        told[pending] = told.pop("pending")
        told["seconds"] = round(standings.seconds, 3)
        del told["examples"], told["known"]
        print(json.dumps(told))
        return
    counts = {pending: standings.pending, "ended": standings.ended, "dead": standings.dead}
    counts |= {"missing": standings.missing, "without a key or corrupt": standings.unfit}
    in_words = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"{standings.rows:,} rows: {in_words}; {standings.seconds:.1f} s")


def _where(directory: str | None, option: str) -> str:
    return f"all of them: --{option} DIR writes them as a table" if directory is None else f"all of them: {directory}"


def _whose(key: str | None) -> str:
    return f"key {key}: " if key else ""


def _short(row: str) -> str:
    return printable(row if len(row) <= LONGEST_ROW else row[: LONGEST_ROW - 1] + "…")
