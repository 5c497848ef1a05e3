"""Bytes that came in large reads: they are parsed in pieces, a few of them in each turn of the event loop.

Otherwise fifty receivers that send 256 KB at once would hold up all calls and requests for as long as that takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

PIECE_BYTES = 2048
"""The size of a read that is parsed at once. Most are shorter, and cost nothing here. The worst 2 KB take 40 µs."""
PIECES_PER_TURN = 16


class LargeRead(Protocol):
    """The bytes of a read that are not parsed yet."""

    def parse_piece(self) -> bool:
        """Parse the next piece. Return True if more is left."""


class LargeReads:
    """The large reads of all connections, whose pieces are parsed in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[LargeRead] = deque()
        self._pieces_left = PIECES_PER_TURN
        self._next_turn: asyncio.Handle | None = None

    def add(self, read: LargeRead) -> None:
        """Parse a read at once, as far as this turn of the event loop has room, and the rest in the next ones."""
        self._waiting.append(read)
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._begin_turn)
        self._parse()

    def close(self) -> None:
        """Parse nothing any more."""
        self._waiting.clear()

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._pieces_left = PIECES_PER_TURN
        self._parse()
        if self._waiting:
            self._next_turn = self._loop.call_soon(self._begin_turn)

    def _parse(self) -> None:
        while self._waiting and self._pieces_left:
            self._pieces_left -= 1
            read = self._waiting.popleft()
            if read.parse_piece():
                self._waiting.append(read)
