"""`POST /list`: the tasks in one of a topic's buckets, page by page."""

from __future__ import annotations

from aiohttp import web

from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.paging import decode_cursor, encode_cursor, parse_page_size
from later.api.requests import EXPECTED, parse_list_request, read_body
from later.api.response_schemas import ListResponse, task_view
from later.core.errors import Refused
from later.core.validation import check_id, parse_time, parse_topic, refusal
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import BucketRange


class ListHandlers:
    """The handler of `/list`."""

    def __init__(self, *, store: Store, max_body: int, pending_writes: PendingWrites) -> None:
        self._store = store
        self._max_body = max_body
        self._pending_writes = pending_writes

    async def list_tasks(self, request: web.Request) -> web.StreamResponse:
        """`POST /list`."""
        body = parse_list_request(await read_body(request, self._max_body))
        topic = parse_topic(body.topic)
        try:
            bucket = Bucket.DELAY if body.state is None else Bucket(body.state)
        except ValueError:
            raise refusal("state", body.state, EXPECTED["state"]) from None
        bucket_range = BucketRange(
            topic=topic,
            bucket=bucket,
            since=None if body.due_after is None else parse_time("due_after", body.due_after),
            before=None if body.due_before is None else parse_time("due_before", body.due_before),
            after=None if body.cursor is None else _parse_cursor(body.cursor),
        )
        limit = parse_page_size(body.limit)
        with self._pending_writes.reserve():
            page = await self._store.listing.page(bucket_range, limit)
        cursor = encode_cursor(f"{page.tasks[-1].score} {page.tasks[-1].id}") if page.more else None
        return json_response(ListResponse(tasks=[task_view(record) for record in page.tasks], cursor=cursor))


def _parse_cursor(cursor: str) -> tuple[int, str]:
    """Return the score and id of the last task of the page before."""
    score, _, id = decode_cursor(cursor).partition(" ")
    try:
        position = int(score), check_id(id)
    except (ValueError, Refused):
        raise refusal("cursor", cursor, EXPECTED["cursor"]) from None
    if encode_cursor(f"{position[0]} {position[1]}") != cursor:
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return position
