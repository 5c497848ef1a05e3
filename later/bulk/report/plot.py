"""A report as one picture: due per hour beside the rates, the backlog that follows, the dead, the rejects."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from later.bulk.report.counts import OTHERS, DeadCounts, RejectCounts, Report
from later.bulk.report.forecast import DAY_HOURS, HOUR_MS, DueForecast, Load, ReportWindow, TopicForecast

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Of topics, as many as have one of their own. People who see fewer colours can tell them apart (Okabe and Ito,
https://jfly.uni-koeln.de/color/)."""
REASONS = ("#8c2d19", "#c8553d", "#e59572", "#f2c6a8", "#6e4b7e", "#a98bb8")
"""Of what the dead died of."""
GREY, SLATE, INK = "#b8bec6", "#57606a", "#24292f"
BARS = 12
"""Of the dead and of the rejects."""
LEGEND_CHARS, BAR_CHARS = 28, 64
"""Of a name."""
WIDTH, DPI = 12.0, 110
"""In inches, and pixels an inch."""
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a topic may have two $ in it
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#8c959f",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "hatch.linewidth": 1.2,
}


class Panel(NamedTuple):
    """A part of the picture: its height in inches, and what draws it."""

    height: float
    draw: Callable[[SubFigure], None]


def draw(report: Report, file: Path) -> None:
    """Write the picture as PNG. Raises OSError."""
    panels = list(_panels(report))
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks: they are drawn as boxes
        heights = [panel.height for panel in panels] or [1.0]
        figure = Figure(
            figsize=(WIDTH, sum(heights) + 0.5), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
        )
        FigureCanvasAgg(figure)
        figure.suptitle(f"later bulk report, {_at(report.window.now, '%a %d %b %Y %H:%M')} UTC", fontsize=13)
        places = figure.subfigures(len(heights), squeeze=False, height_ratios=heights)[:, 0]
        for panel, place in zip(panels, places, strict=False):
            panel.draw(place)
        figure.savefig(file, format="png")


def _panels(report: Report) -> Iterator[Panel]:
    """Those that there is something to draw in."""
    outlook, dead, rejected = report.due, report.dead, report.rejected
    if outlook is not None:
        yield Panel(7.0 if _behind(outlook) else 4.4, lambda place: _draw_hours(place, outlook))
    if dead is not None and dead.tasks:
        yield Panel(_height(len(_by_host(dead))), lambda place: _draw_dead(place.subplots(), dead))
    if rejected is not None and rejected.rows:
        yield Panel(_height(min(len(rejected.groups) + 1, BARS)), lambda place: _draw_rejected(place, rejected))


def _height(bars: int) -> float:
    return 1.1 + 0.28 * bars


# Hours


def _draw_hours(place: SubFigure, outlook: DueForecast) -> None:
    """What falls due and, where the rates leave any, the backlog below it."""
    if not _behind(outlook):
        _draw_due(place.subplots(), outlook)
        return
    due, backlog = place.subplots(2, height_ratios=(1.7, 1))
    _draw_due(due, outlook)
    _draw_backlog(backlog, outlook)


def _draw_due(axes: Axes, outlook: DueForecast) -> None:
    slots, total = range(outlook.window.hours), outlook.total
    bottom = [0.0] * len(slots)
    apart = _limited_first(outlook)
    for topic in apart:
        colour = _colours(outlook)[topic.load.topic]
        bottom = _stack(axes, bottom, topic.load, colour)
        _hatch(axes, bottom, topic)
    rest = outlook.remaining(len(COLOURS))
    if rest is not None:
        bottom = _stack(axes, bottom, rest, GREY)
    axes.set_ylim(0, max(*bottom, 1) * 1.08)
    _draw_rate(axes, apart)
    figures = f"{total.in_window:,} ({total.overdue:,} overdue already, {total.later:,} later)"
    axes.set_title(f"Due per hour, by topic: {figures}")
    axes.set_ylabel("tasks due in the hour")
    _dress_hours(axes, outlook.window)


def _limited_first(outlook: DueForecast) -> list[TopicForecast]:
    """Topics with colours of their own; at the bottom, where a line can be drawn, what is most above its rate."""
    return sorted(outlook.busiest(len(COLOURS)), key=lambda topic: (not topic.is_limited, -sum(topic.excess_per_hour)))


def _stack(axes: Axes, bottom: Sequence[float], load: Load, colour: str) -> list[float]:
    axes.bar(
        range(len(bottom)), load.hours, width=0.92, bottom=bottom, align="edge", color=colour, label=_legend(load.topic)
    )
    return [below + due for below, due in zip(bottom, load.hours, strict=True)]


def _hatch(axes: Axes, top: Sequence[float], topic: TopicForecast) -> None:
    """Mark the part of a topic's bars that its rate does not deliver in the hour."""
    over, excess = topic.hours_over_rate, topic.excess_per_hour
    axes.bar(
        over, [-excess[slot] for slot in over], width=0.92, bottom=[top[slot] for slot in over],
        align="edge", fill=False, hatch="////", edgecolor="white", linewidth=0,
    )  # fmt: skip


def _draw_rate(axes: Axes, stacked: Sequence[TopicForecast]) -> None:
    """Of the topic at the bottom, if it is above its rate: any other line would cut through what is not its own."""
    lowest = stacked[0] if stacked else None
    if lowest is None or lowest.limit is None or not lowest.hours_over_rate:
        return
    rate, name = lowest.limit.per_second * 3600, _shortened(lowest.load.topic, LEGEND_CHARS - 8)
    label = f"{name} is paused" if lowest.limit.paused else f"rate of {name}:\n{rate:,.0f} an hour"
    if rate < axes.get_ylim()[1]:
        axes.axhline(rate, color=INK, linestyle="--", linewidth=1.3, label=label)
    else:
        axes.plot([], [], color=INK, linestyle="--", linewidth=1.3, label=f"{label}\n(beyond the picture)")


def _behind(outlook: DueForecast) -> list[TopicForecast]:
    """Topics with a backlog at any time."""
    return [topic for topic in outlook.topics if topic.is_limited and (topic.load.overdue or topic.peak_backlog)]


def _draw_backlog(axes: Axes, outlook: DueForecast) -> None:
    window, behind, colours = outlook.window, _behind(outlook), _colours(outlook)
    now = (window.now - window.begins(0)) / HOUR_MS
    axes.stackplot(
        [now, *range(1, window.hours + 1)],
        [[topic.load.overdue, *topic.backlog] for topic in behind],
        colors=[colours.get(topic.load.topic, GREY) for topic in behind],
        labels=[f"{_legend(topic.load.topic)}:\n{_end_of(topic)}" for topic in behind],
    )
    axes.set_ylim(bottom=0)
    axes.set_title("Backlog that the rates leave")
    axes.set_ylabel("tasks due, not delivered")
    _dress_hours(axes, window)


def _end_of(topic: TopicForecast) -> str:
    if topic.worked_off_at is None:
        return f"{topic.final_backlog:,.0f} left at the end"
    return f"worked off {_at(topic.worked_off_at, '%a %d %H:%M')}"


def _colours(outlook: DueForecast) -> Mapping[str, str]:
    return dict(zip((topic.load.topic for topic in outlook.topics), COLOURS, strict=False))


def _dress_hours(axes: Axes, window: ReportWindow) -> None:
    slots = _ticks(window)
    axes.set_xlim(0, window.hours)
    axes.set_xticks(slots, [_tick(window, slot) for slot in slots])
    axes.set_xlabel("hour (UTC)")
    _dress(axes, axes.yaxis)
    handles, labels = axes.get_legend_handles_labels()
    if any(patch.get_hatch() for patch in axes.patches):
        handles, labels = (
            [*handles, Patch(facecolor=GREY, hatch="////", edgecolor="white")],
            [*labels, "above its rate"],
        )
    _put_legend(axes, handles[::-1], labels[::-1])  # as they are stacked: the lowest last


def _ticks(window: ReportWindow) -> list[int]:
    """Some dozen round hours."""
    step = next(step for step in (2, 3, 6, 12, 24, 48, 96) if window.hours / step <= 12)
    return [slot for slot in range(window.hours) if (window.first + slot) % step == 0]


def _tick(window: ReportWindow, slot: int) -> str:
    at = window.begins(slot)
    return _at(at, "%H:%M\n%a %d %b" if (window.first + slot) % DAY_HOURS == 0 else "%H:%M")


# The dead and the rejected


def _by_host(dead: DeadCounts) -> dict[str, dict[str, int]]:
    """Counts by host and reason, the host with most first."""
    hosts: dict[str, dict[str, int]] = {}
    for group in dead.groups:
        hosts.setdefault(group.host, {})[group.reason] = group.tasks
    first = sorted(hosts, key=lambda host: -sum(hosts[host].values()))[:BARS]
    return {host: hosts[host] for host in first}


def _draw_dead(axes: Axes, dead: DeadCounts) -> None:
    hosts = _by_host(dead)
    left = [0] * len(hosts)
    for reason, colour in zip(dead.reasons, REASONS, strict=False):
        counts = [by_reason.get(reason, 0) for by_reason in hosts.values()]
        axes.barh(range(len(hosts)), counts, left=left, height=0.7, color=colour, label=_legend(reason or "no reason"))
        left = [before + count for before, count in zip(left, counts, strict=True)]
    apart = "" if sum(left) == dead.tasks else f", {dead.tasks - sum(left):,} not shown"
    axes.set_title(f"Dead, by the callback's host and by reason: {dead.tasks:,}{apart}")
    _dress_bars(axes, [host or "no host" for host in hosts], left)
    _put_legend(axes, *axes.get_legend_handles_labels())


def _draw_rejected(place: SubFigure, rejected: RejectCounts) -> None:
    axes = place.subplots()
    groups = rejected.groups[: BARS - 1]
    counts = [group.rows for group in groups]
    names = [f"{group.field}: {group.reason}" if group.field else group.reason for group in groups]
    if rejected.rows > sum(counts):
        names, counts = [*names, OTHERS], [*counts, rejected.rows - sum(counts)]
    axes.barh(range(len(names)), counts, height=0.7, color=SLATE)
    axes.set_title(f"Rejected, by field and reason: {rejected.rows:,}")
    _dress_bars(axes, names, counts)


def _dress_bars(axes: Axes, names: Sequence[str], counts: Sequence[int]) -> None:
    axes.set_yticks(range(len(names)), [_shortened(name, BAR_CHARS) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, max(*counts, 1) * 1.12)
    for place, count in enumerate(counts):
        axes.annotate(f"{count:,}", (count, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    _dress(axes, axes.xaxis)


# All of them


def _dress(axes: Axes, figures: Any) -> None:
    figures.set_major_locator(MaxNLocator(6, integer=True))
    figures.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(visible=True, axis=figures.axis_name, color=GREY, alpha=0.5, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _put_legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Beside the picture: within it something would stand below."""
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.02), borderaxespad=0, labelspacing=0.6)


def _legend(name: str) -> str:
    """A legend passes over what begins with an underscore."""
    shown = _shortened(name, LEGEND_CHARS)
    return f" {shown}" if shown.startswith("_") else shown


def _shortened(text: str, chars: int) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= chars else f"{shown[: chars - 1]}…"


def _at(ms: int, form: str) -> str:
    return time.strftime(form, time.gmtime(ms // 1000))
