"""The forecast: hours, loads, backlogs."""

from __future__ import annotations

from later.bulk.report.forecast import OVERDUE, Load, TopicLimit, loads_from_counts, window_from_days
from tests.bulk.report.builders import EIGHT, HOUR, build_due_forecast, build_load, build_topic_forecast, build_window
from tests.cases import each_case

# Hours


def test_the_first_hour_is_the_rest_of_the_current_one() -> None:
    window = window_from_days(EIGHT + 45 * 60_000, days=3)

    assert (window.hours, window.hour_start(0)) == (72, EIGHT)
    assert (window.remaining_start(0), window.remaining_seconds(0)) == (EIGHT + 45 * 60_000, 900)
    assert (window.remaining_start(1), window.remaining_seconds(1), window.end) == (
        EIGHT + HOUR,
        3600,
        EIGHT + 72 * HOUR,
    )


def test_counts_become_loads_with_the_busiest_topic_first() -> None:
    counts = [("a", 0, 1), ("b", OVERDUE, 5), ("b", 2, 7), ("c", 3, 90), ("a", 1, 2), ("b", 3, 4)]

    assert loads_from_counts(counts, build_window(3)) == [
        Load("b", 5, (0, 0, 7), 4),
        Load("a", 0, (1, 2, 0), 0),
        Load("c", 0, (0, 0, 0), 90),
    ]


# Backlogs


def test_what_an_hour_cannot_deliver_is_carried_over() -> None:
    assert build_topic_forecast(3600, 7200, 0, 100, rate=1).backlog == (0, 3600, 0, 0)


def test_overdue_tasks_are_carried_into_the_first_hour() -> None:
    assert build_topic_forecast(3600, 0, 0, overdue=5000, rate=1).backlog == (5000, 1400, 0)


def test_of_the_current_hour_only_the_rest_counts() -> None:
    assert build_topic_forecast(1000, 0, past_ms=HOUR * 3 // 4, rate=1).backlog == (100, 0)


def test_hours_over_the_rate_have_more_due_than_it_delivers() -> None:
    assert build_topic_forecast(3600, 3601, 0, 7200, rate=1).hours_over_rate == [1, 3]


@each_case(
    ("hours", "overdue", "expected_s"),
    [
        ((0, 0), 1800, 1800),  # half an hour of work
        ((1800, 0), 900, 1800),  # half of the rate goes into what falls due meanwhile
        ((7200, 0, 0), 0, 7200),  # what is left of an hour takes the whole of the next
        ((7200, 1800, 0), 0, 2 * 3600 + 1800),
        ((7200, 0, 5400, 0), 0, 3 * 3600 + 1800),  # of two backlogs the last counts
    ],
)
def test_a_backlog_is_worked_off_by_the_rest_of_the_rate(hours: tuple[int, ...], overdue: int, expected_s: int) -> None:
    forecast = build_topic_forecast(*hours, rate=1, overdue=overdue)

    assert forecast.worked_off_at == EIGHT + expected_s * 1000


def test_without_a_backlog_nothing_is_worked_off() -> None:
    assert build_topic_forecast(3600, 10, rate=1).worked_off_at is None


def test_a_backlog_may_outlast_the_window() -> None:
    forecast = build_topic_forecast(3600, 9000, rate=1)

    assert (forecast.final_backlog, forecast.worked_off_at) == (5400, None)


def test_a_topic_without_a_limit_has_no_backlog() -> None:
    forecast = build_topic_forecast(10**9, 0, rate=0, overdue=10**9)

    assert (forecast.backlog, forecast.hours_over_rate, forecast.is_limited) == ((0, 0), [], False)
    assert forecast.worked_off_at == EIGHT


def test_a_paused_topic_delivers_nothing() -> None:
    assert build_topic_forecast(5, 0, 7, rate=50, overdue=1, paused=True).backlog == (6, 6, 13)


def test_a_topic_with_an_unknown_rate_has_no_forecast() -> None:
    forecast = build_topic_forecast(10**9, 0, rate=None)

    assert (forecast.backlog, forecast.hours_over_rate) == ((), [])
    assert (forecast.final_backlog, forecast.worked_off_at) == (0, None)


def test_the_backlogs_of_topics_add_up() -> None:
    topics = (build_load(7200, 0), build_load(3700, 0, topic="mail"), build_load(50, 0, topic="sms"))

    due = build_due_forecast(*topics, limits={"order": TopicLimit(1), "mail": TopicLimit(1)})

    assert [due.backlog(hour) for hour in range(2)] == [3700, 0]
    assert due.total == Load("all topics", 0, (10_950, 0), 0)
