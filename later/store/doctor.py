"""The doctor: it checks that each task is in exactly one bucket, each entry has a body, each wake entry is right.

It reads the whole store in slices, beside workers that move tasks all the time. A suspect in a slice may only have
moved between two commands; so one script that sees all buckets of its shard examines each suspect again. Several
shards are examined side by side, because one would wait for the store much of the time. Only the bucket keys of these
shards are kept in memory: a store of millions of tasks would not fit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from later.core.errors import UnreadableBody
from later.core.policy import MAX_CLAIM_LEASE_MS
from later.core.task import Task, decode_task, names_topic
from later.store import scripts
from later.store.client import StoreClient
from later.store.defects import SCHEDULE_DEFECTS, Defect, Finding, printable
from later.store.keys import Bucket, Keys, Shard, expiry_member
from later.store.merge import merge
from later.store.schedule_check import ScheduleCheck
from later.store.schedules import Schedules
from later.store.scripts import Argument, Command, Script

SHARDS_AT_ONCE = 4
"""Shards that are examined side by side: with more, this process has no more CPU, and the store more to do at once."""
SLICE = 200
"""Ids read at once: their bodies may have 1 MiB each, and the store serves no other client meanwhile."""
BUCKETS_AT_ONCE = 50
"""Buckets of a shard that are read in one round trip."""
SCAN_SLICE = 1000
SEARCH_SLICE = 1000
"""Buckets that one script searches; the store serves no other client meanwhile."""
PREFERENCE = (Bucket.UNACK, Bucket.ERROR, Bucket.DELAY, Bucket.DEAD)
"""The order in which a task in several buckets prefers them: its delivery may be under way, or its pause not over."""
NO_END = -1
"""The answer of PTTL for a key that has no TTL."""
UNKNOWN_TOPIC = b"unknown"
"""The topic for a task whose body cannot be read."""


class _Examination(NamedTuple):
    """The state of an id at one moment: the keys of the buckets that hold it, and of those that are allowed to.

    Only the buckets of its topic were examined, and the one it was met in, unless there is a defect: the store may have
    a million buckets.
    """

    shard: Shard
    id: bytes
    body: bytes | None
    leftovers: list[bytes]
    """Those of the keys `attempts` and `outcome` that hold the id."""
    found_in: list[bytes]
    allowed: list[bytes]

    def defect(self) -> Defect | None:
        if self.body is None:
            if self.found_in:
                return Defect.BODILESS
            return Defect.LEFTOVER if self.leftovers else None
        if len(self.found_in) != 1:
            return Defect.SEVERAL if self.found_in else Defect.NOWHERE
        return None if self.found_in[0] in self.allowed else Defect.MISPLACED

    def reporting_key(self) -> bytes:
        """Return the key that reports this id: it is read from several keys, but reported from one only."""
        if self.body is None:
            return [*self.found_in, *self.leftovers][0]
        misplaced = [key for key in self.found_in if key not in self.allowed]
        if misplaced and len(self.found_in) - len(misplaced) == 1:
            return misplaced[0]
        return self.shard.pool

    def finding(self, kind: Defect, met_in: bytes) -> Finding:
        topic = None if self.body is None else _topic_of(self.body)
        buckets = [_bucket_and_topic(self.shard, key) for key in self.found_in]
        where = [f"{bucket}:{printable(name)}" for bucket, name in buckets]
        if kind is Defect.LEFTOVER:
            where = ["attempts" if key == self.shard.attempts else "outcome" for key in self.leftovers]
        return Finding(kind, self.shard.index, self.id, topic, None, tuple(where), met_in)


class Doctor:
    """Examines and repairs a store. `tasks`, `entries` and `shards` say how many were read by the last examination.

    Every method raises StoreDown.
    """

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self.tasks = 0
        self.entries = 0
        self.shards = 0
        self._client = client
        self._keys = keys
        self._schedules = ScheduleCheck(client, Schedules(client, keys))
        self._buckets: dict[int, list[bytes]] = {}
        """The bucket keys of each shard that is being examined."""

    async def count_tasks(self, shards: Sequence[Shard]) -> int:
        """Return how many tasks these shards have: as many as an examination of them reads, and as many entries."""
        return sum(await self._client.execute_all("doctor", [("HLEN", shard.pool) for shard in shards]))

    async def examine(self, now: int, shards: Sequence[Shard] | None = None) -> AsyncIterator[Finding]:
        """Yield the defects of these shards, or of all. Each finding was true at one moment of the examination.

        A finding may be repaired before the next one is asked for.
        """
        self.tasks = self.entries = self.shards = 0
        chosen = self._keys.shards if shards is None else shards
        async for finding in merge((self._examine_shard(shard, now) for shard in chosen), SHARDS_AT_ONCE):
            yield finding

    async def _examine_shard(self, shard: Shard, now: int) -> AsyncGenerator[Finding]:
        buckets = set[bytes]()
        async for keys in self._read_keys(shard):
            buckets.update(key for key in keys if shard.parse_bucket_key(key) is not None)
            for finding in await self._endless_records(shard, keys):
                yield finding
        self._buckets[shard.index] = sorted(buckets)
        async for read_from, id in self._suspects(shard):
            if read_from == shard.expiry:
                topic = await self._check_expiry_index(shard, id, repair=False)
                if topic is not None:
                    yield Finding(Defect.UNINDEXED, shard.index, id, topic, None, ())
                continue
            examination = await self._examine(shard, id, read_from)
            defect = examination.defect()
            if defect is not None and examination.reporting_key() == read_from:
                yield examination.finding(defect, read_from)
        async for finding in self._wake_findings(shard, now):
            yield finding
        async for kind, *where in self._schedules.defects(shard):
            yield Finding(Defect(f"schedule-{kind}"), shard.index, None, None, None, tuple(filter(None, where)))
        del self._buckets[shard.index]
        self.shards += 1

    async def repair(self, finding: Finding, now: int) -> bool:
        """Repair the subject of a finding, in its present state. Return False if nothing is wrong any more.

        A task stays in the first of the `PREFERENCE` buckets of its own topic that holds it. If none does, it becomes
        due now, or, if its body cannot be read, dead in the topic "unknown". An id without a body is removed. A claim
        record is kept for as long as a claim may last. A schedule fires and is listed as its definition and state say.
        """
        shard = self._keys.shards[finding.shard]
        if finding.kind in SCHEDULE_DEFECTS:
            return await self._schedules.repair(shard, *finding.where)
        if finding.kind is Defect.CLAIM_ENDLESS:
            record = shard.claim_record(finding.where[0])
            return bool(await self._client.execute("doctor", ("PEXPIRE", record, MAX_CLAIM_LEASE_MS, "NX")))
        if finding.bucket is not None:
            assert finding.topic is not None
            command = _wake_command(scripts.REPAIR_WAKE, shard, finding.bucket, finding.topic, now)
            is_repaired = bool(await self._client.execute("doctor", command))
            await self._client.execute("doctor", _index_command(shard, finding.topic))
            return is_repaired
        assert finding.id is not None
        if finding.kind is Defect.UNINDEXED:
            return await self._check_expiry_index(shard, finding.id, repair=True) is not None
        while True:
            examination = await self._examine(shard, finding.id, finding.met_in)
            body, allowed = examination.body, examination.allowed
            buckets = _distinct([*allowed, *examination.found_in])
            located = [_bucket_and_topic(shard, key) for key in buckets]
            fallback = 0 if body is None else 1 + buckets.index(_fallback_bucket(shard, body))
            keys = [shard.pool, shard.attempts, shard.outcome, *buckets, *(shard.wakes[at] for at, _ in located)]
            alive = sum(_bucket_and_topic(shard, key)[0] is not Bucket.DEAD for key in allowed)
            arguments: list[Argument] = [finding.id, body or b"", len(allowed), alive, fallback, now]
            arguments += [topic for _, topic in located]
            answer = await self._client.execute("doctor", scripts.REPAIR.call(keys, arguments))
            if answer >= 0:
                if fallback:
                    await self._client.execute("doctor", _index_command(shard, located[fallback - 1][1]))
                return bool(answer)

    async def _read_keys(self, shard: Shard) -> AsyncIterator[list[bytes]]:
        """Yield the keys of a shard, some at a time. Its server passes over those of all others, which takes time."""
        cursor = 0
        while True:
            scan: Command = ("SCAN", cursor, "MATCH", shard.key_pattern, "COUNT", SCAN_SLICE)
            cursor, found = await self._client.execute_at("doctor", shard.pool, scan)
            yield found
            if cursor == 0:
                return

    async def _suspects(self, shard: Shard) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield ids that may have a defect, each with the key whose reading made it a suspect."""
        async for bodies in self._scan(("HSCAN", shard.pool), ("COUNT", SLICE)):
            self.tasks += len(bodies)
            tasks = {id: _decode(body) for id, body in bodies.items()}
            for id in await self._not_in_one_bucket(shard, tasks):
                yield shard.pool, id
            for id in await self._not_in_expiry_index(shard, tasks):
                yield shard.expiry, id
        async for suspect in self._misplaced_entries(shard):
            yield suspect
        for key in (shard.attempts, shard.outcome):
            async for fields in self._scan(("HSCAN", key), ("COUNT", SLICE)):
                exist = await self._client.execute_all("doctor", [("HEXISTS", shard.pool, id) for id in fields])
                for id in [id for id, exists in zip(fields, exist, strict=True) if not exists]:
                    yield key, id

    async def _not_in_one_bucket(self, shard: Shard, tasks: dict[bytes, Task | None]) -> list[bytes]:
        """Return ids that were not seen in exactly one bucket of their topic, or whose topic cannot be read."""
        by_topic: dict[str | None, list[bytes]] = {}
        for id, task in tasks.items():
            by_topic.setdefault(None if task is None else task.topic, []).append(id)
        suspects = by_topic.pop(None, [])
        topics = [*by_topic.items()]
        for start in range(0, len(topics), SEARCH_SLICE // len(Bucket)):
            some = topics[start : start + SEARCH_SLICE // len(Bucket)]
            keys = [key for topic, _ in some for key in shard.buckets((topic or "").encode())]
            arguments: list[Argument] = []
            for _, ids in some:
                arguments += [len(ids), *ids]
            suspects += await self._client.execute("doctor", scripts.NOT_IN_ONE_BUCKET.call(keys, arguments))
        return suspects

    async def _misplaced_entries(self, shard: Shard) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the entries of all buckets, as bucket and id, that seem not to belong there."""
        buckets = self._buckets[shard.index]
        for start in range(0, len(buckets), BUCKETS_AT_ONCE):
            cursors = dict.fromkeys(buckets[start : start + BUCKETS_AT_ONCE], 0)
            while cursors:
                entries = await self._read_entries(cursors)
                self.entries += len(entries)
                for part in range(0, len(entries), SLICE):
                    for misplaced in await self._misplaced(shard, entries[part : part + SLICE]):
                        yield misplaced

    async def _read_entries(self, cursors: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
        """Read on in some buckets. Return the entries, as bucket and id, and move the cursors; remove those at the end.

        A bucket of a few tasks is read whole. Were each read by itself, small topics would take a round trip each.
        """
        count = max(SLICE // len(cursors), 1)
        commands: list[Command] = [("ZSCAN", key, cursor, "COUNT", count) for key, cursor in cursors.items()]
        entries: list[tuple[bytes, bytes]] = []
        for key, (cursor, found) in zip([*cursors], await self._client.execute_all("doctor", commands), strict=True):
            entries += [(key, id) for id, _ in found]
            if cursor:
                cursors[key] = cursor
            else:
                del cursors[key]
        return entries

    async def _misplaced(self, shard: Shard, entries: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return those entries, as bucket and id, that have no body, or the body of another topic's task."""
        bodies = await self._client.execute("doctor", ("HMGET", shard.pool, *(id for _, id in entries)))
        topics = {key: _bucket_and_topic(shard, key)[1] for key, _ in entries}
        return [
            (key, id)
            for (key, id), body in zip(entries, bodies, strict=True)
            if body is None or not _may_be_of(body, topics[key])
        ]

    async def _not_in_expiry_index(self, shard: Shard, tasks: dict[bytes, Task | None]) -> list[bytes]:
        """Return the ids of tasks that have a ttl and were not seen in the expiry index."""
        expiring = {id: task for id, task in tasks.items() if task is not None and task.expires_at is not None}
        if not expiring:
            return []
        members = [expiry_member(task.topic.encode(), id) for id, task in expiring.items()]
        scores = await self._client.execute("doctor", ("ZMSCORE", shard.expiry, *members))
        return [id for id, score in zip(expiring, scores, strict=True) if score is None]

    async def _check_expiry_index(self, shard: Shard, id: bytes, *, repair: bool) -> bytes | None:
        """Return the topic of a task that should be in the expiry index and is not; with `repair`, add it."""
        body = await self._client.execute("doctor", ("HGET", shard.pool, id))
        task = None if body is None else _decode(body)
        if task is None or task.expires_at is None:
            return None
        topic = task.topic.encode()
        keys = [shard.pool, *shard.buckets(topic)[:3], shard.expiry]
        command = scripts.REPAIR_EXPIRY.call(keys, [topic, id, body, task.expires_at, int(repair)])
        return topic if await self._client.execute("doctor", command) else None

    async def _examine(self, shard: Shard, id: bytes, met_in: bytes | None) -> _Examination:
        """Return the state of an id at one moment: in the buckets that may hold it, and in that where it was met."""
        keys = [met_in] if met_in is not None and shard.parse_bucket_key(met_in) is not None else []
        is_searched = False
        while True:
            command = scripts.EXAMINE.call([shard.pool, shard.attempts, shard.outcome, *keys], [id])
            body, attempts, outcome, indexes = await self._client.execute("doctor", command)
            found_in = [keys[index - 1] for index in indexes]
            topic = None if body is None else _topic_of(body)
            allowed = [] if topic is None else [shard.bucket(bucket, topic) for bucket in PREFERENCE]
            if body is not None and topic is None:  # any bucket may be its own
                allowed = self._buckets_around(shard, [*found_in, _fallback_bucket(shard, body)])
            if not set(allowed) <= set(keys):
                keys = _distinct([*keys, *allowed])
                continue
            leftovers = [key for key, left in ((shard.attempts, attempts), (shard.outcome, outcome)) if left]
            examination = _Examination(shard, id, body, leftovers, sorted(found_in), allowed)
            if is_searched or examination.defect() is None:
                return examination
            is_searched = True
            keys = _distinct([*keys, *await self._search(shard, id)])

    async def _search(self, shard: Shard, id: bytes) -> list[bytes]:
        """Return the buckets of the shard that hold an id, each as it is when the search reaches it."""
        holding: list[bytes] = []
        buckets = self._buckets.get(shard.index)
        if buckets is None:  # a finding is repaired after the examination of its shard
            keys = [key async for found in self._read_keys(shard) for key in found]
            buckets = [key for key in keys if shard.parse_bucket_key(key) is not None]
        for start in range(0, len(buckets), SEARCH_SLICE):
            some = buckets[start : start + SEARCH_SLICE]
            command = scripts.EXAMINE.call([shard.pool, shard.attempts, shard.outcome, *some], [id])
            *_, indexes = await self._client.execute("doctor", command)
            holding += [some[index - 1] for index in indexes]
        return holding

    def _buckets_around(self, shard: Shard, keys: Iterable[bytes]) -> list[bytes]:
        """Return all buckets of the topics of these, in the order of preference: tasks move among them."""
        topics = {_bucket_and_topic(shard, key)[1] for key in keys}
        return [shard.bucket(bucket, topic) for bucket in PREFERENCE for topic in sorted(topics)]

    async def _wake_findings(self, shard: Shard, now: int) -> AsyncIterator[Finding]:
        """Yield the defects of the wake entries of all topics that have a bucket or a wake entry."""
        topics = {_bucket_and_topic(shard, key) for key in self._buckets[shard.index]}
        for bucket in Bucket:
            async for entries in self._scan(("ZSCAN", shard.wakes[bucket]), ("COUNT", SLICE)):
                topics |= {(bucket, topic) for topic, _ in entries}
        ordered = sorted(topics)
        for start in range(0, len(ordered), SLICE):
            some = ordered[start : start + SLICE]
            commands = [_wake_command(scripts.EXAMINE_WAKE, shard, bucket, topic, now) for bucket, topic in some]
            for (bucket, topic), fault in zip(some, await self._client.execute_all("doctor", commands), strict=True):
                if fault:
                    yield Finding(Defect(f"wake-{fault.decode()}"), shard.index, None, topic, bucket, ())

    async def _endless_records(self, shard: Shard, keys: Sequence[bytes]) -> list[Finding]:
        """Return the claim records among these keys that would never be removed."""
        records = [key for key in keys if key.startswith(shard.claim_record_prefix)]
        lasting = await self._client.execute_all("doctor", [("PTTL", key) for key in records])
        claim_ids = [
            printable(key.removeprefix(shard.claim_record_prefix))
            for key, left_ms in zip(records, lasting, strict=True)
            if left_ms == NO_END
        ]
        return [Finding(Defect.CLAIM_ENDLESS, shard.index, None, None, None, (claim_id,)) for claim_id in claim_ids]

    async def _scan(self, scan: Command, options: Command) -> AsyncIterator[Any]:
        """Yield the results of an HSCAN or ZSCAN, slice by slice."""
        cursor = 0
        while True:
            cursor, found = await self._client.execute("doctor", (*scan, cursor, *options))
            yield found
            if cursor == 0:
                return


def _fallback_bucket(shard: Shard, body: bytes) -> bytes:
    """Return the bucket for a task that is in none."""
    topic = _topic_of(body)
    return shard.bucket(Bucket.DEAD, UNKNOWN_TOPIC) if topic is None else shard.bucket(Bucket.DELAY, topic)


def _wake_command(script: Script, shard: Shard, bucket: Bucket, topic: bytes, now: int) -> Command:
    return script.call([shard.bucket(bucket, topic), shard.wakes[bucket]], [topic, now])


def _index_command(shard: Shard, topic: bytes) -> Command:
    return scripts.INDEX_TOPICS.call([shard.topics, *shard.wakes.values()], [topic])


def _bucket_and_topic(shard: Shard, key: bytes) -> tuple[Bucket, bytes]:
    """Return the bucket and the topic of a bucket's key."""
    located = shard.parse_bucket_key(key)
    assert located is not None
    return located


def _topic_of(body: bytes) -> bytes | None:
    """Return the topic that a body names; None if it cannot be read."""
    task = _decode(body)
    return None if task is None else task.topic.encode()


def _may_be_of(body: bytes, topic: bytes) -> bool:
    """Return False if a body names another topic; one that cannot be read may be of any."""
    return names_topic(body, topic) or _topic_of(body) in (topic, None)


def _decode(body: bytes) -> Task | None:
    """Return the task, without its id; None if the body cannot be read."""
    try:
        return decode_task("", body)
    except UnreadableBody:
        return None


def _distinct(keys: Iterable[bytes]) -> list[bytes]:
    return list(dict.fromkeys(keys))
