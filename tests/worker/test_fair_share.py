"""Fair shares: no topic takes the slots that others need, with nothing configured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from later.store.types import DueTopic
from later.worker.fair_share import FairShare, share

NOW = 1_000
SLOTS = st.integers(1, 5000)


def a_due_topic(topic: str, *, at: int = NOW, shard: int = 0) -> DueTopic:
    return DueTopic(at, topic, shard)


def fill(fair_share: FairShare, topic: str) -> int:
    """Let a topic with endless work take all slots that it can; return how many it then holds."""
    in_use = 0
    while part := fair_share.share(topic):
        for _ in range(part):
            fair_share.acquire(topic)
        in_use += part
    return in_use


@given(free=st.integers(0, 5000), in_use=st.integers(0, 5000))
def test_a_topic_takes_no_more_slots_than_are_free(free: int, in_use: int) -> None:
    assert 0 <= share(free, in_use) <= free


@given(free=st.integers(1, 5000), in_use=st.integers(1, 5000))
def test_the_last_free_slot_is_not_for_a_topic_that_holds_one(free: int, in_use: int) -> None:
    assert share(free, in_use) < free


@given(slots=SLOTS)
def test_an_idle_worker_always_has_a_slot_for_a_topic(slots: int) -> None:
    assert FairShare(slots).share("order") >= 1


def test_a_lone_topic_gets_three_quarters_of_the_slots() -> None:
    assert fill(FairShare(256), "order") == 192


def test_two_slow_topics_leave_a_sixteenth_of_the_slots() -> None:
    fair_share = FairShare(256)
    fill(fair_share, "slow")
    fill(fair_share, "slower")
    assert fair_share.free == 16


@given(slots=st.integers(4, 5000))
def test_a_slow_topic_leaves_a_slot_to_a_healthy_one(slots: int) -> None:
    fair_share = FairShare(slots)
    fill(fair_share, "slow")
    assert fair_share.share("healthy") >= 1


def test_a_released_slot_can_be_acquired_again() -> None:
    fair_share = FairShare(1)
    fair_share.acquire("order")
    fair_share.release("order")
    assert (fair_share.free, dict(fair_share.in_use_by_topic), fair_share.share("order")) == (1, {}, 1)


def test_due_topics_are_planned_in_the_order_of_their_turns() -> None:
    plan = FairShare(256).plan([a_due_topic("b", at=1), a_due_topic("a", at=2)], NOW)
    assert [request.topic for request in plan] == ["b", "a"]


def test_a_topic_that_is_not_due_is_not_planned() -> None:
    assert FairShare(256).plan([a_due_topic("order", at=NOW + 1)], NOW) == []


def test_a_topic_takes_an_even_part_from_each_of_its_shards() -> None:
    plan = FairShare(256).plan([a_due_topic("order", shard=shard) for shard in range(16)], NOW)
    assert {request.limit for request in plan} == {12}


def test_of_a_thousand_due_topics_as_many_are_planned_as_there_are_slots() -> None:
    plan = FairShare(256).plan([a_due_topic(f"{number:04}") for number in range(1000)], NOW)
    assert [(request.topic, request.limit) for request in plan] == [(f"{number:04}", 1) for number in range(256)]


def test_the_first_of_a_few_due_topics_takes_all_but_one_slot_for_each_other() -> None:
    plan = FairShare(256).plan([a_due_topic(f"{number:03}") for number in range(100)], NOW)
    assert [request.limit for request in plan] == [157] + [1] * 99


@given(slots=SLOTS, topics=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), unique=True))
def test_a_plan_never_claims_more_than_is_free(slots: int, topics: list[tuple[int, int]]) -> None:
    fair_share = FairShare(slots)
    plan = fair_share.plan([a_due_topic(str(topic), shard=shard) for topic, shard in topics], NOW)
    assert sum(request.limit for request in plan) <= fair_share.free
    assert all(request.limit >= 1 for request in plan)


def test_a_topic_that_was_read_twice_in_a_shard_is_requested_once() -> None:
    due = [a_due_topic("order", at=NOW - 1), a_due_topic("order"), a_due_topic("other")]
    assert [request.topic for request in FairShare(256).plan(due, NOW)] == ["order", "other"]
