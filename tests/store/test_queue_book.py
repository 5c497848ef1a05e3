"""Queues in the store: what makes one, what its metadata are, who sees a change, and what is left of a deleted one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from later.core.errors import Conflict, Refused, StoreDown
from later.core.json_patch import MetadataChange
from later.core.policy_scopes import NO_SETTINGS, Settings, namespace_scope, topic_scope
from later.core.queue_metadata import metadata_view
from later.core.task import Task
from later.store import dead_letters
from later.store.keys import Bucket
from later.store.queue_book import QueueBook
from later.store.scripts import BY_SHA
from later.store.types import Claim, ClaimRequest
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.cut_connection import CutConnection
from tests.store.inspection import (
    LEASE_MS,
    PAUSED,
    assert_sound,
    claim_due,
    died,
    failed,
    read_contents,
    unwrap_claim,
)
from tests.store_fixture import StoreFixture

JOBS = "shop/jobs"
NEW = {"delay_mode": "queue", "max_delay": 900, "deliver": "pull"}


@pytest.fixture
def shards() -> int:
    """Return a few: what needs several shards needs two."""
    return 2


def other_book(store: StoreFixture) -> QueueBook:
    """Return the queues as another process has them."""
    return QueueBook(
        store.client, store.keys, store.new_policy_book(), store.stats, store.topic_index, store.dead_letters
    )


def add(key: str, value: object) -> MetadataChange:
    return MetadataChange("add", key, value)


async def settings(store: StoreFixture, topic: str = JOBS) -> dict[str, Any]:
    return (await store.policies.read()).settings_at(topic_scope(topic)).fields


async def stored_metadata(store: StoreFixture) -> dict[Any, Any]:
    return await store.redis.hgetall(b"{later:topics}:queues")


def message(topic: str = JOBS, **changes: Any) -> Task:
    return a_task(topic=topic, callback="", **changes)


async def shown(book: QueueBook, topic: str = JOBS) -> dict[str, object]:
    queue = await book.get(topic)
    assert queue is not None
    return metadata_view(queue)


# What makes a queue


async def test_a_new_queue_is_a_pulled_topic_that_delays_as_zaqar_does(store: StoreFixture) -> None:
    assert await store.queues.get(JOBS) is None
    assert await store.queues.ensure(JOBS)
    assert not await store.queues.ensure(JOBS)
    assert await settings(store) == NEW
    assert await stored_metadata(store) == {}
    assert await store.redis.hget("later:meta", "needs") == b"pull"
    contents = await assert_sound(store)
    assert contents.wakes == {(Bucket.DELAY, shard.index, JOBS): PAUSED for shard in store.keys.shards}


async def test_metadata_become_policy_and_what_is_none_is_kept_beside_it(store: StoreFixture) -> None:
    written = {"_default_message_delay": 2, "_max_claim_count": 3, "node": 31, "_max_messages_post_size": 255}
    made = await store.queues.create(JOBS, written)
    assert made is not None
    assert (made.before, made.after) == (NO_SETTINGS, Settings(await settings(store)))
    assert await settings(store) == {**NEW, "default_delay": 2, "max_claims": 3}
    assert await stored_metadata(store) == {JOBS.encode(): b'{"node":31,"_max_messages_post_size":255}'}
    assert await shown(other_book(store)) == metadata_view(made.queue)
    assert written.items() <= metadata_view(made.queue).items()


async def test_fields_that_a_topic_sets_stay_when_it_becomes_a_queue(store: StoreFixture) -> None:
    await store.policies.change(topic_scope(JOBS), lambda before: before.merge({"max_delay": 5, "retry": 7}))
    assert await store.queues.ensure(JOBS)
    assert await settings(store) == {**NEW, "max_delay": 5, "retry": 7}


async def test_a_topic_with_tasks_is_a_queue_and_stays_as_it_is(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic=JOBS)])
    assert not await store.queues.ensure(JOBS)
    assert await store.queues.create(JOBS, {"node": 31}) is None
    assert (await settings(store), await stored_metadata(store)) == ({}, {})
    assert "node" not in await shown(store.queues)


async def test_a_topic_whose_tasks_are_all_dead_is_no_queue(store: StoreFixture) -> None:
    await store.tasks.create([a_task(topic=JOBS)])
    await store.tasks.settle([died(claim) for claim in await claim_due(store)])
    assert await store.queues.get(JOBS) is None
    assert (await store.queues.slice("shop", after="", limit=10)).queues == []
    assert await store.queues.count("shop") == 0
    assert await store.queues.ensure(JOBS)


async def test_of_many_that_make_a_queue_at_once_one_makes_it(store: StoreFixture) -> None:
    books = [other_book(store) for _ in range(5)]
    made = await asyncio.gather(*(book.create(JOBS, {"node": n}) for n, book in enumerate(books)))
    assert sum(change is not None for change in made) == 1
    [change] = [change for change in made if change is not None]
    assert await shown(store.queues) == metadata_view(change.queue)


async def test_wrong_metadata_make_no_queue(store: StoreFixture) -> None:
    with pytest.raises(Refused, match=r"^The TTL can not exceed 900 seconds"):
        await store.queues.create(JOBS, {"_default_message_delay": 901})
    assert await store.queues.get(JOBS) is None


async def test_the_limit_of_a_delay_is_the_one_that_the_topic_has(store: StoreFixture) -> None:
    await store.policies.change(topic_scope(JOBS), lambda before: before.merge({"max_delay": 3600}))
    with pytest.raises(Refused, match=r"^The TTL can not exceed 3600 seconds"):
        await store.queues.create(JOBS, {"_default_message_delay": 3601})
    assert await store.queues.create(JOBS, {"_default_message_delay": 3600}) is not None


async def test_a_dead_letter_queue_is_made_with_the_queue_that_names_it(store: StoreFixture) -> None:
    written = {"_dead_letter_queue": "failed", "_dead_letter_queue_messages_ttl": 60, "_max_claim_count": 2}
    await store.queues.create(JOBS, written)
    assert await settings(store) == {**NEW, "max_claims": 2, "dead_to": "shop/failed", "dead_ttl": 60}
    assert await settings(store, "shop/failed") == NEW
    assert written.items() <= (await shown(store.queues)).items()
    with pytest.raises(Refused, match=r"^dead_to: "):
        await store.queues.change("shop/failed", [add("_dead_letter_queue", "jobs")])


async def test_no_message_can_move_to_a_dead_letter_queue_that_is_not_made_yet(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost in each round trip in turn, before it or after it."""
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    cut, interrupted = CutConnection(monkeypatch), 0
    for number in range(40):
        jobs, failed = f"shop/jobs{number}", f"shop/failed{number}"
        named: dict[str, object] = {"_dead_letter_queue": f"failed{number}"}
        if number % 4 > 1:
            await store.queues.ensure(jobs)
        cut.cut_at, cut.answer_lost = cut.round_trips + number // 4, number % 2 == 1
        try:
            if number % 4 > 1:
                await store.queues.change(jobs, [add(*item) for item in named.items()])
            else:
                await store.queues.create(jobs, named)
        except StoreDown:
            interrupted += 1
        cut.cut_at = -1
        if (await settings(store, jobs)).get("dead_to") == failed:
            assert await settings(store, failed) == NEW, number
    assert interrupted > 12


async def test_refused_metadata_make_no_dead_letter_queue(store: StoreFixture) -> None:
    wrong: list[dict[str, object]] = [{"_dead_letter_queue": "failed", "_default_message_ttl": 1}]
    wrong += [{"_dead_letter_queue": "jobs"}, {"_dead_letter_queue": "no name"}]
    for metadata in wrong:
        with pytest.raises(Refused):
            await store.queues.create(JOBS, metadata)
    assert (await store.policies.read()).settings == {}


async def test_a_dead_letter_queue_whose_topic_would_be_too_long_is_refused(store: StoreFixture) -> None:
    """Such a policy is ignored when a message dies, and no call could name the queue."""
    jobs, named = f"{'p' * 200}/jobs", "d" * 64
    with pytest.raises(Refused, match=r"^topic: expected a string of 1 to 255 bytes"):
        await store.queues.create(jobs, {"_dead_letter_queue": named})
    await store.queues.ensure(jobs)
    with pytest.raises(Refused, match=r"^topic: expected a string of 1 to 255 bytes"):
        await store.queues.change(jobs, [add("_dead_letter_queue", named)])
    assert (await store.policies.read()).topics == [jobs]


@each_case("depth, taken", [(100, True), (101, False), (2000, False)])
async def test_metadata_are_not_nested_so_deeply_that_they_could_not_be_read(
    store: StoreFixture, depth: int, taken: bool
) -> None:
    value: object = 1
    for _ in range(depth):
        value = [value]
    await store.queues.ensure(JOBS)
    for call in (store.queues.create("shop/new", {"a": value}), store.queues.change(JOBS, [add("a", value)])):
        if taken:
            assert await call is not None
        else:
            with pytest.raises(Refused, match=r"^Queue metadata is nested too deeply\. Max levels: 100$"):
                await call


async def test_metadata_of_a_new_queue_are_not_larger_than_those_of_a_changed_one(store: StoreFixture) -> None:
    with pytest.raises(Refused, match=r"^Queue metadata is too large\. Max size: 65536$"):
        await store.queues.create(JOBS, {"a": "x" * 65_530})
    assert await store.queues.get(JOBS) is None


# Changes


async def test_a_change_of_metadata_is_seen_by_all(store: StoreFixture) -> None:
    await store.queues.create(JOBS, {"node": 31, "_default_message_delay": 2})
    other = other_book(store)
    changes = [add("node", 32), add("_default_message_ttl", 60), MetadataChange("remove", "_default_message_delay")]
    changed = await other.change(JOBS, changes)
    assert changed is not None
    assert changed.after.fields == await settings(store) == {**NEW, "ttl": 60}
    assert await stored_metadata(store) == {JOBS.encode(): b'{"node":32}'}
    assert await shown(store.queues) == metadata_view(changed.queue)


async def test_metadata_that_are_all_removed_leave_nothing(store: StoreFixture) -> None:
    await store.queues.create(JOBS, {"node": 31})
    await store.queues.change(JOBS, [MetadataChange("remove", "node")])
    assert await stored_metadata(store) == {}


async def test_a_change_leaves_what_it_does_not_name(store: StoreFixture) -> None:
    await store.queues.ensure(JOBS)
    odd: dict[str, Any] = {"ttl": 2.5, "max_delay": 7200, "default_delay": 3600, "dead_to": "shop/mail/failed"}
    await store.policies.change(topic_scope(JOBS), lambda before: before.merge(odd))
    await store.queues.change(JOBS, [add("node", 31)])
    assert await settings(store) == {**NEW, **odd}


async def test_an_inherited_policy_is_shown_and_not_written_down(store: StoreFixture) -> None:
    await store.policies.change(namespace_scope("shop"), lambda before: before.merge({"default_delay": 5, "ttl": 90}))
    await store.queues.ensure(JOBS)
    assert (await shown(store.queues))["_default_message_delay"] == 5
    await store.queues.change(JOBS, [MetadataChange("remove", "_default_message_delay"), add("node", 31)])
    assert await settings(store) == NEW
    await store.queues.change(JOBS, [add("_default_message_delay", 0)])
    assert (await shown(store.queues))["_default_message_delay"] == 0


async def test_of_many_changes_of_one_queue_at_once_none_is_lost(store: StoreFixture) -> None:
    await store.queues.ensure(JOBS)
    books = [other_book(store) for _ in range(5)]
    await asyncio.gather(*(book.change(JOBS, [add(f"k{n}", n)]) for n, book in enumerate(books)))
    metadata = await shown(store.queues)
    assert {key: metadata.get(key) for key in ("k0", "k1", "k2", "k3", "k4")} == {f"k{n}": n for n in range(5)}


async def test_a_change_is_made_from_the_metadata_in_the_store(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes them between the read of the policies and that of the metadata."""
    await store.queues.create(JOBS, {"n": 0})
    other, read, overtaken = other_book(store), store.queues._read_extras, list[int]()

    async def be_overtaken(topics: Any) -> Any:
        found = await read(topics)
        if not overtaken:
            overtaken.append(1)
            await other.change(JOBS, [add("theirs", 1)])
        return found

    monkeypatch.setattr(store.queues, "_read_extras", be_overtaken)
    await store.queues.change(JOBS, [add("ours", 2)])
    assert {"n": 0, "theirs": 1, "ours": 2}.items() <= (await shown(other)).items()


async def test_a_queue_that_is_not_there_cannot_be_changed(store: StoreFixture) -> None:
    assert await store.queues.change(JOBS, [add("node", 31)]) is None
    assert await stored_metadata(store) == {}


async def test_metadata_do_not_grow_without_limit(store: StoreFixture) -> None:
    await store.queues.ensure(JOBS)
    await store.queues.change(JOBS, [add("a", "x" * 40_000)])
    with pytest.raises(Refused, match=r"^Queue metadata is too large\. Max size: 65536$"):
        await store.queues.change(JOBS, [add("b", "x" * 40_000)])
    assert "b" not in await shown(store.queues)


# Deletion


async def claim_messages(store: StoreFixture) -> list[Claim]:
    """Claim all messages of the queue that are due, as consumers do."""
    requests = [ClaimRequest(JOBS, shard.index, 500, is_pull=True) for shard in store.keys.shards]
    results = await store.tasks.claim(requests, NOW, NOW + LEASE_MS)
    return [claim for result in results for claim in unwrap_claim(result).claims]


async def create_in_all_buckets(store: StoreFixture) -> None:
    """Put three messages of the queue into each bucket."""
    await store.tasks.create([message(ttl=60) for _ in range(9)])
    claims = await claim_messages(store)
    await store.tasks.settle([failed(claim, NOW + 5000) for claim in claims[:3]])
    await store.tasks.settle([died(claim) for claim in claims[3:6]])
    await store.tasks.create([message(delay=5) for _ in range(3)])


async def test_nothing_is_left_of_a_deleted_queue(store: StoreFixture) -> None:
    await store.queues.create(JOBS, {"node": 31, "_default_message_delay": 2})
    await store.queues.ensure("shop/other")
    await create_in_all_buckets(store)
    before = await settings(store)
    deleted = await store.queues.delete(JOBS)
    assert (deleted.tasks, deleted.before.fields) == (12, before)
    assert (await settings(store), await stored_metadata(store)) == ({}, {})
    assert await store.queues.get(JOBS) is None
    contents = await assert_sound(store)
    assert (contents.pool, contents.expiry, contents.attempts) == (set(), {}, {})
    assert {topic for _, _, topic in contents.wakes} == {topic for _, topic in contents.topics} == {"shop/other"}


async def test_the_settle_of_a_message_that_was_deleted_while_it_was_claimed_changes_nothing(
    store: StoreFixture,
) -> None:
    await store.queues.ensure(JOBS)
    await store.tasks.create([message()])
    [claim] = await claim_messages(store)
    await store.queues.delete(JOBS)
    assert await store.tasks.settle([died(claim)]) == [False]
    assert (await read_contents(store)).pool == set()


async def test_a_queue_that_is_not_there_is_deleted_too(store: StoreFixture) -> None:
    assert await store.queues.delete(JOBS) == (0, NO_SETTINGS)


async def test_many_messages_are_deleted_in_slices(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MAX_MOVES", 20)
    monkeypatch.setattr(dead_letters, "MAX_TASKS", 7)
    await store.queues.ensure(JOBS)
    await store.tasks.create([message(delay=1) for _ in range(50)])
    assert (await store.queues.delete(JOBS)).tasks == 50


async def test_an_interrupted_deletion_is_finished_by_the_same_call(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost in each round trip in turn, before it or after it."""
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    cut, interrupted = CutConnection(monkeypatch), 0
    for number in range(24):
        await store.queues.create(JOBS, {"node": 31})
        await store.tasks.create([message(), message(delay=5), message(delay=5)])
        cut.cut_at, cut.answer_lost = cut.round_trips + number, number % 2 == 1
        try:
            await store.queues.delete(JOBS)
        except StoreDown:
            interrupted += 1
            await store.queues.delete(JOBS)
        cut.cut_at = -1
        contents = await assert_sound(store)
        assert (contents.pool, contents.wakes, contents.topics) == (set(), {}, set())
        assert (await settings(store), await stored_metadata(store)) == ({}, {})
    assert interrupted > 12


async def test_messages_that_come_faster_than_they_are_removed_are_a_conflict(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    purge = store.dead_letters.purge

    async def purge_and_create(*args: Any) -> Any:
        result = await purge(*args)
        await store.tasks.create([message()])
        return result

    await store.queues.ensure(JOBS)
    monkeypatch.setattr(store.dead_letters, "purge", purge_and_create)
    with pytest.raises(Conflict, match=r"^tasks were created faster than they were removed: try again$"):
        await store.queues.delete(JOBS)
    assert await settings(store) == NEW


async def test_a_purge_leaves_what_is_claimed_and_what_is_dead(store: StoreFixture) -> None:
    await store.queues.ensure(JOBS)
    await create_in_all_buckets(store)
    assert await store.queues.purge(JOBS) == 6
    contents = await assert_sound(store)
    assert {bucket for bucket, _ in contents.buckets} == {Bucket.UNACK, Bucket.DEAD}


# The list


async def test_a_list_has_the_queues_of_one_namespace_by_name(store: StoreFixture) -> None:
    for topic in ("b", "shop/b", "shop/a", "shops/a", "shop"):
        await store.queues.ensure(topic)
    await store.tasks.create([message("shop/c"), message("a"), message("shop/d/e"), message("shop/two words")])
    await store.policies.change(topic_scope("shop/aa"), lambda before: before.merge({"retry": 1}))
    names = {}
    for namespace in ("shop", "default", "shops", "none"):
        page = await store.queues.slice(namespace, after="", limit=10)
        names[namespace] = [queue.topic for queue in page.queues]
        assert page.read_to is None
        assert await store.queues.count(namespace) == len(page.queues)
    assert names == {
        "shop": ["shop/a", "shop/b", "shop/c"],
        "default": ["a", "b", "shop"],
        "shops": ["shops/a"],
        "none": [],
    }


async def test_a_list_goes_on_after_a_name(store: StoreFixture) -> None:
    for n in range(5):
        await store.queues.create(f"shop/q{n}", {"n": n})
    first = await store.queues.slice("shop", after="", limit=2)
    assert [(queue.topic, queue.extra) for queue in first.queues] == [("shop/q0", {"n": 0}), ("shop/q1", {"n": 1})]
    assert first.read_to == "shop/q1"
    rest = await store.queues.slice("shop", after="shop/q1x", limit=10)
    assert [queue.topic for queue in rest.queues] == ["shop/q2", "shop/q3", "shop/q4"]
    assert rest.read_to is None


async def test_the_ends_of_a_queue_are_its_first_and_last_messages(store: StoreFixture) -> None:
    assert await store.queues.end_ids(JOBS) == []
    tasks = [message(created_at=NOW + n) for n in range(20)]
    await store.tasks.create(tasks)
    assert await store.queues.end_ids(JOBS) == [tasks[0].id, tasks[-1].id]
