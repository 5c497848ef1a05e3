"""Schedules in the store: one at a time, those that are due, and all of them in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from later.core.caller import ANYBODY
from later.core.errors import NotFound, TooManySchedules
from later.core.schedule import (
    FiringRecord,
    Schedule,
    ScheduleDraft,
    StoredSchedule,
    build_schedule,
    move_on,
    plan_firings,
)
from later.store.schedules import (
    LEFT_TO_OTHERS_MS,
    POSTPONE_MS,
    DueSchedule,
    RawSchedule,
    ScheduleMove,
    SchedulePosition,
    Schedules,
)
from tests.builders import NOW
from tests.cases import each_case
from tests.store.inspection import ask, findings
from tests.store_fixture import StoreFixture

MINUTE = 60_000


def a_definition(id: str = "daily", **fields: Any) -> Schedule:
    draft = ScheduleDraft(**{"topic": "report", "callback": "http://127.0.0.1:9/", "every": 60, **fields})
    return build_schedule(draft, id, ANYBODY)


def fired(due: DueSchedule, now: int) -> ScheduleMove:
    """Return the move of a schedule that has fired at `now`."""
    plan = plan_firings(due.schedule, now)
    last = FiringRecord(plan.times[-1], f"s:{due.id}:1")
    return ScheduleMove(due, move_on(due.schedule.state, plan.next_at, last, []))


async def due_ids(store: StoreFixture, now: int, limit: int = 100) -> list[str]:
    return [due.id for due in (await store.schedules.due(now, limit)).schedules]


def room_for(bytes_: int) -> Callable[[int], bool]:
    """Return the function that says whether a page of so many bytes has room for more."""
    sizes: list[int] = []

    def has_room(size: int) -> bool:
        sizes.append(size)
        return sum(sizes) < bytes_

    return has_room


async def page_through(
    store: StoreFixture, limit: int, namespace: str | None = None, max_bytes: int = 2**24
) -> list[list[str]]:
    pages, after = list[list[str]](), None
    while True:
        page = await store.schedules.page(limit, after, namespace, room_for(max_bytes))
        pages.append([schedule.definition.id for schedule in page.schedules])
        if page.read_to is None:
            return pages
        after = page.read_to


# One schedule


async def test_a_schedule_is_put_once_and_replaced_by_another_body(store: StoreFixture) -> None:
    first = await store.schedules.put(a_definition(), NOW)
    again = await store.schedules.put(a_definition(), NOW + 500)
    other = await store.schedules.put(a_definition(content="new"), NOW + 900)

    assert (first.created, first.changed) == (True, True)
    assert (again.created, again.changed, again.schedule) == (False, False, first.schedule)
    assert (other.created, other.changed) == (False, True)
    assert await store.schedules.get("daily") == other.schedule
    assert other.schedule.state == first.schedule.state
    assert await store.schedules.count() == 1


async def test_a_schedule_that_is_deleted_leaves_nothing(store: StoreFixture) -> None:
    await store.schedules.put(a_definition("a", topic="team/t"), NOW)
    await store.schedules.put(a_definition("a", topic="x"), NOW)  # of another namespace from now on
    assert await page_through(store, 10) == [["a"]]
    assert (await store.schedules.delete("a")).definition.topic == "x"
    assert [key for key in (await ask(store, [("KEYS", "*")]))[0] if b"meta" not in key] == []
    for act in (store.schedules.get, store.schedules.delete):
        with pytest.raises(NotFound, match="no schedule has the id 'a'"):
            await act("a")


async def test_a_paused_schedule_is_not_due_until_it_is_resumed(store: StoreFixture) -> None:
    await store.schedules.put(a_definition(), NOW)
    assert (await store.schedules.set_paused("daily", True)).state.paused
    assert await due_ids(store, NOW + 10 * MINUTE) == []
    await store.schedules.put(a_definition(content="new"), NOW)
    assert await due_ids(store, NOW + 10 * MINUTE) == []
    resumed = await store.schedules.set_paused("daily", False)
    assert (resumed.state.paused, resumed.state.next_at) == (False, NOW)
    assert await due_ids(store, NOW + 10 * MINUTE) == ["daily"]


async def test_a_run_is_noted_and_the_next_time_stays(store: StoreFixture) -> None:
    await store.schedules.put(a_definition(), NOW)
    await store.schedules.record_run("daily", FiringRecord(NOW + 5, "s:daily:5"))
    state = (await store.schedules.get("daily")).state
    assert (state.last, state.next_at) == (FiringRecord(NOW + 5, "s:daily:5"), NOW)


async def test_puts_of_many_at_once_end_in_one_schedule_that_is_whole(store: StoreFixture) -> None:
    definitions = [a_definition(content=str(n), topic=f"n{n}/t") for n in range(8)]
    results = await asyncio.gather(*(store.schedules.put(definition, NOW) for definition in definitions))
    assert [result.created for result in results].count(True) == 1
    kept = await store.schedules.get("daily")
    assert kept.definition in definitions
    assert await page_through(store, 10) == [["daily"]]
    assert await page_through(store, 10, kept.definition.topic_namespace) == [["daily"]]


# The limit


async def test_no_more_schedules_are_put_than_may_be_but_those_that_are_there_change(store: StoreFixture) -> None:
    schedules = Schedules(store.client, store.keys, max_schedules=5)
    for n in range(5):
        await schedules.put(a_definition(f"s{n}"), NOW)
    with pytest.raises(TooManySchedules, match="there are 5 schedules"):
        await schedules.put(a_definition("one-more"), NOW)
    assert (await schedules.put(a_definition("s1", content="new"), NOW)).changed
    await schedules.delete("s3")
    assert (await schedules.put(a_definition("one-more"), NOW)).created

    await ask(store, [("HDEL", store.keys.shard_of("s1").schedules, "s1")])
    full = Schedules(store.client, store.keys, max_schedules=1)
    assert await full.restore("s1"), "what is left of one is removed"


@pytest.mark.parametrize("shards", [4])
async def test_a_store_takes_100_000_schedules_and_reads_none_of_them_to_find_what_is_due(store: StoreFixture) -> None:
    for shard in store.keys.shards:
        count = 99_999 // len(store.keys.shards) + (shard.index < 99_999 % len(store.keys.shards))
        fields = [part for n in range(count) for part in (f"x{shard.index}-{n}", "{}")]
        scores = [part for n in range(count) for part in (str(NOW + MINUTE + n), f"x{shard.index}-{n}")]
        await ask(store, [("HSET", shard.schedules, *fields), ("ZADD", shard.firings, *scores)])
    assert (await store.schedules.put(a_definition(), NOW)).created
    with pytest.raises(TooManySchedules, match="there are 100000 schedules"):
        await store.schedules.put(a_definition("one-more"), NOW)
    due = await store.schedules.due(NOW, 200)
    assert ([found.id for found in due.schedules], due.next_at) == (["daily"], NOW + MINUTE)


# Those that are due


async def test_due_schedules_come_the_earliest_first_with_the_time_of_the_next(store: StoreFixture) -> None:
    for n in (3, 1, 2):
        await store.schedules.put(a_definition(f"s{n}", start=(NOW + n * 1000) / 1000), NOW)
    nothing = await store.schedules.due(NOW, 100)
    assert (nothing.schedules, nothing.next_at) == ([], NOW + 1000)
    due = await store.schedules.due(NOW + 2500, 100)
    assert ([found.id for found in due.schedules], due.next_at) == (["s1", "s2"], NOW + 3000)


async def test_only_one_of_two_instances_moves_a_schedule_on(store: StoreFixture) -> None:
    await store.schedules.put(a_definition(), NOW)
    [mine] = (await store.schedules.due(NOW, 100)).schedules
    [theirs] = (await store.schedules.due(NOW, 100)).schedules
    assert await store.schedules.move_on([fired(mine, NOW)]) == [True]
    assert await store.schedules.move_on([fired(theirs, NOW)]) == [False]
    state = (await store.schedules.get("daily")).state
    assert (state.next_at, state.last) == (NOW + MINUTE, FiringRecord(NOW, "s:daily:1"))
    assert await due_ids(store, NOW + MINUTE - 1) == []
    assert await due_ids(store, NOW + MINUTE) == ["daily"]


@pytest.mark.parametrize("change", ["put", "pause", "delete"])
async def test_a_schedule_that_was_changed_meanwhile_is_not_moved_on(store: StoreFixture, change: str) -> None:
    await store.schedules.put(a_definition(), NOW)
    [due] = (await store.schedules.due(NOW, 100)).schedules
    if change == "put":
        await store.schedules.put(a_definition(every=90), NOW + 1)
    elif change == "pause":
        await store.schedules.set_paused("daily", True)
    else:
        await store.schedules.delete("daily")
    before = await ask(store, [("KEYS", "*")])
    assert await store.schedules.move_on([fired(due, NOW)]) == [False]
    assert await ask(store, [("KEYS", "*")]) == before


async def test_the_last_firing_of_a_schedule_takes_it_from_those_that_fire(store: StoreFixture) -> None:
    await store.schedules.put(a_definition(end=NOW / 1000), NOW)
    [due] = (await store.schedules.due(NOW, 100)).schedules
    assert await store.schedules.move_on([fired(due, NOW)]) == [True]
    assert (await store.schedules.due(NOW + 10**12, 100)) == ([], None)
    assert (await store.schedules.get("daily")).state.next_at is None


async def test_a_schedule_that_cannot_be_read_is_postponed_and_holds_up_no_other(store: StoreFixture) -> None:
    await store.schedules.put(a_definition("good"), NOW)
    for id, written in (("newer", b'{"cron": 5}'), ("torn", b"{"), ("lost", None)):
        shard = store.keys.shard_of(id)
        if written is not None:
            await ask(store, [("HSET", shard.schedules, id, written), ("HSET", shard.schedule_states, id, b"{}")])
        await ask(store, [("ZADD", shard.firings, NOW - LEFT_TO_OTHERS_MS, id)])
    assert await due_ids(store, NOW - 1) == []
    newer = store.keys.shard_of("newer")
    assert await ask(store, [("ZSCORE", newer.firings, "newer")]) == [NOW - LEFT_TO_OTHERS_MS], (
        "another one may fire it"
    )
    assert await due_ids(store, NOW) == ["good"]
    [good] = (await store.schedules.due(NOW, 1)).schedules
    await store.schedules.move_on([fired(good, NOW)])
    assert (await store.schedules.due(NOW, 100)).next_at == NOW + MINUTE == NOW + POSTPONE_MS


async def test_large_schedules_are_read_some_at_a_time(store: StoreFixture) -> None:
    ids = [f"s{n:02}" for n in range(48)]
    for id in ids:
        await store.schedules.put(a_definition(id, content="x" * 120_000), NOW)
    due = await store.schedules.due(NOW, 100)
    assert 0 < len(due.schedules) < 48
    assert due.next_at == NOW, "there is more at once"
    while due.schedules:
        await store.schedules.move_on([fired(found, NOW) for found in due.schedules])
        due = await store.schedules.due(NOW, 100)
    assert await page_through(store, 48) == [ids]
    pages = await page_through(store, 48, max_bytes=1)
    assert len(pages) > 1, "a page without room for more ends"
    assert [id for page in pages for id in page] == ids


# All of them


async def test_pages_are_in_order_and_full_and_complete(store: StoreFixture) -> None:
    ids = {"default": ["a", "c", "e"], "team": ["b", "d", "f", "g"], "teams": ["h"]}
    for namespace, its in ids.items():
        for id in its:
            await store.schedules.put(a_definition(id, topic="t" if namespace == "default" else f"{namespace}/t"), NOW)
    assert await page_through(store, 3) == [["a", "c", "e"], ["b", "d", "f"], ["g", "h"]]
    assert await page_through(store, 4, "team") == [["b", "d", "f", "g"]]
    assert await page_through(store, 3, "team") == [["b", "d", "f"], ["g"]]
    assert await page_through(store, 3, "tea") == [[]]
    page = await store.schedules.page(2, SchedulePosition("team", "d"), None, room_for(2**24))
    assert page.read_to == SchedulePosition("team", "g")


# The doctor


async def test_the_doctor_has_nothing_to_say_about_schedules_as_they_are(store: StoreFixture) -> None:
    for n in range(120):
        await store.schedules.put(a_definition(f"s{n}", topic=f"n{n % 3}/t"), NOW)
    await store.schedules.set_paused("s1", True)
    await store.schedules.put(a_definition("ended", end=NOW / 1000), NOW)
    due = (await store.schedules.due(NOW, 500)).schedules
    await store.schedules.move_on([fired(found, NOW) for found in due])
    assert await findings(store) == []


@each_case(
    "kind, says, commands",
    [
        ("schedule-time", "is missing among those that fire", [("ZREM", "firings", "good")]),
        ("schedule-time", "is there by mistake", [("ZADD", "firings", NOW, "paused")]),
        ("schedule-unlisted", "is missing in the list", [("ZREM", "schedule_index", "team\0good")]),
        ("schedule-leftover", "is gone, but left behind", [("HDEL", "schedules", "good")]),
        ("schedule-leftover", "is gone, but left behind", [("ZADD", "firings", NOW, "lost")]),
        ("schedule-leftover", "is gone, but left behind", [("ZADD", "schedule_index", 0, "team\0lost")]),
        ("schedule-leftover", "is gone, but left behind", [("ZADD", "schedule_index", 0, "other\0good")]),
    ],
)
async def test_the_doctor_repairs_schedules(
    store: StoreFixture, kind: str, says: str, commands: list[tuple[Any, ...]]
) -> None:
    await store.redis.flushdb()
    for id in ("good", "paused"):
        await store.schedules.put(a_definition(id, topic="team/t"), NOW)
    await store.schedules.set_paused("paused", True)
    for name, key, *arguments in commands:
        shard = store.keys.shard_of(str(arguments[-1]).rpartition("\0")[2])
        await ask(store, [(name, getattr(shard, key), *arguments)])
    found = await findings(store)
    assert {finding.kind for finding in found} == {kind}
    assert all(says in str(finding) and str(finding).startswith("schedule") for finding in found)
    for finding in found:
        assert await store.doctor.repair(finding, NOW)
        assert not await store.doctor.repair(finding, NOW), "it is repaired"
    assert await findings(store) == []


async def test_a_schedule_that_is_put_while_the_doctor_repairs_its_entry_is_listed(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(store, [("ZADD", store.keys.shard_of("daily").schedule_index, 0, "team\0daily")])
    [found] = await findings(store)
    read = Schedules.read_each

    async def read_then_put(self: Schedules, ids: list[str]) -> list[RawSchedule]:
        reads = await read(self, ids)
        await store.schedules.put(a_definition(topic="team/t"), NOW)
        return reads

    with monkeypatch.context() as patch:
        patch.setattr(Schedules, "read_each", read_then_put)
        await store.doctor.repair(found, NOW)
    assert await page_through(store, 10, "team") == [["daily"]]
    assert await findings(store) == []


async def test_the_doctor_finds_nothing_in_schedules_that_fire_meanwhile(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.schedules.put(a_definition(end=NOW / 1000), NOW)
    [due] = (await store.schedules.due(NOW, 10)).schedules
    read = Schedules.read_each

    async def read_then_fire(self: Schedules, ids: list[str]) -> list[RawSchedule]:
        found = await read(self, ids)
        await store.schedules.move_on([fired(due, NOW)])
        return found

    monkeypatch.setattr(Schedules, "read_each", read_then_fire)
    assert await findings(store) == []


def test_a_stored_schedule_has_only_what_was_asked_for() -> None:
    """It is JSON, so that other programs can read it."""
    assert msgspec.json.encode(a_definition()) == (
        b'{"id":"daily","topic":"report","every_ms":60000,"callback":"http://127.0.0.1:9/"}'
    )
    assert StoredSchedule.__struct_fields__ == ("definition", "state")
