"""The slots of the history, and the series that are made of their fields."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.history import (
    COUNT_FIELDS,
    COUNT_SERIES,
    DEAD_FIELDS,
    DURATION_BUCKETS,
    FULL_AFTER_MS,
    GAUGE_FIELDS,
    HELD_LATENESS_BUCKETS,
    LATENESS_BUCKETS,
    LONG,
    PRESENCE,
    RESOLUTIONS,
    SERIES,
    SHORT,
    TOPIC_COUNTS,
    TOPIC_SERIES,
    Resolution,
    TopicRow,
    busiest_topics,
    growth,
    percentile,
    value_in_slot,
)
from later.core.retry import DEATH_REASONS
from later.metrics import Metrics
from later.metrics.topic_activity import TOPIC_EVENTS
from tests.builders import NOW
from tests.cases import each_case

resolutions = st.sampled_from([SHORT, LONG])
times = st.integers(NOW - 10**10, NOW + 10**10)
counters = st.dictionaries(st.sampled_from("cdfbgyp"), st.integers(0, 10**6))


def test_no_two_fields_have_the_same_name() -> None:
    buckets = (LATENESS_BUCKETS, HELD_LATENESS_BUCKETS, DURATION_BUCKETS)
    fields = [
        PRESENCE, *COUNT_FIELDS.values(), *DEAD_FIELDS.values(), *GAUGE_FIELDS.values(),
        *(field for some in buckets for field in some.fields),
    ]  # fmt: skip
    assert len(set(fields)) == len(fields)
    assert {len(field) for field in fields} == {1, 2}
    assert not {field for field in fields if field not in GAUGE_FIELDS.values() and not field.islower()}


def test_the_buckets_are_those_of_the_metrics() -> None:
    metrics = Metrics()
    assert tuple(metrics.lateness.labels("no").bounds_s) == LATENESS_BUCKETS.bounds_s == HELD_LATENESS_BUCKETS.bounds_s
    assert tuple(metrics.delivery_duration.bounds_s) == DURATION_BUCKETS.bounds_s


def test_the_counts_of_a_topic_are_those_that_processes_count() -> None:
    assert TOPIC_COUNTS == TOPIC_EVENTS


def test_every_death_has_its_field() -> None:
    assert tuple(DEAD_FIELDS) == DEATH_REASONS
    assert COUNT_SERIES["dead_no_callback"] == ("xn",)


@given(resolutions, times)
def test_the_last_full_slot_has_ended_and_no_later_one_has(resolution: Resolution, now: int) -> None:
    last = resolution.last_full(now)
    assert last % resolution.length_ms == 0
    assert last + resolution.length_ms + FULL_AFTER_MS <= now < last + 2 * resolution.length_ms + FULL_AFTER_MS


@given(resolutions, times, times)
def test_an_answer_begins_at_a_slot_and_has_no_more_than_its_number(
    resolution: Resolution, since: int, now: int
) -> None:
    first, last = resolution.first_slot(since, now), resolution.last_full(now)
    count = (last - first) // resolution.length_ms + 1
    assert first % resolution.length_ms == 0
    assert 0 <= count <= resolution.most_slots
    assert first <= since or first == last + resolution.length_ms or count == resolution.most_slots


def test_what_an_answer_may_show_is_kept() -> None:
    for length_s, resolution in RESOLUTIONS.items():
        assert resolution.length_ms == length_s * 1000
        assert resolution.most_slots * resolution.length_ms < resolution.kept_ms
        assert resolution.default_ms <= resolution.most_slots * resolution.length_ms


@given(counters, counters)
def test_growth_is_what_a_counter_has_more_than_before(before: dict[str, int], more: dict[str, int]) -> None:
    after = {field: before.get(field, 0) + more.get(field, 0) for field in {*before, *more}}
    grown = growth(before, after)
    assert grown == {field: count for field, count in more.items() if count}


@given(st.lists(counters, min_size=1))
def test_what_a_counter_grew_by_between_reads_is_what_it_grew_by_in_all(steps: list[dict[str, int]]) -> None:
    reads: list[dict[str, int]] = [{}]
    for step in steps:
        last = reads[-1]
        reads.append({field: last.get(field, 0) + step.get(field, 0) for field in {*last, *step}})
    total: dict[str, int] = {}
    for before, after in pairwise(reads):
        for field, count in growth(before, after).items():
            total[field] = total.get(field, 0) + count
    assert total == growth({}, reads[-1])


@each_case(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([4, 0, 0], 1.0, 1.0),
        ([0, 4, 0], 0.5, 1.5),
        ([1, 0, 1], 0.5, 1.0),
        ([1, 0, 99], 0.5, 2.0),
        ([50, 50, 0], 0.99, 1.98),
    ],
)
def test_a_percentile_lies_in_its_bucket(counts: list[int], share: float, expected: float | None) -> None:
    assert percentile((1.0, 2.0), counts, share) == pytest.approx(expected)


@given(
    st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
)
def test_a_greater_share_has_no_smaller_percentile(counts: list[int], one: float, other: float) -> None:
    bounds = (0.1, 1.0, 10.0)
    low, high = (percentile(bounds, counts, share) for share in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert 0 <= low <= high <= 10


def test_the_series_of_a_slot() -> None:
    fields = {"c": 3, "xe": 2, "xn": 1, "D": 7, "l0": 4, "p": 1}
    values = {name: value for name in SERIES if (value := value_in_slot(name, fields))}
    assert values == {
        "created": 3, "dead": 3, "dead_exhausted": 2, "dead_no_callback": 1, "due": 7,
        "lateness_p50": 0.0005, "lateness_p99": pytest.approx(0.00099),
    }  # fmt: skip
    assert value_in_slot("done", fields) == 0
    assert value_in_slot("memory", fields) is None
    assert value_in_slot("duration_p50", fields) is None


def test_a_topics_row_is_read_with_and_without_its_due_tasks() -> None:
    assert TopicRow.parse(b"1 2 3 4 5 6") == TopicRow([1, 2, 3, 4, 5], 6)
    assert [TopicRow([1, 2, 3, 4, 5], 6).value(name) for name in TOPIC_SERIES] == [1, 2, 3, 4, 5, 6]
    assert TopicRow.parse(b"1 2 3 4 5 ") == TopicRow([1, 2, 3, 4, 5], None)


def test_the_busiest_topics_come_first() -> None:
    counts = {"a": [1, 0], "b": [0, 5], "c": [2, 2]}
    assert busiest_topics(counts, 2) == ["b", "c"]
