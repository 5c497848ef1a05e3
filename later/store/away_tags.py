"""The hash tags of keys whose nodes did not answer when they were asked last. One server has none: it is away whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from later.core.errors import NodeDown, WriteRefused
from later.store.keys import hash_tag
from later.store.scripts import Command

_SCRIPTS = ("EVALSHA", "EVALSHA_RO")


class AwayTags:
    """Learns from the answers to commands which hash tags are away, and which are there again."""

    def __init__(self) -> None:
        self._tags: set[bytes] = set()
        self.unwritable: set[bytes] = set()
        """The tags of keys whose nodes refused a write: they may be read, so what is read does not end that."""
        self.misses = 0
        """How many commands were answered so."""

    def __bool__(self) -> bool:
        return bool(self._tags or self.unwritable)

    def __contains__(self, tag: bytes) -> bool:
        return tag in self._tags

    def note(self, commands: Sequence[Command], answers: Sequence[Any]) -> None:
        """Note which tags are away: those of which at least one command was answered so."""
        away, answered = set[bytes](), set[bytes]()
        for command, answer in zip(commands, answers, strict=True):
            is_away = isinstance(answer, NodeDown)
            self.misses += is_away
            if tag := hash_tag(key_of(command)):
                (away if is_away else answered).add(tag)
                if isinstance(answer, WriteRefused):
                    self.unwritable.add(tag)
        self._tags = (self._tags - answered) | away

    @contextmanager
    def needing_all(self) -> Iterator[None]:
        """Run a block that must not leave anything out.

        Raises:
            NodeDown: a command was answered so meanwhile, perhaps one of another caller.
        """
        misses = self.misses
        yield
        if self.misses != misses:
            raise NodeDown("a node of the store is away, and its part would be missing")


def key_of(command: Command) -> bytes:
    """Return a command's first key; b"" for a command that has none."""
    at = 3 if command[0] in _SCRIPTS else 1
    key = command[at] if len(command) > at else b""
    return key if isinstance(key, bytes) else b""
