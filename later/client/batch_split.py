"""The split of items into batches by their number and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_ITEMS = 10_000
"""Items that the daemon takes in one batch."""
MAX_IDS = 1000
"""Ids that the daemon takes in one call that acts on each of them."""
BATCH_BYTES = 8 * 1024 * 1024
"""A batch that has grown to this size is sent, however few its items."""

Item = TypeVar("Item")


def split_items(items: Iterable[Item], body: Callable[[Item], bytes], most: int = MAX_ITEMS) -> Iterator[list[Item]]:
    """Yield the items in batches of at most `most` items and BATCH_BYTES bytes.

    An item that is larger than BATCH_BYTES is a batch of its own.
    """
    batch: list[Item] = []
    size = 0
    for item in items:
        length = len(body(item))
        if batch and (len(batch) == most or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length + 1
    if batch:
        yield batch
