"""Explanations of why a task, or a topic's tasks, have not run yet: a sentence and the details behind it.

Pure: everything that an explanation depends on is passed in. The sentence begins with the greatest obstacle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from later.core import address_guard
from later.core.clock import rfc3339
from later.core.held import Held
from later.core.policy import Deliver, Policy, format_policy
from later.core.policy_scopes import FOLLOW_UP_FIELDS
from later.core.retry import Failure
from later.core.task import Death, Task

SLOT_WAIT_MS = 1000
"""If tasks of a topic without limits are due for this long while others of it are in flight, they wait for a slot."""
SHORT_HOLD_MS = 1100
"""The longest hold after a resume or by a rate. (A rate below 1/s holds for one task's time.) A receiver asked for any
longer hold."""
RELEVANT_FIELDS = (
    *("paused", "rate", "concurrency", "delay_mode", "max_delay"),
    *("ttl", "timeout", "retry_base", "retry_cap"),
)
"""The fields of a policy that decide when a task runs."""
PULL_FIELDS = ("deliver", "claim_lease", "max_claims")
"""The further fields that decide when a task is claimed, if the topic is pulled."""
DEAD_LETTER_FIELDS = ("dead_to", "dead_ttl")
"""The fields that decide what becomes of a dead task, if it moves to another topic."""

_FAILURE_COUNT = re.compile(r"^[0-9]+ failures?(, the last)?: ")
"""The beginning of the message of an exhausted task."""

Details = dict[str, Any]


class TopicFacts(NamedTuple):
    """A topic at one moment. Times are in ms of the store's clock; None stands for "no such time".

    `paused` is the pause that workers obey; it follows the policy's within seconds. `held_until` and `full_speed_at`
    may be past. `workers` counts those with a recent heartbeat; `last_heartbeat_at` is the latest of any worker.
    """

    name: str
    policy: Policy
    delay: int
    unack: int
    error: int
    dead: int
    due: int
    oldest_due_at: int | None
    next_due_at: int | None
    paused: bool
    held_until: int | None
    full_speed_at: int | None
    workers: int
    last_heartbeat_at: int | None
    waiting_for_origins: Mapping[str, int] = {}
    """How many tasks wait for each origin, among the first tasks in delay: other calls to it must end, or its hold."""
    waiting_after_faults: int = 0
    """How many of them wait because their workers could not make their calls."""
    origin_holds: Mapping[str, int] = {}
    """When (ms) the holds of its origins end."""
    is_namespace_callback: bool = False
    """True if the callback of its policy is that of its namespace."""


class TaskFacts(NamedTuple):
    """A task in its bucket, with its score there. `task` is None if its body cannot be read.

    `lease_ms` is the length of its topic's leases. `origin` is that of its callback, as people write it, and
    `origin_held_until` (ms) when a hold of it in the topic ends, which may be past. `first_due_at` (ms) is when it was
    first due, if it was put back since; `put_back_for` says why.
    """

    id: str
    state: str
    score: int
    attempts: int
    failure: Failure | None
    task: Task | None
    lease_ms: int
    origin: str | None = None
    origin_held_until: int | None = None
    first_due_at: int | None = None
    put_back_for: Held | None = None

    @property
    def due_at(self) -> int:
        return self.score if self.first_due_at is None else self.first_due_at


class Explanation(NamedTuple):
    """A sentence, and the details that it was made from."""

    sentence: str
    details: Details


def explain_task(facts: TaskFacts, topic: TopicFacts, now: int) -> Explanation:
    """Explain why a task of `topic` has not run by `now`."""
    reasons = [*_REASONS_BY_STATE[facts.state](facts, topic, now)]
    task, is_dead = facts.task, facts.state == "dead"
    death = None if task is None else task.death
    if death is not None:
        reasons.append(f"it came from {death.topic}, where it died because {_why_dead(death, task)}")
    if task is not None and task.is_follow_up:
        reasons.append("it was made because another task had ended, which its content names")
    lacks_callback = task is not None and not task.callback and topic.policy.deliver is Deliver.PUSH
    if lacks_callback:
        reasons += _policy_callback(facts, topic)
    details = {
        "id": facts.id,
        "topic": topic.name,
        "state": facts.state,
        "died_at" if is_dead else "due_at": rfc3339(facts.due_at),
        **({"dead_for_s": (now - facts.score) / 1000} if is_dead else {"due_in_s": (facts.due_at - now) / 1000}),
        "attempts": facts.attempts,
        "failures": 0 if facts.failure is None else facts.failure.failures,
        "max_retry": None if task is None else task.max_retry,
        **(_callback_details(topic) if lacks_callback else {}),
        "origin": facts.origin,
        "origin_held_until": _future_time(facts.origin_held_until, now),
        "expires_at": None if task is None or task.expires_at is None else rfc3339(task.expires_at),
        **_topic_details(topic, now),
    }
    return Explanation("; ".join(reasons), details)


def explain_topic(topic: TopicFacts, now: int) -> Explanation:
    """Explain why the tasks of `topic` have not run by `now`."""
    if topic.due:
        overdue_ms = 0 if topic.oldest_due_at is None else now - topic.oldest_due_at
        reasons = [
            *_obstacles(topic, now),
            *_waits_for_origins(topic, now),
            f"{_tasks_are(topic.due)} due, the oldest for {format_duration(overdue_ms)}",
        ]
    else:
        counts = ((topic.unack, "in flight"), (topic.error, "between two attempts"), (topic.dead, "dead"))
        others = [f"{_tasks_are(count)} {where}" for count, where in counts if count]
        if topic.next_due_at is not None and topic.delay:
            others.insert(0, f"the next is due in {format_duration(topic.next_due_at - now)}")
        waits = [*_waits_for_origins(topic, now)]
        reasons = [
            *waits,
            *([] if waits else [f"none of its tasks is due: {', '.join(others)}" if others else "it has no tasks"]),
            *_obstacles_at(topic.next_due_at or now, topic, now),
        ]
    return Explanation("; ".join(reasons), {"topic": topic.name, **_topic_details(topic, now)})


# Callbacks


def _policy_callback(facts: TaskFacts, topic: TopicFacts) -> Iterator[str]:
    """Yield what is called for a task without a callback of its own, or what it needs."""
    level = "namespace" if topic.is_namespace_callback else "topic"
    if facts.state == "dead":
        if facts.failure is not None and facts.failure.reason == "no callback":
            first = "" if topic.policy.callback else "set a callback in its topic's policy, then "
            yield f"to have it called, {first}redrive it"
    elif topic.policy.callback:
        yield f"it has no callback of its own: that of its {level}'s policy is called, {topic.policy.callback}"
    else:
        yield "it has no callback, and neither has its topic's policy: without one it will be dead when it is due"


def _callback_details(topic: TopicFacts) -> Details:
    """Return the callback to call for a task without one of its own, and the level of the policy that names it."""
    level = "namespace" if topic.is_namespace_callback else "topic"
    callback = topic.policy.callback or None
    return {"callback": callback, "callback_from": level if callback else None}


# Tasks, by state


def _explain_delay(facts: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    if facts.due_at > now:
        yield f"due in {format_duration(facts.due_at - now)}"
        yield from _obstacles_at(facts.due_at, topic, now)
        yield from _origin_hold_at(facts, now)
    else:
        origin_hold = [*_origin_hold_at(facts, now)]
        if topic.policy.deliver is Deliver.PULL:
            yield from _obstacles(topic, now)
        elif facts.put_back_for is Held.FAULT:
            yield from _lasting_obstacles(topic, now)
            again = f"in {format_duration(facts.score - now)}" if facts.score > now else "now"
            yield f"its worker could not make the call (its log says why): the next attempt is {again}"
        elif origin_hold or facts.first_due_at is not None:
            yield from _lasting_obstacles(topic, now)
            yield from origin_hold or [f"waits for other calls to {facts.origin} to end"]
        else:
            yield from _obstacles(topic, now)
        yield f"due for {format_duration(now - facts.due_at)}"
        if topic.due > 1 and topic.oldest_due_at is not None:
            oldest = format_duration(now - topic.oldest_due_at)
            yield f"{topic.due:,} tasks of its topic are due, the oldest for {oldest}"
    failure = facts.failure
    if failure is not None:
        reason = _retry_count(facts, failure) if failure.busy_since is None else "its receiver was busy"
        yield f"{reason}, {_last_error(failure)}"
    yield from _expiry(facts, now)


def _explain_error(facts: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    failure = facts.failure
    is_ahead = facts.score > now
    when = f"at {format_time(facts.score, now)}" if is_ahead else f"due for {format_duration(now - facts.score)}"
    if failure is None:
        yield f"its next attempt is {when}"
    elif failure.busy_since is not None:
        yield f"its receiver was busy: next attempt {when}, {_last_error(failure)}"
    else:
        yield f"{_retry_count(facts, failure)} {when}, {_last_error(failure)}"
    if topic.policy.deliver is Deliver.PULL:
        yield from _missing_workers(topic, now)
    yield from _obstacles_at(facts.score, topic, now) if is_ahead else _obstacles(topic, now)
    yield from _origin_hold_at(facts, now)
    yield from _expiry(facts, now)


def _explain_unack(facts: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    if facts.score > now and topic.policy.deliver is Deliver.PULL:
        rest = format_duration(facts.score - now)
        yield f"claimed by a consumer, on attempt {facts.attempts}: its lease ends in {rest}"
    elif facts.score > now:
        claimed_at = facts.score - facts.lease_ms
        yield f"in flight for {format_duration(now - claimed_at)} on attempt {facts.attempts}"
    else:
        ago = format_duration(now - facts.score)
        yield f"the lease of attempt {facts.attempts} expired {ago} ago: it will be retried"
        yield from _missing_workers(topic, now)


def _explain_dead(facts: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    failure = facts.failure
    yield "dead for an unknown reason" if failure is None else f"dead because {_why_dead(failure, facts.task)}"


def _why_dead(failure: Failure | Death, task: Task | None) -> str:
    """Return why a task has died, from its last failure."""
    message = _FAILURE_COUNT.sub("", failure.message)
    match failure.reason:
        case "exhausted":
            why = "its retries were exhausted"
            if task is not None:
                whys = {0: "it failed and had no retries", 1: "its 1 retry was exhausted"}
                why = whys.get(task.max_retry, f"its {task.max_retry} retries were exhausted")
            return f"{why}: {message}"
        case "address":
            return _with_advice(message)
        case "gone":
            return f"its receiver is gone: {failure.message}"
        case "rejected":
            return f"its consumer rejected it: {failure.message}"
    return failure.message


_REASONS_BY_STATE = {
    "delay": _explain_delay,
    "error": _explain_error,
    "unack": _explain_unack,
    "dead": _explain_dead,
}


def _expiry(facts: TaskFacts, now: int) -> Iterator[str]:
    """Yield the reason why the task will never be delivered, if there is one."""
    if facts.task is None:
        yield "its body cannot be read: it will be moved to dead"
        return
    expires_at = facts.task.expires_at
    if expires_at is None:
        return
    if expires_at <= now:
        yield f"its ttl ended {format_duration(now - expires_at)} ago: it will not be delivered"
    elif expires_at <= facts.score:
        yield f"its ttl ends before that, at {format_time(expires_at, now)}: it will not be delivered"


def _origin_hold_at(facts: TaskFacts, now: int) -> Iterator[str]:
    """Yield the hold of the task's origin, if it lasts longer than the task is to wait anyway."""
    until = facts.origin_held_until
    if until is not None and until > max(facts.due_at, now):
        yield f"calls to {facts.origin} are held until {format_time(until, now)}, as it asked"


def _retry_count(facts: TaskFacts, failure: Failure) -> str:
    limit = "" if facts.task is None else f" of {facts.task.max_retry}"
    return f"retry {max(failure.failures, 1)}{limit}"


def _with_advice(message: str) -> str:
    """Return the message of a refusal by the address guard, and what can be done about it."""
    return "; ".join(filter(None, (message, address_guard.advice(message))))


def _last_error(failure: Failure) -> str:
    if failure.reason == "address":
        return f"last error: {_with_advice(failure.message)}"
    if failure.reason != "status" or failure.status is None:
        return f"last error: {failure.message}"
    if failure.message.startswith(answered := f"answered {failure.status}"):
        return f"last answer {failure.status}{failure.message.removeprefix(answered)}"
    return f"last answer {failure.status}: {failure.message}"  # the receiver gave a reason of its own


# Obstacles of a topic


def _obstacles(topic: TopicFacts, now: int) -> Iterator[str]:
    """Yield what keeps due tasks waiting, in the order of importance: first what affects all of them."""
    yield from _lasting_obstacles(topic, now)
    if topic.policy.deliver is Deliver.PULL and not topic.policy.paused:
        yield "waits for a consumer (its topic has deliver pull)"
    if topic.paused or topic.policy.is_held:
        return
    if topic.held_until is not None and topic.held_until > now:
        yield _hold_reason(topic, topic.held_until, now)
    limit = topic.policy.concurrency
    if limit:
        is_full = topic.unack >= limit
    else:
        is_late = topic.oldest_due_at is not None and now - topic.oldest_due_at >= SLOT_WAIT_MS
        is_full = topic.unack > 0 and is_late
    if is_full:
        verb = "is" if topic.unack == 1 else "are"
        yield f"{topic.unack} of its topic's deliveries {verb} in flight: it has no free slot"
    if topic.full_speed_at is not None and topic.full_speed_at > now:
        yield f"its topic is in slow start until {format_time(topic.full_speed_at, now)}"


def _obstacles_at(due_at: int, topic: TopicFacts, now: int) -> Iterator[str]:
    """Yield what will keep a task waiting that is due at `due_at`."""
    yield from _lasting_obstacles(topic, now)
    if not (topic.paused or topic.policy.is_held) and topic.held_until is not None and topic.held_until > due_at > now:
        yield _hold_reason(topic, topic.held_until, now)


def _waits_for_origins(topic: TopicFacts, now: int) -> Iterator[str]:
    """Yield what workers could not call, the origin for which most tasks wait, and those that are held."""
    if topic.waiting_after_faults:
        yield f"workers could not make at least {topic.waiting_after_faults:,} of its calls, and will try them again"
    waiting = {origin: count for origin, count in topic.waiting_for_origins.items() if origin not in topic.origin_holds}
    if waiting:
        origin = max(waiting, key=lambda name: waiting[name])
        verb = "waits" if waiting[origin] == 1 else "wait"
        tasks = "1 task" if waiting[origin] == 1 else f"{waiting[origin]:,} tasks"
        rest = len(waiting) - 1
        others = f", as do tasks of {rest:,} other {'origin' if rest == 1 else 'origins'}" if rest else ""
        yield f"at least {tasks} {verb} for other calls to {origin} to end{others}"
    if topic.origin_holds:
        origin = max(topic.origin_holds, key=lambda name: topic.origin_holds[name])
        until = format_time(topic.origin_holds[origin], now)
        others = f" ({len(topic.origin_holds):,} origins are held)" if len(topic.origin_holds) > 1 else ""
        yield f"calls to {origin} are held until {until}, as it asked{others}"


def _lasting_obstacles(topic: TopicFacts, now: int) -> Iterator[str]:
    """Yield the obstacles that do not pass by themselves. Consumers need no worker to claim tasks."""
    is_pulled = topic.policy.deliver is Deliver.PULL
    if not is_pulled:
        yield from _missing_workers(topic, now)
    if topic.policy.paused:
        yield "its topic is paused"
    elif is_pulled:
        return
    elif topic.paused:
        yield "its topic was just resumed, and continues within a few seconds"


def _missing_workers(topic: TopicFacts, now: int) -> Iterator[str]:
    if topic.last_heartbeat_at is None:
        yield "no worker is running"
    elif not topic.workers:
        yield f"no worker heartbeat for {format_duration(now - topic.last_heartbeat_at)}"


def _hold_reason(topic: TopicFacts, until: int, now: int) -> str:
    rate = topic.policy.rate
    if rate and until - now <= max(1000 / rate, SHORT_HOLD_MS):
        return f"its topic has used up its rate of {rate:g}/s"
    if until - now <= SHORT_HOLD_MS:
        rest = format_duration(until - now)
        return f"its topic is held for another {rest}, because its receiver asked or it was just resumed"
    return f"its topic is held until {format_time(until, now)}, as its receiver asked"


# Details


def _topic_details(topic: TopicFacts, now: int) -> Details:
    policy = format_policy(topic.policy)
    pull_fields = PULL_FIELDS if topic.policy.deliver is Deliver.PULL else ()
    end_fields = [*(DEAD_LETTER_FIELDS if topic.policy.dead_to else ()), *(f for f in FOLLOW_UP_FIELDS if policy[f])]
    fields = (*RELEVANT_FIELDS, *pull_fields, *end_fields)
    oldest_due_at, held_until = topic.oldest_due_at, topic.held_until
    return {
        "counts": {"delay": topic.delay, "unack": topic.unack, "error": topic.error, "dead": topic.dead},
        "due": topic.due,
        "oldest_lateness_s": None if oldest_due_at is None else (now - oldest_due_at) / 1000,
        "next_due_at": None if topic.next_due_at is None else rfc3339(topic.next_due_at),
        "paused": topic.policy.paused or (topic.paused and topic.policy.deliver is Deliver.PUSH),
        "held_until": _future_time(held_until, now),
        "workers": topic.workers,
        "last_beat_s": None if topic.last_heartbeat_at is None else max(now - topic.last_heartbeat_at, 0) / 1000,
        "policy": {name: policy[name] for name in fields},
    }


def _future_time(at: int | None, now: int) -> str | None:
    return rfc3339(at) if at is not None and at > now else None


# Wording


def format_duration(ms: int) -> str:
    """Return a duration for people: `0.4 s`, `40 s`, `12 min`, `3 h`, `5 d`."""
    seconds = max(ms, 0) / 1000
    if seconds < 1:
        return f"{seconds:.1g} s"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86_400)} d"


def format_time(ms: int, now: int) -> str:
    """Return a time to the second, with its date unless that is today."""
    text = f"{rfc3339(ms)[:19]}Z"
    return text[11:] if text[:10] == rfc3339(now)[:10] else text


def _tasks_are(count: int) -> str:
    return "1 task is" if count == 1 else f"{count:,} tasks are"
