"""Clocks of the store's nodes that differ are logged once, and each minute while they differ by seconds."""

from __future__ import annotations

from structlog.testing import capture_logs

from later.daemon.clock_watch import ClockWatch


def lines(*checks: tuple[float, float]) -> list[str]:
    """Return what is logged at these spreads and times (s)."""
    watch = ClockWatch()
    with capture_logs() as logged:
        for spread_s, now_s in checks:
            watch.check(spread_s, now_s)
    return [f"{line['log_level']} {line['event']} {line['spread_s']}" for line in logged]


def test_clocks_that_agree_are_not_mentioned() -> None:
    assert lines((0.0, 0), (0.1, 1)) == []


def test_clocks_that_differ_are_mentioned_once() -> None:
    assert lines((0.3, 0), (0.31, 1), (0.3, 3600)) == ["warning clocks of the store differ 0.3"]


def test_clocks_that_differ_by_seconds_are_mentioned_each_minute() -> None:
    differ = "warning clocks of the store differ 7"
    assert lines((7, 0), (7, 30), (7, 60), (7, 119), (7, 120)) == [differ] * 3


def test_clocks_that_agree_again_are_mentioned_once() -> None:
    agree = "info clocks of the store agree 0.05"
    assert lines((0.3, 0), (0.05, 1), (0.05, 2)) == ["warning clocks of the store differ 0.3", agree]
