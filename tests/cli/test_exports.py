"""The commands `export` and `import`: a round trip keeps everything, and whatever is wrong is told."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from later.cli.commands.exports import _output, write_export
from later.cli.commands.imports import import_file
from later.cli.exit import CommandFailed
from later.core.errors import ConfigError
from later.core.policy_scopes import Level, PolicyScope
from later.store import store_reader
from later.store.keys import Bucket
from later.store.open import Store
from tests.builders import NOW, a_task
from tests.cli.api_stub import Capture
from tests.store.inspection import ask, claim_due
from tests.store.store_meaning import fill, open_prefix, read_meaning, waiting_since
from tests.store.test_schedules import a_definition
from tests.store_fixture import StoreFixture

SHARDS = 3


@pytest.fixture
async def target(store: StoreFixture, server_url: str) -> AsyncIterator[Store]:
    """A new store on the same server, of another prefix and other shards."""
    async with open_prefix(server_url, "other", SHARDS) as opened:
        yield opened


async def export(store: Store) -> bytes:
    output = io.BytesIO()
    await write_export(store, output)
    return output.getvalue()


async def import_(store: Store, data: bytes, *, hold: bool = False) -> int:
    return await import_file(store, io.BytesIO(data), hold=hold, as_json=False)


def records(data: bytes) -> list[bytes]:
    """Return the lines of all records, in an order of their own."""
    return sorted(data.splitlines()[1:-1])


async def test_a_round_trip_keeps_everything(
    store: StoreFixture, target: Store, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(store_reader, "SCAN_SLICE", 3)
    await fill(store)
    await store.schedules.put(a_definition("daily"), NOW)
    before = await read_meaning(store)
    exported = await export(store)
    assert json.loads(exported.splitlines()[-1])["tasks"] == len(before["tasks"])
    assert await import_(target, exported) == 0
    after = waiting_since(await read_meaning(target), before)
    assert after == before
    assert await doctor_findings(target) == []
    assert capsys.readouterr().out.startswith(f"{len(before['tasks'])} tasks imported, 0 were there")


async def doctor_findings(store: Store) -> list[Any]:
    return [finding async for finding in store.doctor.examine((await store.time.now()).high)]


async def test_an_export_of_what_was_imported_is_the_same(store: StoreFixture, target: Store) -> None:
    await fill(store, 60)
    in_flight = {id for id, task in (await read_meaning(store))["tasks"].items() if task[2] is None}
    assert in_flight
    await import_(target, await export(store))
    first = await export(target)
    await ask(store, [("DEL", *await keys_of(store))])
    async with open_prefix_again(store) as again:
        await import_(again, first)
        assert without_audit(records(await export(again))) == without_audit(records(first))


def without_audit(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if b'"data imported"' not in line]


async def keys_of(store: StoreFixture) -> list[bytes]:
    return [key for key in (await ask(store, [("KEYS", "*")]))[0] if not key.startswith((b"other:", b"{other:"))]


def open_prefix_again(store: StoreFixture) -> Any:
    url = f"unix://{store.redis.connection_pool.connection_kwargs['path']}"
    return open_prefix(url, "later", len(store.keys.shards))


async def test_what_is_there_stays_as_it_is(store: StoreFixture, target: Store, capsys: Capture) -> None:
    await fill(store, 30)
    exported = await export(store)
    await target.tasks.create([a_task(id="own-0", own_id=True, topic="mine", content="kept")])
    await target.policies.change(PolicyScope(Level.TOPIC, "order"), lambda s: s.merge({"rate": 99}))
    assert await import_(target, exported) == 0
    assert await import_(target, exported) == 0
    assert "0 tasks imported" in capsys.readouterr().out.splitlines()[-2]
    [found] = await target.lookup.query(["own-0"])
    assert getattr(found, "task").content == "kept"  # noqa: B009  # of a union
    assert (await target.policies.read()).for_topic("order").rate == 99


async def test_a_task_that_has_ended_here_is_not_created_again(store: StoreFixture, target: Store) -> None:
    await store.tasks.create([a_task(id="own", own_id=True)])
    exported = await export(store)
    shard = target.keys.shard_of("own")
    await target.client.execute("test", ("ZADD", shard.done, NOW, b"own"))
    assert await import_(target, exported) == 0
    assert not (await read_meaning(target))["tasks"]


async def test_paused_holds_every_topic_before_a_worker_can_claim(store: StoreFixture, target: Store) -> None:
    await store.tasks.create([a_task(topic=f"t{n % 4}") for n in range(20)])
    await store.policies.change(PolicyScope(Level.TOPIC, "t1"), lambda s: s.merge({"rate": 9}))
    await target.policies.change(PolicyScope(Level.TOPIC, "t2"), lambda s: s.merge({"retry": 7}))
    await import_(target, await export(store), hold=True)
    policies = await target.policies.read()
    assert all(policies.for_topic(f"t{n}").paused for n in range(4))
    assert (policies.for_topic("t1").rate, policies.for_topic("t2").retry) == (9, 7)
    assert (await target.tasks.due_topics(Bucket.DELAY, 100)).topics == []
    assert await target.permits.paused_topics() == {f"t{n}" for n in range(4)}


async def test_paused_holds_the_topics_of_schedules_and_of_tasks_that_come_of_others(
    store: StoreFixture, target: Store
) -> None:
    await store.tasks.create([a_task(topic="shop/a")])
    await store.schedules.put(a_definition("daily", topic="report"), NOW)
    fed = {"dead_to": "shop/dead", "on_done": "shop/done"}
    await store.policies.change(PolicyScope(Level.NAMESPACE, "shop"), lambda s: s.merge(fed))
    await store.policies.change(PolicyScope(Level.TOPIC, "shop/done"), lambda s: s.merge({"rate": 9}))
    await import_(target, await export(store), hold=True)
    policies = await target.policies.read()
    assert all(policies.for_topic(topic).paused for topic in ("shop/a", "report", "shop/dead", "shop/done"))
    assert policies.for_topic("shop/done").rate == 9
    assert await target.permits.paused_topics() == {"shop/a", "report"}
    assert await doctor_findings(target) == []


async def test_without_it_what_is_due_is_delivered(store: StoreFixture, target: Store) -> None:
    await store.tasks.create([a_task(topic="order")])
    await import_(target, await export(store))
    assert [wake.topic for wake in (await target.tasks.due_topics(Bucket.DELAY, 100)).topics] == ["order"]


async def test_wrong_lines_are_told_with_their_numbers_and_the_others_are_imported(
    store: StoreFixture, target: Store, capsys: Capture
) -> None:
    await store.tasks.create([a_task() for _ in range(5)])
    lines = (await export(store)).splitlines()
    lines[2] = b"{}"
    lines[4] = lines[4].replace(b'"state":"delay"', b'"state":"lost"')
    assert await import_(target, b"\n".join([*lines, b"more"])) == 3
    err = capsys.readouterr().err
    assert [line.split(":")[1].strip() for line in err.splitlines()[:3]] == [
        "line 3",
        "line 5",
        f"line {len(lines) + 1}",
    ]
    assert "3 lines were not imported" in err
    assert len((await read_meaning(target))["tasks"]) == 3


async def test_a_file_that_is_cut_off_is_told(store: StoreFixture, target: Store, capsys: Capture) -> None:
    await store.tasks.create([a_task() for _ in range(5)])
    lines = (await export(store)).splitlines(keepends=True)
    assert await import_(target, b"".join(lines[:3])) == 3
    assert "lines are missing" in capsys.readouterr().err
    assert await import_(target, b"".join([*lines[:3], lines[-1]])) == 3
    assert "the export had 5 records, and the file has 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"", "expected the beginning of an export"),
        (b'{"kind": "end", "records": 0, "tasks": 0}', "expected the beginning of an export"),
        (b'{"kind": "export", "format": 2, "version": "9", "at": 0, "shards": 1}', "format 2"),
        (b'{"kind": "export", "format": 1, "version": "9", "at": 0, "shards": 1, "needs": ["x"]}', "does not know: x"),
    ],
)
async def test_what_is_no_export_is_refused_before_anything_is_changed(target: Store, first: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await import_(target, first + b"\n")


async def test_a_full_store_stops_the_import_and_says_how_far_it_came(
    store: StoreFixture, target: Store, capsys: Capture
) -> None:
    await store.tasks.create([a_task() for _ in range(5)])
    exported = await export(store)
    await ask(store, [("CONFIG", "SET", "maxmemory", 1)])
    try:
        with pytest.raises(CommandFailed, match="run the same command again"):
            await import_(target, exported)
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", 0)])
    assert await import_(target, exported) == 0


async def test_beside_busy_workers_every_task_that_stays_is_exported(
    store: StoreFixture, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reader, "FEWEST_AT_ONCE", 2)
    monkeypatch.setattr(store_reader, "MAX_TASKS", 5)
    await store.tasks.create([a_task(topic=f"t{n % 3}") for n in range(300)])
    ids = set((await read_meaning(store))["tasks"])
    running = True

    async def move_tasks() -> None:
        while running:
            claims = await claim_due(store)
            await store.tasks.give_back(claims)
            await asyncio.sleep(0)

    worker = asyncio.create_task(move_tasks())
    exported = await export(store)
    running = False
    await worker
    assert await import_(target, exported) == 0
    assert set((await read_meaning(target))["tasks"]) == ids


async def test_hostile_bytes_survive_a_round_trip(store: StoreFixture, target: Store) -> None:
    shard = store.keys.shards[0]
    bodies = {b"\xff\xfe": b"\xc1", b"\1": b"", b"n" * 300: b"\x9f" * 9}
    commands: list[Any] = []
    for id, body in bodies.items():
        commands += [("HSET", shard.pool, id, body), ("ZADD", shard.bucket(Bucket.ERROR, b"odd"), NOW, id)]
        commands += [("HSET", shard.attempts, id, b"07"), ("HSET", shard.outcome, id, b"\xc1\xff")]
    await ask(store, [*commands, ("HSET", shard.pool, b"nowhere", b"\xc1")])
    assert await import_(target, await export(store)) == 0
    found: dict[bytes, bytes] = {}
    for shard in target.keys.shards:
        found.update(await target.client.execute("test", ("HGETALL", shard.pool)))
    assert found == bodies | {b"nowhere": b"\xc1"}


def test_a_file_gets_its_name_when_it_is_complete_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "e.ndjson"
    with _output(str(file)) as output:
        output.write(b"x")
        assert not file.exists()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"x", 0o600)
    with pytest.raises(KeyError), _output(str(file)):
        raise KeyError
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"x", ["e.ndjson"])
