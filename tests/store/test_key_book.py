"""The key book: what it notes of keys that have ended."""

from __future__ import annotations

import time

import pytest

from later.core.api_keys import ApiKey, Scope
from later.store.key_book import KeyBook
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
