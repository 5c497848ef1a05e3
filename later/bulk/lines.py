"""What is sent of a table: for each row the JSON of a task, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

KEYLESS = "key: expected a value, got nothing"
EMPTY_KEY = 'key: expected a value, got ""'
"""Or all rows that lack one would be the same row: one task, and the others already there."""


class Reject(NamedTuple):
    """A row that became no task: as JSON, or as the corrupt text it was, and why, in the words of `/create`."""

    key: str | None
    row: str
    field: str | None
    reason: str


class Lines(NamedTuple):
    """Rows that can be sent: bodies of `/create`, their ids, and the rows' keys where they have any."""

    bodies: list[bytes]
    ids: list[str]
    keys: list[bytes | None] | None

    def part(self, start: int, end: int) -> Lines:
        """Those from `start` on and before `end`."""
        return Lines(self.bodies[start:end], self.ids[start:end], None if self.keys is None else self.keys[start:end])

    def some(self, positions: Sequence[int]) -> Lines:
        """Those at these positions."""
        return Lines(
            [self.bodies[i] for i in positions],
            [self.ids[i] for i in positions],
            None if self.keys is None else [self.keys[i] for i in positions],
        )

    def reject(self, position: int, field: str | None, reason: str) -> Reject:
        """What is told of one that was refused."""
        return Reject(self.key(position), row_of(self.bodies[position], self.ids[position]), field, reason)

    def key(self, position: int) -> str | None:
        """A row's key, for a person."""
        key = None if self.keys is None else self.keys[position]
        return None if key is None else readable(key)


class Read(NamedTuple):
    """What a batch of rows came to: lines to send, and rows that cannot be sent."""

    lines: Lines
    unfit: list[Reject]


def row_of(body: bytes, id: str) -> str:
    """The row that a body was made of: without the id that it begins with, which is of our making."""
    ours = f'{{"id":"{id}"'.encode()
    if not body.startswith(ours):
        return readable(body)
    return "{" + readable(body[len(ours) :].removeprefix(b","))


def readable(text: bytes) -> str:
    """As text, whatever it is: a line may be of any bytes."""
    return text.decode("utf-8", "backslashreplace")
