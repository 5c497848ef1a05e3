"""The command `forecast`: when waiting tasks fall due, and what the rate of their topic makes of that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click

from later.cli.api_paths import scope_path
from later.cli.console import notify, printable
from later.cli.options import DURATION, RATE, client_options, examples, json_option
from later.cli.tables import format_bar, print_bar_table, print_number_table
from later.client.http import ApiClient
from later.core.explain import format_duration
from later.core.forecast import DEFAULT_HOURS, MAX_HOURS
from later.core.policy import plain_number
from later.core.policy_scopes import topic_scope

STEPS_S = (300, 600, 900, 1800, 3600)
"""Lengths of a step that are chosen by default."""
MAX_ROWS = 48
"""Steps by default, as far as the longest step allows."""

Answer = dict[str, Any]


@click.command(
    epilog=examples("later forecast", "later forecast order --hours 24 --step 1h", "later forecast order --rate 50")
)
@click.argument("topic", required=False)
@click.option(
    "--hours", type=click.IntRange(1, MAX_HOURS), metavar="NUMBER", default=DEFAULT_HOURS, show_default=True,
    help="How many hours to look ahead.",
)  # fmt: skip
@click.option("--step", type=DURATION, help=f"Length of a row, up to 1h.  [default: such that {MAX_ROWS} rows suffice]")
@click.option("--rate", type=RATE, help="Assume this rate of the topic, in deliveries a second; 0 is no limit.")
@json_option
@client_options
def forecast(
    *, client: ApiClient, topic: str | None, hours: int, step: float | None, rate: float | None, as_json: bool
) -> int:
    """Show when waiting tasks fall due, of one topic or of all.

    Of a topic, says how late its rate will make them, or another one with --rate. Tasks that are created later are not
    known, nor what else may hold tasks. Without TOPIC, counts the fifty topics with most waiting tasks. Times are UTC.
    """
    if topic is None and rate is not None:
        raise click.UsageError("--rate needs a TOPIC.")
    query = {"hours": hours, "step": plain_number(_default_step_s(hours) if step is None else step)}
    if rate is not None:
        query["rate"] = plain_number(rate)
    path = "/forecast" if topic is None else f"{scope_path(topic_scope(topic))}/forecast"
    answer = client.ask("GET", f"{path}?{urlencode(query)}")
    if as_json:
        print(json.dumps(answer))
        return 0
    print(printable(_summary(answer, hours)))
    if "worst_lateness_s" in answer:
        print(_rate_sentence(answer, hours))
    _print_steps(answer)
    if "topics" in answer:
        _print_topics(answer, hours)
    return 0


def _default_step_s(hours: int) -> int:
    return next((step for step in STEPS_S if hours * 3600 <= MAX_ROWS * step), STEPS_S[-1])


def _summary(answer: Answer, hours: int) -> str:
    due, coming = answer["due"], sum(answer["counts"])
    about = f"{answer['topic']}: " if "topic" in answer else ""
    return f"{about}{due:,} {'task is' if due == 1 else 'tasks are'} due, {coming:,} more within {hours} h"


def _rate_sentence(answer: Answer, hours: int) -> str:
    """Return what the rate makes of a topic's tasks."""
    worst_s, rate = answer["worst_lateness_s"], answer["rate"]
    if worst_s is None:
        if answer["paused"]:
            return "the topic is paused: nothing is delivered; --rate says how it would go on"
        return "no rate holds its tasks"
    if answer["behind_from"] is None:
        return f"at {rate}/s no task waits for a second"
    behind, caught_up = _time(answer["behind_from"]), answer["caught_up_at"]
    until = f"until {_time(caught_up)}" if caught_up else f"and for longer than {hours} h"
    return f"at {rate}/s tasks wait up to {format_duration(round(worst_s * 1000))}: from {behind} {until}"


def _print_steps(answer: Answer) -> None:
    """Print the steps as a table with bars; those after the last task are left out."""
    counts = answer["counts"]
    shown = max((number for number, count in enumerate(counts, 1) if count), default=0)
    most = max(counts, default=0)
    rows = [
        (_step_start(answer, number), f"{counts[number]:,}", format_bar(counts[number], most))
        for number in range(shown)
    ]
    if rows:
        print()
        print_bar_table(("from", "tasks", ""), rows)


def _print_topics(answer: Answer, hours: int) -> None:
    """Print the topics, each with its busiest step."""
    rows = [
        (topic["topic"], f"{topic['due']:,}", f"{sum(topic['counts']):,}", _busiest_step(answer, topic["counts"]))
        for topic in answer["topics"]
    ]
    if rows:
        print()
        print_number_table(("topic", "due", f"in {hours} h", "most from"), rows)
    if left_out := answer["topics_left_out"]:
        print(f"… and {left_out:,} more topics, whose tasks are not counted")
    if answer["counted_at"] is None:
        notify("the topics have not been counted yet; try again in a moment")


def _busiest_step(answer: Answer, counts: Sequence[int]) -> str:
    return _step_start(answer, counts.index(max(counts))) if any(counts) else "-"


def _step_start(answer: Answer, number: int) -> str:
    """Return when a step begins, to the minute; steps that begin at other times are shown to the second."""
    begins = datetime.fromisoformat(answer["from"]).timestamp() + number * answer["step_s"]
    minute = "%Y-%m-%d %H:%M" if answer["step_s"] % 60 == 0 else "%Y-%m-%d %H:%M:%S"
    return datetime.fromtimestamp(begins, UTC).strftime(minute)


def _time(text: str) -> str:
    """Return a time of an answer to the second."""
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S")
