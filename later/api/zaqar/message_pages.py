"""Pages of a queue's messages, and the markers that lead from one page to the next.

A page has the messages that are free, then, where they are asked for, those that are delayed and those that are
claimed, each in the order of their buckets. A marker is a place in that order and needs nothing to be there still.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from later.api.paging import decode_cursor, encode_cursor
from later.api.task_answers import TaskAnswer
from later.api.zaqar.error_answers import invalid_request
from later.api.zaqar.message_fields import ShownMessage, messages_href, show_messages
from later.api.zaqar.protocol import ZaqarCall
from later.api.zaqar.query_parameters import Query, integer_parameter, switch_parameter, text_parameter
from later.core.clock import Interval
from later.core.errors import Refused
from later.core.task import Task
from later.core.validation import MAX_EXACT
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import BucketRange, TaskRecord

DEFAULT_PAGE_SIZE = 10
MAX_PAGE_SIZE = 20
MAX_EXAMINED = 2000
"""Tasks that one call looks at. If it leaves most of them out, its page ends early, and the link leads on."""

MAX_EXAMINED_BYTES = 16 * 1024 * 1024
"""Bytes of contents that one call looks at, or a few more: those that it leaves out are read from the store, too."""

_ORDER = (Bucket.DELAY, Bucket.ERROR, Bucket.UNACK)


class MessagePosition(NamedTuple):
    """A position in the order of a queue's messages: that of an entry of a bucket, which need not exist."""

    bucket: Bucket
    score: int
    id: str


class PageRequest(NamedTuple):
    """A request for a page. `asked` are its parameters but for the marker, as the link to the next page repeats them.

    `position` is where it goes on; None: at the beginning. If the marker is no position, `is_lost` is true.
    """

    limit: int
    echo: bool
    include_claimed: bool
    include_delayed: bool
    asked: Mapping[str, str]
    position: MessagePosition | None
    is_lost: bool

    def ranges(self, topic: str, now: int) -> list[BucketRange]:
        """Return the ranges of buckets that the page is read from, in order. `now` is the low end of the time (ms)."""
        ranges = [BucketRange(topic, Bucket.DELAY, before=None if self.include_delayed else now + 1)]
        if self.include_delayed:
            ranges.append(BucketRange(topic, Bucket.ERROR))
        if self.include_claimed:
            ranges.append(BucketRange(topic, Bucket.UNACK))
        if self.position is None:
            return ranges
        bucket, score, id = self.position
        first = _ORDER.index(bucket)
        return [
            range_._replace(after=(score, id)) if range_.bucket is bucket else range_
            for range_ in ranges
            if _ORDER.index(range_.bucket) >= first
        ]


def parse_page_request(query: Query) -> PageRequest:
    """Return the page that a query asks for. Raises ZaqarError."""
    marker, limit = text_parameter(query, "marker"), integer_parameter(query, "limit")
    switches = {name: switch_parameter(query, name) for name in ("echo", "include_claimed", "include_delayed")}
    if limit is not None and not 1 <= limit <= MAX_PAGE_SIZE:
        raise invalid_request(f"Limit must be at least 1 and may not be greater than {MAX_PAGE_SIZE}.")
    asked = {} if limit is None else {"limit": str(limit)}
    asked |= {name: str(value).lower() for name, value in switches.items() if value is not None}
    position = None if marker is None else _parse_marker(marker)
    return PageRequest(
        limit=DEFAULT_PAGE_SIZE if limit is None else limit,
        echo=bool(switches["echo"]),
        include_claimed=bool(switches["include_claimed"]),
        include_delayed=bool(switches["include_delayed"]),
        asked=asked,
        position=position,
        is_lost=marker is not None and position is None,
    )


def format_marker(position: MessagePosition) -> str:
    """Return the marker of a position: letters, digits, `-` and `_`, because the client formats the link with it."""
    return encode_cursor(f"{position.bucket} {position.score} {position.id}")


def _parse_marker(marker: str) -> MessagePosition | None:
    """Return the position of a marker; None if `format_marker` did not make it."""
    try:
        bucket, score, id = decode_cursor(marker).split(" ", 2)
        position = MessagePosition(Bucket(bucket), int(score), id)
    except (Refused, ValueError):
        return None
    is_known = position.bucket in _ORDER and abs(position.score) <= MAX_EXACT and format_marker(position) == marker
    return position if is_known else None


class MessagePage(msgspec.Struct):
    """A page while it is read: its messages, and the position where the next one goes on (None: nothing follows)."""

    messages: list[msgspec.Raw]
    next: MessagePosition | None = None

    def document(self, call: ZaqarCall, wanted: PageRequest) -> dict[str, object]:
        """Return the page as it is answered."""
        links = []
        if self.next is not None:
            query = urlencode({**wanted.asked, "marker": format_marker(self.next)})
            links.append({"rel": "next", "href": f"{messages_href(call.queue)}?{query}"})
        return {"messages": self.messages, "links": links}


class MessagePages:
    """Reads pages of messages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, call: ZaqarCall, wanted: PageRequest, answer: TaskAnswer) -> MessagePage:
        """Return a page, which ends early if it is too large for the answer, or leaves most messages out.

        Raises:
            StoreDown: the store cannot be read.
        """
        page, now = MessagePage(messages=[]), await self._store.time.now()
        examined = size = 0
        for range_ in [] if wanted.is_lost else wanted.ranges(call.topic, now.low):
            examined_here = 0
            async with aclosing(self._store.listing.slices([range_], wanted.limit)) as slices:
                async for tasks, slice_end, examined_here in slices:
                    for shown in await self._shown(call, wanted, tasks, now):
                        if not answer.reserve(shown.view):
                            return page
                        page.messages.append(shown.view)
                        page.next = MessagePosition(range_.bucket, shown.record.score, shown.record.id)
                        if len(page.messages) == wanted.limit:
                            return page
                    page.next = MessagePosition(range_.bucket, *slice_end)
                    size += sum(len(record.task.content) for record in tasks if isinstance(record.task, Task))
                    if examined + examined_here >= MAX_EXAMINED or size >= MAX_EXAMINED_BYTES:
                        return page
            examined += examined_here
        if not page.messages:
            page.next = None
        return page

    async def _shown(
        self, call: ZaqarCall, wanted: PageRequest, tasks: list[TaskRecord], now: Interval
    ) -> list[ShownMessage]:
        """Return those of the tasks that the page shows: without `echo`, none that its own client has posted."""
        if not wanted.echo:
            tasks = [record for record in tasks if not _is_posted_by(call.client_id, record)]
        return await show_messages(self._store, call, tasks, now)


def _is_posted_by(client_id: bytes, record: TaskRecord) -> bool:
    return isinstance(record.task, Task) and record.task.client == client_id
