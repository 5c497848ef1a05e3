"""The outcome of a delivery, and the verdict that follows from it.

The rules are those of the callback's contract: done, busy, failed or gone; a pause that doubles after each failure;
dead after the last retry.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from later.core.errors import UnreadableBody
from later.core.past_failures import MAX_FAILURES, PastFailure, PastFailures, keep_last
from later.core.policy import Policy
from later.core.task import Task
from later.core.validation import DAY_MS, MAX_AHEAD_MS

MAX_LOST_LEASES = 16
"""Leases lost in a row before a task is given up, because it probably crashes its worker."""
MAX_BUSY_MS = DAY_MS
MIN_PAUSE_MS = 10
"""The shortest pause between two attempts, even if a topic's base or cap is 0."""
MIN_BUSY_PAUSE_MS = 1000
"""The shortest pause for a busy receiver. One that asks for no pause would be called without end."""
MAX_MESSAGE_CHARS = 200
MAX_NACK_CHARS = 500
"""Characters of a consumer's message that are kept."""


DEATH_REASONS = ("exhausted", "gone", "busy", "expired", "lost", "body", "address", "rejected", "no callback")
"""Every reason for which a task dies, as its last failure has it."""


class OutcomeKind(StrEnum):
    """The meaning of a receiver's answer."""

    DONE = "done"
    BUSY = "busy"
    FAILED = "failed"
    GONE = "gone"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one delivery.

    `reason` is a word of the contract ("status", "code", "timeout", "connect", "reply", "proxy", "address"), or "" if
    it is done. `retry_after_ms` is the pause that a busy receiver asked for. `later_after_ms` is the pause that a
    receiver asked for this task alone; then there is no `retry_after_ms`. More than `max_message_chars` of the message
    are not kept. `took_ms` is how long the call took, if there was one.
    """

    kind: OutcomeKind
    reason: str = ""
    status: int | None = None
    message: str = ""
    retry_after_ms: int | None = None
    later_after_ms: int | None = None
    max_message_chars: int = MAX_MESSAGE_CHARS
    took_ms: int | None = None


class Nack(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's word that it could not do a task that it has claimed.

    `reason` is a word of its own, "" for none. `delay_ms` is the pause until the next attempt; None leaves it to the
    topic's backoff. `is_busy` costs the task no retry; `is_final` makes it dead at once.
    """

    message: str = ""
    reason: str = ""
    delay_ms: int | None = None
    is_busy: bool = False
    is_final: bool = False


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """The last outcome that was not done, as the store keeps it between two attempts. Times are in ms.

    Fields are only ever added at the end, with a default: a daemon of another version on the same store takes the
    default for those that are missing, and passes over those that it does not know.
    """

    failures: int
    """The number of failures so far. Busy answers do not count."""
    reason: str
    status: int | None
    message: str
    at: int
    busy_since: int | None
    """The time of the first busy answer in a row; None if the last answer was not busy.

    After an answer with a pause for this task alone it is the end of that pause, which is later than `at`. No row has
    begun then, because the receiver is well, and decided when to be called again.
    """
    attempt: int
    """The attempt that had this outcome. Later attempts, whose outcomes are unknown, lost their leases."""
    took_ms: int | None = None
    """How long the call took; None if there was none, or if that is not known."""
    earlier: PastFailures = ()
    """The failures before this one that are kept."""

    @property
    def all(self) -> PastFailures:
        """This failure and those before it that are kept, the oldest first."""
        last = PastFailure(self.attempt, self.at, self.reason, self.status, self.took_ms, self.message)
        return (*self.earlier, last) if self.reason else self.earlier


class SettleTarget(StrEnum):
    """The target to which a settle moves a task: out of the store, or the bucket of this name."""

    DONE = "done"
    ERROR = "error"
    DEAD = "dead"


class Verdict(msgspec.Struct, frozen=True):
    """The decision on a task after an attempt. `at` (ms) is the time of the next attempt, or else of the verdict.

    `moved` is the task as it lives on in another topic, due at `at`, if it died in one that has a dead-letter topic.
    `follow_up` is the task that is made when this one ends so (see `follow_up.py`), if one is.
    """

    target: SettleTarget
    at: int
    failure: Failure | None = None
    moved: Task | None = None
    follow_up: Task | None = None


NO_FAILURE = Failure(0, "", None, "", 0, None, 0)


def judge(
    task: Task,
    attempt: int,
    last: Failure | None,
    outcome: Outcome,
    now: int,
    policy: Policy,
    random: float,
    *,
    keep: int = MAX_FAILURES,
) -> Verdict:
    """Return the verdict on `task` after the `outcome` of its `attempt` at `now` (ms).

    `last` is its last failure, None if there was none; `policy` is its topic's; `random` in [0, 1) is for the jitter.
    So many failures are kept as `keep` says.
    """
    last = last or NO_FAILURE
    verdict = _judge(task, attempt, last, outcome, now, policy, random)
    failure = verdict.failure
    if failure is None:
        return verdict
    failure = msgspec.structs.replace(failure, earlier=keep_last((*last.all, *failure.earlier), keep))
    return msgspec.structs.replace(verdict, failure=failure)


def _judge(
    task: Task, attempt: int, last: Failure, outcome: Outcome, now: int, policy: Policy, random: float
) -> Verdict:
    """Return the verdict as `judge` does, but without the failures before it."""
    match outcome.kind:
        case OutcomeKind.DONE:
            return Verdict(SettleTarget.DONE, now)
        case OutcomeKind.GONE:
            message = _shorten(outcome.message)
            took_ms = outcome.took_ms
            failure = Failure(last.failures + 1, "gone", outcome.status, message, now, None, attempt, took_ms)
            return Verdict(SettleTarget.DEAD, now, failure)
        case OutcomeKind.BUSY:
            return _judge_busy(task, attempt, last, outcome, now, policy, random)
        case OutcomeKind.FAILED:
            return _judge_failed(task, attempt, last, outcome, now, policy, random)


def nack_of(outcome: Outcome) -> Nack:
    """Return what a consumer says of an attempt whose outcome is not that it is done: within what later takes."""
    after_ms = outcome.later_after_ms if outcome.retry_after_ms is None else outcome.retry_after_ms
    is_final = outcome.kind is OutcomeKind.GONE
    return Nack(
        message=outcome.message[:MAX_NACK_CHARS].encode(errors="replace").decode(),
        reason=outcome.reason,
        delay_ms=None if after_ms is None or is_final else min(after_ms, MAX_AHEAD_MS),
        is_busy=outcome.kind is OutcomeKind.BUSY,
        is_final=is_final,
    )


def judge_nack(
    task: Task,
    attempt: int,
    last: Failure | None,
    nack: Nack,
    now: int,
    policy: Policy,
    random: float,
    *,
    keep: int = MAX_FAILURES,
) -> Verdict:
    """Return the verdict on `task` whose consumer could not do it in its `attempt`; the rest as for `judge`.

    Nobody knows how long the consumer took.
    """
    message = nack.message or "its consumer could not do it"
    if nack.is_final:
        last = last or NO_FAILURE
        failure = Failure(
            last.failures + 1,
            "rejected",
            None,
            _shorten(message, MAX_NACK_CHARS),
            now,
            None,
            attempt,
            earlier=keep_last(last.all, keep),
        )
        return Verdict(SettleTarget.DEAD, now, failure)
    outcome = Outcome(
        kind=OutcomeKind.BUSY if nack.is_busy else OutcomeKind.FAILED,
        reason=nack.reason or "nack",
        message=message,
        later_after_ms=nack.delay_ms,
        max_message_chars=MAX_NACK_CHARS,
    )
    return judge(task, attempt, last, outcome, now, policy, random, keep=keep)


def _judge_busy(
    task: Task, attempt: int, last: Failure, outcome: Outcome, now: int, policy: Policy, random: float
) -> Verdict:
    message, took_ms = _shorten(outcome.message, outcome.max_message_chars), outcome.took_ms
    own_pause_ms = outcome.later_after_ms
    if own_pause_ms is not None:
        own_pause_ms = max(own_pause_ms, MIN_BUSY_PAUSE_MS)
        failure = Failure(
            last.failures, outcome.reason, outcome.status, message, now, now + own_pause_ms, attempt, took_ms
        )
        return _retry_unless_expired(task, failure, own_pause_ms)
    since = last.busy_since
    busy_since = now if since is None or since > last.at else min(since, now)
    if now - busy_since >= MAX_BUSY_MS:
        message = _shorten(f"busy for a day, the last: {message}", outcome.max_message_chars)
        failure = Failure(last.failures, "busy", outcome.status, message, now, busy_since, attempt, took_ms)
        return Verdict(SettleTarget.DEAD, now, failure)
    requested_ms = outcome.retry_after_ms
    pause_ms = (
        policy.retry_pause_ms(1, random) if requested_ms is None else min(max(requested_ms, MIN_BUSY_PAUSE_MS), DAY_MS)
    )
    failure = Failure(last.failures, outcome.reason, outcome.status, message, now, busy_since, attempt, took_ms)
    return _retry_unless_expired(task, failure, pause_ms)


def _judge_failed(
    task: Task, attempt: int, last: Failure, outcome: Outcome, now: int, policy: Policy, random: float
) -> Verdict:
    failures, message = last.failures + 1, _shorten(outcome.message, outcome.max_message_chars)
    if failures > task.max_retry:
        count = "1 failure" if failures == 1 else f"{failures} failures, the last"
        message = _shorten(f"{count}: {message}", outcome.max_message_chars)
        reason = "address" if outcome.reason == "address" else "exhausted"  # more retries would not have helped
        failure = Failure(failures, reason, outcome.status, message, now, None, attempt, outcome.took_ms)
        return Verdict(SettleTarget.DEAD, now, failure)
    failure = Failure(failures, outcome.reason, outcome.status, message, now, None, attempt, outcome.took_ms)
    own_pause_ms = outcome.later_after_ms
    pause_ms = policy.retry_pause_ms(failures, random) if own_pause_ms is None else own_pause_ms
    return _retry_unless_expired(task, failure, pause_ms)


def _retry_unless_expired(task: Task, failure: Failure, pause_ms: int) -> Verdict:
    if is_expired(task, failure.at):
        return Verdict(SettleTarget.DEAD, failure.at, expiry_failure(failure, failure.at))
    return Verdict(SettleTarget.ERROR, failure.at + max(pause_ms, MIN_PAUSE_MS), failure)


def judge_unsent(
    task: Task, attempt: int, last: Failure | None, now: int, max_claims: int = 0, keep: int = MAX_FAILURES
) -> Verdict | None:
    """Return the verdict on a claimed task that must not be sent, or None if it may be sent.

    It is judged after the claim, so that only the holder of its lease can give it up. With `max_claims`, that many
    attempts are enough, whatever became of them; 0 limits the leases that were lost in a row.
    """
    last = last or NO_FAILURE
    if is_expired(task, now):
        return Verdict(SettleTarget.DEAD, now, expiry_failure(last, now, attempt, keep))
    if max_claims:
        if attempt <= max_claims:
            return None
        times = "once" if attempt == 2 else f"{attempt - 1} times"
        failure = _final_failure(last, attempt, now, "lost", f"it was claimed {times}, and never done", keep)
        return Verdict(SettleTarget.DEAD, now, failure)
    lost_leases = attempt - 1 - last.attempt
    if lost_leases > MAX_LOST_LEASES:
        failure = _final_failure(last, attempt, now, "lost", f"{lost_leases} leases were lost in a row", keep)
        return Verdict(SettleTarget.DEAD, now, failure)
    return None


def judge_uncallable(attempt: int, last: Failure | None, now: int, keep: int = MAX_FAILURES) -> Verdict:
    """Return the verdict on a task without a callback in a topic whose tasks are delivered: dead, to be seen."""
    message = "it has no callback, and its topic's tasks are delivered (deliver push)"
    failure = _final_failure(last or NO_FAILURE, attempt, now, "no callback", message, keep)
    return Verdict(SettleTarget.DEAD, now, failure)


def judge_unreadable(attempt: int, error: UnreadableBody, now: int) -> Verdict:
    """Return the verdict on a task whose body cannot be decoded: dead, and the body is kept as it is."""
    return Verdict(SettleTarget.DEAD, now, _final_failure(NO_FAILURE, attempt, now, "body", str(error)))


def is_expired(task: Task, now: int) -> bool:
    """Return True if the task's ttl has ended. At the tie, expiry wins."""
    return task.expires_at is not None and now >= task.expires_at


def expiry_failure(last: Failure | None, now: int, attempt: int | None = None, keep: int = MAX_FAILURES) -> Failure:
    """Return the failure of a task whose ttl ended before it was done.

    `last` is its failure before that; `attempt` is the one that came too late (None: there was none after `last`).
    """
    last = last or NO_FAILURE
    made = last.attempt if attempt is None else attempt
    return _final_failure(last, made, now, "expired", "its ttl ended before it was done", keep)


def _final_failure(
    last: Failure, attempt: int, now: int, reason: str, message: str, keep: int = MAX_FAILURES
) -> Failure:
    earlier = keep_last(last.all, keep)
    return Failure(last.failures, reason, last.status, _shorten(message), now, None, attempt, earlier=earlier)


def _shorten(message: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Make a message fit to be stored: it may quote bytes of a receiver that are not Unicode."""
    message = message.encode("utf-8", "backslashreplace").decode()
    return message if len(message) <= limit else message[: limit - 1] + "…"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Failure)


def encode_failure(failure: Failure) -> bytes:
    """Return the bytes that the store keeps under the task's id in `outcome`."""
    return _encoder.encode(failure)


def decode_failure(stored: bytes) -> Failure:
    """Decode what `encode_failure` made. A record that cannot be read counts as no failure."""
    try:
        return _decoder.decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_FAILURE
