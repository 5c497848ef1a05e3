"""Payloads: the JSON bodies by which rows are sent as tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from later.bulk.input.due_times import due_times_of_bodies
from later.bulk.input.rejects import Reject, RejectCode, build_reject, decode_readable, row_with_key
from later.bulk.input.row_origins import FindOrigin, unknown_origin
from later.core.errors import Refused


class Payloads(NamedTuple):
    """Rows to send: bodies of `/create`, the ids of their tasks, and the rows' keys if they have any.

    `rows` are their indexes in the batch that they were read from (None: all of its rows, in order), in which
    `find_origin` finds where they come from.
    """

    bodies: list[bytes]
    ids: list[str]
    keys: list[bytes | None] | None
    rows: Sequence[int] | None = None
    find_origin: FindOrigin = unknown_origin
    dues: Sequence[float | None] | None = None
    """When each row is due, in Unix seconds (None: not a number); None as a whole if only the bodies say it."""

    def select(self, positions: Sequence[int]) -> Payloads:
        """Return the payloads at these positions."""
        return Payloads(
            [self.bodies[i] for i in positions],
            [self.ids[i] for i in positions],
            None if self.keys is None else [self.keys[i] for i in positions],
            positions if self.rows is None else [self.rows[i] for i in positions],
            self.find_origin,
            None if self.dues is None else [self.dues[i] for i in positions],
        )

    def sort_by_due_time(self, now: float) -> Payloads:
        """Return the payloads in the order of their due times, because the store inserts sorted tasks faster."""
        timed = self._replace(dues=self.due_times(now))
        keys = [math.inf if due is None else due for due in timed.dues or ()]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return timed if order == list(range(len(keys))) else timed.select(order)

    def due_times(self, now: float) -> Sequence[float | None]:
        """Return when each row is due, in Unix seconds; None for one whose time is not a number."""
        return due_times_of_bodies(self.bodies, now) if self.dues is None else self.dues

    def row(self, position: int) -> bytes:
        """Return the row at a position: the body with the key instead of the id, which no input contains."""
        body = self.bodies[position]
        id = f'{{"id":"{self.ids[position]}"'.encode()
        if not body.startswith(id):
            return body  # a malformed line, as it is
        key = None if self.keys is None else self.keys[position]
        return row_with_key(body[:1] + body[len(id) :].removeprefix(b","), key)

    def reject(self, position: int, error: Refused, code: RejectCode | None = None) -> Reject:
        """Return the rejected row at a position. Its code follows from the error, unless it is given."""
        key = None if self.keys is None else self.keys[position]
        origin = self.find_origin(position if self.rows is None else self.rows[position])
        return build_reject(self.row(position), key, error, code, origin)

    def readable_key(self, position: int) -> str | None:
        """Return a row's key for people; None if the row has none."""
        key = None if self.keys is None else self.keys[position]
        return None if key is None else decode_readable(key)


class Parsed(NamedTuple):
    """The rows of a batch: those to send, and those that cannot be sent."""

    payloads: Payloads
    rejected: list[Reject]
