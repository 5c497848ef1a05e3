"""The figures of all processes together: nothing that was counted is ever lost, and nothing is counted twice."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from later.metrics import Metrics, MetricSamples
from later.processes.metrics import ProcessMetrics

PLACES = 3


@pytest.fixture
def ledger() -> ProcessMetrics:
    return ProcessMetrics(Metrics(), PLACES)


def shown(ledger: ProcessMetrics, *living: MetricSamples) -> dict[str, float]:
    """Every sample of the exposition, by its name with its labels, while processes with these figures live."""
    lines = ledger.exposition(dict(enumerate(living, 1))).decode().splitlines()
    return {name: float(value) for name, _, value in (li.rpartition(" ") for li in lines if not li.startswith("#"))}


def a_process(created: int = 0) -> Metrics:
    metrics = Metrics()
    metrics.tasks_created.inc(created)
    return metrics


def store_of(metrics: Metrics, tasks: dict[str, int], memory: int = 7) -> dict[str, MetricSamples]:
    """What a process sees that finds so many tasks in delay, by topic."""
    metrics.tasks.clear()
    for topic, count in tasks.items():
        metrics.tasks.labels("delay", topic).set(count)
    metrics.store_memory.set(memory)
    metrics.store_up.set(1)
    return metrics.store_samples()


def test_counters_of_all_that_live_are_added_up(ledger: ProcessMetrics) -> None:
    one, two = a_process(3), a_process(4)
    one.deliveries.labels("done").inc(2)
    two.deliveries.labels("gone").inc(1)
    two.deliveries.labels("done").inc(5)
    figures = shown(ledger, one.process_samples(), two.process_samples())
    assert figures["later_tasks_created_total"] == 7
    assert figures['later_deliveries_total{outcome="done"}'] == 7
    assert figures['later_deliveries_total{outcome="gone"}'] == 1


def test_histograms_are_added_up_bucket_by_bucket(ledger: ProcessMetrics) -> None:
    one, two = a_process(), a_process()
    one.lateness.observe(0.002)
    two.lateness.observe(0.002)
    two.lateness.observe(100)
    figures = shown(ledger, one.process_samples(), two.process_samples())
    counts = [figures[f'later_lateness_seconds_bucket{{le="{le}"}}'] for le in ("0.001", "0.0025", "60.0", "+Inf")]
    assert counts == [0, 2, 2, 3]
    assert figures["later_lateness_seconds_count"] == 3
    assert figures["later_lateness_seconds_sum"] == pytest.approx(100.004)


def test_what_a_dead_process_counted_stays_and_what_it_held_does_not(ledger: ProcessMetrics) -> None:
    one, two = a_process(3), a_process(4)
    for metrics in (one, two):
        metrics.delivery_slots.set(256)
        metrics.lateness.observe(0.002)
    before = shown(ledger, one.process_samples(), two.process_samples())
    ledger.retire(2, two.process_samples())
    after = shown(ledger, one.process_samples())
    again = shown(ledger, one.process_samples(), a_process().process_samples())
    assert (before["later_delivery_slots"], after["later_delivery_slots"]) == (512, 256)
    assert before["later_tasks_created_total"] == after["later_tasks_created_total"] == 7
    assert before["later_lateness_seconds_count"] == again["later_lateness_seconds_count"] == 2
    assert again["later_tasks_created_total"] == 7


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, PLACES - 1), st.floats(0, 1e6), st.booleans()), max_size=60))
def test_no_counter_ever_goes_down_by_a_hair_whoever_dies(steps: list[tuple[int, float, bool]]) -> None:
    ledger, last = ProcessMetrics(Metrics(), PLACES), 0.0
    living = [a_process() for _ in range(PLACES)]
    for counted, (place, seconds, dies) in enumerate(steps, 1):
        living[place].delivery_duration.observe(seconds)
        if dies:
            ledger.retire(place + 1, living[place].process_samples())
            living[place] = a_process()
        figures = shown(ledger, *(metrics.process_samples() for metrics in living))
        assert figures["later_delivery_duration_seconds_sum"] >= last
        assert figures["later_delivery_duration_seconds_count"] == counted
        last = figures["later_delivery_duration_seconds_sum"]


def test_the_supervisors_own_figures_are_among_them() -> None:
    own = Metrics()
    own.processes.set(4)
    own.process_deaths.inc()
    own.count_tick_error("embedded")
    child = a_process()
    child.count_tick_error("clock")
    figures = shown(ProcessMetrics(own, PLACES), child.process_samples(), a_process().process_samples())
    assert (figures["later_processes"], figures["later_process_deaths_total"]) == (4, 1)
    assert figures['later_tick_errors_total{ticker="embedded"}'] == 1
    assert figures['later_tick_errors_total{ticker="clock"}'] == 1


def test_the_store_is_shown_as_one_process_saw_it_whoever_lives(ledger: ProcessMetrics) -> None:
    one, two = a_process(), a_process()
    ledger.update_store(store_of(one, {"order": 5}))
    figures = shown(ledger, one.process_samples(), two.process_samples())
    assert figures['later_tasks{state="delay",topic="order"}'] == 5
    assert (figures["later_store_up"], figures["later_store_memory_bytes"]) == (1, 7)
    assert shown(ledger, two.process_samples())['later_tasks{state="delay",topic="order"}'] == 5


def test_the_store_is_not_spoken_of_until_it_was_looked_at(ledger: ProcessMetrics) -> None:
    figures = shown(ledger, a_process().process_samples())
    assert "later_store_up" not in figures, "0 would raise an alarm"
    assert "later_remembered_ids" not in figures


def test_a_topic_that_is_gone_is_shown_no_more(ledger: ProcessMetrics) -> None:
    metrics = a_process()
    ledger.update_store(store_of(metrics, {"order": 5, "mail": 1}))
    ledger.update_store(store_of(metrics, {"mail": 1}))
    assert [name for name in shown(ledger) if name.startswith("later_tasks{")] == [
        'later_tasks{state="delay",topic="mail"}'
    ]
    ledger.update_store(store_of(metrics, {}))
    assert [name for name in shown(ledger) if name.startswith("later_tasks{")] == []


def test_of_a_store_that_is_away_what_was_seen_last_stays(ledger: ProcessMetrics) -> None:
    ledger.update_store(store_of(a_process(), {"order": 5}))
    ledger.update_store({"later_store_up": a_process().store_samples()["later_store_up"]})
    figures = shown(ledger)
    assert figures["later_store_up"] == 0
    assert figures['later_tasks{state="delay",topic="order"}'] == 5


def test_together_they_look_like_one(ledger: ProcessMetrics) -> None:
    alone = a_process(3)
    alone.tasks.labels("delay", 'a "topic"\\with\nall').set(1)
    alone.deliveries.labels("done").inc()
    alone.store_round_trips.labels("claim").observe(0.1)
    ledger.update_store(alone.store_samples())
    together = ledger.exposition({1: alone.process_samples()}).decode()
    assert without_birth(together) == without_birth(alone.exposition().decode())


def without_birth(exposition: str) -> set[str]:
    """When a counter began is a matter of the moment."""
    return set(re.sub(r"(_created(?:\{.*\})?) [0-9.e+]+", r"\1", exposition).splitlines())


def test_they_count_since_the_first_of_them_began(ledger: ProcessMetrics) -> None:
    first, second = a_process(), a_process()
    began = [
        next(f.value for f in m.process_samples() if f.sample == "later_tasks_created_created") for m in (first, second)
    ]
    figures = shown(ledger, second.process_samples(), first.process_samples())
    assert figures["later_tasks_created_created"] <= min(began)
