"""The snapshot of all topics: its sums are right, it is bounded, and nothing that is first in an order is left out."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.held import Held
from later.core.policy_scopes import namespace_from_topic
from later.core.snapshot import (
    MAX_AHEAD_MS,
    MAX_NAMESPACES,
    MAX_ROWS,
    ORDERS,
    CountedTopic,
    Snapshot,
    SnapshotBuilder,
    StoreFacts,
    decode_snapshot,
    encode_snapshot,
    sort_rows,
    sum_rows,
)
from tests.builders import NOW

FACTS = StoreFacts(name="valkey", version="9.0.0", memory=1, max_memory=0, workers=1, remembered_ids=0)
counts = st.integers(0, 3)


@st.composite
def topic_rows(draw: st.DrawFn) -> CountedTopic:
    due = draw(counts)
    return CountedTopic(
        topic=draw(st.sampled_from(["", "a/", "b/"])) + draw(st.text("xyz", min_size=1, max_size=4)),
        delay=due + draw(counts),
        unack=draw(counts),
        error=draw(counts),
        dead=draw(counts),
        due=due,
        oldest_due_at=NOW - draw(st.integers(0, 9)) if due else None,
        held=draw(st.sampled_from(Held)) if due else Held.NO,
        is_paused=draw(st.booleans()),
        has_label=draw(st.booleans()),
        permits=draw(st.none() | counts),
    )


many_rows = st.lists(topic_rows(), max_size=30, unique_by=lambda row: row.topic)


def a_row(
    topic: str, *, due: int = 0, late_ms: int = 0, dead: int = 0, delay: int = 0, held: Held = Held.NO
) -> CountedTopic:
    return CountedTopic(
        topic=topic,
        delay=due + delay,
        unack=0,
        error=0,
        dead=dead,
        due=due,
        oldest_due_at=NOW - late_ms if due else None,
        held=held,
        is_paused=False,
        has_label=False,
    )


def snapshot_of(rows: list[CountedTopic], *, slice: int = 7, took_ms: int = 0) -> Snapshot:
    builder = SnapshotBuilder()
    with patch("later.core.snapshot.SORTED_AT_ONCE", 2 * slice):
        for start in range(0, len(rows), slice):
            builder.add(rows[start : start + slice])
    return builder.finish(at=NOW, took_ms=took_ms, store=FACTS)


@given(many_rows)
def test_the_rows_with_a_label_and_the_others_are_all_topics(rows: list[CountedTopic]) -> None:
    snapshot = snapshot_of(rows)
    labelled = sum_rows(row for row in snapshot.rows if row.has_label)
    assert snapshot.total == sum_rows(rows)
    assert snapshot.total.tasks == labelled.tasks + snapshot.others.tasks
    assert snapshot.total.all_due == labelled.all_due + snapshot.others.all_due
    oldest = [row.oldest_due_at for row in rows if row.oldest_due_at is not None and row.held is Held.NO]
    assert snapshot.total.oldest_due_at(is_held=False) == min(oldest, default=None)


@given(many_rows)
def test_each_namespace_has_the_sums_over_its_topics(rows: list[CountedTopic]) -> None:
    snapshot = snapshot_of(rows)
    for namespace in ("default", "a", "b", "none"):
        own = [row for row in rows if namespace_from_topic(row.topic) == namespace]
        assert snapshot.sums_of(namespace) == sum_rows(own)
        assert {row.topic for row in snapshot.rows_of(namespace)} <= {row.topic for row in own}


@given(many_rows)
def test_a_snapshot_is_the_same_after_it_was_written_and_read(rows: list[CountedTopic]) -> None:
    snapshot = snapshot_of(rows)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@given(st.binary())
def test_whatever_else_stands_there_is_no_snapshot(data: bytes) -> None:
    assert decode_snapshot(data) is None


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_topics_of_each_order_are_kept(order: str) -> None:
    rows = [
        row
        for n in range(MAX_ROWS + 100)
        for row in (
            a_row(f"due{n}", due=n + 1),
            a_row(f"dead{n}", dead=n + 1),
            a_row(f"delay{n}", delay=n + 1),
            a_row(f"late{n}", due=1, late_ms=n),
        )
    ]
    snapshot = snapshot_of(rows, slice=64)
    expected = sort_rows(rows, order)[:MAX_ROWS]
    assert [ORDERS[order](row) for row in sort_rows(snapshot.rows, order)[:MAX_ROWS]] == [
        ORDERS[order](row) for row in expected
    ]
    assert len(snapshot.rows) <= 5 * MAX_ROWS


def test_a_late_topic_is_not_hidden_by_many_that_are_held_on_purpose() -> None:
    held = [a_row(f"paused{n}", due=10, late_ms=90_000 + n, held=Held.PAUSE) for n in range(MAX_ROWS + 1)]
    snapshot = snapshot_of([*held, a_row("late", due=1, late_ms=10)])
    assert "late" in {row.topic for row in snapshot.rows}


@given(many_rows, st.sampled_from(sorted(ORDERS)))
def test_topics_are_sorted_by_a_number_and_those_without_one_come_last(rows: list[CountedTopic], order: str) -> None:
    values = [ORDERS[order](row) for row in sort_rows(rows, order)]
    known = [value for value in values if value is not None]
    assert values == [*sorted(known, reverse=True), *[None] * (len(values) - len(known))]


def test_the_namespaces_with_most_tasks_have_sums() -> None:
    snapshot = snapshot_of([a_row(f"n{n}/x", delay=n + 1) for n in range(MAX_NAMESPACES + 5)], slice=500)
    assert len(snapshot.namespaces) == MAX_NAMESPACES
    assert snapshot.sums_of(f"n{MAX_NAMESPACES + 4}").delay == MAX_NAMESPACES + 5
    assert "n0" not in snapshot.namespaces


def test_a_census_that_takes_longer_than_its_period_is_made_half_as_often() -> None:
    assert [snapshot_of([], took_ms=ms).period_ms(15_000) for ms in (10, 15_000, 15_001, 31_000)] == [
        *(15_000, 15_000, 30_000, 60_000)
    ]


def test_a_snapshot_is_old_after_its_period_and_unusable_from_the_future() -> None:
    snapshot = snapshot_of([])
    assert not snapshot.is_older_than(15_000, NOW + 14_999)
    assert snapshot.is_older_than(15_000, NOW + 15_000)
    assert snapshot.is_usable(NOW - MAX_AHEAD_MS)
    assert not snapshot.is_usable(NOW - MAX_AHEAD_MS - 1)
