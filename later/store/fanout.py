"""Fan-out: a verb over many items becomes one script call for each shard and topic, all in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from later.core.errors import LaterError
from later.store.client import Client
from later.store.keys import Shard
from later.store.scripts import MAX_TASKS, Command

Item = TypeVar("Item")


class ShardTopic(NamedTuple):
    """A topic in one shard: the tasks that one script call can reach. Commands that name no topic have b""."""

    shard: Shard
    topic: bytes


class ItemGroup(NamedTuple, Generic[Item]):
    """The items of one call, and their positions among all items."""

    target: ShardTopic
    items: list[Item]
    positions: list[int]


def group_items(items: Sequence[Item], targets: Iterable[ShardTopic]) -> list[ItemGroup[Item]]:
    """Group the items by their targets, at most `MAX_TASKS` in a group."""
    latest: dict[ShardTopic, ItemGroup[Item]] = {}
    groups: list[ItemGroup[Item]] = []
    for position, (item, target) in enumerate(zip(items, targets, strict=True)):
        group = latest.get(target)
        if group is None or len(group.items) == MAX_TASKS:
            group = latest[target] = ItemGroup(target, [], [])
            groups.append(group)
        group.items.append(item)
        group.positions.append(position)
    return groups


def spread_answers(
    groups: Sequence[ItemGroup[Any]], answers: Sequence[Any], parse: Callable[[Any], Sequence[Any]] = list
) -> list[Any]:
    """Return an answer for each item, in the items' order; a call's `LaterError` for each of its items.

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
    client: Client,
    verb: str,
    items: Sequence[Item],
    locate: Callable[[Item], ShardTopic],
    build: Callable[[ShardTopic, list[Item]], Command],
    parse: Callable[[Any], Sequence[Any]] = list,
) -> list[Any]:
    """Group the items, run the command that `build` returns for each group, and spread the answers as above.

    Raises:
        StoreDown: whether anything was done is not known.
    """
    groups = group_items(items, map(locate, items))
    answers = await client.execute_each(verb, [build(group.target, group.items) for group in groups])
    return spread_answers(groups, answers, parse)


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
