"""Builders of windows, loads and reports."""

from __future__ import annotations

from collections.abc import Mapping

from later.bulk.report.build import ReportCounts
from later.bulk.report.counts import DeadCounts, ExportCounts, RejectCounts, Report
from later.bulk.report.forecast import (
    DueCounts,
    DueForecast,
    Load,
    ReportWindow,
    TopicForecast,
    TopicLimit,
    forecast_topic,
    forecast_topics,
)

HOUR = 3_600_000
EIGHT = 1_795_248_000_000
"""Sat 21 Nov 2026 08:00 UTC."""
NO_DEAD = DeadCounts({}, (), 0, 0)


def build_window(hours: int = 4, past_ms: int = 0) -> ReportWindow:
    """A window from 08:00 on, of which `past_ms` are over."""
    return ReportWindow(EIGHT + past_ms, hours)


def build_load(*hours: int, topic: str = "order", overdue: int = 0, later: int = 0) -> Load:
    return Load(topic, overdue, hours, later)


def build_topic_forecast(
    *hours: int, rate: float | None, overdue: int = 0, past_ms: int = 0, paused: bool = False
) -> TopicForecast:
    limit = None if rate is None else TopicLimit(rate, paused)
    return forecast_topic(build_window(len(hours), past_ms), build_load(*hours, overdue=overdue), limit)


def build_due_forecast(
    *topics: Load, limits: Mapping[str, TopicLimit], window: ReportWindow | None = None
) -> DueForecast:
    window = window or build_window(len(topics[0].due_per_hour))
    return forecast_topics(DueCounts(window, topics, build_load(*([0] * window.hours), topic="others"), 0), limits)


def build_report(
    due: DueForecast | None = None, dead: DeadCounts | None = None, rejected: RejectCounts | None = None
) -> Report:
    return Report(build_window(), None if due is None else {"delay": 90, "dead": 10}, due, dead, rejected)


def export_counts(written_at: int | None = None) -> ReportCounts:
    """Counts of an export of eleven tasks of one topic."""
    due = DueCounts(build_window(2), (build_load(5, 6),), build_load(0, 0, topic="others"), 0)
    return ReportCounts(build_window(2), ExportCounts({"delay": 11}, due, NO_DEAD, written_at), None)
