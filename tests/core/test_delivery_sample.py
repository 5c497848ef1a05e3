"""The sample of deliveries: which attempts of a period are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from later.core.delivery_sample import MAX_OF_A_KIND, MAX_SAMPLED, MIN_SLOWEST, DeliverySample, SampledDelivery
from later.core.retry import Outcome, OutcomeKind

DONE = Outcome(kind=OutcomeKind.DONE, status=200)
REFUSED = Outcome(kind=OutcomeKind.FAILED, reason="connect")
outcomes = st.one_of(
    st.just(DONE),
    st.builds(
        Outcome,
        kind=st.sampled_from([OutcomeKind.FAILED, OutcomeKind.BUSY]),
        reason=st.sampled_from(["status", "timeout", "connect", "reply"]),
        status=st.one_of(st.none(), st.integers(100, 599)),
    ),
)
attempts = st.lists(st.tuples(outcomes, st.integers(0, 1000)), max_size=200)


def offer(sample: DeliverySample, outcome: Outcome, took_ms: int, number: int = 0) -> None:
    if not sample.wants(outcome, took_ms):
        return
    delivery = SampledDelivery(
        id=f"n{number}", topic="order", attempt=1, due_at=0, began_at=number, took_ms=took_ms,
        outcome=outcome.kind.value, status=outcome.status, host="a", reason=outcome.reason,
    )  # fmt: skip
    sample.add(delivery)


@given(attempts)
def test_a_sample_has_each_kind_of_failure_and_the_slowest(offered: list[tuple[Outcome, int]]) -> None:
    sample = DeliverySample()
    for number, (outcome, took_ms) in enumerate(offered):
        offer(sample, outcome, took_ms, number)
    taken = sample.take()
    assert len(taken) == len({delivery.id for delivery in taken}) <= MAX_SAMPLED
    assert [delivery.began_at for delivery in taken] == sorted(delivery.began_at for delivery in taken)
    kinds = {(outcome.reason, (outcome.status or 0) // 100) for outcome, _ in offered if outcome.reason}
    assert len({(delivery.reason, (delivery.status or 0) // 100) for delivery in taken if delivery.reason}) == min(
        len(kinds), MAX_SAMPLED
    )
    done = sorted((took_ms for outcome, took_ms in offered if outcome is DONE), reverse=True)
    room = min(MIN_SLOWEST, max(MAX_SAMPLED - len(kinds), 0))
    kept = sorted((delivery.took_ms for delivery in taken if not delivery.reason), reverse=True)
    assert kept[:room] == done[:room]
    if len(offered) <= MAX_SAMPLED and len(kinds) <= 1 and len(done) == len(offered):
        assert len(taken) == len(offered)


def test_of_one_kind_of_failure_few_are_kept() -> None:
    sample = DeliverySample()
    for number in range(100):
        offer(sample, REFUSED, 1, number)
    assert len(sample.take()) == MAX_OF_A_KIND


def test_a_busy_process_offers_only_what_is_slower_than_the_floor() -> None:
    sample = DeliverySample()
    for number in range(MAX_SAMPLED):
        assert sample.floor_ms == -1
        offer(sample, DONE, 10 + number, number)
    assert sample.floor_ms == 10
    assert not sample.wants(DONE, 10)
    offer(sample, DONE, 50, 99)
    assert sample.floor_ms == 11


def test_the_next_period_begins_empty() -> None:
    sample = DeliverySample()
    for number in range(MAX_SAMPLED):
        offer(sample, DONE, 10, number)
        offer(sample, REFUSED, 10, number)
    assert len(sample.take()) == MAX_SAMPLED
    assert (sample.take(), sample.floor_ms) == ([], -1)
