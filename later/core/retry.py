"""What one delivery came to, and what follows from it: a pure judgement.

The rules are those of the callback's contract: done, busy, failed or gone; a pause that doubles after each
failure; dead after the last one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from later.core.errors import UnreadableBody
from later.core.task import Task
from later.core.validation import DAY_MS

MAX_LOST_LEASES = 16
"""Leases lost in a row before a task is given up: it probably takes its worker down with it."""
MAX_BUSY_MS = DAY_MS
MIN_PAUSE_MS = 10
"""The shortest pause between two tries, also where a topic's base or cap is 0."""
MIN_BUSY_PAUSE_MS = 1000
"""The shortest pause that is given to a busy receiver: one that asks for none would be called without end."""
MAX_MESSAGE_CHARS = 200


class OutcomeKind(StrEnum):
    """What an answer means."""

    DONE = "done"
    BUSY = "busy"
    FAILED = "failed"
    GONE = "gone"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one delivery came to.

    `reason` is a word of the contract ("status", "code", "timeout", "connect", "reply"), "" where it is done;
    `retry_after_ms` is the pause that a busy receiver asked for.
    """

    kind: OutcomeKind
    reason: str = ""
    status: int | None = None
    message: str = ""
    retry_after_ms: int | None = None


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """The last outcome that was not done, as the store keeps it between two attempts. Times in ms."""

    failures: int
    """So far; busy answers do not count."""
    reason: str
    status: int | None
    message: str
    at: int
    busy_since: int | None
    """The first of the busy answers that came without a break; None after any other."""
    attempt: int
    """The attempt that it was the outcome of: later ones whose outcome is unknown are lost leases."""


class SettleTarget(StrEnum):
    """Where a verdict sends a task."""

    DONE = "done"
    ERROR = "error"
    DEAD = "dead"


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a task. `at` (ms): for a retry the next attempt's time, else the verdict's own."""

    target: SettleTarget
    at: int
    failure: Failure | None = None


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The pauses between tries: base · 2^(n-1) after the n-th failure, up to a cap; ms.

    `jitter` (0 to 1) lengthens a pause by up to that share of itself, so that tasks that failed together come
    back apart.
    """

    base_ms: int = 10_000
    cap_ms: int = 3_600_000
    jitter: float = 0.0

    def pause(self, failures: int, random: float) -> int:
        """The pause in ms after the n-th failure in a row; `chance` is a random number in [0, 1)."""
        doublings = min(max(failures, 1) - 1, 62)  # more would only make a longer integer: the cap is reached
        pause = min(self.base_ms << doublings, self.cap_ms)
        return pause + int(pause * self.jitter * random)


NO_FAILURE = Failure(0, "", None, "", 0, None, 0)


def judge(
    task: Task,
    attempt: int,
    last: Failure | None,
    outcome: Outcome,
    now: int,
    backoff: Backoff,
    random: float,
) -> Verdict:
    """What becomes of `task` after its `attempt` came to `outcome` at `now` (ms).

    `last` is its last failure, None where there was none; `chance` in [0, 1) feeds the jitter.
    """
    last = last or NO_FAILURE
    match outcome.kind:
        case OutcomeKind.DONE:
            return Verdict(SettleTarget.DONE, now)
        case OutcomeKind.GONE:
            return Verdict(SettleTarget.DEAD, now, _failed(last, attempt, outcome, now, reason="gone"))
        case OutcomeKind.BUSY:
            return _judge_busy(task, _busy(last, attempt, outcome, now), outcome, backoff, random)
        case OutcomeKind.FAILED:
            return _judge_failed(task, _failed(last, attempt, outcome, now), backoff, random)


def judge_unsent(task: Task, attempt: int, last: Failure | None, now: int) -> Verdict | None:
    """The verdict on a task that was claimed but must not be sent; None where nothing is against it.

    It is judged after the claim, so that whoever gives it up holds its lease.
    """
    last = last or NO_FAILURE
    if task.is_expired(now):
        return Verdict(SettleTarget.DEAD, now, expiry_failure(last, now, attempt))
    lost = attempt - 1 - last.attempt
    if lost > MAX_LOST_LEASES:
        return Verdict(
            SettleTarget.DEAD, now, _given_up(last, attempt, now, "lost", f"{lost} leases were lost in a row")
        )
    return None


def expiry_failure(last: Failure | None, now: int, attempt: int | None = None) -> Failure:
    """What is kept of a task whose ttl ended before it was done.

    `last` is its failure before that; `attempt` is the one that came too late (None: none was made since `last`).
    """
    last = last or NO_FAILURE
    made = last.attempt if attempt is None else attempt
    return _given_up(last, made, now, "expired", "its ttl ended before it was done")


def judge_unreadable(attempt: int, error: UnreadableBody, now: int) -> Verdict:
    """The verdict on a task whose body cannot be decoded: dead, the body kept as it is."""
    return Verdict(SettleTarget.DEAD, now, _given_up(NO_FAILURE, attempt, now, "body", str(error)))


def _judge_failed(task: Task, failure: Failure, backoff: Backoff, random: float) -> Verdict:
    if failure.failures > task.max_retry:
        text = _short(f"{failure.failures} failures, the last: {failure.message}")
        exhausted = msgspec.structs.replace(failure, reason="exhausted", message=text)
        return Verdict(SettleTarget.DEAD, failure.at, exhausted)
    return _retry(task, failure, backoff.pause(failure.failures, random))


def _judge_busy(task: Task, failure: Failure, outcome: Outcome, backoff: Backoff, random: float) -> Verdict:
    assert failure.busy_since is not None  # `_busy` sets it
    if failure.at - failure.busy_since >= MAX_BUSY_MS:
        text = _short(f"busy for a day, the last: {failure.message}")
        return Verdict(SettleTarget.DEAD, failure.at, msgspec.structs.replace(failure, reason="busy", message=text))
    asked = outcome.retry_after_ms
    pause = backoff.pause(1, random) if asked is None else min(max(asked, MIN_BUSY_PAUSE_MS), DAY_MS)
    return _retry(task, failure, pause)


def _retry(task: Task, failure: Failure, pause: int) -> Verdict:
    if task.is_expired(failure.at):
        return Verdict(SettleTarget.DEAD, failure.at, expiry_failure(failure, failure.at))
    return Verdict(SettleTarget.ERROR, failure.at + max(pause, MIN_PAUSE_MS), failure)


def _failed(last: Failure, attempt: int, outcome: Outcome, now: int, reason: str = "") -> Failure:
    return Failure(
        last.failures + 1,
        reason or outcome.reason,
        outcome.status,
        _short(outcome.message),
        now,
        None,
        attempt,
    )


def _busy(last: Failure, attempt: int, outcome: Outcome, now: int) -> Failure:
    since = now if last.busy_since is None else last.busy_since
    return Failure(
        last.failures, outcome.reason, outcome.status, _short(outcome.message), now, min(since, now), attempt
    )


def _given_up(last: Failure, attempt: int, now: int, reason: str, message: str) -> Failure:
    return Failure(last.failures, reason, last.status, _short(message), now, None, attempt)


def _short(message: str) -> str:
    """Fit to be stored: messages quote a receiver's bytes, which may be no Unicode."""
    message = message.encode("utf-8", "backslashreplace").decode()
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Failure)


def encode_failure(failure: Failure) -> bytes:
    """What the store keeps under the task's id in `outcome`."""
    return _encoder.encode(failure)


def decode_failure(stored: bytes) -> Failure:
    """The inverse of `encode_failure`; a record that cannot be read counts as one that says nothing."""
    try:
        return _decoder.decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_FAILURE
