"""`POST /list`: what stands in one of a topic's buckets, a page at a time."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from aiohttp import web

from later.api.load_shedding import Backlog
from later.api.schemas import Shown, read_body, reader, reply, shown
from later.core.errors import Refused
from later.core.validation import check_id, describe, parse_time, parse_topic, refusal
from later.store.keys import Bucket
from later.store.tasks import Store
from later.store.types import Page, Stretch

MAX_PAGE = 1000
PAGE = 100
"""How many tasks a page shows where its caller does not say."""


class Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller wants to see, every field as it came."""

    topic: str | None = None
    state: str | None = None
    due_after: float | str | None = None
    due_before: float | str | None = None
    limit: int | None = None
    cursor: str | None = None


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A page. `cursor` is None on the last one."""

    tasks: list[Shown]
    cursor: str | None


class ListCalls:
    """The handler."""

    def __init__(self, *, store: Store, max_body: int, backlog: Backlog) -> None:
        self._store = store
        self._max_body = max_body
        self._backlog = backlog

    async def page(self, request: web.Request) -> web.StreamResponse:
        """`POST /list`."""
        listing = _read(await read_body(request, self._max_body))
        stretch, limit = _stretch(listing), _limit(listing.limit)
        with self._backlog.room():
            page = await self._store.page(stretch, limit)
        return reply(Listed(tasks=[shown(found) for found in page.tasks], cursor=_next(page)))


_read = reader(Listing)


def _stretch(listing: Listing) -> Stretch:
    return Stretch(
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
        return PAGE
    if not 1 <= limit <= MAX_PAGE:
        raise Refused(f"limit: expected an integer from 1 to {MAX_PAGE}, got {describe(limit)}", "limit")
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
