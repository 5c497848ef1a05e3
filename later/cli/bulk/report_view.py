"""The output of `bulk report`: tables for people, one JSON object for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from later.bulk.report.counts import DeadCounts, RejectCounts, Report
from later.bulk.report.forecast import DueForecast, Load, ReportWindow, TopicForecast
from later.cli.console import printable
from later.cli.times import rfc3339

MAX_TOPICS, MAX_TOPICS_WIDE = 2, 4
"""Topics with a column of their own in the table of hours: as many as fit into 80 and 120 characters."""
HEADER_CHARS, TOPIC_CHARS, KEY_CHARS = 12, 20, 20
"""The longest topic in a column's header, the longest topic in a cell, and the longest key, in characters."""
MIN_WIDTH = 80
"""The least width of the output. A narrower terminal breaks the lines itself, so that no number is cut."""
UNLIMITED_WIDTH = 10**6
"""The width of the output to a file or a pipe."""
OVER_RATE = ">"
"""Marks a number of due tasks that exceeds what can be delivered in the hour."""
EMPTY = "-"
HOUR_FORMAT = "%a %d %H:%M"
"""A date and an hour, without the month, because no report is longer than a month."""


# For people


def print_text(report: Report, *, wide: bool) -> None:
    """Print the tables, the longest first, because a terminal shows the end. `wide` adds columns."""
    if report.due is not None:
        states, window, total = report.states or {}, report.window, report.due.total
        counts = ", ".join(f"{count:,} {printable(state)}" for state, count in states.items())
        now, end = _format_time(window.now, "%a %d %b %Y %H:%M"), _format_time(window.end, HOUR_FORMAT)
        summary = Table.grid(padding=(0, 2, 0, 0))
        summary.add_row("tasks", Text(f"{sum(states.values()):,}{': ' if counts else ''}{counts}"))
        summary.add_row(
            "due", f"{total.overdue:,} overdue, {total.in_window:,} in the hours shown, {total.later:,} later"
        )
        summary.add_row("hours", f"of UTC, from now, {now}, to {end}")
        _print(summary)
        print()
        _print_hours(report.due, MAX_TOPICS_WIDE if wide else MAX_TOPICS)
        print()
        _print_topics(report.due, wide=wide)
    if report.dead is not None:
        print()
        _print_dead(report.dead, wide=wide)
    if report.rejected is not None:
        if report.due is not None:
            print()
        _print_rejects(report.rejected)


def _print(content: RenderableType) -> None:
    """Print for the width of the terminal. To a file or a pipe, print lines of any length, without rules and styles."""
    is_terminal = sys.stdout.isatty()
    if isinstance(content, Table) and not is_terminal:
        content.box, content.padding = None, (0, 2, 0, 0)
    console = Console(force_terminal=is_terminal, highlight=False)
    console.width = max(console.width, MIN_WIDTH) if is_terminal else UNLIMITED_WIDTH
    with console.capture() as output:
        console.print(content)
    for line in output.get().splitlines():
        print(line.rstrip())


def _table(*headers: str, numbers: Iterable[int], elastic: str) -> Table:
    """Build an empty table; the columns at `numbers` are right-aligned.

    In a narrow terminal the column `elastic` gets narrower first, and its cells continue on further lines.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    aligned = set(numbers)
    for index, header in enumerate(headers):
        justify: JustifyMethod = "right" if index in aligned else "left"
        is_elastic = header == elastic
        overflow: OverflowMethod = "fold" if is_elastic else "ellipsis"  # a number that is cut must show it
        table.add_column(Text(header), justify=justify, overflow=overflow, no_wrap=not is_elastic)
    return table


def _add_row(table: Table, cells: Sequence[str]) -> None:
    """Add a row of plain text, in which a name can neither be markup nor move the cursor."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


# Hours


class _Column(NamedTuple):
    """A column of the table of hours: a load, and the hours in which more is due than can be delivered.

    Hours are numbered from 0, the current one.
    """

    name: str
    load: Load
    over_rate: frozenset[int] = frozenset()

    def due(self, hour: int) -> str:
        number = _format_number(self.load.due_per_hour[hour])
        return OVER_RATE + number if hour in self.over_rate else number


def _print_hours(due: DueForecast, max_topics: int) -> None:
    """Print the hours with due tasks or a backlog: the sum, the busiest topics, and the sum of the others."""
    topics, others, with_backlog = due.busiest(max_topics), due.sum_after(max_topics), due.has_limits
    columns = [_Column(_shorten(t.load.topic, HEADER_CHARS), t.load, frozenset(t.hours_over_rate)) for t in topics]
    if others is not None:
        columns.append(_Column("others", others))
    if len(topics) != 1 or others is not None:  # otherwise the sum would repeat the only column
        columns.insert(0, _Column("all topics", due.total))
    headers = ["due", *(column.name for column in columns), *(["backlog"] if with_backlog else [])]
    table = _table(*headers, numbers=range(1, len(headers)), elastic="")
    _add_row(table, ["overdue", *(_format_number(column.load.overdue) for column in columns), EMPTY][: len(headers)])
    for hour in range(due.window.hours):
        backlog = round(due.backlog(hour))
        if backlog or due.total.due_per_hour[hour]:
            cells = [_format_hour(due.window, hour), *(column.due(hour) for column in columns), _format_number(backlog)]
            _add_row(table, cells[: len(headers)])
    _add_row(table, ["later", *(_format_number(column.load.later) for column in columns), EMPTY][: len(headers)])
    _print(table)
    if table.row_count - 2 < due.window.hours:
        _print("Hours in which nothing is due are left out.")
    if any(column.over_rate for column in columns):
        _print(f"{OVER_RATE}: more than the topic's rate delivers in the hour; backlog: at the end of the hour.")


# Topics


def _print_topics(due: DueForecast, *, wide: bool) -> None:
    """Print each topic's load and, if any topic's limit is known, what the limit makes of it."""
    headers = ["topic", "overdue", "in hours"]
    if wide or not due.has_limits:
        headers += ["busiest hour", "due in it"]
    if due.has_limits:
        headers += ["rate", "over", "backlog", "worked off"]
    table = _table(*headers, numbers=range(1, len(headers)), elastic="topic")
    for topic in due.topics:
        name = _shorten(topic.load.topic, TOPIC_CHARS)
        _add_cells(table, headers, {"topic": name} | _load_cells(due.window, topic.load) | _limit_cells(topic))
    if due.other_topics:
        _add_cells(table, headers, {"topic": f"{due.other_topics:,} others"} | _load_cells(due.window, due.others))
    if table.row_count > 1:
        _add_cells(table, headers, {"topic": "all topics"} | _load_cells(due.window, due.total))
    _print(table)
    if due.has_limits:
        _print("over: hours in which more falls due than the rate delivers; backlog: the largest that follows.")


def _add_cells(table: Table, headers: Sequence[str], cells: dict[str, str]) -> None:
    _add_row(table, [cells.get(header, EMPTY) for header in headers])


def _load_cells(window: ReportWindow, load: Load) -> dict[str, str]:
    busiest = load.busiest_hour
    return {
        "overdue": _format_number(load.overdue),
        "in hours": _format_number(load.in_window),
        "busiest hour": _format_hour(window, busiest) if load.due_per_hour[busiest] else EMPTY,
        "due in it": _format_number(load.due_per_hour[busiest]),
    }


def _limit_cells(topic: TopicForecast) -> dict[str, str]:
    limit = topic.limit
    if limit is None:
        return {}
    rate = f"{limit.rate:,.0f}" if limit.rate == int(limit.rate) else str(limit.rate)
    worked_off = EMPTY if topic.worked_off_at is None else _format_time(topic.worked_off_at, HOUR_FORMAT)
    return {
        "rate": "paused" if limit.paused else f"{rate}/s" if limit.rate else "no limit",
        "over": f"{len(topic.hours_over_rate)} h" if topic.hours_over_rate else EMPTY,
        "backlog": _format_number(round(max(topic.load.overdue if topic.is_limited else 0, topic.peak_backlog))),
        "worked off": "not by then" if topic.final_backlog else worked_off,
    }


# Dead tasks and rejects


def _print_dead(dead: DeadCounts, *, wide: bool) -> None:
    if not dead.tasks:
        print("dead   0")
        return
    reasons = ", ".join(f"{count:,} {printable(reason or EMPTY)}" for reason, count in dead.reasons.items())
    summary = Table.grid(padding=(0, 2, 0, 0))
    summary.add_row("dead ", Text(f"{dead.tasks:,}: {reasons}"))
    _print(summary)
    print()
    headers = ["dead", "reason", "host of the callback", "last answer", *(["latest death"] if wide else [])]
    table = _table(*headers, numbers=[0], elastic="host of the callback")
    for group in dead.groups:
        latest = EMPTY if group.latest is None else rfc3339(group.latest / 1000)
        answer = f"mostly {group.status or 'none'}"
        cells = [f"{group.tasks:,}", group.reason or EMPTY, group.host or EMPTY, answer, latest]
        _add_row(table, cells[: len(headers)])
    if dead.other_groups:
        cells = [f"{dead.other_tasks:,}", f"{dead.other_groups:,} others", EMPTY, EMPTY, EMPTY]
        _add_row(table, cells[: len(headers)])
    _print(table)


def _print_rejects(rejected: RejectCounts) -> None:
    print(f"rejects  {rejected.rows:,}")
    if not rejected.rows:
        return
    print()
    table = _table("rejects", "field", "reason", "key of one", numbers=[0], elastic="reason")
    for group in rejected.groups:
        key = _shorten(group.key or EMPTY, KEY_CHARS)
        _add_row(table, [f"{group.rows:,}", group.field or EMPTY, group.reason or EMPTY, key])
    if rejected.other_groups:
        _add_row(table, [f"{rejected.other_rows:,}", f"{rejected.other_groups:,} others", EMPTY, EMPTY])
    _print(table)


# Cells


def _format_number(count: int) -> str:
    return f"{count:,}" if count else EMPTY


def _format_hour(window: ReportWindow, hour: int) -> str:
    return _format_time(window.hour_start(hour), HOUR_FORMAT)


def _format_time(ms: int, pattern: str) -> str:
    return time.strftime(pattern, time.gmtime(ms // 1000))


def _shorten(text: str, chars: int) -> str:
    """Shorten a name in its middle, because many topics differ only at the end."""
    text = printable(text)
    if len(text) <= chars:
        return text
    end = (chars - 1) // 2
    return f"{text[: chars - 1 - end]}…{text[len(text) - end :]}"


# For programs


def report_json(report: Report) -> dict[str, Any]:
    """Return the whole report for JSON. A rate of null is unknown, one of 0 is no limit. Times are RFC 3339."""
    result: dict[str, Any] = {"now": rfc3339(report.window.now / 1000)}
    if report.states is not None:
        result["tasks"] = report.states
    if report.due is not None:
        window, others = report.due.window, {"topics": report.due.other_topics}
        result["due"] = {
            "until": rfc3339(window.end / 1000),
            "all": _load_json(window, report.due.total),
            "topics": [{"topic": topic.load.topic} | _topic_json(topic) for topic in report.due.topics],
            "others": others | _load_json(window, report.due.others),
        }
    if report.dead is not None:
        result["dead"] = {
            "tasks": report.dead.tasks,
            "reasons": report.dead.reasons,
            "groups": [group._asdict() | {"latest": _time_json(group.latest)} for group in report.dead.groups],
            "others": {"groups": report.dead.other_groups, "tasks": report.dead.other_tasks},
        }
    if report.rejected is not None:
        result["rejects"] = {
            "rows": report.rejected.rows,
            "groups": [group._asdict() for group in report.rejected.groups],
            "others": {"groups": report.rejected.other_groups, "rows": report.rejected.other_rows},
        }
    return result


def _load_json(window: ReportWindow, load: Load) -> dict[str, Any]:
    hours = [
        {"hour": rfc3339(window.hour_start(hour) / 1000), "due": due} for hour, due in enumerate(load.due_per_hour)
    ]
    return {"overdue": load.overdue, "in_hours": load.in_window, "later": load.later, "hours": hours}


def _topic_json(topic: TopicForecast) -> dict[str, Any]:
    load = _load_json(topic.window, topic.load)
    if topic.limit is None:
        return {"rate": None} | load
    over_rate = set(topic.hours_over_rate)
    limits = {
        "rate": topic.limit.rate,
        "paused": topic.limit.paused,
        "left": round(topic.final_backlog),
        "worked_off_at": _time_json(topic.worked_off_at),
    }
    hours = [
        fields | {"over": hour in over_rate, "backlog": round(topic.backlog[hour])}
        for hour, fields in enumerate(load["hours"])
    ]
    return limits | load | {"hours": hours}


def _time_json(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms / 1000)
