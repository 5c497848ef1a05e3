"""Verbs over many items: one script call for each shard and topic among them, all in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from later.core.errors import LaterError
from later.store.client import Client
from later.store.keys import Shard
from later.store.scripts import MAX_TASKS, Command

Item = TypeVar("Item")
Lane = tuple[Shard, bytes]


async def fan_out(
    client: Client,
    verb: str,
    items: Sequence[Item],
    place: Callable[[Item], Lane],
    call: Callable[[Shard, bytes, list[Item]], Command],
    along: Sequence[Command] = (),
    read: Callable[[Any], Sequence[Any]] = list,
) -> list[Any]:
    """An answer for each item, in their order; a call's `LaterError` for each of its items.

    `read` makes answers for the items of a call's own. What goes `along` is sent last; nobody waits for its answer.
    Raises StoreDown: nobody can know.
    """
    groups = _groups(items, place)
    commands = [call(shard, topic, [items[p] for p in positions]) for (shard, topic), positions in groups]
    answers: list[Any] = [None] * len(items)
    answered = await client.execute_each(verb, [*commands, *along])
    for (_, positions), answer in zip(groups, answered[: len(commands)], strict=True):
        parts = [answer] * len(positions) if isinstance(answer, LaterError) else read(answer)
        for position, part in zip(positions, parts, strict=True):
            answers[position] = part
    return answers


def split_by_weight(items: Iterable[Item], most: int, weight: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The items in order, as many at once as weigh no more than `most`; one at least."""
    pack, held = list[Item](), 0
    for item in items:
        if pack and held + weight(item) > most:
            yield pack
            pack, held = [], 0
        pack.append(item)
        held += weight(item)
    if pack:
        yield pack


def _groups(items: Sequence[Item], place: Callable[[Item], Lane]) -> list[tuple[Lane, list[int]]]:
    """The positions of the items of each lane, as many as a call may carry."""
    lanes: dict[Lane, list[int]] = {}
    groups: list[tuple[Lane, list[int]]] = []
    for position, item in enumerate(items):
        lane = place(item)
        positions = lanes.get(lane)
        if positions is None or len(positions) == MAX_TASKS:
            positions = lanes[lane] = []
            groups.append((lane, positions))
        positions.append(position)
    return groups
