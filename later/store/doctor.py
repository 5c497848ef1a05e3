"""The doctor: is every task in exactly one bucket, every bucket entry a task, and every wake entry right?

It reads the whole store in slices, beside workers that move tasks all the time. What looks wrong in a slice may only
have moved between two commands; so each suspect is looked at again by one script that sees all buckets of its shard.
Nothing is remembered of what was read but the names of the topics, or a store of millions of tasks would not fit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from later.core.errors import UnreadableBody
from later.core.task import decode, unpack_id
from later.store import scripts
from later.store.client import Client
from later.store.expiry_index import ExpiryIndex
from later.store.keys import Bucket, Keys, Shard
from later.store.scripts import Argument, Command, Script

SLICE = 200
"""Ids read at once: bodies of 1 MiB must fit into memory, and the store serves nobody else meanwhile."""
SCAN_SLICE = 1000
PREFERENCE = (Bucket.UNACK, Bucket.ERROR, Bucket.DELAY, Bucket.DEAD)
"""Where a task stays that is in several buckets: its delivery may be under way, or its pause is not over."""
UNKNOWN_TOPIC = b"unknown"
"""The topic whose dead a task joins that nothing names the topic of."""


class Defect(StrEnum):
    """What can be wrong with a task, or with a topic's wake entry."""

    SEVERAL = "several"
    NOWHERE = "nowhere"
    MISPLACED = "misplaced"
    BODILESS = "bodiless"
    LEFTOVER = "leftover"
    UNINDEXED = "unindexed"
    WAKE_MISSING = "wake-missing"
    WAKE_STALE = "wake-stale"
    WAKE_WRONG = "wake-wrong"


DESCRIPTIONS = {
    Defect.SEVERAL: "is in several buckets",
    Defect.NOWHERE: "is in no bucket",
    Defect.MISPLACED: "is in a bucket of another topic",
    Defect.BODILESS: "has no body, but is in a bucket",
    Defect.LEFTOVER: "has no body, but left behind",
    Defect.UNINDEXED: "has a ttl, but is not in the index of such tasks",
    Defect.WAKE_MISSING: "has no wake entry",
    Defect.WAKE_STALE: "is empty, but has a wake entry",
    Defect.WAKE_WRONG: "has a wrong wake entry",
}


class Finding(NamedTuple):
    """Something that is wrong: with the task `id`, or with the wake entry of a topic's `bucket` (then `id` is None).

    `topic` is None where nothing names it; `where` lists what the task was found in.
    """

    kind: Defect
    shard: int
    id: bytes | None
    topic: bytes | None
    bucket: Bucket | None
    where: tuple[str, ...]

    def __str__(self) -> str:
        topic = "" if self.topic is None else f"topic '{_text(self.topic)}', "
        where = f": {', '.join(self.where)}" if self.where else ""
        subject = f"bucket {self.bucket}" if self.id is None else f"task {unpack_id(self.id)!r}"
        return f"{subject} ({topic}shard {self.shard}) {DESCRIPTIONS[self.kind]}{where}"


class _Look(NamedTuple):
    """Where an id stood at one moment: the keys that it was in, and those of them that it may be in."""

    shard: Shard
    id: bytes
    body: bytes | None
    leftovers: list[bytes]
    places: list[bytes]
    homes: list[bytes]

    def wrong(self) -> Defect | None:
        if self.body is None:
            if self.places:
                return Defect.BODILESS
            return Defect.LEFTOVER if self.leftovers else None
        if len(self.places) != 1:
            return Defect.SEVERAL if self.places else Defect.NOWHERE
        return None if self.places[0] in self.homes else Defect.MISPLACED

    def told_from(self) -> bytes:
        """The one key whose reading tells of this id, so that it is told once, however often it is met."""
        if self.body is None:
            return [*self.places, *self.leftovers][0]
        strange = [key for key in self.places if key not in self.homes]
        if strange and len(self.places) - len(strange) == 1:
            return strange[0]
        return self.shard.pool


class Doctor:
    """Examines and mends. `tasks` and `entries` (of buckets) say how many the latest examination has read.

    Every method raises StoreDown.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self.tasks = 0
        self.entries = 0
        self._client = client
        self._keys = keys
        self._buckets: dict[int, list[bytes]] = {}
        self._index = ExpiryIndex(client)

    async def examine(self, now: int) -> AsyncIterator[Finding]:
        """What is wrong in the whole store; each finding was true at one moment of this reading.

        A finding may be mended before the next one is asked for.
        """
        self.tasks = self.entries = 0
        for shard in self._keys.shards:
            self._buckets[shard.index] = await self._find_buckets(shard)
            async for read_from, id in self._suspects(shard):
                if read_from == shard.expiry:
                    topic = await self._index.missing(shard, id)
                    if topic is not None:
                        yield Finding(Defect.UNINDEXED, shard.index, id, topic, None, ())
                    continue
                look = await self._look(shard, id)
                kind = look.wrong()
                if kind is not None and look.told_from() == read_from:
                    yield _finding(kind, look)
            async for finding in self._wake_findings(shard, now):
                yield finding

    async def mend(self, finding: Finding, now: int) -> bool:
        """Put right what was found, by how it stands now; False where nothing is wrong any more.

        A task stays in the bucket that says most of it, within its own topic; one that is in none of these is due
        now, or dead in the topic "unknown" where its body cannot be read. What has no body is removed.
        """
        shard = self._keys.shards[finding.shard]
        if finding.bucket is not None:
            assert finding.topic is not None
            call = _wake_call(scripts.REPAIR_WAKE, shard, finding.bucket, finding.topic, now)
            return bool(await self._client.execute("doctor", call))
        if shard.index not in self._buckets:
            self._buckets[shard.index] = await self._find_buckets(shard)
        assert finding.id is not None
        if finding.kind is Defect.UNINDEXED:
            return await self._index.mend(shard, finding.id)
        while True:
            look = await self._look(shard, finding.id)
            answer = await self._client.execute("doctor", _mend(look, self._buckets[shard.index], now))
            if answer >= 0:
                return bool(answer)

    async def _find_buckets(self, shard: Shard) -> list[bytes]:
        pattern = ("MATCH", shard.key_pattern, "COUNT", SCAN_SLICE)
        keys = {key async for some in self._slices(("SCAN",), pattern) for key in some}
        return sorted(key for key in keys if shard.locate(key) is not None)

    async def _suspects(self, shard: Shard) -> AsyncIterator[tuple[bytes, bytes]]:
        """Ids that may be wrong, each with the key whose reading made it a suspect."""
        async for bodies in self._slices(("HSCAN", shard.pool), ("COUNT", SLICE)):
            self.tasks += len(bodies)
            for id in await self._not_in_one_bucket(shard, bodies):
                yield shard.pool, id
            for id in await self._index.suspects(shard, bodies):
                yield shard.expiry, id
        for key in self._buckets[shard.index]:
            async for entries in self._slices(("ZSCAN", key), ("COUNT", SLICE)):
                self.entries += len(entries)
                for id in await self._strangers(shard, key, [id for id, _ in entries]):
                    yield key, id
        for key in (shard.attempts, shard.outcome):
            async for fields in self._slices(("HSCAN", key), ("COUNT", SLICE)):
                for id in await self._without_body(shard, list(fields)):
                    yield key, id

    async def _not_in_one_bucket(self, shard: Shard, bodies: dict[bytes, bytes]) -> list[bytes]:
        """Ids that were not seen in exactly one bucket of their topic, or whose topic cannot be read."""
        by_topic: dict[bytes | None, list[bytes]] = {}
        for id, body in bodies.items():
            by_topic.setdefault(_topic_of(body), []).append(id)
        suspects = by_topic.pop(None, [])
        commands: list[Command] = [
            ("ZMSCORE", key, *ids) for topic, ids in by_topic.items() for key in shard.buckets(topic or b"")
        ]
        answers = iter(await self._client.execute_all("doctor", commands))
        for ids in by_topic.values():
            scores = [next(answers) for _ in Bucket]
            suspects += [id for id, *seen in zip(ids, *scores, strict=True) if _count(seen) != 1]
        return suspects

    async def _strangers(self, shard: Shard, key: bytes, ids: list[bytes]) -> list[bytes]:
        """Entries of the bucket `key` without a body, or with the body of another topic's task."""
        if not ids:
            return []
        here = _place(shard, key)[1]
        bodies = await self._client.execute("doctor", ("HMGET", shard.pool, *ids))
        return [
            id
            for id, body in zip(ids, bodies, strict=True)
            if body is None or (_topic_of(body) or here) != here  # what cannot be read may be anywhere
        ]

    async def _without_body(self, shard: Shard, ids: list[bytes]) -> list[bytes]:
        answers = await self._client.execute_all("doctor", [("HEXISTS", shard.pool, id) for id in ids])
        return [id for id, exists in zip(ids, answers, strict=True) if not exists]

    async def _look(self, shard: Shard, id: bytes) -> _Look:
        """All about one id at one moment. Once more where it turns out to be of a topic that was not looked into."""
        known, homes = self._buckets[shard.index], list[bytes]()
        while True:
            keys = _once([*homes, *known])
            call = scripts.EXAMINE.call([shard.pool, shard.attempts, shard.outcome, *keys], [id])
            body, attempts, outcome, places = await self._client.execute("doctor", call)
            homes = _homes(shard, body, known)
            if set(homes) <= set(keys):
                leftovers = [key for key, left in ((shard.attempts, attempts), (shard.outcome, outcome)) if left]
                return _Look(shard, id, body, leftovers, [keys[i - 1] for i in places], homes)

    async def _wake_findings(self, shard: Shard, now: int) -> AsyncIterator[Finding]:
        places = sorted(await self._wakeful(shard))
        for start in range(0, len(places), SLICE):
            some = places[start : start + SLICE]
            calls = [_wake_call(scripts.EXAMINE_WAKE, shard, bucket, topic, now) for bucket, topic in some]
            for (bucket, topic), fault in zip(some, await self._client.execute_all("doctor", calls), strict=True):
                if fault:
                    yield Finding(Defect(f"wake-{fault.decode()}"), shard.index, None, topic, bucket, ())

    async def _wakeful(self, shard: Shard) -> set[tuple[Bucket, bytes]]:
        """What has a bucket, or a wake entry."""
        places = {_place(shard, key) for key in self._buckets[shard.index]}
        for bucket in Bucket:
            async for entries in self._slices(("ZSCAN", shard.wakes[bucket]), ("COUNT", SLICE)):
                places |= {(bucket, topic) for topic, _ in entries}
        return places

    async def _slices(self, scan: Command, options: Command) -> AsyncIterator[Any]:
        """What a SCAN, HSCAN or ZSCAN answers, one step after the other."""
        cursor = 0
        while True:
            cursor, some = await self._client.execute("doctor", (*scan, cursor, *options))
            yield some
            if cursor == 0:
                return


def _finding(kind: Defect, look: _Look) -> Finding:
    topic = None if look.body is None else _topic_of(look.body)
    places = [_place(look.shard, key) for key in look.places]
    where = [f"{bucket}:{_text(name)}" for bucket, name in places]
    if kind is Defect.LEFTOVER:
        where = ["attempts" if key == look.shard.attempts else "outcome" for key in look.leftovers]
    return Finding(kind, look.shard.index, look.id, topic, None, tuple(where))


def _mend(look: _Look, known: Sequence[bytes], now: int) -> Command:
    shard, buckets = look.shard, _once([*look.homes, *known])
    places = [_place(shard, key) for key in buckets]
    refuge = 1 + buckets.index(_refuge(shard, look.body)) if look.body is not None else 0
    keys = [shard.pool, shard.attempts, shard.outcome, *buckets, *(shard.wakes[bucket] for bucket, _ in places)]
    arguments: list[Argument] = [look.id, look.body or b"", len(look.homes), refuge, now]
    return scripts.REPAIR.call(keys, [*arguments, *(topic for _, topic in places)])


def _homes(shard: Shard, body: bytes | None, known: Sequence[bytes]) -> list[bytes]:
    """The buckets that an id may be in, the best one first: any where the body does not say its topic."""
    if body is None:
        return []
    topic = _topic_of(body)
    if topic is None:
        anywhere = _once([*known, _refuge(shard, body)])
        return sorted(anywhere, key=lambda key: PREFERENCE.index(_place(shard, key)[0]))
    return [shard.bucket(bucket, topic) for bucket in PREFERENCE]


def _refuge(shard: Shard, body: bytes) -> bytes:
    """The bucket for a task that is in none."""
    topic = _topic_of(body)
    return shard.bucket(Bucket.DEAD, UNKNOWN_TOPIC) if topic is None else shard.bucket(Bucket.DELAY, topic)


def _wake_call(script: Script, shard: Shard, bucket: Bucket, topic: bytes, now: int) -> Command:
    return script.call([shard.bucket(bucket, topic), shard.wakes[bucket]], [topic, now])


def _place(shard: Shard, key: bytes) -> tuple[Bucket, bytes]:
    """What `key`, which is a bucket's, is the bucket of."""
    place = shard.locate(key)
    assert place is not None
    return place


def _topic_of(body: bytes) -> bytes | None:
    """The topic that a body names; None where it cannot be read."""
    try:
        return decode("", body).topic.encode()
    except UnreadableBody:
        return None


def _once(keys: Iterable[bytes]) -> list[bytes]:
    return list(dict.fromkeys(keys))


def _count(scores: Iterable[float | None]) -> int:
    return sum(score is not None for score in scores)


def _text(name: bytes) -> str:
    """Fit for one line, whatever it is."""
    return repr(name.decode("utf-8", "backslashreplace"))[1:-1]
