"""Why something has not run yet: a sentence, and the figures behind it. Pure: it is told all that it judges by.

What stands most in the way is said first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from later.core.clock import rfc3339
from later.core.policy import Policy
from later.core.policy import format_policy as shown_policy
from later.core.retry import Failure
from later.core.task import Task

HEARTBEAT_TIMEOUT_MS = 10_000
"""A worker that has not beaten for so long counts as gone."""
SLOT_WAIT_MS = 1000
"""What is due for so long, of a topic without limits that has deliveries under way, waits for a hand."""
SHORT_HOLD_MS = 1100
"""How long a topic is held at most for the sake of its rate, beside the time of one task of it, or as it is resumed."""
POLICY_FIELDS = (
    "paused",
    "rate",
    "concurrency",
    "delay_mode",
    "max_delay",
    "ttl",
    "timeout",
    "retry_base",
    "retry_cap",
)
"""Of a policy: what decides when a task runs."""

Details = dict[str, Any]


class TopicFacts(NamedTuple):
    """A topic at one moment. Times in ms of the store's clock.

    `held_until` and `full_speed_at` may have passed; `beat_at` is the last beat of any worker. None: there is none.
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


class TaskFacts(NamedTuple):
    """A task where it was found. `score` is its bucket's; `task` is None where its body cannot be read.

    `lease_ms` is how long leases of its topic are.
    """

    id: str
    state: str
    score: int
    attempts: int
    failure: Failure | None
    task: Task | None
    lease_ms: int


class Explanation(NamedTuple):
    """A sentence, and what it was made from."""

    sentence: str
    details: Details


def explain_task(task: TaskFacts, topic: TopicFacts, now: int) -> Explanation:
    """Why `task`, which is of `topic`, has not run by `now`."""
    reasons = _REASONS[task.state](task, topic, now)
    figures = {"id": task.id, "topic": topic.name, **_task_figures(task, now), **_topic_figures(topic, now)}
    return Explanation("; ".join(reasons), figures)


def explain_topic(topic: TopicFacts, now: int) -> Explanation:
    """Why what `topic` holds has not run by `now`."""
    if topic.due:
        since = 0 if topic.oldest_due_at is None else now - topic.oldest_due_at
        reasons = [*_obstacles(topic, now), f"{_tasks(topic.due)} due, the oldest since {format_duration(since)}"]
    else:
        reasons = [_nothing_due(topic, now), *_obstacles_by(topic.next_due_at or now, topic, now)]
    return Explanation("; ".join(reasons), {"topic": topic.name, **_topic_figures(topic, now)})


# Tasks, by their state


def _waiting(task: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    """In delay."""
    if task.score > now:
        yield f"due in {format_duration(task.score - now)}"
        yield from _obstacles_by(task.score, topic, now)
    else:
        yield from _obstacles(topic, now)
        yield f"due since {format_duration(now - task.score)}"
        if topic.due > 1 and topic.oldest_due_at is not None:
            yield f"{_tasks(topic.due)} of its topic due, the oldest since {format_duration(now - topic.oldest_due_at)}"
    if task.failure is not None:
        tried = "its receiver was busy" if task.failure.busy_since is not None else _retry(task, task.failure)
        yield f"{tried}, {_last(task.failure)}"
    yield from _too_old_by_then(task, now)


def _pausing(task: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    """In error."""
    failure = task.failure
    when = (
        f"at {format_time(task.score, now)}" if task.score > now else f"due since {format_duration(now - task.score)}"
    )
    if failure is None:
        yield f"its next try is {when}"
    elif failure.busy_since is not None:
        yield f"its receiver was busy: it is called again {when}, {_last(failure)}"
    else:
        yield f"{_retry(task, failure)} {when}, {_last(failure)}"
    yield from _obstacles_by(task.score, topic, now) if task.score > now else _obstacles(topic, now)
    yield from _too_old_by_then(task, now)


def _in_flight(task: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    if task.score > now:
        yield f"in flight since {format_duration(now - (task.score - task.lease_ms))} on attempt {task.attempts}"
    else:
        ago = format_duration(now - task.score)
        yield f"the lease of attempt {task.attempts} ran out {ago} ago: it will be tried again"
        yield from _nobody_works(topic, now)


def _dead(task: TaskFacts, topic: TopicFacts, now: int) -> Iterator[str]:
    failure = task.failure
    if failure is None:
        yield "dead, and nothing says why"
    elif failure.reason == "exhausted":
        last = failure.message.partition(", the last: ")[2] or failure.message
        yield f"dead because {_retries(task.task)} exhausted: {last}"
    elif failure.reason == "gone":
        yield f"dead because its receiver said that it is gone: {failure.message}"
    else:
        yield f"dead because {failure.message}"


def _too_old_by_then(task: TaskFacts, now: int) -> Iterator[str]:
    if task.task is None:
        yield "its body cannot be read: it will die of that"
        return
    expires_at = task.task.expires_at
    if expires_at is None:
        return
    if expires_at <= now:
        yield f"its ttl ended {format_duration(now - expires_at)} ago: it is not delivered any more"
    elif expires_at <= task.score:
        yield f"its ttl ends before that, at {format_time(expires_at, now)}: it will not be delivered"


_REASONS = {"delay": _waiting, "error": _pausing, "unack": _in_flight, "dead": _dead}


def _retry(task: TaskFacts, failure: Failure) -> str:
    of = "" if task.task is None else f" of {task.task.max_retry}"
    return f"retry {max(failure.failures, 1)}{of}"


def _last(failure: Failure) -> str:
    by_status = failure.reason == "status" and failure.status is not None
    return f"last answer {failure.status}" if by_status else f"last error: {failure.message}"


# What keeps a topic's due tasks waiting


def _obstacles(topic: TopicFacts, now: int) -> Iterator[str]:
    """In order of importance; those first that keep everything waiting."""
    yield from _standing_obstacles(topic, now)
    if topic.paused or topic.policy.paused:
        return
    if topic.held_until is not None and topic.held_until > now:
        yield _why_held(topic, topic.held_until, now)
    limit = topic.policy.concurrency
    late = topic.oldest_due_at is not None and now - topic.oldest_due_at >= SLOT_WAIT_MS
    if topic.unack >= limit if limit else topic.unack and late:
        yield f"{topic.unack} of its topic's deliveries are under way: its lane is full"
    if topic.full_speed_at is not None and topic.full_speed_at > now:
        yield f"its topic comes back to full speed until {format_time(topic.full_speed_at, now)}"


def _obstacles_by(due_at: int, topic: TopicFacts, now: int) -> Iterator[str]:
    """What will keep a task waiting that is due then."""
    yield from _standing_obstacles(topic, now)
    if not (topic.paused or topic.policy.paused) and topic.held_until is not None and topic.held_until > due_at > now:
        yield _why_held(topic, topic.held_until, now)


def _standing_obstacles(topic: TopicFacts, now: int) -> Iterator[str]:
    """Those that somebody must do away with, whenever a task is due."""
    yield from _nobody_works(topic, now)
    if topic.policy.paused:
        yield "its topic is paused"
    elif topic.paused:
        yield "its topic was resumed just now, and goes on within a few seconds"


def _nobody_works(topic: TopicFacts, now: int) -> Iterator[str]:
    if topic.last_heartbeat_at is None:
        yield "no worker runs"
    elif now - topic.last_heartbeat_at >= HEARTBEAT_TIMEOUT_MS:
        yield f"no worker has beaten for {format_duration(now - topic.last_heartbeat_at)}"


def _why_held(topic: TopicFacts, until: int, now: int) -> str:
    rate = topic.policy.rate
    if rate and until - now <= max(1000 / rate, SHORT_HOLD_MS):
        return f"its topic waits for its rate of {rate:g}/s"
    if until - now <= SHORT_HOLD_MS:
        rest = format_duration(until - now)
        return f"its topic waits for another {rest}, as its receiver asked, or as it was resumed just now"
    return f"its topic waits until {format_time(until, now)}, as its receiver asked"


def _nothing_due(topic: TopicFacts, now: int) -> str:
    others = ((topic.unack, "in flight"), (topic.error, "between two tries"), (topic.dead, "dead"))
    there_is = [f"{_tasks(count)} {where}" for count, where in others if count]
    if topic.next_due_at is not None and topic.delay:
        there_is.insert(0, f"the next is due in {format_duration(max(topic.next_due_at - now, 0))}")
    return f"nothing of it is due: {', '.join(there_is)}" if there_is else "it has no tasks"


# Figures


def _task_figures(task: TaskFacts, now: int) -> Details:
    failure, body = task.failure, task.task
    dead = task.state == "dead"
    expires_at = None if body is None or body.expires_at is None else rfc3339(body.expires_at)
    return {
        "state": task.state,
        "died_at" if dead else "due_at": rfc3339(task.score),
        **({"dead_for_s": (now - task.score) / 1000} if dead else {"due_in_s": (task.score - now) / 1000}),
        "attempts": task.attempts,
        "failures": 0 if failure is None else failure.failures,
        "max_retry": None if body is None else body.max_retry,
        "expires_at": expires_at,
    }


def _topic_figures(topic: TopicFacts, now: int) -> Details:
    policy = shown_policy(topic.policy)
    held = topic.held_until is not None and topic.held_until > now
    oldest = topic.oldest_due_at
    return {
        "counts": {"delay": topic.delay, "unack": topic.unack, "error": topic.error, "dead": topic.dead},
        "due": topic.due,
        "oldest_lateness_s": None if oldest is None else (now - oldest) / 1000,
        "next_due_at": None if topic.next_due_at is None else rfc3339(topic.next_due_at),
        "paused": topic.paused or topic.policy.paused,
        "held_until": rfc3339(topic.held_until) if held and topic.held_until is not None else None,
        "workers": topic.workers,
        "last_beat_s": None if topic.last_heartbeat_at is None else max(now - topic.last_heartbeat_at, 0) / 1000,
        "policy": {name: policy[name] for name in POLICY_FIELDS},
    }


# Words


def format_duration(ms: int) -> str:
    """A length of time as one says it: `0.4 s`, `40 s`, `12 min`, `3 h`, `5 d`."""
    seconds = max(ms, 0) / 1000
    if seconds < 1:
        return f"{seconds:.1g} s"
    for unit, size in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < _UP_TO[unit]:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86_400)} d"


_UP_TO = {"s": 120, "min": 7200, "h": 172_800}


def format_time(ms: int, now: int) -> str:
    """A time to the second: without its date where that is today's."""
    text = f"{rfc3339(ms)[:19]}Z"
    return text[11:] if text[:10] == rfc3339(now)[:10] else text


def _tasks(count: int) -> str:
    return "1 task is" if count == 1 else f"{count:,} tasks are"


def _retries(task: Task | None) -> str:
    if task is None:
        return "its retries were"
    if not task.max_retry:
        return "it had no retries, which were"
    return "its 1 retry was" if task.max_retry == 1 else f"its {task.max_retry} retries were"
