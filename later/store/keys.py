"""Every key in the store: its name, its type, what it means. No key is spelt anywhere else.

| key                     | type   | meaning                                                                  |
|-------------------------|--------|--------------------------------------------------------------------------|
| `later:meta`            | hash   | the schema's version and the number of shards, written once              |
| `later:workers`         | zset   | instance → its last beat                                                 |
| `{later:topics}:policies` | hash | `topic:<t>` or `namespace:<n>` → what it sets, as JSON; `version`: when |
|                         |        | any was changed last, in µs                                              |
| `{later:topics}:changes` | zset  | those that were changed last → the version of their last change; and     |
|                         |        | `version:<v>` → itself, of the last versions                             |
| `{later:topics}:ramps`  | zset   | topic → when it is at full speed again                                   |
| `later:flow:<t>`        | hash   | what was granted of a topic's rate and concurrency; only of limited ones |
| `{later:0}:pool`        | hash   | id → body                                                                |
| `{later:0}:fence`       | string | grows by one for each task claimed, never starts again                   |
| `{later:0}:attempts`    | hash   | id → "<deliveries begun> <fence of the current lease>"                   |
| `{later:0}:outcome`     | hash   | id → the last failure                                                    |
| `{later:0}:delay:<t>`   | zset   | id → due time; the same for `unack` (the end of its lease), `error` (the |
|                         |        | end of its pause) and `dead` (when it died)                              |
| `{later:0}:wake:delay`  | zset   | topic → earliest score in that bucket of it, or when its turn comes;     |
|                         |        | the same for `unack`, `error` and `dead`. Of delay also below zero: the  |
|                         |        | topic is held until minus that, -inf: for as long as it is paused        |
| `{later:0}:expiry`      | zset   | `<topic>\0<id>` → when the task's ttl ends; only of tasks that have one  |
| `{later:0}:done`        | zset   | id that a caller chose → when it may be forgotten                        |
| `{later:0}:job:<job>`   | hash   | what this shard knows of a bulk job: `created`, and in the job's home    |
|                         |        | shard `valid`, `refused` and a field for each batch that was counted     |
| `{later:0}:jobs`        | zset   | job → when it may be forgotten                                           |

Ids are packed (see `later.core.task.pack_id`); times are ms of the store's clock. No key has a TTL, or a store that
evicts volatile keys would lose it; but for the `flow` of a topic, which lasts a day, and whose loss would cost a few
deliveries too many at once.
"""

from __future__ import annotations

from enum import StrEnum
from zlib import crc32

SCHEMA_VERSION = 1


class Bucket(StrEnum):
    """The four places where a task can be."""

    DELAY = "delay"
    UNACK = "unack"
    ERROR = "error"
    DEAD = "dead"


class Shard:
    """The keys of one shard. All of them share a hash tag, so that a script may touch any of them in a cluster."""

    def __init__(self, prefix: str, index: int) -> None:
        self.index = index
        self._tag = b"{%s:%d}:" % (prefix.encode(), index)
        self.pool = self._tag + b"pool"
        self.fence = self._tag + b"fence"
        self.attempts = self._tag + b"attempts"
        self.outcome = self._tag + b"outcome"
        self.done = self._tag + b"done"
        self.jobs = self._tag + b"jobs"
        self.expiry = self._tag + b"expiry"
        self.wakes = {bucket: self._tag + b"wake:" + bucket.encode() for bucket in Bucket}
        self.key_pattern = glob_escape(self._tag) + b"*"
        """A pattern for SCAN that finds every key of this shard."""
        self._buckets = {bucket: self._tag + bucket.encode() + b":" for bucket in Bucket}

    def bucket(self, bucket: Bucket, topic: bytes) -> bytes:
        return self._buckets[bucket] + topic

    def buckets(self, topic: bytes) -> list[bytes]:
        """The topic's four buckets, in the order of `Bucket`."""
        return [self._buckets[bucket] + topic for bucket in Bucket]

    def job(self, job: str) -> bytes:
        return self._tag + b"job:" + job.encode()

    def locate(self, key: bytes) -> tuple[Bucket, bytes] | None:
        """The bucket and the topic that `key` is the key of; None where it is no bucket's."""
        for bucket, start in self._buckets.items():
            if key.startswith(start):
                return bucket, key[len(start) :]
        return None


class Keys:
    """The keys of a whole store."""

    def __init__(self, prefix: str, shards: int) -> None:
        self.meta = meta_key(prefix)
        self.workers = prefix.encode() + b":workers"
        self.policies = b"{%s:topics}:policies" % prefix.encode()
        self.policy_changes = b"{%s:topics}:changes" % prefix.encode()
        self.ramps = b"{%s:topics}:ramps" % prefix.encode()
        self._flow = prefix.encode() + b":flow:"
        self.shards = [Shard(prefix, index) for index in range(shards)]

    def permits(self, topic: str) -> bytes:
        return self._flow + topic.encode()

    def shard_of(self, task_id: str) -> Shard:
        """The shard of a task, or of a job, by its id: CRC-32 of its UTF-8 modulo the number of shards."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.shards[crc32(task_id.encode()) % len(self.shards)]


def expiry_member(topic: bytes, packed_id: bytes) -> bytes:
    """A task's name in `expiry`: no topic has a zero byte. (Scripts make the same.)"""
    return topic + b"\0" + packed_id


def parse_expiry_member(member: bytes) -> tuple[bytes, bytes]:
    """The topic and the packed id that `expiring` made `member` of."""
    topic, _, packed_id = member.partition(b"\0")
    return topic, packed_id


def meta_key(prefix: str) -> bytes:
    """Known before the number of shards is: it says how many there are."""
    return prefix.encode() + b":meta"


def glob_escape(literal: bytes) -> bytes:
    """`literal` as a pattern that SCAN takes for itself."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^" else bytes([c]) for c in literal)
