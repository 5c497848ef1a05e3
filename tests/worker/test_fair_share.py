"""Hands and lanes: nobody takes what others need, with nothing configured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from later.store.types import DueTopic
from later.worker.fair_share import FairShare, share

NOW = 1_000
HANDS = st.integers(1, 5000)


def a_wake(topic: str, *, at: int = NOW, shard: int = 0) -> DueTopic:
    return DueTopic(at, topic, shard)


def fill(lanes: FairShare, topic: str) -> int:
    """Let a topic with endless work take all it can; how many hands it then holds."""
    held = 0
    while part := lanes.share(topic):
        for _ in range(part):
            lanes.acquire(topic)
        held += part
    return held


@given(free=st.integers(0, 5000), held=st.integers(0, 5000))
def test_a_lane_takes_no_more_than_is_free(free: int, held: int) -> None:
    assert 0 <= share(free, held) <= free


@given(free=st.integers(1, 5000), held=st.integers(1, 5000))
def test_the_last_free_hand_is_not_for_a_lane_that_holds_one(free: int, held: int) -> None:
    assert share(free, held) < free


@given(hands=HANDS)
def test_an_idle_worker_always_has_a_hand_for_a_topic(hands: int) -> None:
    assert FairShare(hands).share("order") >= 1


def test_a_lone_topic_gets_three_quarters_of_the_hands() -> None:
    assert fill(FairShare(256), "order") == 192


def test_two_slow_topics_leave_a_sixteenth() -> None:
    lanes = FairShare(256)
    fill(lanes, "slow")
    fill(lanes, "slower")
    assert lanes.free == 16


@given(hands=st.integers(4, 5000))
def test_a_healthy_topic_gets_through_beside_a_slow_one(hands: int) -> None:
    lanes = FairShare(hands)
    fill(lanes, "slow")
    assert lanes.share("healthy") >= 1


def test_a_hand_given_back_may_be_taken_again() -> None:
    lanes = FairShare(1)
    lanes.acquire("order")
    lanes.release("order")
    assert (lanes.free, dict(lanes.topics), lanes.share("order")) == (1, {}, 1)


def test_due_topics_are_planned_in_the_order_of_their_turns() -> None:
    plan = FairShare(256).plan([a_wake("b", at=1), a_wake("a", at=2)], NOW)
    assert [want.topic for want in plan] == ["b", "a"]


def test_a_topic_that_is_not_due_is_not_planned() -> None:
    assert FairShare(256).plan([a_wake("order", at=NOW + 1)], NOW) == []


def test_a_topic_takes_an_even_part_from_each_of_its_shards() -> None:
    plan = FairShare(256).plan([a_wake("order", shard=shard) for shard in range(16)], NOW)
    assert {want.limit for want in plan} == {12}


def test_of_a_thousand_due_topics_as_many_are_planned_as_there_are_hands() -> None:
    plan = FairShare(256).plan([a_wake(f"{number:04}") for number in range(1000)], NOW)
    assert [(want.topic, want.limit) for want in plan] == [(f"{number:04}", 1) for number in range(256)]


def test_the_first_of_a_few_due_topics_takes_what_the_others_leave_a_hand_for() -> None:
    plan = FairShare(256).plan([a_wake(f"{number:03}") for number in range(100)], NOW)
    assert [want.limit for want in plan] == [157] + [1] * 99


@given(hands=HANDS, topics=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), unique=True))
def test_a_plan_never_wants_more_than_is_free(hands: int, topics: list[tuple[int, int]]) -> None:
    lanes = FairShare(hands)
    plan = lanes.plan([a_wake(str(topic), shard=shard) for topic, shard in topics], NOW)
    assert sum(want.limit for want in plan) <= lanes.free
    assert all(want.limit >= 1 for want in plan)
