"""The command `bulk report`. It imports its heavy half when it runs."""
# ruff: noqa: PLC0415  # that is why: what help needs is little

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from later.cli.bulk.options import on_spark
from later.cli.options import CALL, chosen, client_of, examples, one_object
from later.cli.policy_options import a_second
from later.core import validation
from later.core.errors import Refused
from later.core.policy import MAX_LIMIT, MIN_RATE

RATES = "A rate is so many deliveries a second, 0 for no limit: order=50, order=0.5/s."

Parameter = click.Parameter


def _topics(context: click.Context, parameter: Parameter, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(_topic(name) for name in names)


def _rates(context: click.Context, parameter: Parameter, texts: Sequence[str]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for text in texts:
        name, is_there, rate = text.rpartition("=")  # a topic may have a = in it
        if not is_there:
            raise click.BadParameter(f"{text}: expected TOPIC=PER_SECOND")
        rates[_topic(name)] = _rate(text, rate)
    return rates


def _topic(name: str) -> str:
    try:
        return validation.parse_topic(name)
    except Refused as error:
        raise click.BadParameter(str(error)) from None


def _rate(text: str, number: str) -> float:
    """As a topic's policy takes it."""
    try:
        rate = a_second(number)
    except ValueError as error:
        raise click.BadParameter(f"{text}: expected {error}") from None
    if rate and not MIN_RATE <= rate <= MAX_LIMIT:
        raise click.BadParameter(f"{text}: expected a rate of 0, or from {MIN_RATE:g} to {MAX_LIMIT}")
    return rate


def _picture(context: click.Context, parameter: Parameter, name: str | None) -> Path | None:
    if name is None:
        return None
    if not name.lower().endswith(".png"):
        raise click.BadParameter(f"{name}: expected the name of a file that ends in .png")
    if not Path(name).parent.is_dir():  # or it would be noticed when all is counted
        raise click.BadParameter(f"{name}: there is no directory {Path(name).parent}")
    return Path(name)


@click.command(
    epilog=examples(
        "later bulk report --export exports/pool --url http://127.0.0.1:8080",
        "later bulk report --export exports/pool --topic order --rate order=50 --days 1 --plot order.png",
        "later bulk report --rejects rejects/import-7 --json",
        about=RATES,
    )
)
@click.option("--export", metavar="DIR", help="What `later bulk export` wrote.")
@click.option("--rejects", metavar="DIR", help="The rejects of a `later bulk create`.")
@click.option("--days", type=click.IntRange(1, 31), default=3, show_default=True, help="So far ahead, from this hour.")
@click.option("--topic", "topics", callback=_topics, metavar="TEXT", multiple=True,
              help="This topic's tasks alone; repeatable.  [default: all]")  # fmt: skip
@click.option("--rate", "rates", callback=_rates, metavar="TOPIC=PER_SECOND", multiple=True,
              help="A topic's rate, whatever its policy says; repeatable.")  # fmt: skip
@click.option(
    "--url", metavar="URL", help="Where later's API answers, to ask for the topics' rates.  [default: nowhere]"
)
@click.option("--plot", callback=_picture, metavar="FILE.png", help="Draw it, too.")
@on_spark
@chosen(CALL, ("wait",))
@one_object
def report(
    *, export: str | None, rejects: str | None, days: int, topics: tuple[str, ...], rates: dict[str, float],
    plot: Path | None, master: str, conf: dict[str, str], as_json: bool, **flags: str | None,
) -> int:  # fmt: skip
    """Tell what falls due when, what died, what was rejected.

    Of an export: how many tasks fall due in each hour, by topic, and where that is more than the topic's rate can
    deliver: how large the backlog gets, and when it is worked off. The rates are those of the topics' policies, asked
    at --url, or of --rate. And what died, by reason and by the host that it called. Of a table of rejects: rows by
    field and reason.

    Hours are those of UTC, beginning now by this machine's clock. Tries that fail and are made again are not foreseen.
    """
    if export is None and rejects is None:
        raise click.UsageError("What is it to be about? --export, --rejects, or both.")
    client = None if flags["url"] is None else client_of(flags)
    from later.cli import loads

    if plot is not None:
        loads.check_can_draw()
    found = loads.count(loads.Wanted(export, rejects, topics, days), rates, master, conf)
    return loads.tell(found, rates, client, plot, as_json=as_json)
