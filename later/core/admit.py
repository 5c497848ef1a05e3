"""The decision on a create: admit the draft as a task, or refuse it and name the wrong field."""

from __future__ import annotations

import math

from later.core.callback_url import check_callback
from later.core.caller import ANYBODY, Caller
from later.core.durability import PRIMARY, REMEMBER_MS, Durability, highest, parse_durability
from later.core.errors import PolicyRefusal, Refused
from later.core.ordered_ids import order_id
from later.core.policy import PULL, DelayMode, Policy
from later.core.policy_scopes import Policies
from later.core.task import Draft, Task
from later.core.trace_context import TRACEPARENT, find_traceparent
from later.core.validation import (
    MAX_AHEAD_MS,
    MAX_TTL_MS,
    RESERVED_NAMESPACE,
    check_content,
    check_context,
    check_headers,
    check_retry,
    format_value,
    parse_time,
    parse_topic,
    refusal,
    to_milliseconds,
)

_RESERVED_TOPICS = f"{RESERVED_NAMESPACE}/"
"""The beginning of the names of reserved topics. The topic `later` itself is in the namespace `default`."""
EXPIRES_BEFORE_DUE = "The task will expire before it is due and never be delivered."
_MISSING_CALLBACK = "only a topic with deliver pull has tasks without, or one whose policy has a callback"


def admit(
    draft: Draft,
    policies: Policies,
    now: int,
    fresh_id: str,
    caller: Caller = ANYBODY,
    *,
    trace_context: bytes = b"",
) -> Task:
    """Return the task that `draft` requests at `now` (ms, the high end of the store's time), under its topic's policy.

    `fresh_id`, a UUID of version 4, is the id of a task whose caller chose none. In a pulled topic an id is made of it
    that sorts after those made before. `trace_context` is that of the request: it is kept, unless the task has its own.

    Raises:
        Refused: a field is wrong; the text says what it takes and what it got. PolicyRefusal, if another policy would
            allow it.
        NotAllowed: the topic or the id is of another namespace than the caller's.
    """
    topic = caller.own_topic(parse_topic(draft.topic))
    if topic.startswith(_RESERVED_TOPICS):
        raise Refused(f"topic: expected another one, because the namespace {RESERVED_NAMESPACE} is reserved", "topic")
    policy = policies.for_topic(topic)
    execute_at = resolve_execute_at(draft, policy, now)
    ttl_ms = resolve_ttl_ms(draft.ttl, policy)
    may_repeat = draft.id is None and resolve_durability(draft.durability, policy) is not PRIMARY
    callback, is_pulled = draft.callback, policy.deliver is PULL
    if draft.id is not None:
        id = caller.own_id(draft.id)
    elif is_pulled:
        id = order_id(fresh_id, now)
    else:
        id = fresh_id
    return Task(
        id=id,
        own_id=draft.id is not None or may_repeat,
        topic=topic,
        callback=resolve_callback(callback, policy) if is_pulled or callback is None else check_callback(callback),
        content=check_content(draft.content),
        headers=check_headers(draft.headers),
        context=None if draft.context is None else check_context(draft.context),
        max_retry=policy.retry if draft.retry is None else check_retry(draft.retry),
        created_at=now,
        execute_at=execute_at,
        expires_at=None if ttl_ms is None else now + ttl_ms,
        remember_ms=_remember_ms(draft, may_repeat=may_repeat),
        is_namespaced_uuid=caller.namespace is not None and (draft.id is not None or may_repeat) and "/" not in id,
        trace_context=trace_context and _without_own_context(draft, trace_context),
    )


def _without_own_context(draft: Draft, trace_context: bytes) -> bytes:
    """Return a request's trace context if the draft names none itself, which says more about where it belongs."""
    is_own = find_traceparent(draft.headers or {}) is not None or TRACEPARENT in (draft.context or {})
    return b"" if is_own else trace_context


def resolve_callback(callback: str | None, policy: Policy) -> str:
    """Return a task's own callback. It has none, which is "", in a pulled topic, or where the policy's is called.

    Raises:
        Refused: the callback is wrong.
        PolicyRefusal: it is missing, or is one too many.
    """
    if policy.deliver is not PULL:
        if callback is not None:
            return check_callback(callback)
        if not policy.callback:
            raise PolicyRefusal(f"{refusal('callback', None)}: {_MISSING_CALLBACK}", "callback")
    elif callback is not None:
        expected = "none, because consumers claim the topic's tasks (deliver pull)"
        raise PolicyRefusal(refusal("callback", callback, expected).detail, "callback")
    return ""


def resolve_execute_at(draft: Draft, policy: Policy, now: int) -> int:
    """Return the time (ms) at which the draft is due, from its own fields and its topic's policy.

    Raises:
        Refused: the delay or time is wrong, or too far ahead.
        PolicyRefusal: the policy does not allow it.
    """
    field = "delay" if draft.execute_time is None else "execute_time"
    requested_at = _requested_execute_at(draft, now)
    if requested_at is None:
        execute_at = now + policy.default_delay_ms
    elif policy.delay_mode is DelayMode.QUEUE and not policy.default_delay_ms:
        execute_at = now
    elif policy.max_delay_ms and requested_at - now > policy.max_delay_ms:
        raise PolicyRefusal(f"Exceeds max allowed delivery delay of {policy.max_delay_ms} milliseconds", field)
    else:
        execute_at = requested_at
    if execute_at > now and not policy.delays:
        raise PolicyRefusal(f"{field}: expected none, for the topic's policy allows no delays", field)
    return execute_at


def _requested_execute_at(draft: Draft, now: int) -> int | None:
    """Return the time that the draft itself requests, or None if it leaves the time to its topic's policy."""
    value: float | str
    if draft.execute_time is not None:
        field, value = "execute_time", draft.execute_time
        if draft.delay is not None:
            raise Refused("execute_time: expected either delay or execute_time, got both", field)
        execute_at = max(parse_time(field, value), now)
    elif draft.delay is not None:
        field, value = "delay", draft.delay
        if not 0 <= draft.delay < math.inf:
            raise refusal(field, value)
        execute_at = now + to_milliseconds(draft.delay)
    else:
        return None
    if execute_at - now > MAX_AHEAD_MS:
        raise Refused(f"{field}: expected a time at most ten years ahead, got {format_value(value)}", field)
    return execute_at


def resolve_ttl_ms(ttl: float | None, policy: Policy) -> int | None:
    """Return the ttl in ms, from the task's own `ttl` (s) and its topic's policy; None if the task does not expire.

    Raises:
        Refused: the ttl is not a positive number.
    """
    if ttl is None:
        return policy.ttl_ms or None
    if not 0 < ttl < math.inf:
        raise refusal("ttl", ttl)
    return min(to_milliseconds(ttl), MAX_TTL_MS)


def _remember_ms(draft: Draft, *, may_repeat: bool) -> int | None:
    if draft.remember is None:
        return REMEMBER_MS if may_repeat else None
    return resolve_remember_ms(draft.remember, draft.id)


def resolve_durability(durability: str | None, policy: Policy) -> Durability:
    """Return the level that a request and its topic's policy ask for: the higher one. Raises Refused."""
    return policy.durability if durability is None else highest(parse_durability(durability), policy.durability)


def resolve_remember_ms(remember: float, own_id: str | None) -> int:
    """Return for how many ms a task's id is remembered after its end, from the task's own `remember` (s).

    Raises:
        Refused: it is negative or infinite, or the caller chose no id: no other is remembered.
    """
    if not 0 <= remember < math.inf:
        raise refusal("remember", remember)
    if own_id is None:
        raise Refused("remember: expected it with an id of your own, because no other is remembered", "remember")
    return min(to_milliseconds(remember), MAX_TTL_MS)


def expiry_warning(task: Task) -> str | None:
    """Return a warning if a task expires before it is due."""
    return EXPIRES_BEFORE_DUE if task.expires_at is not None and task.expires_at <= task.execute_at else None
