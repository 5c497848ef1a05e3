"""`POST /list`: the tasks in one of a topic's buckets, or in those of the pending ones, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.paging import decode_cursor, encode_cursor, format_cursor_id, parse_cursor_id, parse_page_size
from later.api.requests import DEATH_FIELDS, EXPECTED, ListRequest, check_reason, parse_list_request, read_body
from later.api.response_schemas import ListResponse
from later.api.task_answers import BytesInAnswers, TaskAnswer, send
from later.core.caller import Caller
from later.core.errors import Refused
from later.core.task_view import listed_view
from later.core.validation import format_value, parse_time, parse_topic, refusal
from later.store.dead_letters import MAX_EXAMINED
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import BucketRange

PENDING = "pending"
"""The state of tasks that are neither dead nor ended."""
BUCKETS_BY_STATE = {
    **{bucket.value: (bucket,) for bucket in Bucket},
    PENDING: (Bucket.DELAY, Bucket.UNACK, Bucket.ERROR),
}


class ListHandlers:
    """The handler of `/list`."""

    def __init__(
        self, *, store: Store, max_body: int, pending_writes: PendingWrites, bytes_in_answers: BytesInAnswers
    ) -> None:
        self._store = store
        self._max_body = max_body
        self._pending_writes = pending_writes
        self._bytes_in_answers = bytes_in_answers

    async def list_tasks(self, request: web.Request) -> web.StreamResponse:
        """`POST /list`."""
        body = parse_list_request(await read_body(request, self._max_body))
        ranges = _parse_ranges(body, request[CALLER])
        limit, reason = parse_page_size(body.limit), check_reason(body.reason)
        with self._bytes_in_answers.open_answer() as task_answer:
            with self._pending_writes.reserve():
                page = await self._read_page(ranges, limit, reason, task_answer)
            return await send(request, json_response(page))

    async def _read_page(
        self, ranges: Sequence[BucketRange], limit: int, reason: str | None, task_answer: TaskAnswer
    ) -> ListResponse:
        """Return the first tasks of the ranges: `limit` of them, or those that fit in the answer.

        With a `reason`, a page may also end, or be empty, because enough tasks of other reasons were passed.
        """
        page = ListResponse(tasks=[], cursor=None)
        position: tuple[int, str] | None = None
        async with aclosing(self._store.listing.slices(ranges, limit, reason)) as slices:
            async for tasks, slice_end, examined in slices:
                for record in tasks:
                    encoded = task_answer.add(record, listed_view) if len(page.tasks) < limit else None
                    if encoded is None:
                        return _end_page(page, position)
                    page.tasks.append(encoded)
                    position = record.score, record.id
                position = slice_end
                if examined >= MAX_EXAMINED:
                    return _end_page(page, position)
        return page


def _end_page(page: ListResponse, position: tuple[int, str] | None) -> ListResponse:
    """Return a page that others may follow, with the cursor that leads on from a score and an id."""
    assert position is not None  # the first task always fits
    return msgspec.structs.replace(page, cursor=_encode_position(*position))


def _encode_position(score: int, id: str) -> str:
    return encode_cursor(f"{score} {format_cursor_id(id)}")


def _parse_ranges(body: ListRequest, caller: Caller) -> list[BucketRange]:
    """Return the ranges that a body names: with a reason or a time of death of dead tasks, otherwise of its state.

    Raises:
        Refused: a field is wrong, or does not go with another.
        NotAllowed: the topic is of another namespace than the caller's.
    """
    topic = caller.own_topic(parse_topic(body.topic))
    death_fields = [field for field in DEATH_FIELDS if getattr(body, field) is not None]
    state = body.state if body.state is not None else Bucket.DEAD.value if death_fields else Bucket.DELAY.value
    if state not in BUCKETS_BY_STATE:
        raise refusal("state", body.state, EXPECTED["state"])
    if death_fields and state != Bucket.DEAD:
        raise Refused(
            f'{death_fields[0]}: expected it with the state "dead", got {format_value(state)}', death_fields[0]
        )
    since, before = _parse_time_of(body, "due_after", "died_after"), _parse_time_of(body, "due_before", "died_before")
    after = None if body.cursor is None else _parse_cursor(body.cursor, caller)
    return [BucketRange(topic, bucket, since, before, after) for bucket in BUCKETS_BY_STATE[state]]


def _parse_time_of(body: ListRequest, due: str, died: str) -> int | None:
    """Return the time in one of two fields, which mean the same for dead tasks. Raises Refused."""
    given = [field for field in (due, died) if getattr(body, field) is not None]
    if len(given) > 1:
        raise Refused(f"{died}: expected either {due} or {died}, got both", died)
    return parse_time(given[0], getattr(body, given[0])) if given else None


def _parse_cursor(cursor: str, caller: Caller) -> tuple[int, str]:
    """Return the score and id of the task, or other entry, after which the next page begins."""
    score, _, id = decode_cursor(cursor).partition(" ")
    try:
        position = int(score), parse_cursor_id(id, caller)
    except (ValueError, Refused):
        raise refusal("cursor", cursor, EXPECTED["cursor"]) from None
    if _encode_position(*position) != cursor:
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return position
