"""Forecasts: the steps of a window, the simulation of a rate, the choice of the busiest topics."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from later.core.forecast import (
    BEHIND_MS,
    MAX_FORECAST_TOPICS,
    MAX_HOURS,
    MAX_STEPS,
    ForecastWindow,
    Simulation,
    WaitingTasks,
    add_up,
    busiest_topics,
    default_step_s,
    simulate,
)
from later.core.held import Held
from later.core.snapshot import CountedTopic, Snapshot, SnapshotBuilder, StoreFacts

HOUR_MS = 3_600_000
FULL_HOUR = 1_800_000_000_000
"""A time (ms) at which an hour begins."""


def window_of(now: int = FULL_HOUR, hours: int = 1, step_s: int = 300) -> ForecastWindow:
    return ForecastWindow.of(now, hours=hours, step_s=step_s)


def run(due: int, counts: dict[int, int], rate: float, now: int = FULL_HOUR) -> Simulation:
    """Simulate an hour of steps of 300 s, of which those in `counts` have tasks."""
    return simulate(WaitingTasks(due, [counts.get(step, 0) for step in range(12)]), window_of(now), rate)


# The window


def test_steps_begin_at_multiples_of_their_length() -> None:
    window = window_of(FULL_HOUR + 299_999)
    assert (window.start, window.steps) == (FULL_HOUR, 12)
    assert (window.ends[0], window.ends[-1]) == (FULL_HOUR + 300_000, FULL_HOUR + HOUR_MS)


def test_no_number_of_hours_has_too_many_steps_by_default() -> None:
    assert all(window_of(hours=hours, step_s=default_step_s(hours)).steps <= MAX_STEPS for hours in range(1, 169))
    assert (default_step_s(1), default_step_s(24), default_step_s(MAX_HOURS)) == (300, 300, 2100)


# The simulation


def test_a_rate_that_is_high_enough_makes_nothing_late() -> None:
    assert run(1, {0: 300, 5: 600}, rate=2) == Simulation(None, None, 0.0)


def test_a_wave_that_exceeds_the_rate_is_late_until_it_is_worked_off() -> None:
    # 1,200 tasks in the 300 s from 00:10 on, of which 600 are delivered then; the other 600 take 300 s more
    assert run(0, {2: 1200}, rate=2) == Simulation(FULL_HOUR + 600_000, FULL_HOUR + 1_200_000, 300_000.0)


def test_tasks_that_are_due_already_are_worked_off_from_now_on() -> None:
    now = FULL_HOUR + 60_000
    assert run(121, {}, rate=2, now=now) == Simulation(now, now + 60_000, 60_000.0)


def test_the_end_is_unknown_if_the_window_ends_before() -> None:
    assert run(0, {11: 10_000}, rate=1) == Simulation(FULL_HOUR + 3_300_000, None, 9_700_000.0)


def test_of_several_waves_the_one_with_the_longest_wait_is_told() -> None:
    worst = Simulation(FULL_HOUR + 1_200_000, FULL_HOUR + 2_100_000, 600_000.0)
    assert run(0, {0: 400, 4: 900}, rate=1) == worst
    assert run(9, {4: 900, 9: 310}, rate=1) == worst


def test_a_wait_of_less_than_a_second_is_not_behind() -> None:
    assert run(100, {}, rate=100) == Simulation(None, None, 990.0)
    assert run(101, {}, rate=100).behind_from == FULL_HOUR


def waits(tasks: WaitingTasks, window: ForecastWindow, rate: float) -> list[tuple[float, float]]:
    """Deliver task by task, and return of each when it was due and how long it waited (ms), in that order."""
    due_times = [float(window.now)] * tasks.due
    began = window.now
    for count, end in zip(tasks.counts, window.ends, strict=True):
        due_times += [began + (end - began) * (number + 0.5) / count for number in range(count)]
        began = end
    free_at, found = float(window.now), []
    for due_at in due_times:
        start = max(due_at, free_at)
        free_at = start + 1000 / rate
        found.append((due_at, start - due_at))
    return found


@given(
    due=st.integers(0, 300),
    counts=st.lists(st.integers(0, 200) | st.just(0), min_size=12, max_size=12),
    rate=st.floats(0.02, 5),
    passed_ms=st.integers(0, 299_999),
)
def test_the_simulation_agrees_with_deliveries_one_by_one(
    due: int, counts: list[int], rate: float, passed_ms: int
) -> None:
    tasks, window = WaitingTasks(due, counts), window_of(FULL_HOUR + passed_ms)
    simulation = simulate(tasks, window, rate)
    delivered = waits(tasks, window, rate)
    tolerance_ms = 3 * 1000 / rate  # single tasks against a steady flow: a few intervals of the rate
    assert simulation.worst_ms == pytest.approx(max((wait for _, wait in delivered), default=0), abs=tolerance_ms)
    behind_from, caught_up_at = simulation.behind_from, simulation.caught_up_at
    if behind_from is None:
        assert caught_up_at is None
        assert simulation.worst_ms < BEHIND_MS
        return
    ends_at = window.ends[-1] if caught_up_at is None else caught_up_at
    assert window.now <= behind_from < ends_at <= window.ends[-1]
    before = [due_at + wait for due_at, wait in delivered if due_at < behind_from]
    meanwhile = [wait for due_at, wait in delivered if behind_from <= due_at <= ends_at]
    after = [wait for due_at, wait in delivered if due_at > ends_at]
    assert max(meanwhile) == pytest.approx(simulation.worst_ms, abs=tolerance_ms)
    assert max(before, default=0) <= behind_from + tolerance_ms
    if caught_up_at is None:
        assert delivered[-1][0] + delivered[-1][1] >= ends_at - tolerance_ms
    elif after:
        assert after[0] <= tolerance_ms


def longest_wait(due_times: list[float], rate: float, now: int) -> float:
    """Deliver task by task, in the order of due times, and return the longest wait (ms) of any from `now` on."""
    free_at, longest = float(now), 0.0
    for due_at in sorted(due_times):
        start = max(due_at, free_at)
        longest, free_at = max(longest, start - max(due_at, now)), start + 1000 / rate
    return longest


@given(
    waves=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 299_999), st.integers(1, 400)), max_size=6),
    due=st.integers(0, 300),
    rate=st.floats(0.02, 5),
    passed_ms=st.integers(0, 299_999),
)
@example(waves=[(0, 21_841, 302), (1, 0, 150)], due=0, rate=0.5, passed_ms=0)
def test_sharp_waves_wait_longer_than_simulated_by_two_steps_at_most(
    waves: list[tuple[int, int, int]], due: int, rate: float, passed_ms: int
) -> None:
    """A wave is (step, its time in it, tasks), which all fall due at once.

    A task may fall due up to a step before its simulated time, and one before it, for which it waits, as much after.
    """
    window = window_of(FULL_HOUR + passed_ms)
    due_times, counts = [float(window.now)] * due, [0] * window.steps
    for step, offset_ms, tasks in waves:
        due_at = max(window.start + step * window.step_ms + offset_ms, window.now)
        due_times += [float(due_at)] * tasks
        counts[(due_at - window.start) // window.step_ms] += tasks
    simulated = simulate(WaitingTasks(due, counts), window, rate).worst_ms
    interval_ms = 1000 / rate
    longest = longest_wait(due_times, rate, window.now)
    assert simulated - 2 * interval_ms <= longest <= simulated + 2 * window.step_ms + 2 * interval_ms


# The busiest topics


def row(topic: str, delay: int = 0, error: int = 0, dead: int = 0) -> CountedTopic:
    return CountedTopic(topic, delay, 0, error, dead, 0, None, Held.NO, is_paused=False, has_label=True)


def snapshot_of(*rows: CountedTopic) -> Snapshot:
    builder = SnapshotBuilder()
    builder.add(rows)
    store = StoreFacts(name="valkey", version="9", memory=1, max_memory=0, workers=1, remembered_ids=0)
    return builder.finish(at=FULL_HOUR, took_ms=1, store=store)


def test_the_busiest_topics_are_those_with_most_waiting_tasks() -> None:
    snapshot = snapshot_of(row("a", delay=1), row("b", error=3, delay=1), row("shop/c", delay=2), row("d", dead=9))
    assert busiest_topics(snapshot, None) == (["b", "shop/c", "a"], 0)
    assert busiest_topics(snapshot, "shop") == (["shop/c"], 0)
    assert busiest_topics(snapshot, "unknown") == ([], 0)
    assert busiest_topics(None, None) == ([], 0)


def test_topics_beyond_the_busiest_are_counted() -> None:
    rows = [row(f"t{number:03}", delay=1000 - number) for number in range(MAX_FORECAST_TOPICS + 7)]
    topics, left_out = busiest_topics(snapshot_of(*rows), None)
    assert (topics, left_out) == ([f"t{number:03}" for number in range(MAX_FORECAST_TOPICS)], 7)


def test_forecasts_add_up() -> None:
    assert add_up([WaitingTasks(1, [1, 0]), WaitingTasks(2, [0, 5])], 2) == WaitingTasks(3, [1, 5])
    assert add_up([], 2) == WaitingTasks(0, [0, 0])
