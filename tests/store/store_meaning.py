"""All that a store means to later, whatever its shards and its prefix, read without later's reader."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Level, PolicyScope
from later.core.retry import SettleTarget, Verdict
from later.core.task import unpack_id
from later.core.validation import DAY_MS
from later.store.keys import Bucket, Shard
from later.store.open import Store, connect_store
from later.store.settings import StoreSettings
from later.store.types import ClaimRequest, JobBatch, PutBack, Settlement
from tests.builders import NOW, a_task
from tests.store.inspection import FAILURE, LEASE_MS, unwrap_claim

FIELDS = ("signing", "admission")


@asynccontextmanager
async def open_prefix(url: str, prefix: str, shards: int) -> AsyncIterator[Store]:
    """Open the store of another prefix on the server of a test; lay it out if it is new."""
    settings = StoreSettings(url=url, prefix=prefix, timeout_s=10)
    clock = Clock(time.monotonic, time.time)
    store = connect_store(settings, shards, clock, DEFAULT_POLICY, "", lambda verb: lambda seconds: None)
    async with aclosing(store):
        await store.client.open()
        yield store


async def read_meaning(store: Store) -> dict[str, Any]:
    """Return everything by what it means. Tasks in flight are read as due; what a store keeps for itself is not."""
    ask = store.client.execute
    meaning: dict[str, Any] = {"tasks": {}, "expiry": {}, "done": {}, "schedules": {}, "jobs": {}}
    for shard in store.keys.shards:
        for name, key in (("expiry", shard.expiry), ("done", shard.done), ("jobs", shard.jobs)):
            meaning[name].update(await read_scores(store, key))
        meaning["tasks"].update(await _read_tasks(store, shard))
        for id, definition in (await ask("test", ("HGETALL", shard.schedules))).items():
            state = await ask("test", ("HGET", shard.schedule_states, id))
            meaning["schedules"][id] = (definition, state, await ask("test", ("ZSCORE", shard.firings, id)))
            assert await ask("test", ("ZCARD", shard.schedule_index))
    meaning["counts"] = {name: await _read_counts(store, name.decode()) for name in meaning["jobs"]}
    for kind, key in store.keys.copied_hashes.items():
        meaning[kind] = await ask("test", ("HGETALL", key))
        meaning[kind].pop(b"version", None)
    meaning["ramps"] = await read_scores(store, store.keys.ramps)
    audit = await ask("test", ("XRANGE", store.keys.audit_trail, "-", "+"))
    meaning["audit"] = [(id, tuple(values.items())) for id, values in audit]
    meaning["settings"] = await ask("test", ("HMGET", store.keys.meta, *FIELDS))
    return meaning


async def read_scores(store: Store, key: bytes) -> dict[bytes, int]:
    flat = await store.client.execute("test", ("ZRANGE", key, 0, -1, "WITHSCORES"))
    return {member: int(float(at)) for member, at in zip(flat[::2], flat[1::2], strict=True)}


async def _read_tasks(store: Store, shard: Shard) -> dict[bytes, Any]:
    """Return a shard's tasks: topic, state, time (None: due at once), body, attempts, first due time, failure."""
    ask, tasks = store.client.execute, dict[bytes, Any]()
    hashes = (shard.pool, shard.attempts, shard.outcome)
    bodies, attempts, failures = [await ask("test", ("HGETALL", key)) for key in hashes]
    for key in (await ask("test", ("SCAN", 0, "MATCH", shard.key_pattern, "COUNT", 10**6)))[1]:
        located = shard.parse_bucket_key(key)
        if located is None:
            continue
        bucket, topic = located
        assert await ask("test", ("ZSCORE", shard.wakes[bucket], topic)) is not None
        assert await ask("test", ("ZSCORE", shard.topics, topic)) is not None
        for id, at in (await read_scores(store, key)).items():
            assert id not in tasks
            assert store.keys.shard_of(unpack_id(id)) is shard
            place = ("delay", None) if bucket is Bucket.UNACK else (bucket.value, at)
            begun, rest = attempts.pop(id, b"0 0").split(b" ")[:2]
            put_back = rest if place[0] == "delay" and rest[:1] == b"0" and rest != b"0" else None
            tasks[id] = (topic, *place, bodies.pop(id), int(begun), put_back, failures.pop(id, None))
    assert (bodies, attempts, failures) == ({}, {}, {})
    return tasks


async def _read_counts(store: Store, job: str) -> dict[bytes, Any]:
    """Return the counts of a bulk job; what each shard has created is added up."""
    counts: dict[bytes, Any] = {b"created": 0}
    for shard in store.keys.shards:
        found = await store.client.execute("test", ("HGETALL", shard.job(job)))
        counts[b"created"] += int(found.pop(b"created", 0))
        counts.update(found)
    return counts


def waiting_since(meaning: dict[str, Any], due: dict[str, Any]) -> dict[str, Any]:
    """Return what a store means, with tasks that were in flight in `due` as if they still were."""
    in_flight = {id for id, task in due["tasks"].items() if task[2] is None}
    tasks = {
        id: (task[0], task[1], None, *task[3:]) if id in in_flight else task for id, task in meaning["tasks"].items()
    }
    return {**meaning, "tasks": tasks}


async def fill(store: Store, tasks: int = 120) -> None:
    """Put something of every kind into a store: tasks in all states, and all that is beside them."""
    ask = store.client.execute
    topics = ["order", "shop/mail", "shop/größe", "bulk"]
    await store.tasks.create([
        a_task(topic=topics[n % 4], id=f"own-{n}" if n % 3 == 0 else a_task().id, own_id=n % 3 == 0, delay=n % 40,
               ttl=90 * 86400 if n % 5 == 0 else None, content="ü\0\u2028" * (n % 4))
        for n in range(tasks)
    ], JobBatch("job", b"\xff\0digest", 3, NOW + DAY_MS, "run"))  # fmt: skip
    due = await store.tasks.due_topics(Bucket.DELAY, 1000)
    requests = [ClaimRequest(wake.topic, wake.shard, 500) for wake in due.topics]
    answers = await store.tasks.claim(requests, NOW + 25_000, NOW + 25_000 + LEASE_MS)
    claims = [claim for answer in answers for claim in unwrap_claim(answer).claims]
    verdicts = [
        Verdict(SettleTarget.DONE, NOW), Verdict(SettleTarget.ERROR, NOW + 60_000, FAILURE),
        Verdict(SettleTarget.DEAD, NOW + 26_000, FAILURE),
    ]  # fmt: skip
    settled = [Settlement(claim, verdicts[n % 3], NOW + DAY_MS if claim.task.own_id else None)  # type: ignore[union-attr]  # readable
               for n, claim in enumerate(claims) if n % 5 < 3]  # fmt: skip
    await store.tasks.settle(settled)
    await store.tasks.put_back([PutBack(claim, NOW + 90_000) for n, claim in enumerate(claims) if n % 5 == 3])
    await store.policies.change(PolicyScope(Level.TOPIC, "order"), lambda s: s.merge({"rate": 5, "paused": True}))
    await store.policies.change(PolicyScope(Level.NAMESPACE, "shop"), lambda s: s.merge({"deliver": "pull"}))
    hashes = [
        (store.keys.queues, b"shop/mail", b'{"a": 1}'), (store.keys.api_keys, b"key00001", b'{"digest": "x"}'),
        (store.keys.key_uses, b"key00001", b"1700000000000"),
        (store.keys.signing, b"namespace:shop", b'[{"g":2,"master":"ab"}]'),
        (store.keys.event_outbox, b"ev:x", b'{"type": "dead"}'), (store.keys.event_counts, b"dead\0order\0", b"\0\xff"),
        (store.keys.meta, b"signing", b"abc"), (store.keys.meta, b"admission", b'{"max_body": 5}'),
    ]  # fmt: skip
    for key, field, value in hashes:
        await ask("test", ("HSET", key, field, value))
    await ask("test", ("ZADD", store.keys.ramps, NOW + 5, b"order"))
    for number in range(3):
        await ask("test", ("XADD", store.keys.audit_trail, f"17{number}-0", "event", b'{"event": "key made"}'))
    shard = store.keys.shard_of("gone")
    await ask("test", ("ZADD", shard.done, NOW + DAY_MS, b"gone"))
