"""The move of all data to another store: nothing is lost, doubled or changed, wherever it is interrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.clock import Clock
from later.core.errors import StoreDown, StoreFull, StoreMismatch
from later.core.heartbeat import Heartbeat
from later.core.policy import DEFAULT_POLICY
from later.store import moves, store_reader
from later.store.fanout import MAX_READ_BYTES
from later.store.keys import Bucket, Keys
from later.store.moves import Move, MoveRefused, MoveState, abandon
from later.store.open import Store, open_existing_store, open_store
from later.store.schema import KNOWN_NEEDS, MOVED, MOVING
from later.store.settings import StoreSettings
from tests.builders import NOW, a_task
from tests.store.inspection import ask
from tests.store.store_meaning import fill, open_prefix, read_meaning, read_scores, waiting_since
from tests.store.test_schedules import a_definition
from tests.store_fixture import StoreFixture

pytestmark = pytest.mark.one_server  # of which the source and the target are prefixes

SHARDS = 5


@pytest.fixture
async def target(store: StoreFixture, server_url: str) -> AsyncIterator[Store]:
    """A new store on the same server, of another prefix and other shards."""
    async with open_prefix(server_url, "other", SHARDS) as opened:
        yield opened


def ignore(done: int, total: int) -> None:
    """Show no progress."""


async def move(source: Store, target: Store) -> moves.MoveReport:
    return await Move(source, target, "redis://new").run(ignore)


class Killed(BaseException):
    """The end of a run, without any of its clean-up."""


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and pages so small that each move has many."""
    monkeypatch.setattr(moves, "TASKS_AT_ONCE", 7)
    monkeypatch.setattr(store_reader, "TASKS_AT_ONCE", 5)
    monkeypatch.setattr(store_reader, "BUCKETS_AT_ONCE", 3)


async def test_everything_is_in_the_target_afterwards_as_it_was(
    store: StoreFixture, target: Store, small_pieces: None
) -> None:
    await fill(store)
    await store.schedules.put(a_definition("daily"), NOW)
    await store.schedules.put(a_definition("off", paused=True), NOW)
    before = await read_meaning(store)
    states = {task[1] for task in before["tasks"].values()}
    assert states == {"delay", "error", "dead"}
    assert any(task[2] is None for task in before["tasks"].values()), "no task is in flight"
    report = await move(store, target)
    assert (report.state, report.tasks, report.put) == (MoveState.DONE, len(before["tasks"]), len(before["tasks"]))
    assert waiting_since(await read_meaning(target), before) == before
    assert not await findings_of(target)
    assert await read_needs(target) == {"pull"}


async def findings_of(store: Store) -> list[Any]:
    return [finding async for finding in store.doctor.examine((await store.time.now()).high)]


async def read_needs(store: Store) -> set[str]:
    needs = await store.client.execute("test", ("HGET", store.keys.meta, "needs"))
    return set((needs or b"").decode().split(",")) - {""}


async def test_a_task_in_flight_is_due_at_once_and_keeps_its_attempts(store: StoreFixture, target: Store) -> None:
    await fill(store)
    in_flight = {id for id, task in (await read_meaning(store))["tasks"].items() if task[2] is None}
    now = (await target.time.now()).low
    await move(store, target)
    moved = {id: task for id, task in (await read_meaning(target))["tasks"].items() if id in in_flight}
    assert len(moved) == len(in_flight) > 0
    assert all(task[1] == "delay" and now <= task[2] < now + 60_000 and task[4] == 1 for task in moved.values())


async def test_a_killed_move_goes_on_and_doubles_nothing(
    store: StoreFixture, target: Store, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    before = await read_meaning(store)
    execute_each, runs, killed = target.client.execute_each, 0, True
    while killed:
        left = 1 + 3 * runs

        async def execute(verb: str, commands: Any) -> Any:
            nonlocal left
            left -= bool(commands) and verb == "put"
            if left < 0:
                raise Killed
            return await execute_each(verb, commands)

        monkeypatch.setattr(target.client, "execute_each", execute)
        try:
            report, killed = await move(store, target), False
        except Killed:
            runs += 1
    assert runs >= 4
    assert report.state is MoveState.WAS_DONE or report.put < report.tasks  # the last kill may be after its last mark
    assert waiting_since(await read_meaning(target), before) == before


async def test_from_its_end_on_the_source_refuses_everybody(
    store: StoreFixture, target: Store, server_url: str
) -> None:
    await store.tasks.create([a_task()])
    await move(store, target)
    settings = StoreSettings(url=server_url, prefix="later", timeout_s=10)
    clock = Clock(lambda: 0.0, lambda: 0.0)
    with pytest.raises(StoreMismatch, match="was moved to redis://new"):
        await open_store(settings, clock, DEFAULT_POLICY, 1)
    with pytest.raises(StoreMismatch, match="was moved to redis://new"):
        await open_existing_store(settings, clock)
    with pytest.raises(StoreMismatch, match="was moved to redis://new"):
        async with open_prefix(server_url, "later", len(store.keys.shards)):
            pass
    async with open_prefix(server_url, "other", SHARDS):
        pass
    assert (await move(store, target)).state is MoveState.WAS_DONE


async def test_both_ends_refuse_everybody_while_it_is_under_way(
    store: StoreFixture, target: Store, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Move) -> None:
        raise StoreDown("away")

    monkeypatch.setattr(Move, "_compare", fail)
    await store.tasks.create([a_task()])
    with pytest.raises(StoreDown):
        await move(store, target)
    for prefix, shards in (("later", len(store.keys.shards)), ("other", SHARDS)):
        with pytest.raises(StoreMismatch, match="is not over"):
            async with open_prefix(server_url, prefix, shards):
                pass
    await abandon(store)
    async with open_prefix(server_url, "later", len(store.keys.shards)):
        pass
    with pytest.raises(MoveRefused, match="no move from this store is under way"):
        await abandon(store)
    with pytest.raises(MoveRefused, match="a part of another move"):
        await move(store, target)
    async with open_prefix(server_url, "later", len(store.keys.shards)):
        pass


async def test_a_kill_between_the_two_marks_at_the_end_is_mended(
    store: StoreFixture, target: Store, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(self: Move, name: bytes) -> None:
        raise Killed

    await store.tasks.create([a_task()])
    with monkeypatch.context() as patch:
        patch.setattr(Move, "_open_target", die)
        with pytest.raises(Killed):
            await move(store, target)
    with pytest.raises(MoveRefused, match="is over"):
        await abandon(store)
    assert (await move(store, target)).state is MoveState.WAS_DONE
    async with open_prefix(server_url, "other", SHARDS):
        pass


@pytest.mark.parametrize("delivers", [True, False], ids=["worker", "api"])
@pytest.mark.parametrize("end", ["source", "target"])
async def test_an_instance_at_either_end_prevents_it(
    store: StoreFixture, target: Store, end: str, delivers: bool
) -> None:
    at = (await store.time.now()).high
    beat = Heartbeat(role="up", version="1", host="h", processes=1, slots=1, slots_in_use=0, since=at, at=at - 9000,
                     clock_offset_ms=0)  # fmt: skip
    used = store if end == "source" else target
    await used.instances.send("h:1:x", beat, delivers=delivers)
    with pytest.raises(MoveRefused, match=f"an instance runs on the {end}, .*h:1:x"):
        await move(store, target)
    assert await read_needs(store) == await read_needs(target) == set()
    await used.instances.send("h:1:x", Heartbeat(**{**beat_fields(beat), "at": at - 11_000}), delivers=delivers)
    await used.client.execute("test", ("DEL", used.keys.workers))
    assert (await move(store, target)).state is MoveState.DONE


def beat_fields(beat: Heartbeat) -> dict[str, Any]:
    return {name: getattr(beat, name) for name in beat.__struct_fields__}


async def test_an_instance_that_starts_meanwhile_keeps_the_move_from_its_end(
    store: StoreFixture, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = Move._compare

    async def start_and_compare(self: Move) -> None:
        await store.client.execute("test", ("ZADD", store.keys.workers, (await store.time.now()).high, "late"))
        await compare(self)

    monkeypatch.setattr(Move, "_compare", start_and_compare)
    await store.tasks.create([a_task()])
    with pytest.raises(MoveRefused, match="an instance runs on the source"):
        await move(store, target)
    assert await read_needs(store) == {MOVING}


async def test_a_target_with_tasks_is_refused_and_the_source_stays_usable(
    store: StoreFixture, target: Store, server_url: str
) -> None:
    await store.tasks.create([a_task()])
    await target.tasks.create([a_task()])
    with pytest.raises(MoveRefused, match="the target holds 1 tasks"):
        await move(store, target)
    assert await read_needs(store) == set()


async def test_a_store_is_not_moved_to_itself(store: StoreFixture) -> None:
    with pytest.raises(MoveRefused, match="both ends are the same store"):
        await move(store, store)
    assert await read_needs(store) == set()


async def test_a_move_whose_ends_differ_is_not_over_and_looks_at_all_again(
    store: StoreFixture, target: Store, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = Move._compare
    lost = a_task(topic="order")

    async def lose_and_compare(self: Move) -> None:
        shard = target.keys.shard_of(lost.id)
        bucket = shard.bucket(Bucket.DELAY, b"order")
        id = (await target.client.execute("test", ("ZRANGE", bucket, 0, 0)))[0]
        await target.client.execute("test", ("ZREM", bucket, id))
        await target.client.execute("test", ("HDEL", shard.pool, id))
        await compare(self)

    await store.tasks.create([lost, *(a_task(topic="order") for _ in range(20))])
    before = await read_meaning(store)
    with monkeypatch.context() as patch:
        patch.setattr(Move, "_compare", lose_and_compare)
        with pytest.raises(MoveRefused, match="delay of order: 21 in the source, 20 in the target"):
            await move(store, target)
    report = await move(store, target)
    assert (report.state, report.put) == (MoveState.DONE, 1)
    assert await read_meaning(target) == before


async def test_a_store_with_defects_is_not_moved(store: StoreFixture, target: Store) -> None:
    task = a_task()
    await store.tasks.create([task, a_task()])
    shard = store.keys.shard_of(task.id)
    await store.client.execute("test", ("DEL", shard.bucket(Bucket.DELAY, b"order")))
    with pytest.raises(MoveRefused, match="later doctor --repair"):
        await move(store, target)


async def test_a_full_target_stops_the_move_and_it_goes_on_when_there_is_room(
    store: StoreFixture, target: Store, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    before = await read_meaning(store)
    put_others = Move._put_others

    async def fill_up(self: Move) -> int:
        put = await put_others(self)
        await ask(store, [("CONFIG", "SET", "maxmemory", 1)])
        return put

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Move, "_put_others", fill_up)
            with pytest.raises(StoreFull):
                await move(store, target)
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", 0)])
    assert (await move(store, target)).state is MoveState.DONE
    assert waiting_since(await read_meaning(target), before) == before


async def test_a_full_source_can_be_marked_and_used_again(store: StoreFixture) -> None:
    await store.client.open()
    await ask(store, [("CONFIG", "SET", "maxmemory", 1)])
    try:
        with pytest.raises(MoveRefused, match="both ends are the same store"):
            await move(store, store)
        assert await read_needs(store) == set()
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", 0)])


async def test_a_store_that_has_had_keys_has_had_them_after_a_move(store: StoreFixture, target: Store) -> None:
    await ask(store, [("HSET", store.keys.api_keys, "version", 1_700_000_000_000_000)])
    await move(store, target)
    assert (await target.key_book.read()).has_had_keys


async def test_hostile_bytes_are_moved_as_they_are(store: StoreFixture, target: Store) -> None:
    shard = store.keys.shards[0]
    bodies = {b"\xff\xfe": b"\xc1", b"\0": b"", b"n" * 300: b"\x9f" * 9}
    commands: list[Any] = []
    for id, body in bodies.items():
        commands += [("HSET", shard.pool, id, body), ("ZADD", shard.bucket(Bucket.DELAY, b"t\xff"), NOW, id)]
        commands += [("HSET", shard.attempts, id, b"garbage"), ("HSET", shard.outcome, id, b"\xc1\xff")]
    await ask(store, commands)
    await move(store, target)
    found = {}
    for shard in target.keys.shards:
        for id, body in (await target.client.execute("test", ("HGETALL", shard.pool))).items():
            found[id] = body
            assert await target.client.execute("test", ("HGET", shard.attempts, id)) == b"garbage"
            assert (await read_scores(target, shard.bucket(Bucket.DELAY, b"t\xff"))).items() >= {(id, NOW)}
    assert found == bodies


MOVED_KEYS = {
    "pool", "attempts", "outcome", "done", "jobs", "schedules", "schedule_states", "firings", "policies", "queues",
    "ramps", "event_counts", "event_outbox", "api_keys", "key_uses", "audit_trail", "signing",
}  # fmt: skip
MADE_AGAIN = {"meta", "expiry", "topics", "schedule_index", "wakes", "policy_changes"}
LEFT = {
    "workers", "instances", "held_origin_topics", "snapshot", "counting", "session_secret", "due_notices",
    "sampled_deliveries", "barrier", "shard_workers",
}  # fmt: skip
NO_KEYS = {
    "shards",
    "index",
    "tag",
    "key_pattern",
    "bucket_prefixes",
    "claim_record_prefix",
    "copied_hashes",
    "tags",
    "prefix",
}


def test_each_key_is_moved_or_made_again_or_left_on_purpose() -> None:
    keys = Keys("later", 1)
    names = {name for part in (keys, keys.shards[0]) for name in vars(part) if not name.startswith("_")}
    assert names <= MOVED_KEYS | MADE_AGAIN | LEFT | NO_KEYS


def test_no_other_command_knows_the_needs_of_a_move() -> None:
    assert not {MOVING, MOVED} & KNOWN_NEEDS


@pytest.fixture
async def third(store: StoreFixture, server_url: str) -> AsyncIterator[Store]:
    """Another new store on the same server."""
    async with open_prefix(server_url, "third", 2) as opened:
        yield opened


async def test_a_target_that_was_given_up_for_another_one_is_never_let_be_used(
    store: StoreFixture, target: Store, third: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(self: Move, *arguments: Any) -> int:
        raise Killed

    await store.tasks.create([a_task(), a_task()])
    with monkeypatch.context() as patch:
        patch.setattr(Move, "_put_tasks", die)
        with pytest.raises(Killed):
            await move(store, target)
    assert (await move(store, third)).tasks == 2
    with pytest.raises(MoveRefused, match="another store than --to"):
        await move(store, target)
    assert await read_needs(target) == {MOVING}


async def test_a_store_whose_data_was_moved_away_is_no_target(store: StoreFixture, target: Store) -> None:
    await move(store, target)
    with pytest.raises(MoveRefused, match="data was moved away"):
        await move(target, store)
    assert await read_needs(target) == set()


async def test_a_target_of_a_move_that_is_not_over_is_no_source(
    store: StoreFixture, target: Store, third: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(self: Move, *arguments: Any) -> int:
        raise Killed

    await store.tasks.create([a_task(), a_task()])
    with monkeypatch.context() as patch:
        patch.setattr(Move, "_put_tasks", die)
        with pytest.raises(Killed):
            await move(store, target)
    with pytest.raises(MoveRefused, match="the source is the target of a move that is not over"):
        await move(target, third)
    assert await read_needs(third) == set()
    assert (await move(store, target)).state is MoveState.DONE


@pytest.mark.parametrize("other", ["same", "another"])
async def test_two_runs_at_once_do_not_both_go_on(
    store: StoreFixture, target: Store, third: Store, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, report = Move._compare, list[str]()

    async def run_beside(self: Move) -> None:
        monkeypatch.setattr(Move, "_compare", compare)
        try:
            await move(store, target if other == "same" else third)
        except MoveRefused as error:
            report.append(str(error))
        await compare(self)

    await store.tasks.create([a_task() for _ in range(20)])
    monkeypatch.setattr(Move, "_compare", run_beside)
    assert (await move(store, target)).state is MoveState.DONE
    assert report == ["another run of `later move` is at work on the source: wait for its end"]
    assert await read_needs(third) == set()


async def test_a_move_that_is_abandoned_meanwhile_ends_without_a_mark(
    store: StoreFixture, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_idle = Move._check_idle

    async def abandon_late(self: Move) -> None:
        await check_idle(self)
        await abandon(store)

    await store.tasks.create([a_task()])
    compare = Move._compare

    async def compare_then(self: Move) -> None:
        await compare(self)
        monkeypatch.setattr(Move, "_check_idle", abandon_late)

    monkeypatch.setattr(Move, "_compare", compare_then)
    with pytest.raises(MoveRefused, match="abandoned"):
        await move(store, target)
    assert await read_needs(store) == set()
    assert await read_needs(target) == {MOVING}


async def test_a_target_that_holds_something_else_than_tasks_is_refused(store: StoreFixture, target: Store) -> None:
    await store.tasks.create([a_task()])
    await ask_target(target, ("HSET", target.keys.policies, b"topic:order", b'{"rate": 1}'))
    with pytest.raises(MoveRefused, match="the target holds 1 record of the kind policy"):
        await move(store, target)
    assert await read_needs(store) == set()


async def ask_target(target: Store, *commands: Any) -> None:
    await target.client.execute_all("test", list(commands))


async def test_what_a_daemon_noted_in_an_empty_target_gives_way(store: StoreFixture, target: Store) -> None:
    await ask(store, [("HSET", store.keys.meta, "signing", b"old", "admission", b'{"max_body": 5}')])
    await ask_target(target, ("HSET", target.keys.meta, "signing", b"new"))
    await move(store, target)
    assert await target.client.execute("test", ("HGET", target.keys.meta, "signing")) == b"old"


@pytest.mark.parametrize("lost", ["policies", "signing", "done", "schedules schedule_states"])
async def test_a_move_is_not_over_while_other_records_than_tasks_are_missing(
    store: StoreFixture, target: Store, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    await store.schedules.put(a_definition("daily"), NOW)
    before = await read_meaning(store)
    compare = Move._compare

    async def lose_and_compare(self: Move) -> None:
        parts = (target.keys, *target.keys.shards)
        keys = [getattr(part, name) for name in lost.split() for part in parts if hasattr(part, name)]
        await ask_target(target, *(("DEL", key) for key in keys))
        await compare(self)

    with monkeypatch.context() as patch:
        patch.setattr(Move, "_compare", lose_and_compare)
        with pytest.raises(MoveRefused, match="in the source, 0 in the target"):
            await move(store, target)
    assert (await move(store, target)).state is MoveState.DONE
    assert waiting_since(await read_meaning(target), before) == before


async def test_a_target_that_loses_its_mark_meanwhile_stops_the_move(
    store: StoreFixture, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_others = Move._put_others

    async def put_and_lose(self: Move) -> int:
        put = await put_others(self)
        await ask_target(target, ("DEL", target.keys.meta))
        return put

    await store.tasks.create([a_task()])
    monkeypatch.setattr(Move, "_put_others", put_and_lose)
    with pytest.raises(MoveRefused, match="the target has lost"):
        await move(store, target)
    assert await read_needs(store) == {MOVING}


async def test_large_bodies_of_many_topics_are_not_read_at_once(store: StoreFixture) -> None:
    large = 200_000
    await store.tasks.create([a_task(topic=f"t{n % 30}", content="x" * large) for n in range(300)])
    reader = store_reader.StoreReader(store.client, store.keys)
    sizes, tasks = list[int](), 0
    for shard in store.keys.shards:
        async for piece in reader.by_bucket(shard):
            tasks += len(piece.tasks)
            sizes.append(sum(len(task.body) for task in piece.tasks))
    assert tasks == 300
    assert max(sizes) < 2 * MAX_READ_BYTES
