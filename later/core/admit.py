"""The one decision about a draft: admit it, or refuse it by name."""

from __future__ import annotations

import math

from later.core.errors import Refused
from later.core.policy import DelayMode, Policy
from later.core.policy_scopes import Policies
from later.core.task import Draft, Task
from later.core.validation import (
    MAX_AHEAD_MS,
    MAX_RETRY,
    MAX_TTL_MS,
    check_callback,
    check_headers,
    check_id,
    describe,
    parse_topic,
    refusal,
    to_milliseconds,
    utf8_size,
)


def admit(draft: Draft, policies: Policies, now: int, fresh_id: str) -> Task:
    """The task that `draft` asks for at `now` (ms, the high end of the store's time), by its topic's policy.

    `fresh_id` is the id it gets if the caller chose none.

    Raises:
        Refused: with the field's name, what it takes and what it got.
    """
    name = parse_topic(draft.topic)
    policy = policies.for_topic(name)
    execute_at = resolve_execute_at(draft, policy, now)
    ttl_ms = resolve_ttl_ms(draft.ttl, policy)
    return Task(
        id=fresh_id if draft.id is None else check_id(draft.id),
        own_id=draft.id is not None,
        topic=name,
        callback=check_callback(draft.callback),
        content=check_content(draft.content),
        headers=check_headers(draft.headers),
        max_retry=resolve_max_retry(draft.retry, policy),
        created_at=now,
        execute_at=execute_at,
        expires_at=None if ttl_ms is None else now + ttl_ms,
    )


def resolve_execute_at(draft: Draft, policy: Policy, now: int) -> int:
    """When it is to run, by its own wish and its topic's policy. Raises Refused."""
    own = _own_execute_at(draft, now)
    if own is None:
        execute_at = now + policy.default_delay_ms
    elif policy.delay_mode is DelayMode.QUEUE and not policy.default_delay_ms:
        execute_at = now
    else:
        field, execute_at = own
        if policy.max_delay_ms and execute_at - now > policy.max_delay_ms:
            raise Refused(f"Exceeds max allowed delivery delay of {policy.max_delay_ms} milliseconds", field)
    if execute_at > now and not policy.delays:
        field = "delay" if own is None else own[0]
        raise Refused(f"{field}: expected none, for the topic's policy allows no delays", field)
    return execute_at


def _own_execute_at(draft: Draft, now: int) -> tuple[str, int] | None:
    """When the draft wants it to run, and the field that says so; None where it leaves that to its topic."""
    if draft.execute_time is not None:
        if draft.delay is not None:
            raise Refused("execute_time: expected either delay or execute_time, got both", "execute_time")
        if not math.isfinite(draft.execute_time):
            raise refusal("execute_time", draft.execute_time)
        return _in_reach("execute_time", draft.execute_time, max(to_milliseconds(draft.execute_time), now), now)
    if draft.delay is None:
        return None
    if not 0 <= draft.delay < math.inf:
        raise refusal("delay", draft.delay)
    return _in_reach("delay", draft.delay, now + to_milliseconds(draft.delay), now)


def _in_reach(field: str, got: float, execute_at: int, now: int) -> tuple[str, int]:
    if execute_at - now > MAX_AHEAD_MS:
        raise Refused(f"{field}: expected a time at most ten years ahead, got {describe(got)}", field)
    return field, execute_at


def resolve_ttl_ms(ttl: float | None, policy: Policy) -> int | None:
    """How old it may get; None: it does not age. Raises Refused."""
    if ttl is None:
        return policy.ttl_ms or None
    if not 0 < ttl < math.inf:
        raise refusal("ttl", ttl)
    return min(to_milliseconds(ttl), MAX_TTL_MS)


def resolve_max_retry(retry: int | None, policy: Policy) -> int:
    """How many failures are followed by another try. Raises Refused."""
    if retry is None:
        return policy.retry
    if not 0 <= retry <= MAX_RETRY:
        raise refusal("retry", retry)
    return retry


def check_content(text: str | None) -> str:
    """What is to be sent. Raises Refused."""
    if text is None:
        return ""
    utf8_size("content", text)
    return text
