"""All policies are read in pages, and are those of one version, whatever changes meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from later.core.errors import StoreDown
from later.core.policy_scopes import NO_SETTINGS, PolicyScope, Settings, namespace_scope, topic_scope
from later.store import policies as policies_module
from later.store import policy_reader
from later.store.policies import PolicyBook
from later.store.scripts import Command
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

POLICIES = 800
"""More than Redis keeps in one piece, which it would return at once."""
SCOPES = [*(topic_scope(f"t{n:04}") for n in range(POLICIES)), *map(namespace_scope, ("a", "b", "c"))]

Meanwhile = Callable[[Command], Awaitable[None]]


@pytest.fixture
def shards() -> int:
    """Return 1: policies belong to no shard."""
    return 1


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_reader, "PAGE", 100)


@pytest.fixture
async def book(store: StoreFixture) -> PolicyBook:
    """Return the book of a process that makes changes, on a store with many policies."""
    written = policy_reader.encode_settings(Settings({"retry": 1}))
    fields = [part for scope in SCOPES for part in (f"{scope.level}:{scope.name}", written)]
    await ask(store, [("HSET", store.keys.policies, *fields)])
    book = store.new_policy_book()
    await set_settings(book, SCOPES[0], Settings({"retry": 2}))
    return book


async def do_nothing(page: Command) -> None:
    """Let nothing happen before a page."""


async def stored(store: StoreFixture) -> dict[str, Settings]:
    """Return what the store holds, by the names that the scopes have there."""
    [fields] = await ask(store, [("HGETALL", store.keys.policies)])
    return {name.decode(): policy_reader._decode(raw) for name, raw in fields.items() if name != b"version"}


def by_name(book: PolicyBook) -> dict[str, Settings]:
    return {f"{scope.level}:{scope.name}": settings for scope, settings in book.latest.settings.items()}


async def set_settings(book: PolicyBook, scope: PolicyScope, settings: Settings) -> None:
    await book.replace_settings(scope, lambda policies: settings)


async def read_while(store: StoreFixture, reader: PolicyBook, meanwhile: Meanwhile) -> list[Command]:
    """Let a process read the policies while others do something before each page; return the commands for pages."""
    pages: list[Command] = []
    execute, is_busy = store.client.execute_all, False

    async def execute_all(verb: str, commands: Sequence[Command]) -> list[Any]:
        nonlocal is_busy
        if commands[0][0] == "HSCAN" and not is_busy:
            pages.append(commands[0])
            is_busy = True
            await meanwhile(commands[0])
            is_busy = False
        return await execute(verb, commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.client, "execute_all", execute_all)
        await reader.read()
    return pages


async def test_they_are_read_in_pages_and_never_all_at_once(store: StoreFixture, book: PolicyBook) -> None:
    reader, seen = store.new_policy_book(), list[Command]()

    async def note(command: Command) -> None:
        seen.append(command)

    await ask(store, [("CONFIG", "RESETSTAT")])
    await read_while(store, reader, note)
    assert by_name(reader) == await stored(store)
    assert len(seen) >= POLICIES / policy_reader.PAGE / 2
    stats = await store.redis.info("commandstats")
    assert stats["cmdstat_hgetall"]["calls"] == 1  # that of this test
    assert all(command[-2:] == ("COUNT", policy_reader.PAGE) for command in seen)


async def test_few_are_read_at_once(store: StoreFixture) -> None:
    book = store.new_policy_book()
    await set_settings(book, SCOPES[0], Settings({"retry": 2}))
    assert await read_while(store, reader := store.new_policy_book(), do_nothing) == []
    assert by_name(reader) == await stored(store)


@pytest.mark.parametrize("seed", range(8))
async def test_changes_between_pages_are_not_missed(store: StoreFixture, book: PolicyBook, seed: int) -> None:
    draw, reader = Random(seed), store.new_policy_book()
    others = [book, store.new_policy_book()]

    async def change(page: Command) -> None:
        for _ in range(draw.randrange(4)):
            scope = draw.choice([*SCOPES, PolicyScope(SCOPES[0].level, f"new{draw.randrange(5)}")])
            settings = draw.choice([NO_SETTINGS, Settings({"retry": draw.randrange(9)})])
            await set_settings(draw.choice(others), scope, settings)

    await read_while(store, reader, change)
    assert by_name(reader) == await stored(store)
    await set_settings(book, SCOPES[5], Settings({"retry": 9}))
    await reader.read()
    assert by_name(reader) == await stored(store)


async def test_changes_after_the_first_page_are_not_missed_where_all_are_changed(
    store: StoreFixture, book: PolicyBook
) -> None:
    reader, rest = store.new_policy_book(), list(SCOPES)

    async def change_many(page: Command) -> None:
        for scope in rest[:100]:
            await set_settings(book, scope, Settings({"retry": 7}))
        del rest[:100]

    await read_while(store, reader, change_many)
    assert by_name(reader) == await stored(store)


async def test_all_begins_anew_where_the_changes_are_no_longer_known(
    store: StoreFixture, book: PolicyBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies_module, "CHANGES_KEPT", 3)
    reader, count = store.new_policy_book(), 0

    async def change_more_than_are_kept(page: Command) -> None:
        nonlocal count
        count += 1
        if count == 3:
            for scope in SCOPES[:10]:
                await set_settings(book, scope, NO_SETTINGS)

    pages = await read_while(store, reader, change_more_than_are_kept)
    assert [page[2] for page in pages].count(0) == 2
    assert by_name(reader) == await stored(store)


async def test_all_begins_anew_on_another_server_which_does_not_know_the_cursor(
    store: StoreFixture, book: PolicyBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursors of a hash are those of one server: a replica that takes over would leave out some of it."""
    execute, reader, lost = store.client.execute_all, store.new_policy_book(), list[Command]()

    async def lose_pages(verb: str, commands: Sequence[Command]) -> list[Any]:
        answers = await execute(verb, commands)
        if commands[0][0] == "HSCAN" and len(lost) < 2:
            lost.append(commands[0])
            answers[0] = (0, answers[0][1]) if len(lost) == 2 else answers[0]
        return answers

    monkeypatch.setattr(store.client, "execute_all", lose_pages)
    await reader.read()
    assert by_name(reader) == await stored(store)


async def test_a_store_that_is_emptied_meanwhile_has_no_policies(store: StoreFixture, book: PolicyBook) -> None:
    reader, count = store.new_policy_book(), 0

    async def empty(page: Command) -> None:
        nonlocal count
        count += 1
        if count == 3:
            await store.redis.flushall()

    await read_while(store, reader, empty)
    assert reader.latest.settings == {}


async def test_a_reader_that_is_always_overtaken_says_so(store: StoreFixture, book: PolicyBook) -> None:
    reader = store.new_policy_book()

    async def lose_last_changes(page: Command) -> None:
        await ask(store, [("DEL", store.keys.policy_changes), ("HINCRBY", store.keys.policies, "version", 1)])

    with pytest.raises(StoreDown, match="changed too often"):
        await read_while(store, reader, lose_last_changes)
    assert reader.latest.settings == {}


async def test_a_process_that_missed_too_many_changes_reads_all_in_pages(
    store: StoreFixture, book: PolicyBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = store.new_policy_book()
    await reader.read()
    monkeypatch.setattr(policies_module, "CHANGES_KEPT", 2)
    for scope in SCOPES[:8]:
        await set_settings(book, scope, NO_SETTINGS)
    assert len(await read_while(store, reader, do_nothing)) > 1
    assert by_name(reader) == await stored(store)


async def test_a_change_is_read_alone_however_many_policies_there_are(store: StoreFixture, book: PolicyBook) -> None:
    reader = store.new_policy_book()
    await reader.read()
    before = {*reader.latest.settings.parts}
    await set_settings(book, SCOPES[700], Settings({"retry": 9}))
    assert await read_while(store, reader, do_nothing) == []
    assert len({*reader.latest.settings.parts} - before) == 1
