"""Policies in the store: all processes see a change, and no change is made in part or overwrites another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from later.core.errors import Conflict, Refused, StoreDown
from later.core.policy import Policy
from later.core.policy_scopes import NO_SETTINGS, Policies, Settings, namespace_scope, topic_scope
from later.store import policies as policies_module
from later.store.policies import CHANGES_KEPT, PolicyBook
from later.store.scripts import Command
from later.store.shared_read import FRESH_S, REREAD_EVERY_S, PacedRead
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

ORDER, SHOP = topic_scope("order"), namespace_scope("shop")


@pytest.fixture
def shards() -> int:
    """Return 1: policies belong to no shard."""
    return 1


class Clock:
    """The monotonic time of a process, which passes only when a test sets it."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(store: StoreFixture, clock: Clock) -> PolicyBook:
    return PolicyBook(store.client, store.keys, Policy(), clock)


@pytest.fixture
def other(store: StoreFixture, clock: Clock) -> PolicyBook:
    """Return a policy book as another process has it."""
    return PolicyBook(store.client, store.keys, Policy(retry=5), clock)


def setting(**fields: float) -> Callable[[Settings], Settings]:
    return lambda before: before.merge(fields)


async def test_a_change_is_seen_at_once_where_it_was_made(book: PolicyBook) -> None:
    await book.current()
    changed = await book.change(ORDER, setting(retry=7))
    assert changed is await book.current() is book.latest
    assert (changed.for_topic("order").retry, changed.for_topic("other").retry) == (7, 3)


async def test_other_processes_see_a_change_when_their_policies_are_no_longer_fresh(
    book: PolicyBook, other: PolicyBook, clock: Clock
) -> None:
    before = await other.current()
    await book.change(SHOP, setting(retry=7))
    clock.at += FRESH_S - 0.01
    assert await other.current() is before
    clock.at += 0.01
    assert (await other.current()).for_topic("shop/order").retry == 7


async def test_policies_that_were_returned_never_change(book: PolicyBook) -> None:
    taken = await book.change(ORDER, setting(retry=7))
    await book.change(ORDER, setting(retry=8))
    assert taken.for_topic("order").retry == 7


async def test_each_process_has_defaults_of_its_own(book: PolicyBook, other: PolicyBook) -> None:
    await book.change(ORDER, setting(ttl=60))
    policies = await other.current()
    assert (policies.for_topic("order").ttl_ms, policies.for_topic("order").retry) == (60_000, 5)


async def test_settings_that_were_removed_are_removed_for_all(book: PolicyBook, other: PolicyBook) -> None:
    await book.change(ORDER, setting(retry=7))
    await other.read()
    await book.change(ORDER, lambda before: NO_SETTINGS)
    assert (await other.read()).settings == {}


async def test_a_change_is_made_from_the_settings_in_the_store(book: PolicyBook, other: PolicyBook) -> None:
    await book.current()
    await other.change(ORDER, setting(retry=7))
    changed = await book.change(ORDER, setting(ttl=60))
    assert changed.settings_at(ORDER) == Settings({"ttl": 60, "retry": 7})


async def test_of_many_changes_at_once_none_is_lost(store: StoreFixture) -> None:
    books = [store.new_policy_book() for _ in range(8)]
    fields = ["retry", "ttl", "timeout", "retry_base", "retry_cap", "concurrency", "rate", "ramp"]
    await asyncio.gather(*(book.change(ORDER, setting(**{f: 7})) for book, f in zip(books, fields, strict=True)))
    assert (await books[0].read()).settings_at(ORDER).fields == dict.fromkeys(fields, 7)


async def test_an_invalid_policy_changes_nothing(book: PolicyBook, other: PolicyBook) -> None:
    await book.change(SHOP, setting(max_delay=900))
    with pytest.raises(Refused):
        await book.change(topic_scope("shop/order"), setting(retry=7, default_delay=901))
    assert (await other.read()).settings == {SHOP: Settings({"max_delay": 900})}


async def test_a_check_counts_what_others_have_set_meanwhile(book: PolicyBook, other: PolicyBook) -> None:
    await book.current()
    await other.change(SHOP, setting(max_delay=900))
    with pytest.raises(Refused):
        await book.change(topic_scope("shop/order"), setting(default_delay=901))


async def test_a_change_that_is_always_overtaken_is_a_conflict(
    book: PolicyBook, other: PolicyBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, overtaken = book.read, list[Policies]()

    async def read_and_be_overtaken() -> Policies:
        policies = await read()
        await other.change(SHOP, setting(retry=len(overtaken)))
        overtaken.append(policies)
        return policies

    monkeypatch.setattr(book, "read", read_and_be_overtaken)
    with pytest.raises(Conflict):
        await book.change(ORDER, setting(retry=7))
    assert ORDER not in (await other.read()).settings


async def test_only_what_was_changed_is_read(store: StoreFixture, book: PolicyBook) -> None:
    for n in range(3):
        await book.change(topic_scope(f"t{n}"), setting(retry=n))
    reader = store.new_policy_book()
    await reader.read()
    await book.change(topic_scope("t1"), setting(retry=9))
    await store.redis.hset(store.keys.policies.decode(), "topic:t2", '{"fields":{"retry":8}}')
    policies = await reader.read()
    assert [policies.for_topic(f"t{n}").retry for n in range(3)] == [0, 9, 2]


async def test_a_process_that_missed_too_many_changes_reads_everything(
    store: StoreFixture, book: PolicyBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies_module, "CHANGES_KEPT", 3)
    reader = store.new_policy_book()
    await book.change(topic_scope("gone"), setting(retry=1))
    await reader.read()
    await book.change(topic_scope("gone"), lambda before: NO_SETTINGS)
    for n in range(6):
        await book.change(topic_scope(f"t{n}"), setting(retry=n))
    policies = await reader.read()
    assert {scope.name: policies.for_topic(scope.name).retry for scope in policies.settings} == {
        f"t{n}": n for n in range(6)
    }
    assert await store.redis.zcard(store.keys.policy_changes.decode()) == 6


async def test_changes_of_one_scope_count_once(store: StoreFixture, book: PolicyBook) -> None:
    for n in range(5):
        await book.change(ORDER, setting(retry=n))
    [members] = await ask(store, [("ZRANGE", store.keys.policy_changes, 0, -1)])
    assert [member for member in members if not member.startswith(b"version:")] == [b"topic:order"]
    assert len(members) <= 2 * CHANGES_KEPT


async def test_a_store_that_was_emptied_sets_nothing(store: StoreFixture, book: PolicyBook) -> None:
    await book.change(ORDER, setting(retry=7))
    await store.redis.flushall()
    assert (await book.read()).settings == {}


@pytest.mark.parametrize("name", ["order", "a:b", "ä/ö/ü", "version", "x" * 255])
async def test_a_scope_may_have_any_name(store: StoreFixture, book: PolicyBook, name: str) -> None:
    for scope in (topic_scope(name), namespace_scope(name.partition("/")[0])):
        await book.change(scope, setting(retry=7))
    assert (await store.new_policy_book().read()).settings == {
        scope: Settings({"retry": 7}) for scope in (topic_scope(name), namespace_scope(name.partition("/")[0]))
    }


async def test_a_full_store_takes_changes_of_policies(store: StoreFixture, book: PolicyBook) -> None:
    """An operator who pauses a topic because the store is full must not fail because it is full."""
    await book.change(ORDER, setting(retry=7))
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    try:
        await book.change(ORDER, setting(retry=8))
        await book.change(SHOP, setting(retry=9))
        assert (await store.new_policy_book().read()).settings.keys() == {ORDER, SHOP}
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


class CountingPolicyBook(PolicyBook):
    """A policy book that counts its reads, each of which waits until the test lets it go on."""

    def __init__(self, store: StoreFixture, clock: Clock) -> None:
        super().__init__(store.client, store.keys, Policy(), clock)
        self._execute = store.client.execute
        self.reads = 0
        self.has_begun, self.may_read = asyncio.Event(), asyncio.Event()

    async def execute(self, verb: str, command: Command) -> Any:
        self.reads += 1
        self.has_begun.set()
        await self.may_read.wait()
        return await self._execute(verb, command)


class TestSharedRead:
    @pytest.fixture
    def counting(self, store: StoreFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> CountingPolicyBook:
        book = CountingPolicyBook(store, clock)
        monkeypatch.setattr(store.client, "execute", book.execute)
        return book

    async def test_a_thousand_callers_share_one_read(self, counting: CountingPolicyBook) -> None:
        callers = [asyncio.create_task(counting.current()) for _ in range(1000)]
        await asyncio.sleep(0)
        counting.may_read.set()
        assert len({id(policies) for policies in await asyncio.gather(*callers)}) == 1
        assert counting.reads == 1

    async def test_a_cancelled_caller_does_not_cancel_the_shared_read(self, counting: CountingPolicyBook) -> None:
        first, second = (asyncio.create_task(counting.current()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        counting.may_read.set()
        assert isinstance(await second, Policies)

    async def test_a_read_does_not_share_one_that_began_before_it(self, counting: CountingPolicyBook) -> None:
        early = asyncio.create_task(counting.current())
        await asyncio.sleep(0)
        now = asyncio.create_task(counting.read())
        await asyncio.sleep(0)
        counting.may_read.set()
        await asyncio.gather(early, now)
        assert counting.reads == 2

    async def test_callers_that_are_refused_share_the_next_read(self, counting: CountingPolicyBook) -> None:
        counting.may_read.set()
        started = time.monotonic()
        await asyncio.gather(*(counting.reread() for _ in range(1000)))
        assert counting.reads == 1
        await asyncio.gather(*(counting.reread() for _ in range(1000)))
        assert counting.reads == 2
        assert time.monotonic() - started >= REREAD_EVERY_S

    async def test_slow_reads_for_callers_that_are_refused_take_a_tenth_of_the_time(self) -> None:
        begins: list[float] = []

        async def read() -> None:
            begins.append(time.monotonic())
            await asyncio.sleep(0.005)

        paced = PacedRead(read, timeout_s=60)
        await asyncio.gather(paced.wait(), paced.wait())
        await asyncio.gather(paced.wait(), paced.wait())
        first, second = begins
        assert second - first >= 0.05

    async def test_a_read_for_a_caller_that_is_refused_does_not_share_one_that_began_before_it(
        self, counting: CountingPolicyBook
    ) -> None:
        early = asyncio.create_task(counting.reread())
        await counting.has_begun.wait()
        late = asyncio.create_task(counting.reread())
        counting.may_read.set()
        await asyncio.gather(early, late)
        assert counting.reads == 2

    async def test_a_lost_answer_is_unknown_only_to_a_caller_that_has_changed_something(
        self, book: PolicyBook, store: StoreFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        execute, is_lost = store.client.execute, False

        async def lose_reads(verb: str, command: Command) -> Any:
            if verb == "policies" and is_lost:
                raise StoreDown("no answer", unknown=True)
            return await execute(verb, command)

        def decide(_: Policies) -> Settings:
            nonlocal is_lost
            is_lost = True
            return setting(retry=7)(NO_SETTINGS)

        monkeypatch.setattr(store.client, "execute", lose_reads)
        with pytest.raises(StoreDown) as caught:
            await book.replace_settings(ORDER, decide)
        assert caught.value.unknown
        clock.at += FRESH_S
        with pytest.raises(StoreDown) as caught:
            await book.current()
        assert not caught.value.unknown
        is_lost = False
        assert (await book.read()).for_topic("order").retry == 7


async def test_an_unreachable_store_raises_and_the_policies_read_before_stay(
    book: PolicyBook, store: StoreFixture, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raise_store_down(verb: str, command: Command) -> None:
        raise StoreDown("the store is gone")

    await book.change(ORDER, setting(retry=7))
    clock.at += FRESH_S
    monkeypatch.setattr(store.client, "execute", raise_store_down)
    with pytest.raises(StoreDown):
        await book.current()
    assert book.latest.for_topic("order").retry == 7


async def test_settings_are_stored_under_level_and_name(store: StoreFixture, book: PolicyBook) -> None:
    await book.change(ORDER, setting(retry=7))
    assert await store.redis.hkeys(store.keys.policies.decode()) == [b"version", b"topic:order"]


async def test_all_policies_are_read_again_from_a_store_that_has_lost_its_last_change(
    store: StoreFixture, book: PolicyBook
) -> None:
    """For example after a failover to a replica that lagged, followed by another change."""
    await book.change(ORDER, setting(retry=1))
    keys = [store.keys.policies, store.keys.policy_changes]
    before = await ask(store, [("DUMP", key) for key in keys])
    await book.change(topic_scope("lost"), setting(retry=2))
    await ask(store, [("RESTORE", key, 0, dumped, "REPLACE") for key, dumped in zip(keys, before, strict=True)])
    await store.new_policy_book().change(topic_scope("other"), setting(retry=3))
    policies = await book.read()
    assert {scope.name for scope in policies.settings} == {"order", "other"}


async def test_a_hundred_changes_at_once_are_all_made(book: PolicyBook) -> None:
    await asyncio.gather(*(book.change(topic_scope(f"t{n}"), setting(retry=n)) for n in range(100)))
    assert [book.latest.for_topic(f"t{n}").retry for n in range(100)] == list(range(100))
