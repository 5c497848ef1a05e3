"""The commands `bulk create`, `verify` and `cancel`. They import Spark and what needs it only when they run."""
# ruff: noqa: PLC0415  # imports inside functions

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from later.bulk.input.task_ids import new_run_id
from later.cli.bulk.job_options import (
    JobOptions,
    LaterAddress,
    SparkOptions,
    address_options,
    job_options,
    overwrite_option,
    parse_output_directory,
    spark_options,
)
from later.cli.bulk.summary import CommandOutcome, Summary, current_summary, format_due_time
from later.cli.console import notify, printable
from later.cli.options import DURATION, examples, json_option

if TYPE_CHECKING:
    from later.bulk.input.spark_input import InputFrame
    from later.bulk.jobs.run import CreateReport, StatusReport
    from later.client.transport import CreateCounts

MAX_ROW_CHARS = 200
"""Characters of a row that a message shows."""


@click.command(
    epilog=examples(
        "later bulk create s3a://lake/orders/2026-11-21 --job orders-2026-11-21 --column key=order_id \\\n"
        "    --column callback=hook_url --set topic=order --rejects s3a://lake/rejects/orders-2026-11-21",
        "later bulk create reminders.csv --job reminders-7 --spread 6h --dry-run",
        about="Columns with the names of /create's fields become a task's fields: topic, callback, delay or "
        "execute_time, retry, content, headers, context, ttl, remember. The column `key` identifies a row.",
    )
)
@job_options
@click.option("--spread", type=DURATION, default="0",
              help="Spread the tasks over this time: each is due later by a part of it, and a row always by the same "
              "part.  [default: 0s]")  # fmt: skip
@click.option("--now", is_flag=True,
              help="Accept an input without delay and execute_time: all of its tasks are due at once.")  # fmt: skip
@click.option("--null-time", type=click.Choice(["reject", "now"]), default="reject", show_default=True,
              help="A row whose time is null or empty: reject it, or make its task due at once.")  # fmt: skip
@click.option("--rejects", callback=parse_output_directory, metavar="DIR",
              help="Directory for the rejected rows: each run writes a directory run=… of Parquet.")  # fmt: skip
@click.option("--max-rejects", type=click.IntRange(0), metavar="NUMBER", default=0, show_default=True,
              help="Exit with status 1 if more rows than this are rejected.")  # fmt: skip
@click.option("--allow-duplicates", is_flag=True,
              help="Accept rows without a key: if such a row is sent twice, it becomes two tasks.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Create nothing; report what would be rejected.")
@spark_options
@address_options
@json_option
def create(
    *, job: JobOptions, rejects: str | None, max_rejects: int, dry_run: bool, spark: SparkOptions,
    address: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Create a task for each row.

    INPUT is a path that Spark can read, or the name of a table (--format table). Rows that /create would refuse are
    rejected and reported; the others become tasks. If you run the command again with the same --job, it creates the
    tasks that are missing, and none twice. Exit status 1 if more rows are rejected than --max-rejects, 5 if the store
    has lost tasks that it had confirmed.
    """
    from later.bulk.jobs import run
    from later.bulk.jobs.output import run_output
    from later.cli.progress import counting_bar

    summary, target = current_summary(), job.build_target(address)
    summary.set_target(address.url, address.prefix)
    summary.run = new_run_id(time.time())
    output = None if rejects is None else run_output(rejects, summary.run)
    summary.rejects = output and output.directory
    with _open_input(job, spark, summary) as input_frame:
        if dry_run:
            with counting_bar("partitions", None) as bar:
                report = run.validate(input_frame, target, output, bar.update)
        else:
            with RowsBar(job, input_frame) as rows, _report_partial_result(rows, summary):
                report = run.create(input_frame, target, summary.run, output, rows)
    _fill_in_created(summary, report, dry_run=dry_run)
    if not as_json:
        _print_created(summary, report, dry_run=dry_run)
    for reject in report.examples:
        notify(f"rejected: {_describe_row(reject.key, reject.reason, reject.row)}")
    if report.rejected:
        notify(_describe_output(summary.rejects, "rejects", "rejected rows"))
    if report.existing and not report.job_existed:
        notify(
            f"{report.existing:,} already existed, although the job is new: rows with the same key are one task, and "
            "another run of the job may have created tasks meanwhile"
        )
    if report.uncounted:
        reason = f"all rows were sent, but the store's own count is unknown: {report.uncounted}"
        notify(f"{reason}; check them with `later bulk verify`")
        return summary.end(CommandOutcome.UNREACHED, reason)
    if report.lost:
        reason = f"the store has lost at least {report.lost:,} tasks that it had confirmed as created"
        notify(f"{reason}: find their rows with `later bulk verify`, and run the same command again")
        return summary.end(CommandOutcome.LOST, reason)
    if report.rejected > max_rejects:
        return summary.end(CommandOutcome.REFUSED, f"{report.rejected:,} rows were rejected, more than {max_rejects:,}")
    return summary.end(CommandOutcome.DONE)


@click.command(epilog=examples("later bulk verify orders.parquet --job orders-2026-11-21 --column key=order_id"))
@job_options
@click.option("--max-missing", type=click.IntRange(0), metavar="NUMBER", default=0, show_default=True,
              help="Exit with status 1 if more rows than this have no task.")  # fmt: skip
@click.option("--missing", callback=parse_output_directory, metavar="DIR",
              help="Directory for the rows without a task: Parquet with key, id and row.")  # fmt: skip
@overwrite_option("missing")
@click.option("--rejects", metavar="DIR",
              help="The --rejects of `bulk create`: rows in it do not count as missing.")  # fmt: skip
@spark_options
@address_options
@json_option
def verify(
    *, job: JobOptions, missing: str | None, overwrite: bool, rejects: str | None, max_missing: int,
    spark: SparkOptions, address: LaterAddress, as_json: bool,
) -> int:  # fmt: skip
    """Report for each row whether its task is pending, ended, dead or missing.

    INPUT and --job are those of `bulk create`. A missing task was rejected (--rejects tells), deleted, or has ended
    longer ago than the daemon's --remember. Exit status 1 if more rows have no task than --max-missing; rows that have
    no key or are corrupt count, too.
    """
    from later.bulk.jobs import run
    from later.bulk.jobs.output import Output
    from later.cli.progress import counting_bar

    summary = current_summary()
    summary.set_target(address.url, address.prefix)
    summary.rejects, summary.output = rejects, missing
    with _open_input(job, spark, summary) as input_frame, counting_bar("partitions", None) as bar:
        output = None if missing is None else Output(missing, overwrite)
        report = run.verify(input_frame, job.build_target(address), output, rejects, bar.update)
    _finish_statuses(summary, report, {"pending": report.pending})
    if report.missing and not as_json:
        for row in report.examples:
            notify(f"missing: {_describe_row(row.key, row.id, row.row)}")
        notify(_describe_output(missing, "missing", "rows without a task"))
    _warn_without_tasks(report)
    without_task = report.missing + report.unfit
    if without_task > max_missing:
        return summary.end(CommandOutcome.MISSING, f"{without_task:,} rows have no task, more than {max_missing:,}")
    return summary.end(CommandOutcome.DONE)


@click.command(epilog=examples("later bulk cancel orders.parquet --job orders-2026-11-21 --column key=order_id --yes"))
@job_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal.")
@spark_options
@address_options
@json_option
def cancel(*, job: JobOptions, yes: bool, spark: SparkOptions, address: LaterAddress, as_json: bool) -> int:
    """Delete the pending tasks of the rows.

    INPUT and --job are those of `bulk create`. Ended and dead tasks stay as they are. A task that is in flight is
    deleted, too, but the attempt under way is not recalled: such tasks are counted apart. The id of a cancelled task is
    forgotten: `bulk create` with the same --job creates the task again. Exit status 1 if the job does not exist.
    """
    from later.bulk.jobs import run
    from later.cli.progress import counting_bar

    summary = current_summary()
    summary.set_target(address.url, address.prefix)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("No terminal to ask on: use --yes to cancel without asking.")
        question = f"delete the pending tasks of the job {job.id}, of all rows of {job.input.path}?"
        if not click.confirm(printable(question), err=True):
            notify("nothing was cancelled")
            return summary.end(CommandOutcome.DECLINED, "nothing was cancelled")
    with _open_input(job, spark, summary) as input_frame, counting_bar("partitions", None) as bar:
        report = run.cancel(input_frame, job.build_target(address), bar.update)
    _finish_statuses(summary, report, {"cancelled": report.pending, "in_flight": report.in_flight})
    if report.in_flight:
        notify(f"in flight when cancelled: {report.in_flight:,}; their receivers may get the attempt under way")
    if _warn_without_tasks(report) and not report.job_exists:
        return summary.end(CommandOutcome.MISSING, f"there is no job {job.id}")
    return summary.end(CommandOutcome.DONE)


@contextmanager
def _open_input(job: JobOptions, spark: SparkOptions, summary: Summary) -> Iterator[InputFrame]:
    """Open the input in a Spark session that ends with the context.

    Raises:
        LaterError: Spark failed, here or in the body of the context.
    """
    from later.bulk.input import spark_input
    from later.bulk.spark.errors import translate_errors
    from later.bulk.spark.session import open_session

    with open_session(spark.master, spark.conf, f"later bulk {job.id}") as session, translate_errors():
        summary.start_job()
        input_frame = spark_input.read_input(session, job.input, job.id)
        if input_frame.ignored_columns:
            notify(f"ignored columns (not task fields): {', '.join(input_frame.ignored_columns)}")
        yield input_frame


# Progress


class RowsBar:
    """A progress bar that counts the rows known to the store, and Spark's partitions beside them. A context manager."""

    def __init__(self, job: JobOptions, input_frame: InputFrame) -> None:
        from later.bulk.input.spark_input import row_count
        from later.cli.progress import counting_bar

        total = row_count(input_frame.frame.sparkSession, job.input) if sys.stderr.isatty() else None
        self._bar = counting_bar("rows", total)
        self._rows = 0
        self._problem = ""
        self.created = 0
        """Tasks created so far, as last reported."""

    def __enter__(self) -> RowsBar:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def update_counts(self, counts: CreateCounts) -> None:
        """Show the store's counts of this run."""
        self._problem = ""
        rows = sum(counts)
        self.created = max(counts.created, self.created)
        if rows > self._rows:
            self._bar.advance(rows - self._rows)
            self._rows = rows

    def update_partitions(self, finished: int, total: int) -> None:
        """Show how many of Spark's partitions are done."""
        self._bar.set_description(f"{finished}/{total} partitions")

    def report_problem(self, reason: str) -> None:
        """Print a reason, but not again until counts have arrived: Spark's workers try again for minutes."""
        if reason != self._problem:
            self._problem = reason
            self._bar.notify(f"{reason}; the workers try again")


@contextmanager
def _report_partial_result(bar: RowsBar, summary: Summary) -> Iterator[None]:
    """If the job fails or is interrupted, report how many tasks it created and how to continue it."""
    try:
        yield
    except BaseException:
        if bar.created:
            summary.counts = {"created": bar.created}
            notify(f"at least {bar.created:,} tasks were created; run the same command again to continue")
        raise


# Results


def _fill_in_created(summary: Summary, report: CreateReport, *, dry_run: bool) -> None:
    summary.finish_job(report.seconds)
    created = {"created": report.created, "existing": report.existing, "lost": report.lost}
    accepted = {"valid": report.rows - report.rejected} if dry_run else created
    summary.counts = {"rows": report.rows, **accepted, "rejected": report.rejected}
    at_once, *bounds = report.due_times
    earliest, latest = (None if due_at is None else format_due_time(due_at) for due_at in bounds)
    summary.due = {"at_once": at_once, "earliest": earliest, "latest": latest}


def _print_created(summary: Summary, report: CreateReport, *, dry_run: bool) -> None:
    accepted = f"{report.created:,} created, {report.existing:,} already there"
    if report.lost:
        accepted += f", {report.lost:,} lost"
    if dry_run:
        accepted = f"{report.rows - report.rejected:,} valid"
    speed = f"{report.seconds:.1f} s, {round(report.rows / report.seconds) if report.seconds else 0:,}/s"
    print(f"{report.rows:,} rows: {accepted}, {report.rejected:,} rejected; {speed}")
    if summary.due is not None and summary.due["earliest"] is not None:
        print("due: {at_once:,} at once; the earliest {earliest}, the latest {latest}".format(**summary.due))
    print(f"job {summary.job}, run {summary.run}, {'checked by' if dry_run else 'at'} {summary.target}")


def _finish_statuses(summary: Summary, report: StatusReport, pending: dict[str, int]) -> None:
    """Fill in the counts, and print them for people; `pending` are the counts of pending tasks, by their names."""
    summary.finish_job(report.seconds)
    counts = {**pending, "ended": report.ended, "dead": report.dead}
    counts |= {} if report.rejected is None else {"rejected": report.rejected}
    summary.counts = {"rows": report.rows, **counts, "missing": report.missing, "unfit": report.unfit}
    if not summary.as_json:
        names = {"in_flight": "in flight", "unfit": "without a key or corrupt"}
        parts = [f"{count:,} {names.get(name, name)}" for name, count in summary.counts.items() if name != "rows"]
        print(f"{report.rows:,} rows: {', '.join(parts)}; {report.seconds:.1f} s")
        print(f"job {summary.job}, at {summary.target}")


def _warn_without_tasks(report: StatusReport) -> bool:
    """Return True if no row has a task, and print a warning, because that is seldom intended."""
    has_no_tasks = bool(report.rows) and not report.pending + report.in_flight + report.ended + report.dead
    if has_no_tasks:
        notify("none of the rows has a task: --job and the key's column must be the same as with create")
    return has_no_tasks


def _describe_row(key: str | None, text: str, row: str) -> str:
    shown = printable(row if len(row) <= MAX_ROW_CHARS else row[: MAX_ROW_CHARS - 1] + "…")
    return f"{f'key {key}: ' if key else ''}{text}: {shown}"


def _describe_output(directory: str | None, option: str, rows: str) -> str:
    """Return where all rows of a kind are, or how to get them."""
    return f"use --{option} DIR to write all {rows}" if directory is None else f"all {rows} are in {directory}"
