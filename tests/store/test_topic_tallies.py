"""The counts of all topics while they are summed up."""

from __future__ import annotations

import pytest

from later.core.held import TopicHold
from later.store.keys import Bucket
from later.store.topic_counts import TopicCounts
from later.store.topic_tallies import BucketCount, TopicTallies


@pytest.fixture
def tallies() -> TopicTallies:
    tallies = TopicTallies()
    tallies.add([b"a", "é".encode()], Bucket.DELAY, [BucketCount(3, 2, 70), BucketCount(1, 0, 0)])
    tallies.add([b"a"], Bucket.DELAY, [BucketCount(2, 1, 50)])
    tallies.add([b"a"], Bucket.DEAD, [BucketCount(4, 4, 10)])
    return tallies


def test_counts_are_summed_over_shards_and_buckets(tallies: TopicTallies) -> None:
    assert dict(tallies.items()) == {"a": TopicCounts(5, 0, 0, 4, 3, 50), "é": TopicCounts(1, 0, 0, 0, 0, None)}
    assert (len(tallies), set(tallies)) == (2, {"a", "é"})
    assert [topic in tallies for topic in ("é", "b", b"a")] == [True, False, False]


def test_of_the_holds_of_a_topic_the_longest_counts(tallies: TopicTallies) -> None:
    tallies.add_holds([(b"a", -5000.0), (b"a", -9000.0), (b"a", 700.0)])
    tallies.add_holds([(b"a", -8000.0), ("é".encode(), float("-inf"))])
    assert {topic: counts.hold for topic, counts in tallies.items()} == {
        "a": TopicHold("a", 9000, False),
        "é": TopicHold("é", None, False),
    }


def test_they_are_forgotten_while_they_are_read(tallies: TopicTallies) -> None:
    expected = dict(tallies.items())
    assert dict(tallies.drain()) == expected
    assert (len(tallies), list(tallies)) == (0, [])
