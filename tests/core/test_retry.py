"""The verdicts on deliveries: growing pauses, an end to retries, and a verdict on any outcome."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from later.core.errors import UnreadableBody
from later.core.policy import DEFAULT_POLICY, Policy
from later.core.retry import (
    MAX_MESSAGE_CHARS,
    NO_FAILURE,
    Failure,
    Nack,
    Outcome,
    OutcomeKind,
    SettleTarget,
    Verdict,
    decode_failure,
    encode_failure,
    is_expired,
    judge,
    judge_nack,
    judge_uncallable,
    judge_unreadable,
    judge_unsent,
)
from later.core.task import Task
from later.core.validation import DAY_MS, MAX_AHEAD_MS
from tests.builders import NOW, a_task
from tests.cases import each_case

DONE = Outcome(kind=OutcomeKind.DONE, status=200)
FAILED = Outcome(kind=OutcomeKind.FAILED, reason="status", status=500, message="answered 500")
BUSY = Outcome(kind=OutcomeKind.BUSY, reason="status", status=503, message="answered 503")
GONE = Outcome(kind=OutcomeKind.GONE, reason="status", status=410, message="answered 410")

INTEGERS = st.integers(-(2**62), 2**62)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
POLICIES = st.builds(
    Policy,
    retry_base_ms=st.integers(0, 10**9),
    retry_cap_ms=st.integers(0, 10**9),
    retry_jitter=st.floats(0, 1),
)
RANDOM_NUMBERS = st.floats(0, 1, exclude_max=True)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(OutcomeKind),
    reason=ANY_TEXT,
    status=st.none() | st.integers(100, 599),
    message=ANY_TEXT,
    retry_after_ms=st.none() | st.integers() | st.integers(0, 2 * DAY_MS),
    later_after_ms=st.none() | st.integers(0, MAX_AHEAD_MS),
)
FAILURES = st.builds(
    Failure,
    st.integers(0, 10**6),
    st.text(),
    st.none() | INTEGERS,
    st.text(),
    INTEGERS,
    st.none() | INTEGERS,
    INTEGERS,
)
TASKS = st.builds(
    lambda max_retry, ttl: a_task(id="some-id", max_retry=max_retry, ttl=ttl),
    st.integers(0, 1000),
    st.none() | st.floats(0, 10**9),
)
TIMES = st.integers(NOW - DAY_MS, NOW + 1000 * DAY_MS) | INTEGERS


def a_failure(failures: int = 1, *, reason: str = "status", busy_since: int | None = None, attempt: int = 1) -> Failure:
    return Failure(failures, reason, 500, "answered 500", NOW - 1, busy_since, attempt)


def judge_outcome(
    outcome: Outcome,
    last: Failure | None = None,
    *,
    task: Task | None = None,
    attempt: int = 1,
    now: int = NOW,
) -> Verdict:
    return judge(task or a_task(), attempt, last, outcome, now, DEFAULT_POLICY, 0.0)


def pausing(outcome: Outcome, pause_ms: int | None) -> Outcome:
    return msgspec.structs.replace(outcome, later_after_ms=pause_ms)


def failure_in(verdict: Verdict | None) -> Failure:
    assert verdict is not None
    assert verdict.failure is not None
    return verdict.failure


class TestBackoff:
    @each_case(
        ("failures", "pause_s"),
        [(1, 10), (2, 20), (3, 40), (4, 80), (9, 2560), (10, 3600), (11, 3600), (1000, 3600), (10**9, 3600)],
    )
    def test_a_pause_doubles_up_to_the_cap(self, failures: int, pause_s: int) -> None:
        assert DEFAULT_POLICY.retry_pause_ms(failures, 0.5) == pause_s * 1000

    @given(POLICIES, st.integers(0), RANDOM_NUMBERS)
    def test_a_pause_is_never_negative_nor_longer_than_cap_and_jitter(
        self, policy: Policy, failures: int, random: float
    ) -> None:
        assert 0 <= policy.retry_pause_ms(failures, random) <= policy.retry_cap_ms * (1 + policy.retry_jitter)

    @given(POLICIES, st.integers(0, 200), RANDOM_NUMBERS)
    def test_a_pause_is_never_shorter_than_the_one_before(self, policy: Policy, failures: int, random: float) -> None:
        assert policy.retry_pause_ms(failures + 1, random) >= policy.retry_pause_ms(failures, random)

    @given(POLICIES, st.integers(1, 60), RANDOM_NUMBERS)
    def test_jitter_only_lengthens(self, policy: Policy, failures: int, random: float) -> None:
        plain = min(policy.retry_base_ms * 2 ** (failures - 1), policy.retry_cap_ms)
        assert policy.retry_pause_ms(failures, random) >= plain

    @each_case(("random", "pause_ms"), [(0.0, 10_000), (0.5, 12_500), (0.999, 14_995)])
    def test_jitter_lengthens_by_its_share(self, random: float, pause_ms: int) -> None:
        assert Policy(retry_jitter=0.5).retry_pause_ms(1, random) == pause_ms


class TestExpiry:
    @each_case(("now", "expired"), [(NOW + 4_999, False), (NOW + 5_000, True)])
    def test_at_the_tie_expiry_wins(self, now: int, expired: bool) -> None:
        assert is_expired(a_task(ttl=5), now) is expired

    def test_a_task_without_a_ttl_never_expires(self) -> None:
        assert not is_expired(a_task(), 2**63)


class TestDone:
    def test_done_is_done(self) -> None:
        assert judge_outcome(DONE) == Verdict(SettleTarget.DONE, NOW)

    def test_done_after_failures_is_done(self) -> None:
        assert judge_outcome(DONE, a_failure(3)) == Verdict(SettleTarget.DONE, NOW)


class TestGone:
    def test_gone_is_dead_at_once(self) -> None:
        assert judge_outcome(GONE) == Verdict(
            SettleTarget.DEAD, NOW, Failure(1, "gone", 410, "answered 410", NOW, None, 1)
        )


class TestFailed:
    def test_a_failure_is_kept(self) -> None:
        assert failure_in(judge_outcome(FAILED, attempt=7)) == Failure(1, "status", 500, "answered 500", NOW, None, 7)

    @each_case(("before", "pause_s"), [(None, 10), (a_failure(1), 20), (a_failure(2), 40)])
    def test_the_next_attempt_comes_after_a_pause_that_doubles(self, before: Failure | None, pause_s: int) -> None:
        assert judge_outcome(FAILED, before).at == NOW + pause_s * 1000

    @each_case(
        ("max_retry", "targets"),
        [(0, "D"), (1, "ED"), (3, "EEED"), (1000, "E" * 1000 + "D")],
        ids=["none", "one", "three", "a thousand"],
    )
    def test_a_task_is_retried_up_to_its_limit(self, max_retry: int, targets: str) -> None:
        task, last, targets_seen = a_task(max_retry=max_retry), None, ""
        while not targets_seen.endswith("D"):
            verdict = judge_outcome(FAILED, last, task=task, attempt=len(targets_seen) + 1)
            last, targets_seen = verdict.failure, targets_seen + ("D" if verdict.target is SettleTarget.DEAD else "E")
        assert targets_seen == targets

    def test_the_failure_after_the_last_retry_exhausts(self) -> None:
        assert judge_outcome(FAILED, a_failure(3), attempt=4) == Verdict(
            SettleTarget.DEAD,
            NOW,
            Failure(4, "exhausted", 500, "4 failures, the last: answered 500", NOW, None, 4, earlier=a_failure(3).all),
        )

    def test_a_task_whose_address_was_refused_to_the_last_dies_of_that(self) -> None:
        refused = Outcome(kind=OutcomeKind.FAILED, reason="address", message="it may not be called: private")
        assert failure_in(judge_outcome(refused, a_failure(2), attempt=3)).reason == "address"
        assert judge_outcome(refused, a_failure(3), attempt=4) == Verdict(
            SettleTarget.DEAD,
            NOW,
            Failure(
                4,
                "address",
                None,
                "4 failures, the last: it may not be called: private",
                NOW,
                None,
                4,
                earlier=a_failure(3).all,
            ),
        )

    def test_a_task_without_retries_dies_of_its_one_failure(self) -> None:
        verdict = judge_outcome(FAILED, task=a_task(max_retry=0))
        assert failure_in(verdict).message == "1 failure: answered 500"

    def test_a_failure_ends_the_busy_answers_before_it(self) -> None:
        assert failure_in(judge_outcome(FAILED, a_failure(busy_since=NOW - DAY_MS))).busy_since is None

    def test_a_pause_may_go_beyond_the_expiry(self) -> None:
        assert judge_outcome(FAILED, task=a_task(ttl=5)).at == judge_outcome(FAILED).at

    @each_case("outcome", [FAILED, BUSY], ids=["failed", "busy"])
    def test_a_failure_after_the_ttl_has_ended_is_the_last(self, outcome: Outcome) -> None:
        verdict = judge_outcome(outcome, task=a_task(created_at=NOW - 5000, ttl=5))
        assert (verdict.target, failure_in(verdict).reason) == (SettleTarget.DEAD, "expired")

    def test_success_after_the_ttl_has_ended_is_success(self) -> None:
        assert judge_outcome(DONE, task=a_task(created_at=NOW - 5000, ttl=5)).target is SettleTarget.DONE

    @each_case("message", ["x" * 201, "ü" * 10_000, "\ud800" * 201])
    def test_a_long_message_is_cut(self, message: str) -> None:
        outcome = msgspec.structs.replace(FAILED, message=message)
        assert len(failure_in(judge_outcome(outcome)).message) == MAX_MESSAGE_CHARS

    def test_a_message_that_is_not_unicode_is_escaped(self) -> None:
        outcome = msgspec.structs.replace(FAILED, message="broken reply: \udcff")
        assert failure_in(judge_outcome(outcome)).message == r"broken reply: \udcff"


class TestBusy:
    def test_busy_costs_no_retry(self) -> None:
        assert failure_in(judge_outcome(BUSY, a_failure(2))).failures == 2

    @each_case("before", [None, a_failure(1), a_failure(3), a_failure(3, busy_since=NOW - 5)])
    def test_busy_pauses_as_after_a_first_failure(self, before: Failure | None) -> None:
        assert judge_outcome(BUSY, before).at == NOW + 10_000

    def test_busy_is_not_a_failure_even_without_retries_left(self) -> None:
        assert judge_outcome(BUSY, task=a_task(max_retry=0)).target is SettleTarget.ERROR

    @each_case(
        ("requested_ms", "pause_ms"),
        [
            (0, 1000),
            (1, 1000),
            (1500, 1500),
            (7_200_000, 7_200_000),
            (DAY_MS, DAY_MS),
            (DAY_MS + 1, DAY_MS),
            (10**18, DAY_MS),
            (-5, 1000),
        ],
    )
    def test_busy_pauses_as_long_as_requested_from_a_second_to_a_day(self, requested_ms: int, pause_ms: int) -> None:
        outcome = msgspec.structs.replace(BUSY, retry_after_ms=requested_ms)
        assert judge_outcome(outcome).at == NOW + pause_ms

    @each_case(
        ("last", "since"),
        [
            (None, NOW),
            (a_failure(2), NOW),
            (a_failure(busy_since=NOW - 5), NOW - 5),
            (a_failure(busy_since=NOW + 5), NOW),
        ],
        ids=["first", "after a failure", "after busy", "after the clock went back"],
    )
    def test_a_run_of_busy_answers_begins_with_its_first(self, last: Failure | None, since: int) -> None:
        assert failure_in(judge_outcome(BUSY, last)).busy_since == since

    def test_busy_for_a_day_is_dead(self) -> None:
        earlier = a_failure(2).all
        assert judge_outcome(BUSY, a_failure(2, busy_since=NOW - DAY_MS), attempt=9) == Verdict(
            SettleTarget.DEAD,
            NOW,
            Failure(2, "busy", 503, "busy for a day, the last: answered 503", NOW, NOW - DAY_MS, 9, earlier=earlier),
        )

    def test_busy_for_a_millisecond_less_than_a_day_is_not_dead(self) -> None:
        assert judge_outcome(BUSY, a_failure(busy_since=NOW - DAY_MS + 1)).target is SettleTarget.ERROR

    def test_a_requested_pause_may_end_after_the_day(self) -> None:
        outcome = msgspec.structs.replace(BUSY, retry_after_ms=DAY_MS)
        assert judge_outcome(outcome, a_failure(busy_since=NOW - DAY_MS + 1)).at == NOW + DAY_MS

    def test_busy_again_after_a_pause_beyond_the_day_is_dead(self) -> None:
        last = a_failure(busy_since=NOW - 2 * DAY_MS + 1)
        assert failure_in(judge_outcome(BUSY, last)).reason == "busy"

    def test_a_failure_gives_a_busy_receiver_another_day(self) -> None:
        failed = judge_outcome(FAILED, a_failure(busy_since=NOW - DAY_MS + 1), now=NOW)
        assert judge_outcome(BUSY, failed.failure, now=NOW + 10_000).target is SettleTarget.ERROR


class TestOwnPause:
    """A pause that a receiver asked for one task alone, by `later-after`."""

    @each_case(("outcome", "pause_ms"), [(FAILED, 10), (BUSY, 1000)], ids=["failed", "busy"])
    def test_a_pause_of_zero_is_the_shortest(self, outcome: Outcome, pause_ms: int) -> None:
        assert judge_outcome(pausing(outcome, 0)).at == NOW + pause_ms

    @each_case("outcome", [FAILED, BUSY], ids=["failed", "busy"])
    def test_a_pause_may_be_longer_than_a_day(self, outcome: Outcome) -> None:
        assert judge_outcome(pausing(outcome, 3 * DAY_MS)).at == NOW + 3 * DAY_MS

    def test_after_a_failure_it_spends_a_retry(self) -> None:
        assert failure_in(judge_outcome(pausing(FAILED, 5000), a_failure(2))).failures == 3

    def test_after_the_last_retry_it_does_not_help(self) -> None:
        assert judge_outcome(pausing(FAILED, 5000), a_failure(3)).target is SettleTarget.DEAD

    def test_after_a_busy_answer_it_spends_no_retry(self) -> None:
        assert failure_in(judge_outcome(pausing(BUSY, 5000), a_failure(3))).failures == 3

    def test_gone_is_gone_whatever_the_pause(self) -> None:
        assert judge_outcome(pausing(GONE, 5000)).target is SettleTarget.DEAD

    @each_case("late_ms", [-DAY_MS, 0, 2 * DAY_MS], ids=["early", "in time", "late"])
    def test_the_day_of_busy_answers_begins_with_the_first_one_after_such_a_pause(self, late_ms: int) -> None:
        paused = judge_outcome(pausing(BUSY, 3 * DAY_MS), a_failure(busy_since=NOW - DAY_MS + 1))
        now = paused.at + late_ms
        again = judge_outcome(BUSY, paused.failure, now=now)
        assert again.target is SettleTarget.ERROR
        assert judge_outcome(BUSY, again.failure, now=now + DAY_MS - 1).target is SettleTarget.ERROR
        assert judge_outcome(BUSY, again.failure, now=now + DAY_MS).target is SettleTarget.DEAD

    @given(
        TASKS, st.none() | FAILURES, OUTCOMES, TIMES, POLICIES, RANDOM_NUMBERS, st.integers(0, MAX_AHEAD_MS)
    )  # fmt: skip
    def test_the_next_attempt_comes_after_exactly_this_pause(
        self,
        task: Task,
        last: Failure | None,
        outcome: Outcome,
        now: int,
        policy: Policy,
        random: float,
        pause_ms: int,
    ) -> None:
        verdict = judge(task, 1, last, pausing(outcome, pause_ms), now, policy, random)
        shortest_ms = 1000 if outcome.kind is OutcomeKind.BUSY else 10
        assert verdict.target is not SettleTarget.ERROR or verdict.at == now + max(pause_ms, shortest_ms)

    @given(TASKS, st.none() | FAILURES, TIMES, POLICIES, RANDOM_NUMBERS, st.integers(0, MAX_AHEAD_MS))
    def test_only_the_ttl_ends_a_task_that_is_busy_with_such_a_pause(
        self, task: Task, last: Failure | None, now: int, policy: Policy, random: float, pause_ms: int
    ) -> None:
        verdict = judge(task, 1, last, pausing(BUSY, pause_ms), now, policy, random)
        assert (verdict.target is SettleTarget.DEAD) is is_expired(task, now)

    @given(st.integers(0, 5), st.lists(st.none() | st.integers(0, MAX_AHEAD_MS), max_size=10))
    def test_a_task_has_as_many_retries_with_it_as_without(self, max_retry: int, pauses: list[int | None]) -> None:
        task, last, now = a_task(max_retry=max_retry), None, NOW
        for attempt, pause_ms in enumerate(pauses, start=1):
            verdict = judge_outcome(pausing(FAILED, pause_ms), last, task=task, attempt=attempt, now=now)
            last, now = verdict.failure, verdict.at
            assert (verdict.target is SettleTarget.DEAD) is (attempt > max_retry)
            if verdict.target is SettleTarget.DEAD:
                break


class TestAnyOutcome:
    @given(
        TASKS,
        st.integers(0, 2**62),
        st.none() | FAILURES,
        OUTCOMES,
        TIMES,
        POLICIES,
        RANDOM_NUMBERS,
    )
    @example(a_task(), 1, None, msgspec.structs.replace(BUSY, retry_after_ms=-1), 0, DEFAULT_POLICY, 0.0)
    def test_a_verdict_can_be_stored(
        self,
        task: Task,
        attempt: int,
        last: Failure | None,
        outcome: Outcome,
        now: int,
        policy: Policy,
        random: float,
    ) -> None:
        failure = judge(task, attempt, last, outcome, now, policy, random).failure or NO_FAILURE
        earlier = tuple(msgspec.structs.replace(past, reason="") for past in failure.earlier)
        storable = msgspec.structs.replace(failure, reason="", earlier=earlier)  # reasons are words of ours
        assert decode_failure(encode_failure(storable)) == storable

    @given(TASKS, st.none() | FAILURES, OUTCOMES, TIMES, POLICIES, RANDOM_NUMBERS)
    def test_a_verdict_is_never_before_now(
        self,
        task: Task,
        last: Failure | None,
        outcome: Outcome,
        now: int,
        policy: Policy,
        random: float,
    ) -> None:
        verdict = judge(task, 1, last, outcome, now, policy, random)
        assert verdict.at >= now or verdict.at == task.expires_at

    @given(TASKS, st.none() | FAILURES, OUTCOMES, TIMES, POLICIES, RANDOM_NUMBERS)
    def test_a_pause_is_at_most_a_day_or_the_operators_cap_or_the_tasks_own(
        self,
        task: Task,
        last: Failure | None,
        outcome: Outcome,
        now: int,
        policy: Policy,
        random: float,
    ) -> None:
        verdict = judge(task, 1, last, outcome, now, policy, random)
        own_pause_ms = outcome.later_after_ms or 0
        assert verdict.at - now <= max(DAY_MS, 2 * policy.retry_cap_ms, own_pause_ms)

    @given(st.integers(0, 5), st.lists(st.sampled_from([BUSY, FAILED]), max_size=20))
    def test_a_task_that_is_not_dead_has_at_most_its_retries(self, max_retry: int, outcomes: list[Outcome]) -> None:
        task, verdict = a_task(id="some-id", max_retry=max_retry), Verdict(SettleTarget.ERROR, NOW, NO_FAILURE)
        for attempt, outcome in enumerate(outcomes, start=1):
            last = failure_in(verdict)
            verdict = judge_outcome(outcome, last, task=task, attempt=attempt, now=verdict.at)
            if verdict.target is SettleTarget.DEAD:
                break
        assert (failure_in(verdict).failures <= max_retry) is (verdict.target is SettleTarget.ERROR)


class TestNack:
    @each_case(
        ("nack", "target", "pause_ms", "failures", "reason"),
        [
            (Nack(), SettleTarget.ERROR, 20_000, 2, "nack"),
            (Nack(reason="no_disk", delay_ms=0), SettleTarget.ERROR, 10, 2, "no_disk"),
            (Nack(delay_ms=5_000), SettleTarget.ERROR, 5_000, 2, "nack"),
            (Nack(is_busy=True), SettleTarget.ERROR, 10_000, 1, "nack"),
            (Nack(is_busy=True, delay_ms=90_000), SettleTarget.ERROR, 90_000, 1, "nack"),
            (Nack(is_final=True, delay_ms=5_000), SettleTarget.DEAD, 0, 2, "rejected"),
        ],
    )
    def test_a_nack_is_judged_as_its_consumer_says(
        self, nack: Nack, target: SettleTarget, pause_ms: int, failures: int, reason: str
    ) -> None:
        policy = Policy(retry_base_ms=10_000)
        verdict = judge_nack(a_task(max_retry=5), 2, a_failure(1), nack, NOW, policy, 0.0)
        failure = failure_in(verdict)
        assert (verdict.target, verdict.at - NOW) == (target, pause_ms)
        assert (failure.failures, failure.reason, failure.attempt) == (failures, reason, 2)

    def test_the_last_retry_exhausts_a_task_and_the_message_is_kept(self) -> None:
        verdict = judge_nack(a_task(max_retry=1), 2, a_failure(1), Nack(message="m" * 400), NOW, Policy(), 0.0)
        failure = failure_in(verdict)
        assert (verdict.target, failure.reason) == (SettleTarget.DEAD, "exhausted")
        assert failure.message == f"2 failures, the last: {'m' * 400}"

    def test_a_message_of_any_length_is_cut_to_500_characters(self) -> None:
        for nack in (Nack(message="m" * 501), Nack(message="\ud800" * 300, is_final=True)):
            assert len(failure_in(judge_nack(a_task(), 1, None, nack, NOW, Policy(), 0.0)).message) == 500


class TestUnsent:
    @each_case(("attempt", "reason"), [(1, None), (3, None), (4, "it was claimed 3 times, and never done")])
    def test_a_task_may_be_claimed_so_often_and_no_more(self, attempt: int, reason: str | None) -> None:
        verdict = judge_unsent(a_task(), attempt, a_failure(1, attempt=attempt - 1), NOW, max_claims=3)
        assert (verdict and failure_in(verdict).message) == reason
        assert verdict is None or failure_in(verdict).reason == "lost"

    def test_a_limit_of_claims_stands_in_for_that_of_lost_leases(self) -> None:
        assert judge_unsent(a_task(), 100, None, NOW, max_claims=100) is None
        verdict = judge_unsent(a_task(), 2, None, NOW, max_claims=1)
        assert failure_in(verdict).message == "it was claimed once, and never done"

    def test_a_task_without_a_callback_is_dead_where_tasks_are_delivered(self) -> None:
        verdict = judge_uncallable(2, a_failure(1), NOW)
        assert (verdict.target, failure_in(verdict).reason) == (SettleTarget.DEAD, "no callback")

    def test_a_fresh_task_may_be_sent(self) -> None:
        assert judge_unsent(a_task(), 1, None, NOW) is None

    @each_case(("now", "target"), [(NOW + 4_999, None), (NOW + 5_000, SettleTarget.DEAD)])
    def test_at_the_tie_expiry_wins(self, now: int, target: SettleTarget | None) -> None:
        verdict = judge_unsent(a_task(ttl=5), 1, None, now)
        assert (verdict and verdict.target) is target

    def test_an_expired_task_is_dead_and_says_why(self) -> None:
        last = a_failure(2, busy_since=NOW - 5, attempt=2)
        assert judge_unsent(a_task(ttl=5), 3, last, NOW + 9_000) == Verdict(
            SettleTarget.DEAD,
            NOW + 9_000,
            Failure(2, "expired", 500, "its ttl ended before it was done", NOW + 9_000, None, 3, earlier=last.all),
        )

    @each_case("last", [None, a_failure(attempt=5), a_failure(busy_since=NOW - 9, attempt=40)])
    def test_sixteen_lost_leases_in_a_row_are_tolerated(self, last: Failure | None) -> None:
        since = last.attempt if last else 0
        assert judge_unsent(a_task(), since + 16 + 1, last, NOW) is None

    @each_case("last", [None, a_failure(attempt=5), a_failure(busy_since=NOW - 9, attempt=40)])
    def test_seventeen_lost_leases_in_a_row_are_too_many(self, last: Failure | None) -> None:
        since = last.attempt if last else 0
        assert failure_in(judge_unsent(a_task(), since + 17 + 1, last, NOW)).reason == "lost"

    def test_a_lost_task_is_dead_and_says_how_often(self) -> None:
        assert judge_unsent(a_task(), 18, None, NOW) == Verdict(
            SettleTarget.DEAD, NOW, Failure(0, "lost", None, "17 leases were lost in a row", NOW, None, 18)
        )

    def test_a_task_that_is_lost_and_expired_is_expired(self) -> None:
        assert failure_in(judge_unsent(a_task(ttl=0), 99, None, NOW)).reason == "expired"

    @given(TASKS, INTEGERS, st.none() | FAILURES, TIMES)
    def test_a_task_is_left_unsent_only_if_it_is_dead(
        self, task: Task, attempt: int, last: Failure | None, now: int
    ) -> None:
        verdict = judge_unsent(task, attempt, last, now)
        assert verdict is None or verdict.target is SettleTarget.DEAD

    def test_an_unreadable_task_is_dead_and_says_why(self) -> None:
        assert judge_unreadable(3, UnreadableBody("cannot be read"), NOW) == Verdict(
            SettleTarget.DEAD, NOW, Failure(0, "body", None, "cannot be read", NOW, None, 3)
        )


class TestStoredFailure:
    @given(FAILURES)
    @example(NO_FAILURE)
    def test_a_failure_is_read_as_it_was_written(self, failure: Failure) -> None:
        assert decode_failure(encode_failure(failure)) == failure

    @each_case(
        "stored",
        [
            b"",
            b"\xff",
            b"\xc1",
            b"garbage",
            b"\x97",
            b"\x97\x01",
            b"\xdd\xff\xff\xff\xff",
            b"\x97\x00\xa1\xff\xc0\xa0\x00\xc0\x00",
            b"\x98\x00\xa0\xc0\xa0\x00\xc0\x00" + b"\x91" * 100_000 + b"\xc0",
            msgspec.msgpack.encode(["1", "status", 500, "", 0, None, 0]),
            msgspec.msgpack.encode({"failures": 1}),
        ],
    )
    def test_garbage_counts_as_no_failure(self, stored: bytes) -> None:
        assert decode_failure(stored) == NO_FAILURE

    @given(st.binary())
    def test_any_bytes_decode_to_a_failure(self, stored: bytes) -> None:
        assert isinstance(decode_failure(stored), Failure)

    @given(FAILURES, st.data())
    def test_a_truncated_failure_counts_as_none(self, failure: Failure, data: st.DataObject) -> None:
        stored = encode_failure(failure)
        cut = data.draw(st.integers(0, len(stored) - 1))
        assert decode_failure(stored[:cut]) == NO_FAILURE
