"""`POST /list`: what stands in one of a topic's buckets, a page at a time."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from aiohttp import web

from later.api.load_shedding import PendingWrites
from later.api.schemas import TaskView, body_parser, json_response, read_body, task_view
from later.core.errors import Refused
from later.core.validation import check_id, describe, parse_time, parse_topic, refusal
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import BucketRange, Page

MAX_PAGE_SIZE = 1000
DEFAULT_PAGE_SIZE = 100
"""How many tasks a page shows where its caller does not say."""


class ListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller wants to see, every field as it came."""

    topic: str | None = None
    state: str | None = None
    due_after: float | str | None = None
    due_before: float | str | None = None
    limit: int | None = None
    cursor: str | None = None


class ListResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A page. `cursor` is None on the last one."""

    tasks: list[TaskView]
    cursor: str | None


class ListHandlers:
    """The handler."""

    def __init__(self, *, store: Store, max_body: int, pending_writes: PendingWrites) -> None:
        self._store = store
        self._max_body = max_body
        self._pending_writes = pending_writes

    async def list_tasks(self, request: web.Request) -> web.StreamResponse:
        """`POST /list`."""
        listing = _read(await read_body(request, self._max_body))
        stretch, limit = _stretch(listing), _limit(listing.limit)
        with self._pending_writes.reserve():
            page = await self._store.listing.page(stretch, limit)
        return json_response(ListResponse(tasks=[task_view(found) for found in page.tasks], cursor=_next(page)))


_read = body_parser(ListRequest)


def _stretch(listing: ListRequest) -> BucketRange:
    return BucketRange(
        topic=parse_topic(listing.topic),
        bucket=Bucket.DELAY if listing.state is None else _bucket(listing.state),
        since=None if listing.due_after is None else parse_time("due_after", listing.due_after),
        before=None if listing.due_before is None else parse_time("due_before", listing.due_before),
        after=None if listing.cursor is None else _after(listing.cursor),
    )


def _bucket(state: str) -> Bucket:
    try:
        return Bucket(state)
    except ValueError:
        raise refusal("state", state) from None


def _limit(limit: int | None) -> int:
    if limit is None:
        return DEFAULT_PAGE_SIZE
    if not 1 <= limit <= MAX_PAGE_SIZE:
        raise Refused(f"limit: expected an integer from 1 to {MAX_PAGE_SIZE}, got {describe(limit)}", "limit")
    return limit


def _next(page: Page) -> str | None:
    return _cursor(page.tasks[-1].score, page.tasks[-1].id) if page.more else None


def _cursor(score: int, id: str) -> str:
    """The place of the page's last task, and nothing else: so it means the same whatever comes and goes."""
    return urlsafe_b64encode(f"{score} {id}".encode()).decode().rstrip("=")


def _after(cursor: str) -> tuple[int, str]:
    try:
        score, _, id = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii").partition(" ")
        place = int(score), check_id(id)
    except (ValueError, Refused):
        raise refusal("cursor", cursor) from None
    if _cursor(*place) != cursor:
        raise refusal("cursor", cursor)
    return place
