"""The command `bulk report`. It imports Spark and what needs it only when it runs."""
# ruff: noqa: PLC0415  # imports inside functions

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import click

from later.cli.bulk.job_options import SparkOptions, spark_options
from later.cli.bulk.summary import CommandOutcome, current_summary, without_password
from later.cli.console import notify
from later.cli.options import CLIENT_COMMAND, build_client, config_options, examples, json_option
from later.core import validation
from later.core.errors import LaterError, Refused
from later.core.explain import format_duration
from later.core.policy import MAX_LIMIT, MIN_RATE
from later.option_types import any_rate

RATE_HELP = "A rate is a number of deliveries a second, 0 for no limit: order=50, order=0.5/s."
STALE_MS = 3_600_000
"""The age from which an export is reported as old: it shows one moment only."""


def parse_topic(name: str) -> str:
    try:
        return validation.parse_topic(name)
    except Refused as error:
        raise click.BadParameter(str(error)) from None


def parse_topics(context: click.Context, parameter: click.Parameter, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(parse_topic(name) for name in names)


def parse_rates(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    """Parse TOPIC=PER_SECOND. A rate has the same limits as in a topic's policy."""
    rates: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")  # a topic may contain =
        if not equals:
            raise click.BadParameter(f"{text}: expected TOPIC=PER_SECOND")
        try:
            rate = any_rate(number)
        except ValueError as error:
            raise click.BadParameter(f"{text}: expected {error}") from None
        if rate and not MIN_RATE <= rate <= MAX_LIMIT:
            raise click.BadParameter(f"{text}: expected a rate of 0, or from {MIN_RATE:g} to {MAX_LIMIT}")
        rates[parse_topic(name)] = rate
    return rates


def parse_plot_file(context: click.Context, parameter: click.Parameter, name: str | None) -> Path | None:
    if name is None:
        return None
    if not name.lower().endswith(".png"):
        raise click.BadParameter(f"{name}: expected the name of a file that ends in .png")
    if not Path(name).parent.is_dir():  # otherwise the error would come after all the counting
        raise click.BadParameter(f"{name}: no such directory: {Path(name).parent}")
    return Path(name)


@click.command(
    epilog=examples(
        "later bulk report --export exports/pool --url http://127.0.0.1:8080",
        "later bulk report --export exports/pool --topic order --rate order=50 --days 1 --plot order.png",
        "later bulk report --rejects rejects/import-7 --json",
        about=RATE_HELP,
    )
)
@click.option("--export", metavar="DIR", help="Directory that `later bulk export` wrote.")
@click.option("--rejects", metavar="DIR", help="Directory with the rejects of a `later bulk create`.")
@click.option("--days", type=click.IntRange(1, 31), metavar="NUMBER", default=3, show_default=True,
              help="Days to forecast, from the current hour on.")  # fmt: skip
@click.option("--topic", "topics", callback=parse_topics, metavar="TEXT", multiple=True,
              help="Count this topic's tasks only; repeatable.  [default: all]")  # fmt: skip
@click.option("--rate", "rates", callback=parse_rates, metavar="TOPIC=PER_SECOND", multiple=True,
              help="Rate of a topic, instead of that of its policy; repeatable.")  # fmt: skip
@click.option(
    "--url", metavar="URL", help="URL of later's API, to read the rates from the topics' policies.  [default: none]"
)
@click.option(
    "--plot",
    callback=parse_plot_file,
    metavar="FILE.png",
    help="Also draw the report into this file; needs matplotlib.",
)
@click.option("--wide", is_flag=True, help="Print more columns than fit into 80 characters.")
@spark_options
@config_options(CLIENT_COMMAND, ("key-file", "ca", "wait"))
@json_option
def report(
    *, export: str | None, rejects: str | None, days: int, topics: tuple[str, ...], rates: dict[str, float],
    plot: Path | None, wide: bool, spark: SparkOptions, as_json: bool, **flags: str | None,
) -> int:  # fmt: skip
    """Forecast the due tasks of each hour, and count dead tasks and rejected rows.

    With --export, shows the tasks that fall due in each hour, by topic. If a topic's rate does not suffice to deliver
    them, shows the size of the backlog, and when it is worked off. A topic's rate is that of --rate, otherwise that
    of its policy, which is read from --url. Also shows the dead tasks, by reason and by the host of the callback. With
    --rejects, shows the rejected rows, by field and reason.

    Hours are UTC, from the current one on, by this machine's clock. Retries of failed deliveries are not forecast.
    """
    summary = current_summary()
    summary.input, summary.rejects = export, rejects
    summary.url = flags["url"] and without_password(flags["url"])
    summary.output = None if plot is None else str(plot)
    if export is None and rejects is None:
        raise click.UsageError("Nothing to report on: expected --export, --rejects, or both.")
    client = None if flags["url"] is None else build_client(flags)
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise LaterError("--plot needs matplotlib: pip install 'later[spark]'")
    from later.bulk.report import build
    from later.cli.bulk.report_view import print_text, report_json

    summary.start_job()
    counts = build.count_tables(build.ReportRequest(export, rejects, topics, days), rates, spark.master, spark.conf)
    built = build.build_report(counts, rates, client, notify)
    summary.report = report_json(built)
    if not as_json:
        print_text(built, wide=wide)
    if plot is not None:
        from later.bulk.report.plot import draw

        draw(built, plot)
    if (exported := counts.exported) is None:
        return summary.end(CommandOutcome.DONE)
    if exported.missing_topics:  # whose names may be misspelt
        names = ", ".join(exported.missing_topics)
        notify(f"the export has no task of these topics, named by --topic or --rate: {names}")
    if exported.written_at is not None and counts.window.now - exported.written_at >= STALE_MS:
        age = format_duration(counts.window.now - exported.written_at)
        notify(
            f"the export is {age} old: tasks that fell due since then are shown as overdue, even if they were delivered"
        )
    return summary.end(CommandOutcome.DONE)
