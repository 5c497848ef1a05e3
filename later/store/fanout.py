"""Fan-out: a verb over many items becomes one script call for each shard and topic, all in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from later.core.errors import LaterError
from later.store.client import StoreClient, translate
from later.store.keys import ItemGroup, ShardTopic, TopicGroup, group_items
from later.store.scripts import Command

Item = TypeVar("Item")

MAX_READ_BYTES = 4 * 1024 * 1024
"""Bytes of bodies read in one round trip: more might exceed the store's timeout, and fill this process's memory."""


class LeadingCommands:
    """Commands that go ahead of those of a verb, in the same round trip. `answers` are theirs after that."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self.answers: list[Any] = []
        self._commands = commands

    async def execute_with(self, client: StoreClient, verb: str, commands: Sequence[Command]) -> list[Any]:
        """Run these commands and those of a verb, and return the answers to the latter. Raises StoreDown."""
        answers = await client.execute_each(verb, [*self._commands, *commands])
        self.answers = answers[: len(self._commands)]
        return answers[len(self._commands) :]


def spread_answers(
    groups: Sequence[ItemGroup[Any]], answers: Sequence[Any], parse: Callable[[Any], Sequence[Any]] = list
) -> list[Any]:
    """Return an answer for each item, in the items' order. A `LaterError` is the answer for each item of its call.

    `parse` makes a call's answer into answers for its items.
    """
    spread: list[Any] = [None] * sum(len(group.items) for group in groups)
    for group, answer in zip(groups, answers, strict=True):
        parts = [answer] * len(group.items) if isinstance(answer, LaterError) else parse(answer)
        for position, part in zip(group.positions, parts, strict=True):
            spread[position] = part
    return spread


def parse_flags(answer: Sequence[int]) -> list[bool]:
    """Parse the answer of a script that returns 1 for each item that it has moved."""
    return [code == 1 for code in answer]


async def fan_out(
    client: StoreClient,
    verb: str,
    items: Sequence[Item],
    locate: Callable[[Item], ShardTopic],
    build: Callable[[ShardTopic, list[Item]], Command],
    parse: Callable[[Any], Sequence[Any]] = list,
) -> list[Any]:
    """Group the items, run the command that `build` returns for each group, and return an answer for each item.

    Raises:
        StoreDown: whether anything was done is not known.
    """
    groups = group_items(items, map(locate, items))
    answers = await client.execute_each(verb, [build(group.target, group.items) for group in groups])
    return spread_answers(groups, answers, parse)


async def fan_out_reads(
    client: StoreClient,
    verb: str,
    items: Sequence[Item],
    locate: Callable[[Item], ShardTopic],
    build: Callable[[ShardTopic, list[Item], int], Command],
    parse: Callable[[Any], Sequence[Any]] = list,
) -> list[Any]:
    """Do as `fan_out` with commands that read bodies; `build` also gets the bytes of bodies that its command may read.

    Together they read no more than `MAX_READ_BYTES`, but each reads one body at least.

    Raises:
        StoreDown: nothing was read.
    """
    groups = group_items(items, map(locate, items))
    max_bytes = MAX_READ_BYTES // max(len(groups), 1)
    answers = await client.execute_each(verb, [build(group.target, group.items, max_bytes) for group in groups])
    return spread_answers(groups, answers, parse)


def spread_by_topic(groups: Sequence[TopicGroup], answers: Sequence[Any]) -> list[tuple[list[int], Any]]:
    """Return for each topic the positions of its items, and its answer or `LaterError`.

    The command of a group answers with a list: for each topic its answer, or the error that concerns this topic only.
    """
    found: list[tuple[list[int], Any]] = []
    for group, answer in zip(groups, answers, strict=True):
        parts = [answer] * len(group.topics) if isinstance(answer, LaterError) else answer
        for positions, part in zip(group.topics.values(), parts, strict=True):
            found.append((positions, translate(part) if isinstance(part, ResponseError) else part))
    return found


def split_by_weight(items: Iterable[Item], limit: int, weight: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield the items in order, in lists that weigh no more than `limit`, or of one item."""
    batch, batch_weight = list[Item](), 0
    for item in items:
        if batch and batch_weight + weight(item) > limit:
            yield batch
            batch, batch_weight = [], 0
        batch.append(item)
        batch_weight += weight(item)
    if batch:
        yield batch
