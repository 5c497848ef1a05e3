"""Every key in the store: its name, its type, its meaning. No key is spelt anywhere else.

| key                     | type   | meaning                                                                  |
|-------------------------|--------|--------------------------------------------------------------------------|
| `later:meta`            | hash   | the schema's version and the number of shards, written once; `needs`:    |
|                         |        | what every daemon must know, see `schema.py`; `admission`: by which      |
|                         |        | options the daemons admit tasks, as JSON; `topics`: 1 if the index of    |
|                         |        | topics has all of them; `signing`: which key signed first; `moving_to`,  |
|                         |        | `moving_from`, `moved_from`: the random name of a move; `moving_mark`:   |
|                         |        | up to where its tasks are; `moving_run`, `moving_renewals`: the run that |
|                         |        | is at work on this source; `moved_to`: where the data is, for people     |
| `later:workers`         | zset   | instance that delivers → its last heartbeat                              |
| `later:shard_workers`   | zset   | instance that delivers, after `full ` if its slots are → when it last    |
|                         |        | looked at its shards                                                     |
| `later:instances`       | hash   | instance → what it told with its last heartbeat, as JSON                 |
| `{later:topics}:policies` | hash | `topic:<t>` or `namespace:<n>` → its settings, as JSON; `version`: when  |
|                         |        | any of them was changed last, in µs                                      |
| `{later:topics}:changes` | zset  | the scopes changed last → the version of their last change; and          |
|                         |        | `version:<v>` → itself, of the last versions                             |
| `{later:topics}:queues` | hash   | topic → what of the metadata of its queue is no policy, as JSON          |
| `{later:topics}:ramps`  | zset   | topic → when it is at full speed again                                   |
| `{later:topics}:origins` | zset | topic → when the last hold of one of its origins ends                   |
| `{later:topics}:snapshot` | hash | the last census: `at`, when it began; `data`, its result as JSON         |
| `{later:topics}:counting` | hash | `by`: which instance makes a census; it ends with the census, at the     |
|                         |        | latest 30 s after the last word of that instance                         |
| `{later:auth}:keys`     | hash   | API keys: id → what is kept of the key, as JSON, which is not the key    |
|                         |        | itself; `version`: when any of them was changed last, in µs              |
| `{later:auth}:used`     | hash   | id of an API key → when it was used last, to the minute                  |
|                         |        | `ended:<id>`: when it was noted that the key had ended                   |
| `{later:auth}:audit`    | stream | the last 10,000 audit events, each as JSON in the field `event`          |
| `{later:auth}:session`  | string | the secret by which sessions of the console are signed: 32 random bytes  |
| `later:origins:<t>`     | zset   | origin that asked for a pause → when its hold ends; 1,000 at most        |
| `later:flow:<t>`        | hash   | the permits granted of a topic's rate and concurrency, if it has limits  |
| `{later:auth}:signing`  | hash   | `namespace:<n>`, `topic:<t>`, `origin:<n>\\x1f<origin>` or `all` → the   |
|                         |        | generations of its signing secret, as JSON; `version`: when any of them  |
|                         |        | was changed last, in µs                                                  |
| `{later:history}:10s:<s>` | hash | counts and gauges of the ten seconds that begin at `s` (Unix time), by   |
|                         |        | fields of one or two letters, see `core/history.py`; the same for `300s` |
| `{later:history}:topics:<s>` | hash | topic → its counts and due tasks in the 300 s from `s`; the 50 busiest; |
|                         |        | `''` is there if somebody ran                                            |
| `{later:history}:deliveries` | list | a sample of the last deliveries, 2,000 at most                        |
| `{later:0}:pool`        | hash   | id → body                                                                |
| `{later:0}:attempts`    | hash   | id → "<deliveries begun> <fence of the current lease>"; of a task that   |
|                         |        | was put back, "<deliveries begun> 0<its first due time>"; of one that    |
|                         |        | was claimed under a record, "<begun> <fence> <id of the record>"         |
| `{later:0}:claim:<id>`  | hash   | the record of tasks that were claimed together: `''` → its ttl, grace,   |
|                         |        | beginning and topic; id → "<fence> <due time>" of a task of this shard.  |
|                         |        | See `claim_records.py`                                                   |
| `{later:0}:outcome`     | hash   | id → the last failure                                                    |
| `{later:0}:delay:<t>`   | zset   | id → due time; the same for `unack` (the end of its lease), `error` (the |
|                         |        | end of its pause) and `dead` (its time of death)                         |
| `{later:0}:wake:delay`  | zset   | topic → earliest score in that bucket of it, or when its turn comes;     |
|                         |        | the same for `unack`, `error` and `dead`. In delay also holds: see       |
|                         |        | `holds.py`                                                               |
| `{later:0}:topics`      | zset   | topic → 0: every topic that a wake set names, to list them by name; for  |
|                         |        | a while also one whose tasks were deleted, purged, swept or moved, and   |
|                         |        | not yet one whose tasks a daemon of an older version has created         |
| `{later:0}:expiry`      | zset   | `<topic>\0<id>` → when the task's ttl ends; only of tasks that have one  |
| `{later:0}:done`        | zset   | id that a caller chose → when it may be forgotten; of a UUID that a      |
|                         |        | caller of a namespace chose, `<namespace>/<UUID>`                        |
| `{later:0}:job:<job>`   | hash   | this shard's counts of a bulk job: `created`, and in the job's own       |
|                         |        | shard `valid`, `refused` and a field for each batch that was counted;    |
|                         |        | the same for a run of the job, under `<job>/<run>`; a job of a           |
|                         |        | namespace is under `/<namespace>/<job>`                                  |
| `{later:0}:jobs`        | zset   | job, or `<job>/<run>`, as above → when it may be forgotten               |
| `{later:0}:barrier`     | string | empty; it is written so that WAIT waits for all writes before it         |
| `{later:0}:schedules`   | hash   | schedule → its definition, as JSON                                       |
| `{later:0}:schedule_states` | hash | schedule → its state, as JSON: its next time, its last firing            |
| `{later:0}:firings`     | zset   | schedule → its next time; only of those that are not paused, or ended    |
| `{later:0}:schedule_index` | zset | `<namespace of its topic>\0<schedule>` → 0, to list them                |

`later:bell` is a channel, not a key, and so is `{later:0}:bell` in a cluster: see `due_notices.py`.

Ids are packed (see `later.core.task.pack_id`); times are ms of the store's clock. No key has a TTL, because a store may
evict volatile keys; the exceptions are a topic's `flow`, which lasts a day, and its `origins`, which last until their
holds have ended: their loss costs a few deliveries too many at once. A `claim` lasts as long as the leases of its
tasks: if it is lost, they come back when their leases end. The keys of `{later:history}` have a TTL, too: a slot of
10 s is kept for two hours, one of 300 s for eight days, topics and deliveries for one. Their loss costs a picture.
Without the lock `counting`, two instances count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar
from zlib import crc32

from later.core.store_records import FieldKind
from later.core.task_names import id_of
from later.store.scripts import MAX_TASKS, MAX_TOPICS
from later.store.slot_map import shard_tags

Item = TypeVar("Item")

SCHEMA_VERSION = 1
CLAIM_NAME_CHARS = 24
"""Hex digits of the name of a claim record."""
_LAST_DIGITS = 6
"""Hex digits of an id that choose its shard: a thousand times as many values as there may be shards."""
_CLAIM_ID = re.compile(f"[0-9a-f]{{{CLAIM_NAME_CHARS},2048}}")


class Bucket(StrEnum):
    """The four states of a task, each with a sorted set for every topic."""

    DELAY = "delay"
    UNACK = "unack"
    ERROR = "error"
    DEAD = "dead"


class Shard:
    """The keys of one shard. They share a hash tag, so that a script may use all of them in a cluster."""

    def __init__(self, tag: str, index: int) -> None:
        self.index = index
        self._tag = b"{%s}:" % tag.encode()
        """How its keys begin: its hash tag."""
        self.pool = self._tag + b"pool"
        self.attempts = self._tag + b"attempts"
        self.outcome = self._tag + b"outcome"
        self.done = self._tag + b"done"
        self.jobs = self._tag + b"jobs"
        self.expiry = self._tag + b"expiry"
        self.topics = self._tag + b"topics"
        self.barrier = self._tag + b"barrier"
        self.schedules = self._tag + b"schedules"
        self.schedule_states = self._tag + b"schedule_states"
        self.firings = self._tag + b"firings"
        self.schedule_index = self._tag + b"schedule_index"
        self.wakes = {bucket: self._tag + b"wake:" + bucket.encode() for bucket in Bucket}
        self.key_pattern = glob_escape(self._tag) + b"*"
        """A pattern for SCAN that matches every key of this shard."""
        self._buckets = {bucket: self._tag + bucket.encode() + b":" for bucket in Bucket}
        self.claim_record_prefix = self._tag + b"claim:"
        self.due_notices = self._tag + b"bell"
        self.bucket_prefixes = tuple(self._buckets.values())
        """How the keys of a topic's four buckets begin, in the order of `Bucket`."""

    def bucket(self, bucket: Bucket, topic: bytes) -> bytes:
        return self._buckets[bucket] + topic

    def buckets(self, topic: bytes) -> list[bytes]:
        """Return the topic's four buckets, in the order of `Bucket`."""
        return [prefix + topic for prefix in self.bucket_prefixes]

    def job(self, counter: str) -> bytes:
        """Return the key of the counts of a bulk job, or of a run of it (see `counter_name`)."""
        return self._tag + b"job:" + counter.encode()

    def claim_record(self, claim_id: str) -> bytes:
        return self.claim_record_prefix + claim_id.encode()

    def parse_bucket_key(self, key: bytes) -> tuple[Bucket, bytes] | None:
        """Return the bucket and the topic of a bucket's key; None for any other key."""
        for bucket, start in self._buckets.items():
            if key.startswith(start):
                return bucket, key[len(start) :]
        return None


class Keys:
    """The keys of a whole store.

    `tags` is 2 for a store that was new in a cluster: its shards' hash tags are those of `shard_tags`, whose slots
    divide the cluster's evenly. Otherwise it is 1: shard i has `<prefix>:i`.
    """

    def __init__(self, prefix: str, shards: int, tags: int = 1) -> None:
        self.prefix = prefix
        self.tags = tags
        self.meta = meta_key(prefix)
        self.workers = prefix.encode() + b":workers"
        self.instances = prefix.encode() + b":instances"
        self.shard_workers = prefix.encode() + b":shard_workers"
        self.policies = b"{%s:topics}:policies" % prefix.encode()
        self.policy_changes = b"{%s:topics}:changes" % prefix.encode()
        self.queues = b"{%s:topics}:queues" % prefix.encode()
        self.ramps = b"{%s:topics}:ramps" % prefix.encode()
        self.held_origin_topics = b"{%s:topics}:origins" % prefix.encode()
        self.snapshot = b"{%s:topics}:snapshot" % prefix.encode()
        self.counting = b"{%s:topics}:counting" % prefix.encode()
        self.event_counts = b"{%s:topics}:event_counts" % prefix.encode()
        self.event_outbox = b"{%s:topics}:event_outbox" % prefix.encode()
        self.api_keys = b"{%s:auth}:keys" % prefix.encode()
        self.key_uses = b"{%s:auth}:used" % prefix.encode()
        self.audit_trail = b"{%s:auth}:audit" % prefix.encode()
        self.signing = b"{%s:auth}:signing" % prefix.encode()
        self.session_secret = b"{%s:auth}:session" % prefix.encode()
        self.due_notices = prefix.encode() + b":bell"
        self.copied_hashes = {
            FieldKind.POLICY: self.policies,
            FieldKind.QUEUE: self.queues,
            FieldKind.API_KEY: self.api_keys,
            FieldKind.KEY_USE: self.key_uses,
            FieldKind.SIGNING: self.signing,
            FieldKind.EVENT: self.event_outbox,
            FieldKind.EVENT_COUNT: self.event_counts,
        }
        """Hashes of which another store takes over every field."""
        self._history_tag = b"{%s:history}:" % prefix.encode()
        self.sampled_deliveries = self._history_tag + b"deliveries"
        self._origin_holds_prefix = prefix.encode() + b":origins:"
        self._permits_prefix = prefix.encode() + b":flow:"
        self.shards = [Shard(tag, index) for index, tag in enumerate(_tags(prefix, shards, tags))]

    def use_tags(self, tags: int) -> None:
        """Name the keys of all shards anew, for a store whose shards have other tags."""
        self.tags = tags
        for shard, tag in zip(self.shards, _tags(self.prefix, len(self.shards), tags), strict=True):
            shard.__init__(tag, shard.index)  # type: ignore[misc]  # others hold these very shards

    def select(self, indices: Sequence[int] | None) -> Sequence[Shard]:
        """Return the shards with these indices; all for None."""
        return self.shards if indices is None else [self.shards[index] for index in indices]

    def permits(self, topic: str) -> bytes:
        return self._permits_prefix + topic.encode()

    def origin_holds(self, topic: str) -> bytes:
        return self._origin_holds_prefix + topic.encode()

    def history(self, length_ms: int, slot: int) -> bytes:
        """Return the key of the slot of this length that begins at `slot` (ms)."""
        return self._history_tag + b"%ds:%d" % (length_ms // 1000, slot // 1000)

    def history_topics(self, slot: int) -> bytes:
        """Return the key of the topics of the slot of 300 s that begins at `slot` (ms)."""
        return self._history_tag + b"topics:%d" % (slot // 1000)

    def claim_id(self, name: str, shards: Iterable[int]) -> str:
        """Return the id of a claim record: its name and, if there are several shards, those in which it is."""
        if len(self.shards) == 1:
            return name
        digits = self._digits_of_a_shard
        return name + "".join(f"{shard:0{digits}x}" for shard in sorted(shards))

    def shards_of_claim(self, claim_id: str) -> list[Shard]:
        """Return the shards in which a claim record is; none for an id that no record has."""
        if _CLAIM_ID.fullmatch(claim_id) is None:
            return []
        name, written = claim_id[:CLAIM_NAME_CHARS], claim_id[CLAIM_NAME_CHARS:]
        if len(self.shards) == 1:
            return [] if written else self.shards
        digits = self._digits_of_a_shard
        numbers = {int(written[start : start + digits], 16) for start in range(0, len(written), digits)}
        is_written_so = self.claim_id(name, numbers) == claim_id and max(numbers, default=0) < len(self.shards)
        return [self.shards[number] for number in sorted(numbers)] if is_written_so else []

    @property
    def _digits_of_a_shard(self) -> int:
        return len(f"{len(self.shards) - 1:x}")

    def shard_of(self, name: str) -> Shard:
        """Return the shard of a task or job: the CRC-32 of its id's UTF-8, modulo the number of shards."""
        if len(self.shards) == 1:
            return self.shards[0]
        id = id_of(name) if "/" in name else name
        return self.shards[crc32(id.encode()) % len(self.shards)]

    def fit_id(self, id: str, shard: Shard) -> str:
        """Return an id that is in `shard`: this UUID, whose last digits are random, with others in their place.

        They are counted up. The CRC-32 of what stands before them is the same, so a try takes a quarter of the time of
        drawing another id.
        """
        head, count = id[:-_LAST_DIGITS], 16**_LAST_DIGITS
        before, shards = crc32(head.encode()), len(self.shards)
        for number in range(start := int(id[-_LAST_DIGITS:], 16), start + count):
            digits = b"%06x" % (number % count)
            if crc32(digits, before) % shards == shard.index:
                return head + digits.decode()
        raise AssertionError("no end of an id is in this shard")


class ShardTopic(NamedTuple):
    """A topic in one shard: the tasks that one script call can reach. Commands that name no topic have b""."""

    shard: Shard
    topic: bytes


class ItemGroup(NamedTuple, Generic[Item]):
    """The items of one call, and their positions among all items."""

    target: ShardTopic
    items: list[Item]
    positions: list[int]


class TopicGroup(NamedTuple):
    """The items of one call that takes many topics of a shard: each topic's positions among all items."""

    shard: Shard
    topics: dict[bytes, list[int]]


def group_items(items: Sequence[Item], targets: Iterable[tuple[Shard, bytes]]) -> list[ItemGroup[Item]]:
    """Group the items by their targets, at most `MAX_TASKS` in a group: those that one script call can reach.

    A target may be a plain tuple of shard and topic: to name it for each item would take 0.2 µs of a batch's 5 an item.
    """
    latest: dict[tuple[Shard, bytes], ItemGroup[Item]] = {}
    groups: list[ItemGroup[Item]] = []
    for position, (item, target) in enumerate(zip(items, targets, strict=True)):
        group = latest.get(target)
        if group is None or len(group.items) == MAX_TASKS:
            group = latest[target] = ItemGroup(ShardTopic(*target), [], [])
            groups.append(group)
        group.items.append(item)
        group.positions.append(position)
    return groups


def group_in_order(
    items: Sequence[Item], targets: Sequence[tuple[Shard, bytes]], id_of: Callable[[Item], str]
) -> list[ItemGroup[Item]]:
    """Group the items as `group_items` does, but so that those of the same id (`""`: none) stay in their order.

    A group is of one topic, so items of one id in two topics are in different groups. Where there are such, the items
    are grouped in parts, each of which begins with the second one.
    """
    groups = group_items(items, targets)
    if len({group.target for group in groups}) == 1:  # as of most batches, and they need not look at the ids
        return groups
    ids = [id_of(item) for item in items]
    chosen = [id for id in ids if id]
    if len(set(chosen)) == len(chosen):
        return groups
    starts, topics = [0], dict[str, bytes]()
    for position, (id, (_, topic)) in enumerate(zip(ids, targets, strict=True)):
        if id and topics.setdefault(id, topic) != topic:
            starts.append(position)
            topics = {id: topic}
    return [
        group._replace(positions=[start + position for position in group.positions])
        for start, end in pairwise([*starts, len(items)])
        for group in group_items(items[start:end], targets[start:end])
    ]


def group_topics(targets: Iterable[tuple[Shard, bytes, int]]) -> list[TopicGroup]:
    """Group items of many topics by shard: those that one script call can reach.

    A target is an item's shard, its topic and how many tasks it stands for. A group has at most `MAX_TOPICS` topics and
    `MAX_TASKS` tasks.
    """
    latest: dict[Shard, TopicGroup] = {}
    sizes: dict[Shard, int] = {}
    groups: list[TopicGroup] = []
    for position, (shard, topic, tasks) in enumerate(targets):
        group = latest.get(shard)
        positions = None if group is None else group.topics.get(topic)
        is_full = positions is None and (group is None or len(group.topics) == MAX_TOPICS)
        if group is None or is_full or sizes[shard] + tasks > MAX_TASKS:
            group = latest[shard] = TopicGroup(shard, {})
            groups.append(group)
            positions, sizes[shard] = None, 0
        if positions is None:
            group.topics[topic] = [position]
        else:
            positions.append(position)
        sizes[shard] += tasks
    return groups


def _tags(prefix: str, shards: int, tags: int) -> Sequence[str]:
    return shard_tags(prefix, shards) if tags == 2 else [f"{prefix}:{index}" for index in range(shards)]


def counter_name(job: str, run: str | None = None) -> str:
    """Return the name under which a job is counted, or one run of it.

    Only a namespace's job has a slash in it, so it begins with one: `/team/a` is the job `a` of the namespace `team`,
    and `team/a` the run `a` of the job `team`.
    """
    name = f"/{job}" if "/" in job else job
    return name if run is None else f"{name}/{run}"


def job_of(counter: str) -> str:
    """Return the job under whose name, or that of a run of it, is counted."""
    if counter.startswith("/"):
        return "/".join(counter.split("/")[1:3])
    return counter.partition("/")[0]


def job_of_counter(name: str) -> str:
    """Return the job that is counted under a name, which is that of no run."""
    return name.removeprefix("/")


def expiry_member(topic: bytes, packed_id: bytes) -> bytes:
    """Return a task's member in `expiry`, as prelude.lua does: no topic contains a zero byte."""
    return topic + b"\0" + packed_id


def parse_expiry_member(member: bytes) -> tuple[bytes, bytes]:
    """Return the topic and the packed id of a member of `expiry`."""
    topic, _, packed_id = member.partition(b"\0")
    return topic, packed_id


def schedule_member(namespace: str, schedule: str) -> bytes:
    """Return a schedule's member in the index of schedules: no namespace contains a zero byte."""
    return f"{namespace}\0{schedule}".encode()


def parse_schedule_member(member: bytes) -> tuple[str, str]:
    """Return the namespace and the schedule of a member of the index of schedules."""
    namespace, _, schedule = member.decode().partition("\0")
    return namespace, schedule


def meta_key(prefix: str) -> bytes:
    """Return the key of the number of shards, which must be read before a `Keys` can be built."""
    return prefix.encode() + b":meta"


def hash_tag(key: bytes) -> bytes:
    """Return the hash tag with which a key begins, in its braces; b"" if it begins with none."""
    return key[: key.find(b"}") + 1] if key.startswith(b"{") else b""


def glob_escape(literal: bytes) -> bytes:
    """Return a pattern for SCAN that matches the literal only."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^" else bytes([c]) for c in literal)
