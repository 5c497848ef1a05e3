"""A report as one picture: due tasks per hour and the rates, the backlog that follows, dead tasks and rejects."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from later.bulk.report.counts import OTHERS, DeadCounts, RejectCounts, Report
from later.bulk.report.forecast import DAY_HOURS, HOUR_MS, DueForecast, Load, ReportWindow, TopicForecast

TOPIC_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Colours of the topics that have bars of their own. The colour-blind can distinguish them (Okabe and Ito,
https://jfly.uni-koeln.de/color/)."""
REASON_COLOURS = ("#8c2d19", "#c8553d", "#e59572", "#f2c6a8", "#6e4b7e", "#a98bb8")
"""Colours of the reasons why tasks are dead."""
GREY, SLATE, TEXT_COLOUR = "#b8bec6", "#57606a", "#24292f"
MAX_BARS = 12
"""Bars of a panel of dead tasks or of rejects."""
MAX_LEGEND_CHARS, MAX_BAR_CHARS = 28, 120
"""Characters of a name in a legend, and above a bar."""
WIDTH, DPI = 12.0, 110
"""The width in inches, and the pixels per inch."""
BAR_HEIGHT, BAR = 0.48, 0.5
"""The height in inches of a bar with its name, and the bar's part of it. So one bar is not as high as the picture."""
PANEL_MARGIN, TITLE_HEIGHT = 1.0, 0.4
"""The height in inches of a panel's title and labels, and of the title of the picture."""
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a topic may contain two $
    "font.size": 10,
    "text.color": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.edgecolor": "#8c959f",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "xtick.color": TEXT_COLOUR,
    "ytick.color": TEXT_COLOUR,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "hatch.linewidth": 1.2,
}


class Panel(NamedTuple):
    """A part of the picture: the height of its axes in inches, and the function that draws it."""

    height: float
    draw: Callable[[Axes], None]


def draw(report: Report, file: Path) -> None:
    """Write the picture as PNG. Raises OSError."""
    due, dead, rejected = report.due, report.dead, report.rejected
    panels: list[Panel] = []
    if due is not None:
        panels.append(Panel(3.2, lambda axes: _draw_due(axes, due)))
        if _topics_with_backlog(due):
            panels.append(Panel(1.9, lambda axes: _draw_backlog(axes, due)))
    if dead is not None and dead.tasks:
        panels.append(Panel(BAR_HEIGHT * len(_count_by_host(dead)), lambda axes: _draw_dead(axes, dead)))
    if rejected is not None and rejected.rows:
        panels.append(Panel(BAR_HEIGHT * len(_count_rejects(rejected)), lambda axes: _draw_rejects(axes, rejected)))
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that the font lacks are drawn as boxes
        heights = [panel.height for panel in panels]
        size = (WIDTH, sum(heights) + PANEL_MARGIN * len(heights) + TITLE_HEIGHT)
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        FigureCanvasAgg(figure)
        title = f"later bulk report, {_format(report.window.now, '%a %d %b %Y %H:%M')} UTC"
        figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=13)
        if panels:  # in one grid, so that all begin and end at the same place
            grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
            for panel, axes in zip(panels, grid[:, 0], strict=True):
                panel.draw(axes)
        figure.savefig(file, format="png")


# Hours


def _draw_due(axes: Axes, due: DueForecast) -> None:
    colours, total = _colours(due), due.total
    bottom = [0.0] * due.window.hours
    # The topic furthest above its rate is at the bottom, where a line can show the rate.
    topics = sorted(
        due.busiest(len(TOPIC_COLOURS)), key=lambda topic: (not topic.is_limited, -sum(topic.excess_per_hour))
    )
    for topic in topics:
        bottom = _stack_bars(axes, bottom, topic.load, colours[topic.load.topic])
        over, excess = topic.hours_over_rate, topic.excess_per_hour
        axes.bar(  # hatch the part that the rate does not deliver in the hour
            over, [-excess[hour] for hour in over], width=0.92, bottom=[bottom[hour] for hour in over],
            align="edge", fill=False, hatch="////", edgecolor="white", linewidth=0,
        )  # fmt: skip
    others = due.sum_after(len(TOPIC_COLOURS))
    if others is not None:
        bottom = _stack_bars(axes, bottom, others, GREY)
    axes.set_ylim(0, max(*bottom, 1) * 1.08)
    if topics:
        _draw_rate(axes, topics[0])
    counts = f"{total.in_window:,} ({total.overdue:,} overdue already, {total.later:,} later)"
    axes.set_title(f"Due per hour, by topic: {counts}")
    axes.set_ylabel("tasks due in the hour")
    _style_hours(axes, due.window)


def _stack_bars(axes: Axes, bottom: Sequence[float], load: Load, colour: str) -> list[float]:
    label = _legend_label(load.topic)
    axes.bar(range(len(bottom)), load.due_per_hour, width=0.92, bottom=bottom, align="edge", color=colour, label=label)
    return [below + due for below, due in zip(bottom, load.due_per_hour, strict=True)]


def _draw_rate(axes: Axes, bottom_topic: TopicForecast) -> None:
    """Draw the bottom topic's rate as a line if the topic exceeds it. Another topic's line would cross other bars."""
    if bottom_topic.limit is None or not bottom_topic.hours_over_rate:
        return
    rate, name = bottom_topic.limit.per_second * 3600, _shorten(bottom_topic.load.topic, MAX_LEGEND_CHARS - 8)
    label = f"{name} is paused" if bottom_topic.limit.paused else f"rate of {name}:\n{rate:,.0f} an hour"
    if rate < axes.get_ylim()[1]:
        axes.axhline(rate, color=TEXT_COLOUR, linestyle="--", linewidth=1.3, label=label)
    else:
        axes.plot([], [], color=TEXT_COLOUR, linestyle="--", linewidth=1.3, label=f"{label}\n(beyond the picture)")


def _topics_with_backlog(due: DueForecast) -> list[TopicForecast]:
    """Return the topics that have a backlog at any time."""
    return [topic for topic in due.topics if topic.is_limited and (topic.load.overdue or topic.peak_backlog)]


def _draw_backlog(axes: Axes, due: DueForecast) -> None:
    window, topics, colours = due.window, _topics_with_backlog(due), _colours(due)
    labels: list[str] = []
    for topic in topics:
        end = f"{topic.final_backlog:,.0f} left at the end"
        if topic.worked_off_at is not None:
            end = f"worked off {_format(topic.worked_off_at, '%a %d %H:%M')}"
        labels.append(f"{_legend_label(topic.load.topic)}:\n{end}")
    now = (window.now - window.hour_start(0)) / HOUR_MS
    axes.stackplot(
        [now, *range(1, window.hours + 1)],
        [[topic.load.overdue, *topic.backlog] for topic in topics],
        colors=[colours.get(topic.load.topic, GREY) for topic in topics],
        labels=labels,
    )
    axes.set_ylim(bottom=0)
    axes.set_title("Backlog that the rates leave")
    axes.set_ylabel("tasks due, not delivered")
    _style_hours(axes, window)


def _colours(due: DueForecast) -> Mapping[str, str]:
    return dict(zip((topic.load.topic for topic in due.topics), TOPIC_COLOURS, strict=False))


def _style_hours(axes: Axes, window: ReportWindow) -> None:
    """Label at most twelve hours, with the date at midnight, and put the legend beside the axes."""
    step = next(step for step in (2, 3, 6, 12, 24, 48, 96) if window.hours / step <= 12)
    hours = [hour for hour in range(window.hours) if (window.first_hour + hour) % step == 0]
    labels: list[str] = []
    for hour in hours:
        is_midnight = (window.first_hour + hour) % DAY_HOURS == 0
        labels.append(_format(window.hour_start(hour), "%H:%M\n%a %d %b" if is_midnight else "%H:%M"))
    axes.set_xlim(0, window.hours)
    axes.set_xticks(hours, labels)
    axes.set_xlabel("hour (UTC)")
    _style_axes(axes, axes.yaxis)
    handles, names = axes.get_legend_handles_labels()
    if any(patch.get_hatch() for patch in axes.patches):
        handles = [*handles, Patch(facecolor=GREY, hatch="////", edgecolor="white")]
        names = [*names, "above its rate"]
    _add_legend(axes, handles[::-1], names[::-1])  # in the order of the stacked bars, the lowest last


# Dead tasks and rejects


def _count_by_host(dead: DeadCounts) -> dict[str, dict[str, int]]:
    """Return the counts by host and reason, the largest hosts first."""
    hosts: dict[str, dict[str, int]] = {}
    for group in dead.groups:
        hosts.setdefault(group.host, {})[group.reason] = group.tasks
    largest = sorted(hosts, key=lambda host: -sum(hosts[host].values()))[:MAX_BARS]
    return {host: hosts[host] for host in largest}


def _draw_dead(axes: Axes, dead: DeadCounts) -> None:
    hosts = _count_by_host(dead)
    left = [0] * len(hosts)
    for reason, colour in zip(dead.reasons, REASON_COLOURS, strict=False):
        counts = [by_reason.get(reason, 0) for by_reason in hosts.values()]
        label = _legend_label(reason or "no reason")
        axes.barh(range(len(hosts)), counts, left=left, height=BAR, align="edge", color=colour, label=label)
        left = [before + count for before, count in zip(left, counts, strict=True)]
    hidden = "" if sum(left) == dead.tasks else f", {dead.tasks - sum(left):,} not shown"
    axes.set_title(f"Dead, by the callback's host and by reason: {dead.tasks:,}{hidden}")
    _style_bars(axes, [host or "no host" for host in hosts], left)
    _add_legend(axes, *axes.get_legend_handles_labels())


def _count_rejects(rejected: RejectCounts) -> list[tuple[str, int]]:
    """Return the fields and reasons with their rows, the most frequent first; the rarest are summed up."""
    groups = rejected.groups if len(rejected.groups) <= MAX_BARS else rejected.groups[: MAX_BARS - 1]
    bars = [(f"{group.field}: {group.reason}" if group.field else group.reason, group.rows) for group in groups]
    others = rejected.rows - sum(rows for _, rows in bars)
    return [*bars, (OTHERS, others)] if others else bars


def _draw_rejects(axes: Axes, rejected: RejectCounts) -> None:
    names, counts = zip(*_count_rejects(rejected), strict=True)
    axes.barh(range(len(names)), counts, height=BAR, align="edge", color=SLATE)
    axes.set_title(f"Rejected, by field and reason: {rejected.rows:,}")
    _style_bars(axes, names, counts)


def _style_bars(axes: Axes, names: Sequence[str], counts: Sequence[int]) -> None:
    """Write each name above its bar, where it has room, and the count at the bar's end."""
    axes.set_yticks([])
    axes.set_ylim(len(names) - 1 + BAR + 0.15, BAR - 1)
    axes.set_xlim(0, max(*counts, 1) * 1.12)
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        shown = _shorten(name, MAX_BAR_CHARS)
        axes.annotate(shown, (0, index), xytext=(2, 2), textcoords="offset points", va="bottom", fontsize=9)
        end = (count, index + BAR / 2)
        axes.annotate(f"{count:,}", end, xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    _style_axes(axes, axes.xaxis)


# All panels


def _style_axes(axes: Axes, count_axis: Any) -> None:
    """Style the axes, of which `count_axis` has the counts."""
    count_axis.set_major_locator(MaxNLocator(6, integer=True))
    count_axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(visible=True, axis=count_axis.axis_name, color=GREY, alpha=0.5, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend beside the axes, where it covers no bars."""
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.02), borderaxespad=0, labelspacing=0.6)


def _legend_label(name: str) -> str:
    """Shorten a name. Matplotlib leaves labels that begin with an underscore out of the legend."""
    label = _shorten(name, MAX_LEGEND_CHARS)
    return f" {label}" if label.startswith("_") else label


def _shorten(text: str, chars: int) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable if len(printable) <= chars else f"{printable[: chars - 1]}…"


def _format(ms: int, pattern: str) -> str:
    return time.strftime(pattern, time.gmtime(ms // 1000))
