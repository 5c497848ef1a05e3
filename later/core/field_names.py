"""The field that is probably meant by an unknown name: a name in another tool or in an answer, or a misspelling."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import SequenceMatcher
from functools import lru_cache

OTHER_NAMES = {
    name: field
    for field, names in {
        "callback": "url uri callback_url endpoint target webhook hook",
        "content": "payload body data message msg args",
        "delay": "after countdown defer defer_by delay_s delay_sec delay_seconds delay_time in wait",
        "execute_time": (
            "at date datetime deliver_at due due_at due_date due_time eta execute execute_at run_at run_time "
            "schedule_at scheduled_at scheduled_for send_at time timestamp when"
        ),
        "headers": "header http_headers",
        "id": "key task_id job_id uuid dedup_key idempotency_key",
        "limit": "max count page_size",
        "retry": "retries max_retry max_retries retry_count attempts max_attempts",
        "state": "bucket status",
        "topic": "queue queue_name channel subject",
        "ttl": "expires expires_in expiry max_age",
    }.items()
    for name in names.split()
}
"""Names in other task queues, or in answers of later itself, and the field that each of them means."""
MAX_MISSPELT_CHARS = 40
"""Longer names are compared with nothing: they are no misspelling, and comparing takes time."""
MIN_CLOSENESS = 0.75
"""How much of a misspelling and of the field that it means is equal, at least."""

_WORD_BREAKS = re.compile(r"[\s-]+|(?<=[a-z0-9])(?=[A-Z])")


def suggest_field(name: str, known: Collection[str]) -> str | None:
    """Return the one of the `known` fields that an unknown name probably means; None if there is none."""
    return _suggest(name, tuple(known)) if len(name) <= MAX_MISSPELT_CHARS else None


@lru_cache(maxsize=1024)
def _suggest(name: str, known: tuple[str, ...]) -> str | None:
    simple = _WORD_BREAKS.sub("_", name.strip()).lower()
    meant = OTHER_NAMES.get(simple)
    if meant in known:
        return meant
    closeness = {field: SequenceMatcher(None, field, simple).ratio() for field in known}
    closest = max(known, key=closeness.__getitem__, default=None)  # of equally close ones the first
    return closest if closest is not None and closeness[closest] >= MIN_CLOSENESS else None
