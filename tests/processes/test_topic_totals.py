"""Counters by topic over several processes: each event once, never less than before, under the daemon's 200 topics."""

from __future__ import annotations

from later.metrics import MAX_TOPICS, OTHER, Metrics
from later.processes.topic_totals import TopicTotals

FULL = [f"t{n}" for n in range(MAX_TOPICS)]


def deaths(totals: TopicTotals) -> dict[str, float]:
    """Return how many tasks died as `gone`, by topic; topics without a death are left out."""
    return {
        labels["topic"]: sample.value
        for sample in totals.samples()
        if sample.value and (labels := dict(sample.labels)).get("reason") == "gone"
    }


def test_what_several_processes_counted_is_summed_once() -> None:
    totals, one, two = TopicTotals(Metrics()), Metrics(), Metrics()
    one.topic_dead.inc("order", "gone")
    two.topic_dead.inc("order", "gone")
    for _ in range(3):
        totals.add(1, one.process_samples())
        totals.add(2, two.process_samples())
    assert deaths(totals) == {"order": 2}


def test_a_new_process_under_the_same_number_counts_on() -> None:
    totals, old, new = TopicTotals(Metrics()), Metrics(), Metrics()
    old.topic_dead.inc("order", "gone", 5)
    totals.add(1, old.process_samples())
    totals.forget(1)
    new.topic_dead.inc("order", "gone", 6)
    totals.add(1, new.process_samples())
    assert deaths(totals) == {"order": 11}


def test_a_topic_that_a_process_let_go_and_met_again_loses_nothing() -> None:
    totals, process = TopicTotals(Metrics()), Metrics()
    process.topic_dead.inc("order", "gone", 5)
    totals.add(1, process.process_samples())
    process.topics.adopt(FULL)
    totals.add(1, process.process_samples())
    process.topics.adopt(["order"])
    process.topic_dead.inc("order", "gone", 7)
    totals.add(1, process.process_samples())
    assert deaths(totals) == {"order": 12}


def test_a_topic_without_a_label_in_the_daemon_counts_as_other_until_it_gets_one() -> None:
    own, process = Metrics(), Metrics()
    totals = TopicTotals(own)
    own.topics.refresh(FULL)
    process.topic_dead.inc("new", "gone", 3)
    totals.add(1, process.process_samples())
    assert deaths(totals) == {OTHER: 3}
    own.topics.adopt(["new"])
    process.topic_dead.inc("new", "gone", 2)
    totals.add(1, process.process_samples())
    assert deaths(totals) == {OTHER: 3, "new": 2}


def test_the_first_death_of_a_topic_follows_a_zero() -> None:
    totals, process = TopicTotals(Metrics()), Metrics()
    process.topics.refresh(["order"])
    totals.add(1, process.process_samples())
    zeros = {dict(s.labels)["topic"] for s in totals.samples() if s.metric == "later_topic_dead" and s.value == 0}
    assert "order" in zeros
