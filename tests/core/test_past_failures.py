"""The failures that are kept of a task: how many, how much of each, and what other versions make of them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from later.core.past_failures import MAX_FAILURES, PastFailure
from later.core.policy import DEFAULT_POLICY
from later.core.retry import (
    NO_FAILURE,
    Failure,
    Nack,
    Outcome,
    OutcomeKind,
    decode_failure,
    encode_failure,
    expiry_failure,
    judge,
    judge_nack,
    judge_uncallable,
    judge_unsent,
)
from tests.builders import NOW, a_task
from tests.cases import each_case

LONG = "x" * 300


class EarlierFailure(msgspec.Struct, frozen=True, array_like=True):
    """A failure as versions before this one store it."""

    failures: int
    reason: str
    status: int | None
    message: str
    at: int
    busy_since: int | None
    attempt: int


def fail(last: Failure | None, attempt: int, message: str = "answered 500", keep: int = MAX_FAILURES) -> Failure:
    """Return the failure of an attempt that took 10 ms for each before it."""
    outcome = Outcome(kind=OutcomeKind.FAILED, reason="status", status=500, message=message, took_ms=attempt * 10)
    task = a_task(max_retry=1000)
    failure = judge(task, attempt, last, outcome, NOW + attempt, DEFAULT_POLICY, 0.0, keep=keep).failure
    assert failure is not None
    return failure


def fail_often(times: int, message: str = "answered 500", keep: int = MAX_FAILURES) -> Failure:
    last = None
    for attempt in range(1, times + 1):
        last = fail(last, attempt, message, keep)
    assert last is not None
    return last


def attempts(failure: Failure) -> list[int]:
    return [past.attempt for past in failure.all]


@given(st.integers(1, 12), st.integers(1, MAX_FAILURES))
def test_the_newest_failures_are_kept_the_oldest_first(times: int, keep: int) -> None:
    assert attempts(fail_often(times, keep=keep)) == list(range(1, times + 1))[-keep:]


def test_a_failure_says_when_it_was_why_and_how_long_it_took() -> None:
    assert fail_often(2).all == (
        PastFailure(1, NOW + 1, "status", 500, 10, "answered 500"),
        PastFailure(2, NOW + 2, "status", 500, 20, "answered 500"),
    )


def test_of_messages_the_last_is_kept_and_80_characters_of_earlier_ones() -> None:
    messages = [past.message for past in fail_often(4, LONG).all]
    assert [len(message) for message in messages] == [80, 80, 80, 200]
    assert messages[0] == "x" * 79 + "…"


def test_fewer_are_kept_from_the_next_failure_on_if_the_option_says_fewer() -> None:
    assert attempts(fail(fail_often(5), 6, keep=2)) == [5, 6]


@each_case(
    "failure",
    [
        judge_nack(a_task(), 3, fail_often(2), Nack(is_final=True), NOW, DEFAULT_POLICY, 0.0).failure,
        judge_nack(a_task(), 3, fail_often(2), Nack(), NOW, DEFAULT_POLICY, 0.0).failure,
        judge_uncallable(3, fail_often(2), NOW).failure,
        expiry_failure(fail_often(2), NOW, 3),
    ],
    ids=["rejected", "nack", "no callback", "expired"],
)
def test_every_end_keeps_what_came_before_it(failure: Failure) -> None:
    assert attempts(failure) == [1, 2, 3]
    assert failure.took_ms is None


@each_case("keep", [1, 2])
def test_every_end_keeps_as_few_as_the_option_says(keep: int) -> None:
    last = fail_often(5)
    unsent = judge_unsent(a_task(ttl=0), 6, last, NOW, keep=keep)
    nack = judge_nack(a_task(), 6, last, Nack(is_final=True), NOW, DEFAULT_POLICY, 0.0, keep=keep)
    uncallable = judge_uncallable(6, last, NOW, keep)
    assert unsent is not None
    for failure in (unsent.failure, nack.failure, uncallable.failure):
        assert failure is not None
        assert attempts(failure) == [5, 6][-keep:]


def test_an_attempt_that_failed_as_the_ttl_ended_is_kept_beside_that() -> None:
    outcome = Outcome(kind=OutcomeKind.FAILED, reason="timeout", message="no answer", took_ms=15_000)
    verdict = judge(a_task(ttl=0), 2, fail_often(1), outcome, NOW + 9, DEFAULT_POLICY, 0.0)
    assert verdict.failure is not None
    assert [(past.attempt, past.reason) for past in verdict.failure.all] == [
        (1, "status"), (2, "timeout"), (2, "expired"),
    ]  # fmt: skip


def test_a_task_that_never_failed_has_none() -> None:
    assert NO_FAILURE.all == ()


def test_an_earlier_version_reads_the_last_failure() -> None:
    failure = fail_often(7, LONG)
    read = msgspec.msgpack.decode(encode_failure(failure), type=EarlierFailure)
    assert [getattr(read, name) for name in EarlierFailure.__struct_fields__] == [
        getattr(failure, name) for name in EarlierFailure.__struct_fields__
    ]


def test_what_an_earlier_version_wrote_is_one_failure() -> None:
    earlier = EarlierFailure(3, "timeout", None, "no answer", NOW, None, 4)
    failure = decode_failure(msgspec.msgpack.encode(earlier))
    assert (failure.took_ms, failure.earlier, attempts(failure)) == (None, (), [4])
    assert attempts(fail(failure, 5)) == [4, 5]


def test_a_first_failure_takes_two_bytes_more_and_each_other_25_besides_its_message() -> None:
    of_earlier = len(msgspec.msgpack.encode(EarlierFailure(1, "status", 500, "answered 500", NOW + 1, None, 1)))
    sizes = [len(encode_failure(fail_often(times))) for times in (1, 5)]
    assert sizes[0] - of_earlier == 2  # how long it took, and that there are none before it
    assert sizes[1] - sizes[0] <= 4 * (25 + len("answered 500"))
