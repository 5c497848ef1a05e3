"""How a report is shown: tables for a person, one object for a machine."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console

from later.bulk.report.counts import DeadCounts, DeadGroup, RejectCounts, RejectGroup, Report
from later.bulk.report.forecast import DueForecast, Load, ReportWindow, TopicForecast, TopicLimit
from later.cli.console import one_line
from later.cli.tables import print_figures, print_words
from later.cli.times import rfc3339

BUSIEST = 4
"""Topics with a column of their own in the table of hours: as many as 120 columns hold."""
NAME_CHARS, TOPIC_CHARS, KEY_CHARS = 13, 20, 20
"""Of a topic that heads a column, of one that begins a row, of a key."""
FEWEST_CHARS = 8
"""Of a topic or a host where there is no room for more."""
ENDLESS = 10**6
"""The width of what is no terminal: a file, a pipe."""
GAP = 3
"""Between the columns of a table that is drawn."""
MORE = ">"
"""Marks a figure that is more than can be delivered in its hour."""
NOTHING = "-"


# For a person


def print_text(report: Report) -> None:
    """Print what was found, the longest table first: a terminal shows the end."""
    room = Console().width if sys.stdout.isatty() else ENDLESS
    if report.due is not None:
        _print_head(report, room)
        print()
        _print_hours(report.due, room)
        print()
        _print_topics(report.due, room)
    if report.dead is not None:
        print()
        _print_dead(report.dead, room)
    if report.rejected is not None:
        if report.due is not None:
            print()
        _print_rejected(report.rejected)


# Room


class _Table(NamedTuple):
    """Its heads, and its rows with as many cells."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def width(self) -> int:
        """Drawn with each cell in one line."""
        columns = zip(self.headers, *self.rows, strict=True)
        return sum(max(map(cell_len, column)) + GAP for column in columns) - 1

    def of(self, *places: int) -> _Table:
        """These columns alone, counted from 0."""
        headers, *rows = ([row[place] for place in places] for row in (self.headers, *self.rows))
        return _Table(headers, rows)


def _fitting(tables: Iterable[_Table], room: int) -> _Table:
    """The first table that there is room for, else the last: a figure over two lines is none that can be read."""
    for table in tables:
        if table.width <= room:
            break
    return table


def _print_filled(text: str, room: int, indent: int = 0) -> None:
    """In as many lines as it takes; all but the first begin further to the right."""
    print(textwrap.fill(text, room, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False))


# The head


def _print_head(report: Report, room: int) -> None:
    assert report.due is not None  # there is nothing to head otherwise
    window, total = report.due.window, report.due.total
    states = report.states or {}
    apart = ", ".join(f"{count:,} {one_line(state)}" for state, count in states.items())
    due = f"{total.overdue:,} overdue, {total.in_hours:,} in the hours shown, {total.later:,} later"
    hours = f"of UTC, from {_at(window.now, 'now, %a %d %b %Y %H:%M')} to {_at(window.end, '%a %d %b %H:%M')}"
    for name, text in (
        ("tasks", f"{sum(states.values()):,}{': ' if apart else ''}{apart}"),
        ("due", due),
        ("hours", hours),
    ):
        _print_filled(f"{name:7}{text}", room, indent=7)


# Hours


class _Column(NamedTuple):
    """A column of the table of hours: a load, and the hours in which it is more than can be delivered."""

    name: str
    load: Load
    over: frozenset[int] = frozenset()

    def due(self, slot: int) -> str:
        figure = _figure(self.load.hours[slot])
        return MORE + figure if slot in self.over else figure


def _print_hours(outlook: DueForecast, room: int) -> None:
    """With as many topics side by side as there is room for."""
    table = _fitting((_hours(outlook, _columns(outlook, most)) for most in range(BUSIEST, -1, -1)), room)
    print_figures(*table)
    if len(table.rows) - 2 < outlook.window.hours:
        _print_filled("Hours in which nothing is due are left out.", room)
    if any(cell.startswith(MORE) for row in table.rows for cell in row):
        note = f"{MORE} is more than the topic's rate delivers in the hour; the backlog is that at the hour's end."
        _print_filled(note, room)


def _hours(outlook: DueForecast, columns: Sequence[_Column]) -> _Table:
    headers = ["due", *(column.name for column in columns)] + (["backlog"] if outlook.has_limits else [])
    backlog = [NOTHING] if outlook.has_limits else []
    rows = [
        ["overdue", *(_figure(column.load.overdue) for column in columns), *backlog],
        *_hour_rows(outlook, columns),
        ["later", *(_figure(column.load.later) for column in columns), *backlog],
    ]
    return _Table(headers, rows)


def _columns(outlook: DueForecast, most: int) -> list[_Column]:
    """All topics, the busiest (so many at most), and the others."""
    if not most:
        return [_Column("all topics", outlook.total)]
    shown, rest = outlook.busiest(most), outlook.remaining(most)
    columns = [
        _Column(_shortened(topic.load.topic, NAME_CHARS), topic.load, frozenset(topic.hours_over_rate))
        for topic in shown
    ]
    if len(columns) == 1 and rest is None:
        return columns
    others = [] if rest is None else [_Column(rest.topic, rest)]
    return [_Column("all topics", outlook.total), *columns, *others]


def _hour_rows(outlook: DueForecast, columns: Sequence[_Column]) -> Iterator[list[str]]:
    total = outlook.total
    for slot in range(outlook.window.hours):
        backlog = round(outlook.backlog(slot))
        if total.hours[slot] or backlog:
            figures = [column.due(slot) for column in columns]
            yield [_hour(outlook.window, slot), *figures, *([_figure(backlog)] if outlook.has_limits else [])]


# Topics


OF_LOAD = ("overdue", "in hours", "busiest hour", "due in it")
OF_LIMITS = ("rate", "over", "backlog", "worked off")
LOADS, LIMITS = range(1, 5), range(5, 9)
"""Where these columns are, beside the topic."""


def _print_topics(outlook: DueForecast, room: int) -> None:
    """Their loads, and their limits beside, where there is room, or below."""
    table = _topics(outlook, TOPIC_CHARS)
    if table.width <= room:
        print_figures(*table)
    else:
        print_figures(*_fitting(_narrower(outlook, LOADS), room))
        if outlook.has_limits:
            print()
            print_figures(*_fitting(map(_telling, _narrower(outlook, LIMITS)), room))
    if outlook.has_limits:
        note = "over: hours in which more falls due than the rate delivers; backlog: the largest that follows."
        _print_filled(note, room)


def _narrower(outlook: DueForecast, places: range) -> Iterator[_Table]:
    """These columns with shorter and shorter names, then fewer and fewer of them."""
    for count in range(len(places), 0, -1):
        for chars in range(TOPIC_CHARS, FEWEST_CHARS - 1, -1):
            yield _topics(outlook, chars).of(0, *places[:count])


def _telling(table: _Table) -> _Table:
    """The rows that tell anything."""
    return _Table(table.headers, [row for row in table.rows if set(row[1:]) != {NOTHING}])


def _topics(outlook: DueForecast, chars: int) -> _Table:
    beside = OF_LIMITS if outlook.has_limits else ()
    rows = [_topic_row(topic, beside, chars) for topic in outlook.topics]
    if outlook.other_topics:
        name = f"{outlook.other_topics:,} others"
        rows.append([name, *_load_cells(outlook.window, outlook.others), *(NOTHING for _ in beside)])
    if len(rows) > 1:
        rows.append(["all topics", *_load_cells(outlook.window, outlook.total), *(NOTHING for _ in beside)])
    return _Table(["topic", *OF_LOAD, *beside], rows)


def _topic_row(topic: TopicForecast, beside: Sequence[str], chars: int) -> list[str]:
    name = _shortened(topic.load.topic, chars)
    return [name, *_load_cells(topic.window, topic.load), *(_forecast_cells(topic) if beside else [])]


def _load_cells(window: ReportWindow, load: Load) -> list[str]:
    busiest = load.busiest_hour
    hour = _hour(window, busiest) if load.hours[busiest] else NOTHING
    return [_figure(load.overdue), _figure(load.in_hours), hour, _figure(load.hours[busiest])]


def _forecast_cells(topic: TopicForecast) -> list[str]:
    if topic.limit is None:
        return [NOTHING] * 4
    largest = round(max(topic.load.overdue if topic.is_limited else 0, topic.peak_backlog))
    return [
        _rate(topic.limit),
        f"{len(topic.hours_over_rate)} h" if topic.hours_over_rate else NOTHING,
        _figure(largest),
        _worked_off(topic),
    ]


def _rate(allowed: TopicLimit) -> str:
    if allowed.paused:
        return "paused"
    return f"{_plain(allowed.rate)}/s" if allowed.rate else "no limit"


def _worked_off(topic: TopicForecast) -> str:
    if topic.final_backlog:
        return "not by then"
    return NOTHING if topic.worked_off_at is None else _at(topic.worked_off_at, "%a %d %H:%M")


# The dead and the rejected


HOST = "host of the callback"


def _print_dead(dead: DeadCounts, room: int) -> None:
    if not dead.tasks:
        print("dead   0")
        return
    apart = ", ".join(f"{count:,} {one_line(_word(reason))}" for reason, count in dead.reasons.items())
    _print_filled(f"dead   {dead.tasks:,}: {apart}", room, indent=7)
    print()
    print_words(*_fitting(_with_hosts(dead, room), room))


def _with_hosts(dead: DeadCounts, room: int) -> Iterator[_Table]:
    """With shorter and shorter hosts, then without one of the columns."""
    longest = max(len(text) for text in (HOST, *(one_line(deaths.host) for deaths in dead.groups)))
    for places in ((0, 1, 2, 3, 4), (0, 1, 2, 4), (0, 1, 2)):
        for chars in (longest, *range(min(longest, room), FEWEST_CHARS - 1, -1)):
            yield _deaths(dead, chars).of(*places)


def _deaths(dead: DeadCounts, chars: int) -> _Table:
    rows = [_dead_row(deaths, chars) for deaths in dead.groups]
    counts = [f"{deaths.tasks:,}" for deaths in dead.groups]
    if dead.other_groups:
        rows.append((f"{dead.other_groups:,} others", NOTHING, NOTHING, NOTHING))
        counts.append(f"{dead.other_tasks:,}")
    host = HOST if chars >= len(HOST) else "host"
    return _counted(("dead", "reason", host, "last answer", "latest death"), rows, counts)


def _dead_row(deaths: DeadGroup, chars: int) -> Sequence[str]:
    latest = NOTHING if deaths.latest is None else rfc3339(deaths.latest / 1000)
    return (_word(deaths.reason), _shortened(_word(deaths.host), chars), _status(deaths.status), latest)


def _status(status: int | None) -> str:
    return f"mostly {status or 'none'}"


def _print_rejected(rejected: RejectCounts) -> None:
    print(f"rejects  {rejected.rows:,}")
    if not rejected.rows:
        return
    print()
    rows: list[Sequence[str]] = [_rejection_row(group) for group in rejected.groups]
    counts = [f"{group.rows:,}" for group in rejected.groups]
    if rejected.other_groups:
        rows.append((f"{rejected.other_groups:,} others", NOTHING, NOTHING))
        counts.append(f"{rejected.other_rows:,}")
    print_words(*_counted(("rejects", "field", "reason", "key of one"), rows, counts))


def _rejection_row(group: RejectGroup) -> Sequence[str]:
    return (_word(group.field), _word(group.reason), _shortened(_word(group.key), KEY_CHARS))


def _counted(headers: Sequence[str], rows: Sequence[Sequence[str]], counts: Sequence[str]) -> _Table:
    """A table of words with a first column of figures."""
    width = max(map(len, (headers[0], *counts)))
    counted = [(count.rjust(width), *row) for count, row in zip(counts, rows, strict=True)]
    return _Table((headers[0].rjust(width), *headers[1:]), counted)


# Words and figures


def _figure(count: int) -> str:
    return f"{count:,}" if count else NOTHING


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else str(number)


def _word(text: str | None) -> str:
    return text or NOTHING


def _hour(window: ReportWindow, slot: int) -> str:
    """The month need not be told: no window is longer than one."""
    return _at(window.begins(slot), "%a %d %H:%M")


def _at(ms: int, form: str) -> str:
    return time.strftime(form, time.gmtime(ms // 1000))


def _shortened(text: str, chars: int) -> str:
    """Both ends of it: topics often differ at the end alone."""
    text = one_line(text)
    if len(text) <= chars:
        return text
    end = (chars - 1) // 2
    return f"{text[: chars - 1 - end]}…{text[len(text) - end :]}"


# For a machine


def print_json(report: Report) -> None:
    print(json.dumps(as_json(report)))


def as_json(report: Report) -> dict[str, Any]:
    """All that was found; a rate of null is not known, of 0 no limit. Times are RFC 3339."""
    found: dict[str, Any] = {"now": rfc3339(report.window.now / 1000)}
    if report.states is not None:
        found["tasks"] = report.states
    if report.due is not None:
        found["due"] = _due_json(report.due)
    if report.dead is not None:
        found["dead"] = _dead_json(report.dead)
    if report.rejected is not None:
        found["rejects"] = _rejected_json(report.rejected)
    return found


def _due_json(outlook: DueForecast) -> dict[str, Any]:
    window = outlook.window
    return {
        "until": rfc3339(window.end / 1000),
        "all": _load_json(window, outlook.total),
        "topics": [{"topic": topic.load.topic} | _forecast_json(topic) for topic in outlook.topics],
        "others": {"topics": outlook.other_topics} | _load_json(window, outlook.others),
    }


def _load_json(window: ReportWindow, load: Load) -> dict[str, Any]:
    hours = [{"hour": rfc3339(window.begins(slot) / 1000), "due": due} for slot, due in enumerate(load.hours)]
    return {"overdue": load.overdue, "in_hours": load.in_hours, "later": load.later, "hours": hours}


def _forecast_json(topic: TopicForecast) -> dict[str, Any]:
    told, allowed = _load_json(topic.window, topic.load), topic.limit
    if allowed is None:
        return {"rate": None} | told
    over = set(topic.hours_over_rate)
    hours = [
        hour | {"over": slot in over, "backlog": round(topic.backlog[slot])} for slot, hour in enumerate(told["hours"])
    ]
    worked_off_at = None if topic.worked_off_at is None else rfc3339(topic.worked_off_at / 1000)
    limits = {
        "rate": allowed.rate,
        "paused": allowed.paused,
        "left": round(topic.final_backlog),
        "worked_off_at": worked_off_at,
    }
    return limits | told | {"hours": hours}


def _dead_json(dead: DeadCounts) -> dict[str, Any]:
    groups = [
        deaths._asdict() | {"latest": None if deaths.latest is None else rfc3339(deaths.latest / 1000)}
        for deaths in dead.groups
    ]
    others = {"groups": dead.other_groups, "tasks": dead.other_tasks}
    return {"tasks": dead.tasks, "reasons": dead.reasons, "groups": groups, "others": others}


def _rejected_json(rejected: RejectCounts) -> dict[str, Any]:
    others = {"groups": rejected.other_groups, "rows": rejected.other_rows}
    return {"rows": rejected.rows, "groups": [group._asdict() for group in rejected.groups], "others": others}
