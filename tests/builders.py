"""Builders of valid drafts and tasks; a test names only the fields that matter to it."""

from __future__ import annotations

from typing import Any

import msgspec

from later.core.address_guard import AddressGuard
from later.core.task import Draft, Task, new_id
from later.core.validation import to_milliseconds

NO_GUARD = AddressGuard(is_own=lambda address: False, is_on=False)
NOW = 1_800_000_000_000
"""A time of the store's clock, in ms."""


def a_draft(**changes: Any) -> Draft:
    """Return a draft that is due at once, without an id of its caller."""
    draft = Draft(topic="order", callback="http://127.0.0.1:8888/success", content="hello")
    return msgspec.structs.replace(draft, **changes)


def a_task(*, delay: float = 0, ttl: float | None = None, created_at: int = NOW, **changes: Any) -> Task:
    """Return a task created at NOW with a new id; `delay` and `ttl` are seconds from `created_at`."""
    task = Task(
        id=new_id(),
        own_id=False,
        topic="order",
        callback="http://127.0.0.1:8888/success",
        content="hello",
        headers={},
        max_retry=3,
        created_at=created_at,
        execute_at=created_at + to_milliseconds(delay),
        expires_at=None if ttl is None else created_at + to_milliseconds(ttl),
    )
    return msgspec.structs.replace(task, **changes)
