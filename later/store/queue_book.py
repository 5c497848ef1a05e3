"""Queues of Zaqar's API: topics that say themselves how their tasks are delivered, or have tasks that are not dead.

What of a queue's metadata is no policy is in a hash beside the policies, and is written with them, in one script: a
change that was made from older settings or metadata starts over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from later.core.errors import Conflict
from later.core.json_patch import MetadataChange, apply_patch
from later.core.policy_scopes import NO_SETTINGS, Policies, PolicyScope, Settings, namespace_from_topic, topic_scope
from later.core.queue_metadata import (
    DEAD_LETTER_QUEUE,
    NEW_QUEUE,
    POLICY_FIELDS_BY_KEY,
    RESERVED,
    Queue,
    check_metadata,
    check_size,
    is_queue_name,
    own_metadata,
    queue_name,
    split_metadata,
)
from later.core.task import unpack_id
from later.core.validation import parse_topic
from later.store import scripts
from later.store.client import StoreClient
from later.store.dead_letters import PURGEABLE, DeadLetters
from later.store.keys import Bucket, Keys
from later.store.policies import PolicyBook, Replacement
from later.store.scripts import Command
from later.store.shared_read import MAX_STARTS
from later.store.stats import Stats
from later.store.topic_counts import NO_TASKS, TopicCounts
from later.store.topic_index import TopicIndex
from later.store.types import BucketRange

SHOWN = (Bucket.DELAY, Bucket.UNACK, Bucket.ERROR)
"""The buckets of the tasks that a queue shows as messages."""
PURGED = (Bucket.ERROR, Bucket.DELAY)
"""The buckets that a purge empties, in its order: a task whose pause ends moves to delay."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


class QueueChange(NamedTuple):
    """A change of a queue: the settings of its topic before and after it, and the queue as it is then."""

    before: Settings
    after: Settings
    queue: Queue


class QueueDeletion(NamedTuple):
    """A deletion of a queue: how many tasks were removed with it, and the settings that its topic had."""

    tasks: int
    before: Settings


class QueueSlice(NamedTuple):
    """Queues that follow one another in a list, and the topic up to which it was read; None if it ends there."""

    queues: list[Queue]
    read_to: str | None


class QueueBook:
    """Makes, reads, changes, lists and deletes queues. Every method raises StoreDown."""

    def __init__(
        self,
        client: StoreClient,
        keys: Keys,
        policies: PolicyBook,
        stats: Stats,
        topic_index: TopicIndex,
        dead_letters: DeadLetters,
    ) -> None:
        self._client = client
        self._key = keys.queues
        self._shards = keys.shards
        self._policies = policies
        self._stats = stats
        self._topic_index = topic_index
        self._dead_letters = dead_letters

    async def get(self, topic: str) -> Queue | None:
        """Return a queue; None if there is none."""
        policies = await self._policies.read()
        if not await self._is_there(policies, topic):
            return None
        [extra] = await self._read_extras([topic])
        return Queue(topic, policies.for_topic(topic), extra)

    async def ensure(self, topic: str) -> bool:
        """Make a queue without metadata, unless it is there; return whether it was made.

        Each call reads the policies anew: another process may have deleted the queue a moment ago.
        """
        if await self._is_there(await self._policies.read(), topic):
            return False
        return await self.create(topic, {}) is not None

    async def create(self, topic: str, metadata: Mapping[str, object]) -> QueueChange | None:
        """Make a queue with these metadata; None if it is there already, and stays as it is.

        Raises:
            Refused: the metadata are wrong, also if the queue is there.
            Conflict: other policies were changed in the meantime each time.
        """
        scope = topic_scope(topic)
        fields, extra = split_metadata(topic, metadata)
        check_size(extra)
        made: list[tuple[Settings, Settings]] = []

        async def decide(policies: Policies) -> Replacement | None:
            made.clear()
            is_there = await self._is_there(policies, topic)
            before = policies.settings_at(scope)
            bare = before if is_there else before.merge({**NEW_QUEUE, **before.fields})
            check_metadata(metadata, bare.apply_to(policies.for_topic(topic)).max_delay_ms)
            if is_there:
                return None
            after = bare.merge({name: value for name, value in fields.items() if value is not None})
            made.append((before, after))
            return _replacement(after, extra)

        if metadata.get(DEAD_LETTER_QUEUE):
            await self._ensure_dead_letter_queue(scope, decide)
        policies = await self._policies.replace(scope, decide)
        if not made:
            return None
        before, after = made[0]
        return QueueChange(before, after, Queue(topic, policies.for_topic(topic), extra))

    async def change(self, topic: str, changes: Sequence[MetadataChange]) -> QueueChange | None:
        """Change a queue's own metadata; None if there is no such queue.

        Raises:
            Refused: the metadata that are set are wrong, or all together are too large.
            Conflict: metadata that are to be replaced or removed are not there, or other policies were changed in the
                meantime each time.
        """
        scope = topic_scope(topic)
        made: list[tuple[Settings, Settings, Mapping[str, object]]] = []

        async def decide(policies: Policies) -> Replacement | None:
            made.clear()
            if not await self._is_there(policies, topic):
                return None
            before, [extra] = policies.settings_at(scope), await self._read_extras([topic])
            own = apply_patch(changes, own_metadata(before.fields, extra), RESERVED)
            changed = {change.key: own[change.key] for change in changes if change.key in own}
            check_metadata(changed, policies.for_topic(topic).max_delay_ms)
            fields, extra = split_metadata(topic, own)
            check_size(extra)
            set_here = {POLICY_FIELDS_BY_KEY.get(change.key) for change in changes}
            after = before.merge({name: value for name, value in fields.items() if name in set_here})
            made.append((before, after, extra))
            return _replacement(after, extra)

        if any(change.key == DEAD_LETTER_QUEUE for change in changes):
            await self._ensure_dead_letter_queue(scope, decide)
        policies = await self._policies.replace(scope, decide)
        if not made:
            return None
        before, after, extra = made[0]
        return QueueChange(before, after, Queue(topic, policies.for_topic(topic), extra))

    async def delete(self, topic: str) -> QueueDeletion:
        """Remove all tasks of a queue, those in flight too, in slices, then its policy, metadata and wake entries.

        After an interruption, the same call again goes on.

        Raises:
            Conflict: tasks were created faster than they were removed, or other policies were changed each time.
        """
        scope = topic_scope(topic)
        before = NO_SETTINGS

        async def decide(policies: Policies) -> Replacement | None:
            nonlocal before
            before = policies.settings_at(scope)
            is_set = before != NO_SETTINGS or await self._client.execute("policies", ("HEXISTS", self._key, topic))
            return Replacement(NO_SETTINGS, b"") if is_set else None

        removed = await self._remove_tasks(topic)
        await self._policies.replace(scope, decide)
        removed += await self._remove_tasks(topic)  # those that were created meanwhile
        buckets = topic.encode()
        commands = [
            scripts.FORGET_TOPIC.call([shard.topics, *shard.wakes.values(), *shard.buckets(buckets)], [topic])
            for shard in self._shards
        ]
        await self._client.execute_all("purge", commands)
        return QueueDeletion(removed, before)

    async def purge(self, topic: str) -> int:
        """Remove the tasks of a queue that are neither in flight nor dead, in slices; return how many."""
        return await self._remove(topic, PURGED)

    async def slice(self, namespace: str, *, after: str, limit: int) -> QueueSlice:
        """Return a namespace's queues after a topic, which need not exist, in the order of their names.

        At most `limit` topics are looked at, of which some may be no queues.
        """
        policies = await self._policies.read()
        with self._client.away_tags.needing_all():
            found = await self._topic_index.page(
                policies.queues_between, 0, limit=limit, after=after, namespace=namespace
            )
        topics = [
            topic
            for topic, counts in found.items()
            if is_queue_name(queue_name(topic)) and (_is_declared(policies, topic) or _has_messages(counts))
        ]
        extras = await self._read_extras(topics)
        queues = [Queue(topic, policies.for_topic(topic), extra) for topic, extra in zip(topics, extras, strict=True)]
        return QueueSlice(queues, [*found][-1] if len(found) == limit else None)

    async def count(self, namespace: str) -> int:
        """Return how many queues a namespace has."""
        declared = {topic for topic in (await self._policies.read()).queues if namespace_from_topic(topic) == namespace}
        others = [topic for topic in await self._topic_index.names(namespace) if topic not in declared]
        counts = await self._stats.counts_for([topic for topic in others if is_queue_name(queue_name(topic))], 0)
        named = sum(is_queue_name(queue_name(topic)) for topic in declared)
        return named + sum(map(_has_messages, counts.values()))

    async def end_ids(self, topic: str) -> list[str]:
        """Return the ids of the first and the last task of each bucket that a queue shows, over all shards.

        The oldest and the newest task are among them unless tasks of the topic have delays or leases of several
        lengths: buckets are in the order of due times, and of the ends of leases.
        """
        name, shards = topic.encode(), self._shards
        reads = [(bucket, order) for bucket in SHOWN for order in ((), ("REV",))]
        commands: list[Command] = [
            ("ZRANGE", shard.bucket(bucket, name), 0, 0, *order, "WITHSCORES")
            for bucket, order in reads
            for shard in shards
        ]
        answers = await self._client.execute_all("stats", commands)
        ends: list[bytes] = []
        for number, (_, order) in enumerate(reads):
            of_shards = answers[number * len(shards) : (number + 1) * len(shards)]
            entries = [(float(flat[1]), flat[0]) for flat in of_shards if flat]
            if entries:
                ends.append((max if order else min)(entries)[1])
        return [unpack_id(packed) for packed in dict.fromkeys(ends)]

    async def _ensure_dead_letter_queue(
        self, scope: PolicyScope, decide: Callable[[Policies], Awaitable[Replacement | None]]
    ) -> None:
        """Make the queue to which messages will move when they die, if `decide` names one: else they would die again.

        It is made before any message can move there, and nothing is made for metadata that are refused. Raises Refused.
        """
        policies = await self._policies.read()
        replacement = await decide(policies)
        dead_to = None if replacement is None else replacement.settings.fields.get("dead_to")
        if replacement is not None and dead_to:
            policies.with_settings(scope, replacement.settings)
            await self.ensure(parse_topic(str(dead_to)))

    async def _is_there(self, policies: Policies, topic: str) -> bool:
        return _is_declared(policies, topic) or _has_messages(await self._count(topic))

    async def _count(self, topic: str) -> TopicCounts:
        return (await self._stats.counts_for([topic], 0))[topic]

    async def _read_extras(self, topics: Sequence[str]) -> list[dict[str, object]]:
        """Return for each topic what of its queue's metadata is no policy."""
        if not topics:
            return []
        stored = await self._client.execute("policies", ("HMGET", self._key, *topics))
        return [_decode(raw) if raw else {} for raw in stored]

    async def _remove_tasks(self, topic: str) -> int:
        """Remove all tasks of a topic from all buckets; return how many. Tasks may move between buckets meanwhile."""
        removed = 0
        for _ in range(MAX_STARTS):
            removed += await self._remove(topic, (Bucket.UNACK, *PURGEABLE))
            if await self._count(topic) == NO_TASKS:
                return removed
        raise Conflict("tasks were created faster than they were removed: try again")

    async def _remove(self, topic: str, buckets: Sequence[Bucket]) -> int:
        """Remove the tasks of some buckets of a topic; return how many."""
        ranges = [BucketRange(topic, bucket) for bucket in buckets]
        removed, more = 0, True
        while more:
            moved, more, *_ = await self._dead_letters.purge(ranges)
            removed += moved
        return removed


def _is_declared(policies: Policies, topic: str) -> bool:
    """Return True if a topic says itself how its tasks are delivered."""
    return "deliver" in policies.settings_at(topic_scope(topic)).fields


def _has_messages(counts: TopicCounts) -> bool:
    """Return True if a topic has tasks that are not dead."""
    return bool(counts.delay or counts.unack or counts.error)


def _replacement(settings: Settings, extra: Mapping[str, object]) -> Replacement:
    return Replacement(settings, _encode(extra) if extra else b"")
