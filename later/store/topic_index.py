"""The index of topics by name: a page of topics costs the same, however many there are.

Each shard has one, a sorted set whose entries all have score 0, so that it is in the order of their bytes. Scripts keep
it: a topic that a wake set names is in it. A topic whose tasks were deleted, purged or swept stays for a while. Daemons
of older versions do not keep it, so a topic is added after a while where only they have made tasks of it: until then,
pages do not count it there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from later.core.errors import NodeDown
from later.core.policy_scopes import namespace_from_topic
from later.core.validation import DEFAULT_NAMESPACE
from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Keys, Shard
from later.store.schema import INDEX_IS_COMPLETE
from later.store.scripts import Argument, Command
from later.store.stats import SLICE, Stats, group_by_shard
from later.store.topic_counts import TopicCounts

NamesBetween: TypeAlias = Callable[[str, str, int], Sequence[str]]
"""Returns the first names, so many at most, after a name and before another ("": no end), in the order of bytes."""

LAST = "\U0010ffff" * 64
"""Sorts after everything that may follow a `/` in a topic's name."""
FIRST_AFTER = "\0"
"""Makes a name into the first one after it."""


class TopicIndex:
    """Lists topics by name. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._stats = Stats(client, keys)
        self._to_check = [(shard, key) for shard in keys.shards for key in (shard.topics, *shard.wakes.values())]
        """The keys that are checked: each shard's index has names to remove, its wake sets have names to add."""
        self._scan = (0, 0)
        """The number of the key, and the cursor, at which the next check goes on."""

    async def page(
        self, declared: NamesBetween, now: int, *, limit: int, after: str = "", namespace: str | None = None
    ) -> dict[str, TopicCounts]:
        """Return the first `limit` topics after a name, by their bytes, with counts and holds at `now` (ms).

        These are the topics that have tasks, and the `declared` ones. With a `namespace`, only its own ones; those of
        the default namespace lie between all others, whose names are read in part. Shards that are away are left out.
        """
        found: dict[str, TopicCounts] = {}
        start, end = _bounds(namespace, after)
        read = limit
        while len(found) < limit:
            indexed, read_to = await self._read_names(start, end, read)
            declared_here = set(declared_names := declared(start, read_to, read))
            if len(declared_names) == read:
                read_to = declared_names[-1] + FIRST_AFTER
            names = sorted(declared_here.union(name for name in indexed if name < read_to or not read_to))
            candidates = [name for name in names if namespace in (None, namespace_from_topic(name))]
            mine = candidates[: limit - len(found)]
            counts = await self._stats.counts_and_holds(mine, now, indexed)
            unused = {name for name in mine if not counts[name].tasks}
            if came := await self._find_new(indexed, unused):
                counts |= await self._stats.counts_and_holds([*came], now, came)
                unused = {name for name in unused if not counts[name].tasks}
            found |= {name: counts[name] for name in mine if name not in unused or name in declared_here}
            for shard, gone in group_by_shard(indexed, unused).items():
                with suppress(NodeDown):
                    await self._put_right(shard, gone)
            if len(mine) < len(candidates):
                start = mine[-1]
            elif read_to == end:
                break
            else:
                start, read = names[-1], min(2 * read, SLICE)
                if namespace is not None and start not in mine:
                    start = f"{namespace_from_topic(start)}/{LAST}"
        return found

    async def names(self, namespace: str) -> set[str]:
        """Return the names of a namespace's topics that are in the index: perhaps some whose tasks are gone.

        They are read as `page` reads them, but of all shards.
        """
        names: set[str] = set()
        start, end = _bounds(namespace, "")
        while True:
            with self._client.away_tags.needing_all():
                indexed, read_to = await self._read_names(start, end, SLICE)
            names |= {name for name in indexed if namespace_from_topic(name) == namespace}
            if read_to == end:
                return names
            start = max(indexed)
            if namespace_from_topic(start) != namespace:
                start = f"{namespace_from_topic(start)}/{LAST}"

    def next_check(self) -> Command:
        """Return the command that reads the next few names.

        Its answer is for `finish_check`: one check after the other removes and adds all that are wrong.
        """
        number, cursor = self._scan
        return ("ZSCAN", self._to_check[number][1], cursor, "COUNT", SLICE)

    async def finish_check(self, answer: Any) -> None:
        """Put right the names that were read; None if their shard is away: then the next ones follow."""
        number = self._scan[0]
        cursor, entries = answer or (0, {})
        await self._put_right(self._to_check[number][0], [*dict(entries)])
        self._scan = (number, cursor) if cursor else ((number + 1) % len(self._to_check), 0)

    async def _read_names(self, start: str, end: str, limit: int) -> tuple[dict[str, list[Shard]], str]:
        """Return the first names after `start` and before `end` ("" for no bound), and before which name these are all.

        Each name comes with the shards that have it in their index. At most `limit` names of each shard are read.
        """
        bounds = (b"(" + start.encode() if start else b"-", b"(" + end.encode() if end else b"+")
        read: list[Command] = [
            ("ZRANGE", shard.topics, *bounds, "BYLEX", "LIMIT", 0, limit) for shard in self._keys.shards
        ]
        is_complete, *answers = await self._client.execute_available(
            "stats", [("HGET", self._keys.meta, INDEX_IS_COMPLETE), *read], missing=[]
        )
        if is_complete is None:
            await self.complete()
            return await self._read_names(start, end, limit)
        last_names = [answer[-1].decode() for answer in answers if len(answer) == limit]
        if last_names:
            end = min(last_names) + FIRST_AFTER
        found: dict[str, list[Shard]] = {}
        for shard, answer in zip(self._keys.shards, answers, strict=True):
            for raw in answer:
                if (name := raw.decode()) < end or not end:
                    found.setdefault(name, []).append(shard)
        return found, end

    async def _find_new(self, indexed: Mapping[str, Sequence[Shard]], names: Collection[str]) -> dict[str, list[Shard]]:
        """Return those of these names that are new in the index of any shard, with these shards.

        When the last task of a topic ends, another one may have been made a moment before, in another shard.
        """
        known = [name for name in names if name in indexed]
        if not known:
            return {}
        reads: list[Command] = [("ZMSCORE", shard.topics, *known) for shard in self._keys.shards]
        answers = await self._client.execute_available("stats", reads, missing=[])
        found: dict[str, list[Shard]] = {}
        for shard, scores in zip(self._keys.shards, answers, strict=True):
            for name, score in zip(known, scores, strict=bool(scores)):
                if score is not None and shard not in indexed[name]:
                    found.setdefault(name, []).append(shard)
        return found

    async def complete(self) -> None:
        """Add all topics that are missing: an older version, which did not keep the index, created their tasks."""
        async for shard, _, topics in self._stats.topics_by_bucket():
            await self._put_right(shard, topics)
        await self._client.execute("index_topics", ("HSET", self._keys.meta, INDEX_IS_COMPLETE, 1))

    async def _put_right(self, shard: Shard, topics: Sequence[Argument]) -> None:
        """Put the entries of these topics right, each by the wake sets of this shard."""
        keys = [shard.topics, *shard.wakes.values()]
        for start in range(0, len(topics), SLICE):
            command = scripts.INDEX_TOPICS.call(keys, topics[start : start + SLICE])
            await self._client.execute("index_topics", command)


def _bounds(namespace: str | None, after: str) -> tuple[str, str]:
    """Return between which names those of a namespace lie that come after a name; "" for no bound."""
    if namespace in (None, DEFAULT_NAMESPACE):
        return after, ""
    return max(after, f"{namespace}/"), f"{namespace}/{LAST}"
