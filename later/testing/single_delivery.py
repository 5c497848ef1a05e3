"""One delivery to a handler, for tests of the handler alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from later.application import Later
from later.core.policy import DEFAULT_POLICY
from later.core.retry import Outcome
from later.core.task import new_id
from later.handlers.handler import Handler
from later.handlers.task import Task
from later.testing.virtual_delivery import ClaimDeadline

Payload = TypeVar("Payload")


async def deliver(
    handler: Handler[Payload],
    payload: Payload,
    *,
    attempt: int = 1,
    failures: int | None = None,
    retry: int = DEFAULT_POLICY.retry,
    context: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Outcome:
    """Deliver a task to its handler once, through its codec, middlewares and dependencies; return the outcome.

    It is the `attempt` after so many `failures` (all attempts before it, without a number), with `retry` retries.

    Raises:
        TypeError: the handler cannot read the payload.
        NotConfigured: the handler belongs to no application, or to several.
    """
    application = handler.find_application()
    assert isinstance(application, Later)
    failures, now = attempt - 1 if failures is None else failures, datetime.now(UTC)
    task: Task[Any] = Task(
        id=new_id(),
        topic=handler.topic,
        attempt=attempt,
        due_at=now,
        created_at=now,
        failures=failures,
        retries_left=max(retry - failures, 0),
        context=dict(context or {}),
        headers={name.lower(): value for name, value in (headers or {}).items()},
        state=application.state,
        deadline=ClaimDeadline(DEFAULT_POLICY.timeout_ms / 1000),
    )
    return await application.dispatch(task, handler.encode(payload))


def deliver_sync(
    handler: Handler[Payload],
    payload: Payload,
    *,
    attempt: int = 1,
    failures: int | None = None,
    retry: int = DEFAULT_POLICY.retry,
    context: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Outcome:
    """Deliver a task as `deliver` does, in a thread without an event loop."""
    return asyncio.run(
        deliver(handler, payload, attempt=attempt, failures=failures, retry=retry, context=context, headers=headers)
    )
