"""How a report is shown: tables for a person, one object for a machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from later.bulk.forecast import Allowed, Forecast, Load, Outlook, Window
from later.bulk.report import Dead, Deaths, Rejected, Rejection, Report
from later.cli.moments import rfc3339
from later.cli.say import one_line
from later.cli.tables import print_figures, print_words

BUSIEST = 4
"""Topics with a column of their own in the table of hours: as many as 120 columns hold."""
NAME_CHARS, TOPIC_CHARS, KEY_CHARS = 13, 20, 20
"""Of a topic that heads a column, of one that begins a row, of a key."""
MORE = ">"
"""Marks a figure that is more than can be delivered in its hour."""
NOTHING = "-"


# For a person


def print_text(report: Report) -> None:
    """Print what was found, the longest table first: a terminal shows the end."""
    if report.outlook is not None:
        _print_head(report)
        print()
        _print_hours(report.outlook)
        print()
        _print_topics(report.outlook)
    if report.dead is not None:
        print()
        _print_dead(report.dead)
    if report.rejected is not None:
        if report.outlook is not None:
            print()
        _print_rejected(report.rejected)


def _print_head(report: Report) -> None:
    assert report.outlook is not None  # there is nothing to head otherwise
    window, total = report.outlook.window, report.outlook.total
    states = report.states or {}
    apart = ", ".join(f"{count:,} {one_line(state)}" for state, count in states.items())
    print(f"tasks  {sum(states.values()):,}{': ' if apart else ''}{apart}")
    print(f"due    {total.overdue:,} overdue, {total.in_hours:,} in the hours shown, {total.later:,} later")
    print(f"hours  of UTC, from {_at(window.now, 'now, %a %d %b %Y %H:%M')} to {_at(window.end, '%a %d %b %H:%M')}")


# Hours


class _Column(NamedTuple):
    """A column of the table of hours: a load, and the hours in which it is more than can be delivered."""

    name: str
    load: Load
    over: frozenset[int] = frozenset()

    def due(self, slot: int) -> str:
        figure = _figure(self.load.hours[slot])
        return MORE + figure if slot in self.over else figure


def _print_hours(outlook: Outlook) -> None:
    columns = _columns(outlook)
    headers = ["due", *(column.name for column in columns)] + (["backlog"] if outlook.limits_known else [])
    backlog = [NOTHING] if outlook.limits_known else []
    rows = [
        ["overdue", *(_figure(column.load.overdue) for column in columns), *backlog],
        *_hour_rows(outlook, columns),
        ["later", *(_figure(column.load.later) for column in columns), *backlog],
    ]
    print_figures(headers, rows)
    if len(rows) - 2 < outlook.window.hours:
        print("Hours in which nothing is due are left out.")
    if any(column.over for column in columns):
        print(f"{MORE} is more than the topic's rate delivers in the hour; the backlog is that at the hour's end.")


def _columns(outlook: Outlook) -> list[_Column]:
    """All topics, the busiest, and the others."""
    shown, rest = outlook.busiest(BUSIEST), outlook.without(BUSIEST)
    columns = [_Column(_shortened(topic.load.topic, NAME_CHARS), topic.load, frozenset(topic.over)) for topic in shown]
    if len(columns) == 1 and rest is None:
        return columns
    others = [] if rest is None else [_Column(rest.topic, rest)]
    return [_Column("all topics", outlook.total), *columns, *others]


def _hour_rows(outlook: Outlook, columns: Sequence[_Column]) -> Iterator[list[str]]:
    total = outlook.total
    for slot in range(outlook.window.hours):
        backlog = round(outlook.backlog(slot))
        if total.hours[slot] or backlog:
            figures = [column.due(slot) for column in columns]
            yield [_hour(outlook.window, slot), *figures, *([_figure(backlog)] if outlook.limits_known else [])]


# Topics


def _print_topics(outlook: Outlook) -> None:
    headers = ["topic", "overdue", "in hours", "busiest hour", "due in it"]
    beside = ["rate", "over", "backlog", "worked off"] if outlook.limits_known else []
    rows = [_topic_row(topic, beside) for topic in outlook.topics]
    if outlook.other_topics:
        name = f"{outlook.other_topics:,} others"
        rows.append([name, *_load_cells(outlook.window, outlook.others), *(NOTHING for _ in beside)])
    if len(rows) > 1:
        rows.append(["all topics", *_load_cells(outlook.window, outlook.total), *(NOTHING for _ in beside)])
    print_figures([*headers, *beside], rows)
    if beside:
        print("over: hours in which more falls due than the rate delivers; backlog: the largest that follows.")


def _topic_row(topic: Forecast, beside: Sequence[str]) -> list[str]:
    name = _shortened(topic.load.topic, TOPIC_CHARS)
    return [name, *_load_cells(topic.window, topic.load), *(_forecast_cells(topic) if beside else [])]


def _load_cells(window: Window, load: Load) -> list[str]:
    busiest = load.busiest
    hour = _hour(window, busiest) if load.hours[busiest] else NOTHING
    return [_figure(load.overdue), _figure(load.in_hours), hour, _figure(load.hours[busiest])]


def _forecast_cells(topic: Forecast) -> list[str]:
    if topic.allowed is None:
        return [NOTHING] * 4
    largest = round(max(topic.load.overdue if topic.is_limited else 0, topic.most_left))
    return [
        _rate(topic.allowed),
        f"{len(topic.over)} h" if topic.over else NOTHING,
        _figure(largest),
        _worked_off(topic),
    ]


def _rate(allowed: Allowed) -> str:
    if allowed.paused:
        return "paused"
    return f"{_plain(allowed.rate)}/s" if allowed.rate else "no limit"


def _worked_off(topic: Forecast) -> str:
    if topic.left:
        return "not by then"
    return NOTHING if topic.worked_off_at is None else _at(topic.worked_off_at, "%a %d %H:%M")


# The dead and the rejected


def _print_dead(dead: Dead) -> None:
    if not dead.tasks:
        print("dead   0")
        return
    print(
        f"dead   {dead.tasks:,}: " + ", ".join(f"{count:,} {_word(reason)}" for reason, count in dead.reasons.items())
    )
    print()
    rows = [_dead_row(deaths) for deaths in dead.groups]
    counts = [f"{deaths.tasks:,}" for deaths in dead.groups]
    if dead.other_groups:
        rows.append((f"{dead.other_groups:,} others", NOTHING, NOTHING, NOTHING))
        counts.append(f"{dead.in_others:,}")
    _print_counted(("reason", "host of the callback", "last answer", "latest death"), rows, counts, "dead")


def _dead_row(deaths: Deaths) -> Sequence[str]:
    latest = NOTHING if deaths.latest is None else rfc3339(deaths.latest / 1000)
    return (_word(deaths.reason), _word(deaths.host), _status(deaths.status), latest)


def _status(status: int | None) -> str:
    return f"mostly {status or 'none'}"


def _print_rejected(rejected: Rejected) -> None:
    print(f"rejects  {rejected.rows:,}")
    if not rejected.rows:
        return
    print()
    rows: list[Sequence[str]] = [_rejection_row(group) for group in rejected.groups]
    counts = [f"{group.rows:,}" for group in rejected.groups]
    if rejected.other_groups:
        rows.append((f"{rejected.other_groups:,} others", NOTHING, NOTHING))
        counts.append(f"{rejected.in_others:,}")
    _print_counted(("field", "reason", "key of one"), rows, counts, "rejects")


def _rejection_row(group: Rejection) -> Sequence[str]:
    return (_word(group.field), _word(group.reason), _shortened(_word(group.key), KEY_CHARS))


def _print_counted(headers: Sequence[str], rows: Sequence[Sequence[str]], counts: Sequence[str], what: str) -> None:
    """A table of words with a first column of figures."""
    width = max(map(len, (what, *counts)))
    counted = [(count.rjust(width), *row) for count, row in zip(counts, rows, strict=True)]
    print_words((what.rjust(width), *headers), counted)


# Words and figures


def _figure(count: int) -> str:
    return f"{count:,}" if count else NOTHING


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else str(number)


def _word(text: str | None) -> str:
    return text or NOTHING


def _hour(window: Window, slot: int) -> str:
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
    if report.outlook is not None:
        found["due"] = _due_json(report.outlook)
    if report.dead is not None:
        found["dead"] = _dead_json(report.dead)
    if report.rejected is not None:
        found["rejects"] = _rejected_json(report.rejected)
    return found


def _due_json(outlook: Outlook) -> dict[str, Any]:
    window = outlook.window
    return {
        "until": rfc3339(window.end / 1000),
        "all": _load_json(window, outlook.total),
        "topics": [{"topic": topic.load.topic} | _forecast_json(topic) for topic in outlook.topics],
        "others": {"topics": outlook.other_topics} | _load_json(window, outlook.others),
    }


def _load_json(window: Window, load: Load) -> dict[str, Any]:
    hours = [{"hour": rfc3339(window.begins(slot) / 1000), "due": due} for slot, due in enumerate(load.hours)]
    return {"overdue": load.overdue, "in_hours": load.in_hours, "later": load.later, "hours": hours}


def _forecast_json(topic: Forecast) -> dict[str, Any]:
    told, allowed = _load_json(topic.window, topic.load), topic.allowed
    if allowed is None:
        return {"rate": None} | told
    over = set(topic.over)
    hours = [
        hour | {"over": slot in over, "backlog": round(topic.backlog[slot])} for slot, hour in enumerate(told["hours"])
    ]
    worked_off_at = None if topic.worked_off_at is None else rfc3339(topic.worked_off_at / 1000)
    limits = {"rate": allowed.rate, "paused": allowed.paused, "left": round(topic.left), "worked_off_at": worked_off_at}
    return limits | told | {"hours": hours}


def _dead_json(dead: Dead) -> dict[str, Any]:
    groups = [
        deaths._asdict() | {"latest": None if deaths.latest is None else rfc3339(deaths.latest / 1000)}
        for deaths in dead.groups
    ]
    others = {"groups": dead.other_groups, "tasks": dead.in_others}
    return {"tasks": dead.tasks, "reasons": dead.reasons, "groups": groups, "others": others}


def _rejected_json(rejected: Rejected) -> dict[str, Any]:
    others = {"groups": rejected.other_groups, "rows": rejected.in_others}
    return {"rows": rejected.rows, "groups": [group._asdict() for group in rejected.groups], "others": others}
