"""The label `topic`: one choice of 200 topics for counters and gauges, which lets go of those no longer used."""

from __future__ import annotations

from later.metrics import MAX_TOPICS, OTHER, Metrics, TopicLabels
from later.metrics.topic_labels import IDLE_ROUNDS

FULL = [f"t{n}" for n in range(MAX_TOPICS)]


def full_labels() -> TopicLabels:
    labels = TopicLabels()
    labels.refresh(FULL)
    return labels


def topics_of(metrics: Metrics, name: str) -> set[str]:
    """Return the topics that have series of this counter."""
    return {
        sample.labels["topic"]
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == name
    }


def test_a_topic_that_is_met_while_there_is_room_gets_its_own_label() -> None:
    assert TopicLabels().label("order") == "order"


def test_the_topics_beyond_200_share_the_label_other() -> None:
    labels = full_labels()
    assert (labels.label("new"), labels.label("t0")) == (OTHER, "t0")


def test_a_topic_that_is_no_longer_used_lets_a_new_one_have_its_label() -> None:
    labels = full_labels()
    for _ in range(IDLE_ROUNDS):
        labels.refresh(FULL[1:])
    labels.refresh([*FULL[1:], "new"])
    assert "new" in labels
    assert "t0" not in labels
    assert "t1" in labels


def test_a_topic_with_events_but_no_tasks_keeps_its_label() -> None:
    labels = full_labels()
    for _ in range(IDLE_ROUNDS + 1):
        labels.label("t0")
        labels.refresh([*FULL[1:], "new"])
    assert "t0" in labels
    assert "new" not in labels


def test_an_unused_topic_keeps_its_label_while_nobody_needs_it() -> None:
    labels = TopicLabels()
    labels.label("order")
    for _ in range(IDLE_ROUNDS + 1):
        labels.refresh([])
    assert "order" in labels
    assert labels.in_use == []


def test_topics_of_the_other_processes_are_adopted_in_the_place_of_those_used_least() -> None:
    labels = full_labels()
    labels.refresh(FULL[5:])
    labels.adopt([f"new{n}" for n in range(5)])
    assert [topic for topic in FULL if topic not in labels] == FULL[:5]


def test_no_more_topics_get_labels_than_there_is_room_for_whatever_others_have_labelled() -> None:
    labels = full_labels()
    labels.adopt([f"new{n}" for n in range(MAX_TOPICS + 50)])
    labels.refresh([f"more{n}" for n in range(1000)])
    assert len(labels._used_in) == MAX_TOPICS


def test_counters_and_gauges_let_go_of_a_topic_together() -> None:
    metrics = Metrics()
    metrics.topics.refresh(FULL)
    metrics.topic_dead.inc("t0", "gone")
    metrics.count_delivery_failure("t0", "timeout", None)
    metrics.topics.adopt([*FULL[1:], "new"])
    for name in ("later_topic_dead_total", "later_topic_deliveries_total", "later_delivery_failures_total"):
        assert "t0" not in topics_of(metrics, name)
    assert "new" in topics_of(metrics, "later_topic_dead_total")


def test_a_topic_that_comes_back_counts_from_zero() -> None:
    metrics = Metrics()
    metrics.topic_dead.inc("t0", "gone")
    metrics.topics.adopt(FULL[1:])
    metrics.topics.adopt(["new"])
    metrics.topics.adopt(["t0"])
    assert metrics.registry.get_sample_value("later_topic_dead_total", {"topic": "t0", "reason": "gone"}) == 0


def test_events_of_topics_without_a_label_are_summed() -> None:
    metrics = Metrics()
    metrics.topics.refresh(FULL)
    for n in range(5):
        metrics.topic_dead.inc(f"new{n}", "gone")
    metrics.claims_throttled.inc("new1")
    value = metrics.registry.get_sample_value
    assert value("later_topic_dead_total", {"topic": OTHER, "reason": "gone"}) == 5
    assert value("later_claims_throttled_total", {"topic": OTHER}) == 1


def test_counters_of_a_topic_begin_at_zero() -> None:
    metrics = Metrics()
    metrics.topics.refresh(["jobs"])
    for name in ("later_topic_deliveries_total", "later_topic_dead_total", "later_claimed_total"):
        assert "jobs" in topics_of(metrics, name), name
