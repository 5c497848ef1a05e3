"""The key book: what is kept of keys, how they change, and what is noted of those that have ended."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec
import pytest

from later.core.api_keys import ALL_SCOPES, ApiKey, Scope
from later.core.errors import StoreDown
from later.store.key_book import KeyBook
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture


@pytest.fixture
def shards() -> int:
    """Return 1: nothing here is in a shard."""
    return 1


def a_key(id: str, expires_at: int | None) -> ApiKey:
    return ApiKey(
        id=id,
        digest="0" * 64,
        name="",
        namespace=None,
        scopes=frozenset({Scope.READ}),
        created_at=0,
        expires_at=expires_at,
        rate=None,
    )


async def test_one_process_is_told_once_that_a_key_has_ended(store: StoreFixture) -> None:
    now = (await store.time.now()).high
    made = [a_key("ended123", now - 1), a_key("future12", now + 600_000), a_key("forever1", None)]
    await store.key_book.change(lambda known, now: {key.id: key for key in made})
    other = KeyBook(store.client, store.keys, time.monotonic)
    await other.read()
    assert [key.id for key in await store.key_book.note_ended()] == ["ended123"]
    assert await other.note_ended() == []
    assert await store.key_book.note_ended() == []
    assert await other.last_uses() == {}


async def test_a_revoked_key_leaves_nothing(store: StoreFixture) -> None:
    key = a_key("ended123", 1)
    await store.key_book.change(lambda known, now: {key.id: key})
    await store.key_book.note_ended()
    await store.key_book.change(lambda known, now: {key.id: None})
    assert not await store.redis.exists(store.keys.key_uses)


async def test_of_many_changes_at_once_none_is_lost(store: StoreFixture) -> None:
    books = [KeyBook(store.client, store.keys, time.monotonic) for _ in range(6)]
    made = [a_key(f"key{number:05d}", None) for number in range(6)]
    await asyncio.gather(
        *(book.change(lambda known, now, key=key: {key.id: key}) for book, key in zip(books, made, strict=True))  # type: ignore[misc]  # mypy infers no lambda with a default
    )
    assert (await books[0].read()).keys == {key.id: key for key in made}


async def test_what_the_store_keeps_is_read_back_as_it_was(store: StoreFixture) -> None:
    key = msgspec.structs.replace(a_key("key00001", 5), name="shop é", namespace="shop", rate=2.5, scopes=ALL_SCOPES)
    await store.key_book.change(lambda known, now: {key.id: key})
    (written,) = await ask(store, [("HGET", store.keys.api_keys, key.id)])
    assert json.loads(written) == {
        "digest": "0" * 64, "name": "shop é", "namespace": "shop", "created_at": 0, "expires_at": 5, "rate": 2.5,
        "scopes": ["create", "read", "edit", "admin", "claim", "metrics"],
    }  # fmt: skip
    assert (await KeyBook(store.client, store.keys, time.monotonic).read()).keys == {key.id: key}


async def test_a_record_that_cannot_be_read_opens_nothing_and_hides_no_other(store: StoreFixture) -> None:
    later_version = b'{"digest":"zz","name":"","namespace":null,"scopes":["read","fly"],"created_at":0,"expires_at":null,"rate":null,"new":1}'  # noqa: E501  # one value
    await store.redis.hset(store.keys.api_keys, mapping={"damaged0": b"{", "newer123": later_version, "version": 7})
    known = await store.key_book.read()
    assert {id: key.scopes for id, key in known.keys.items()} == {"newer123": {Scope.READ}}
    assert known.find("later_newer123_" + "x" * 38) is None
    assert known.has_had_keys


async def test_a_key_is_revoked_while_the_memory_is_full(store: StoreFixture) -> None:
    key = a_key("key00001", None)
    await store.key_book.change(lambda known, now: {key.id: key})
    await store.redis.config_set("maxmemory", 1)
    try:
        await store.key_book.change(lambda known, now: {key.id: None})
    finally:
        await store.redis.config_set("maxmemory", 0)
    assert (await store.key_book.read()).keys == {}
    assert store.key_book.latest.has_had_keys


async def test_keys_whose_version_is_damaged_or_lost_are_read_and_changed_all_the_same(store: StoreFixture) -> None:
    key = a_key("key00001", None)
    for version in ("text", "", "-5", "1.5", "inf", "nan", "9" * 400, None):
        await store.redis.delete(store.keys.api_keys)
        await store.redis.hset(store.keys.api_keys, mapping={b"\xff\xfe": b"{}"})
        if version is not None:
            await store.redis.hset(store.keys.api_keys, "version", version)
        book = KeyBook(store.client, store.keys, time.monotonic)
        assert (await book.read()).has_had_keys, version
        await book.change(lambda known, now: {key.id: key})
        assert book.latest.keys[key.id] == key


async def test_the_end_of_a_key_goes_by_the_moved_clock_of_a_later_dev(store: StoreFixture) -> None:
    moved_ms = 0
    book = KeyBook(store.client, store.keys, time.monotonic, lambda: moved_ms)
    await book.change(lambda known, now: {"key00001": a_key("key00001", now + 86_400_000)})
    assert await book.note_ended() == []
    moved_ms = 2 * 86_400_000
    assert [key.id for key in await book.note_ended()] == ["key00001"]


async def test_a_key_with_values_that_no_daemon_writes_opens_nothing(store: StoreFixture) -> None:
    key = a_key("key00001", None)
    await store.key_book.change(lambda known, now: {key.id: key})
    (record,) = await ask(store, [("HGET", store.keys.api_keys, key.id)])
    written = json.loads(record)
    for damage in ({"rate": 0}, {"rate": -1}, {"rate": 1e-320}, {"expires_at": -(10**18)}, {"expires_at": 10**40},
                   {"created_at": 10**18}):  # fmt: skip
        await store.redis.hset(store.keys.api_keys, mapping={key.id: json.dumps(written | damage), "version": 1})
        assert (await KeyBook(store.client, store.keys, time.monotonic).read()).keys == {}, damage


async def test_keys_that_cannot_be_read_are_as_those_of_a_store_that_is_away(store: StoreFixture) -> None:
    await store.redis.set(store.keys.api_keys, "x")
    with pytest.raises(StoreDown, match="the API keys cannot be read: "):
        await store.key_book.current()
