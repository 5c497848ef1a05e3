"""Purges and redrives, which move many tasks: what their requests select, and the cursor that continues them."""

from __future__ import annotations

from typing import Any, NamedTuple

from later.api.paging import decode_cursor, encode_cursor, format_cursor_id, parse_cursor_id
from later.api.requests import DEATH_FIELDS, EXPECTED, PurgeRequest, RedriveRequest
from later.core.caller import ANYBODY, Caller
from later.core.errors import Refused
from later.core.validation import parse_time, refusal
from later.store.dead_letters import PURGEABLE
from later.store.keys import Bucket
from later.store.types import BucketRange, MoveResult


class MoveCursor(NamedTuple):
    """The place where an answer ended, from which the next request continues a purge or a redrive.

    It is the score and id of the last task that was looked at; the time (ms) before which a task must have died, so
    that one that dies again is left alone; and the time (ms) at which the next task of a redrive with a rate is due.
    """

    score: int
    id: str
    died_before: int = 0
    next_due_at: int = 0

    def encode(self) -> str:
        return encode_cursor(" ".join(map(str, self._replace(id=format_cursor_id(self.id)))))


def parse_purge_ranges(topic: str, body: PurgeRequest, caller: Caller) -> list[BucketRange]:
    """Return the ranges of a topic's tasks to purge: with a time or a reason only dead tasks, otherwise whole buckets.

    Raises:
        Refused: a state is wrong or cannot be purged, or a time range or reason comes with other states than "dead".
    """
    if body.states is not None and not body.states:
        raise Refused(f"states: expected {EXPECTED['states']}, got none", "states")
    for state in body.states or ():
        if state == Bucket.UNACK:
            raise Refused('states: expected none but "delay", "error" and "dead": what is in flight stays', "states")
        if state not in PURGEABLE:
            raise refusal("states", state, EXPECTED["states"])
    if body.cursor is not None and body.reason is None:
        raise Refused("cursor: expected it with a reason only: without one, send the same request again", "cursor")
    dead_filters = [field for field in DEATH_FIELDS if getattr(body, field) is not None]
    if not dead_filters:
        return [BucketRange(topic, bucket) for bucket in PURGEABLE if body.states is None or bucket in body.states]
    if {*(body.states or ["dead"])} != {"dead"}:
        field = dead_filters[0]
        raise Refused(f'{field}: expected it with "states": ["dead"] alone, because only the dead have died', field)
    return [parse_dead_range(topic, body, parse_cursor(body.cursor, caller))]


def parse_dead_range(topic: str, body: RedriveRequest | PurgeRequest, cursor: MoveCursor | None) -> BucketRange:
    """Return the range of a topic's dead tasks that died within the requested times, after a cursor. Raises Refused."""
    return BucketRange(
        topic=topic,
        bucket=Bucket.DEAD,
        since=None if body.died_after is None else parse_time("died_after", body.died_after),
        before=None if body.died_before is None else parse_time("died_before", body.died_before),
        after=None if cursor is None else (cursor.score, cursor.id),
    )


def parse_cursor(cursor: str | None, caller: Caller = ANYBODY) -> MoveCursor | None:
    """Return what a cursor was made from. Raises Refused: also if it cannot have been given to this caller."""
    if cursor is None:
        return None
    parts = decode_cursor(cursor).split(" ")
    try:
        score, id, died_before, next_due_at = parts
        parsed = MoveCursor(int(score), parse_cursor_id(id, caller), int(died_before), int(next_due_at))
    except (ValueError, Refused):
        raise refusal("cursor", cursor, EXPECTED["cursor"]) from None
    if parsed.encode() != cursor:
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return parsed


def check_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise refusal("limit", limit, EXPECTED["limit"])
    return limit


def move_answer(key: str, result: MoveResult, died_before: int = 0) -> dict[str, Any]:
    """Return the answer to a purge or a redrive; `key` is the field of the number of tasks.

    `more` says that tasks may be left, and `cursor` how to continue if it is not by the same request again.
    """
    answer: dict[str, Any] = {key: result.moved}
    if result.more:
        answer["more"] = True
        if result.position is not None:
            answer["cursor"] = MoveCursor(*result.position, died_before, result.next_due_at or 0).encode()
    return answer
