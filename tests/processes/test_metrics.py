"""The metrics of all processes together: nothing is lost or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.metrics import Exposition, Metrics, MetricSamples
from later.processes.metrics import ProcessMetrics

PROCESSES = 3


@pytest.fixture
def totals() -> ProcessMetrics:
    return ProcessMetrics(Metrics(), PROCESSES)


def series(totals: ProcessMetrics, *running: MetricSamples) -> dict[str, float]:
    """Return the exposition by series, while processes with these samples run."""
    lines = totals.exposition(dict(enumerate(running, 1))).text.splitlines()
    return {name: float(value) for name, _, value in (li.rpartition(" ") for li in lines if not li.startswith("#"))}


def a_process(created: int = 0) -> Metrics:
    metrics = Metrics()
    metrics.tasks_created.inc(created)
    return metrics


def read_store(metrics: Metrics, tasks: dict[str, int], memory: int = 7) -> dict[str, MetricSamples]:
    """Return the store's samples as a process reads them with these numbers of tasks in delay, by topic."""
    metrics.store.tasks.clear()
    for topic, count in tasks.items():
        metrics.store.tasks.labels("delay", topic).set(count)
    metrics.store.memory.set(memory)
    metrics.store.up.set(1)
    return metrics.store.samples()


def test_counters_of_running_processes_are_summed(totals: ProcessMetrics) -> None:
    one, two = a_process(3), a_process(4)
    one.deliveries.inc("order", "done", 2)
    two.deliveries.inc("order", "gone", 1)
    two.deliveries.inc("order", "done", 5)
    values = series(totals, one.process_samples(), two.process_samples())
    assert values["later_tasks_created_total"] == 7
    assert values['later_deliveries_total{outcome="done"}'] == 7
    assert values['later_deliveries_total{outcome="gone"}'] == 1


def test_histograms_are_summed_bucket_by_bucket(totals: ProcessMetrics) -> None:
    one, two = a_process(), a_process()
    one.observe_lateness["no"](0.002)
    two.observe_lateness["no"](0.002)
    two.observe_lateness["no"](100)
    values = series(totals, one.process_samples(), two.process_samples())
    counts = [
        values[f'later_lateness_seconds_bucket{{held="no",le="{le}"}}'] for le in ("0.001", "0.0025", "60.0", "+Inf")
    ]
    assert counts == [0, 2, 2, 3]
    assert values['later_lateness_seconds_count{held="no"}'] == 3
    assert values['later_lateness_seconds_sum{held="no"}'] == pytest.approx(100.004)


def test_counters_of_an_exited_process_stay_and_its_gauges_do_not(totals: ProcessMetrics) -> None:
    one, two = a_process(3), a_process(4)
    for metrics in (one, two):
        metrics.delivery_slots.set(256)
        metrics.observe_lateness["no"](0.002)
    before = series(totals, one.process_samples(), two.process_samples())
    totals.retire(2, two.process_samples())
    after = series(totals, one.process_samples())
    again = series(totals, one.process_samples(), a_process().process_samples())
    assert (before["later_delivery_slots"], after["later_delivery_slots"]) == (512, 256)
    assert before["later_tasks_created_total"] == after["later_tasks_created_total"] == 7
    assert before['later_lateness_seconds_count{held="no"}'] == again['later_lateness_seconds_count{held="no"}'] == 2
    assert again["later_tasks_created_total"] == 7


@given(st.lists(st.tuples(st.integers(0, PROCESSES - 1), st.floats(0, 1e6), st.booleans()), max_size=8))
def test_no_counter_goes_down_by_rounding_when_processes_exit(steps: list[tuple[int, float, bool]]) -> None:
    totals, last = ProcessMetrics(Metrics(), PROCESSES), 0.0
    running = [a_process() for _ in range(PROCESSES)]
    for count, (index, seconds, exits) in enumerate(steps, 1):
        running[index].delivery_duration.observe(seconds)
        if exits:
            totals.retire(index + 1, running[index].process_samples())
            running[index] = a_process()
        values = series(totals, *(metrics.process_samples() for metrics in running))
        assert values["later_delivery_duration_seconds_sum"] >= last
        assert values["later_delivery_duration_seconds_count"] == count
        last = values["later_delivery_duration_seconds_sum"]


def test_the_supervisors_own_metrics_are_included() -> None:
    own = Metrics()
    own.processes.set(4)
    own.process_deaths.inc()
    own.count_tick_error("embedded")
    child = a_process()
    child.count_tick_error("clock")
    values = series(ProcessMetrics(own, PROCESSES), child.process_samples(), a_process().process_samples())
    assert (values["later_processes"], values["later_process_deaths_total"]) == (4, 1)
    assert values['later_tick_errors_total{ticker="embedded"}'] == 1
    assert values['later_tick_errors_total{ticker="clock"}'] == 1


def test_the_store_is_shown_as_one_process_read_it(totals: ProcessMetrics) -> None:
    one, two = a_process(), a_process()
    totals.update_store(read_store(one, {"order": 5}))
    values = series(totals, one.process_samples(), two.process_samples())
    assert values['later_tasks{state="delay",topic="order"}'] == 5
    assert (values["later_store_up"], values["later_store_memory_bytes"]) == (1, 7)
    assert series(totals, two.process_samples())['later_tasks{state="delay",topic="order"}'] == 5


def test_the_store_has_no_series_before_it_was_read(totals: ProcessMetrics) -> None:
    values = series(totals, a_process().process_samples())
    assert "later_store_up" not in values, "0 would raise an alarm"
    assert "later_remembered_ids" not in values


def test_a_topic_without_tasks_has_no_series(totals: ProcessMetrics) -> None:
    metrics = a_process()
    totals.update_store(read_store(metrics, {"order": 5, "mail": 1}))
    totals.update_store(read_store(metrics, {"mail": 1}))
    assert [name for name in series(totals) if name.startswith("later_tasks{")] == [
        'later_tasks{state="delay",topic="mail"}'
    ]
    totals.update_store(read_store(metrics, {}))
    assert [name for name in series(totals) if name.startswith("later_tasks{")] == []


def test_an_unavailable_store_keeps_its_last_values(totals: ProcessMetrics) -> None:
    totals.update_store(read_store(a_process(), {"order": 5}))
    totals.update_store({"later_store_up": a_process().store.samples()["later_store_up"]})
    values = series(totals)
    assert values["later_store_up"] == 0
    assert values['later_tasks{state="delay",topic="order"}'] == 5


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_the_exposition_looks_like_that_of_one_process(totals: ProcessMetrics, accept: str) -> None:
    alone = a_process(3)
    alone.topics.refresh(["order", 'a "topic"\\with\nall'])
    alone.store.tasks.labels("delay", 'a "topic"\\with\nall').set(1)
    alone.deliveries.inc("order", "done")
    alone.topic_dead.inc("order", "gone")
    alone.store_round_trips.labels("claim").observe(0.1)
    totals.update_store(alone.store.samples())
    together = totals.exposition({1: alone.process_samples()}, accept)
    assert without_process(together) == without_process(alone.exposition(accept))


def without_process(exposition: Exposition) -> set[str]:
    """Return the series without those of the operating system, which the supervisor has, too."""
    return {line for line in exposition.text.splitlines() if not line.startswith("process_")}


def test_of_what_each_process_measures_of_the_clocks_the_furthest_from_0_counts(totals: ProcessMetrics) -> None:
    one, two = a_process(), a_process()
    one.store_clocks.spread.set(0.3)
    two.store_clocks.spread.set(0.2)
    one.store_clocks.jump.set(0)
    two.store_clocks.jump.set(-20)
    values = series(totals, one.process_samples(), two.process_samples())
    assert values["later_store_clock_spread_seconds"] == 0.3
    assert values["later_store_clock_jump_seconds"] == -20
