"""Rotations in the store: all processes see them, and none is lost or made in part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from later.core.clock import Interval
from later.core.errors import Conflict, MissingMaster, StoreDown, TooManySecrets
from later.core.policy import Sign
from later.core.signing import KeyRing, Master, SecretScope, derive_secret
from later.store.shared_read import FRESH_S
from later.store.signing_book import SigningBook
from tests.builders import NOW
from tests.store_fixture import StoreFixture

MASTER, OTHER = Master(bytes(range(32))), Master(bytes(32))
SHOP, ORDER = SecretScope(Sign.NAMESPACE, "shop"), SecretScope(Sign.TOPIC, "shop/order")
ORIGIN = SecretScope(Sign.ORIGIN, "shop\x1fhttps://shop.example")
HOUR_MS = 3_600_000


@pytest.fixture
def shards() -> int:
    """Return 1: rotations belong to no shard."""
    return 1


class Time:
    """The monotonic time (s) and the store's (ms), which pass only when a test sets them."""

    monotonic = 100.0
    at = NOW

    async def now(self) -> Interval:
        return Interval(self.at, self.at)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def new_book(store: StoreFixture, time: Time) -> Callable[..., SigningBook]:
    """Return a function that builds the book of another process, with these masters."""

    def build(*masters: Master) -> SigningBook:
        book = SigningBook(store.client, store.keys, lambda: time.monotonic, time.now)
        book.use_masters(masters or (MASTER,))
        return book

    return build


def numbers(ring: KeyRing, scope: SecretScope | None = SHOP) -> list[int]:
    return [generation.g for generation in ring.generations(scope)]


async def test_a_rotation_is_seen_at_once_where_it_was_made_and_by_others_with_their_next_read(
    new_book: Callable[..., SigningBook], time: Time
) -> None:
    book, other = new_book(), new_book()
    await other.refresh()
    assert numbers(await book.rotate(SHOP, HOUR_MS)) == numbers(book.latest) == [2, 1]
    await other.refresh()
    assert numbers(other.latest) == [1]
    time.monotonic += FRESH_S
    await other.refresh()
    assert other.latest.secrets(SHOP, NOW) == [derive_secret(MASTER, SHOP, 2), derive_secret(MASTER, SHOP, 1)]


async def test_only_generations_and_fingerprints_are_stored(
    store: StoreFixture, new_book: Callable[..., SigningBook]
) -> None:
    await new_book(OTHER, MASTER).rotate(ORIGIN, HOUR_MS)
    stored = await store.redis.hgetall(b"{later:auth}:signing")
    assert json.loads(stored[b"origin:shop\x1fhttps://shop.example"]) == [
        {"g": 2, "master": OTHER.fingerprint, "since": NOW},
        {"g": 1, "master": MASTER.fingerprint, "until": NOW + HOUR_MS},
    ]
    assert stored.keys() == {b"origin:shop\x1fhttps://shop.example", b"version"}


async def test_the_key_that_signed_first_is_known_until_all_secrets_are_rotated_together(
    new_book: Callable[..., SigningBook],
) -> None:
    first, second = new_book(MASTER), new_book(OTHER)
    assert await second.foreign_default_master() is None
    for book in (first, second):
        await book.note_default_master()
    assert await first.foreign_default_master() is None
    assert await new_book(OTHER, MASTER).foreign_default_master() is None
    await second.rotate(SHOP, HOUR_MS)
    assert await second.foreign_default_master() == MASTER.fingerprint
    await second.rotate_all(HOUR_MS)
    assert await second.foreign_default_master() is None


async def test_rotations_at_the_same_time_are_all_made(new_book: Callable[..., SigningBook]) -> None:
    scopes = [SecretScope(Sign.TOPIC, f"shop/{number}") for number in range(8)]
    await asyncio.gather(*(new_book().rotate(scope, HOUR_MS) for scope in scopes))
    ring = await new_book().read()
    assert {scope: numbers(ring, scope) for scope in scopes} == {scope: [2, 1] for scope in scopes}


async def test_of_many_rotations_of_one_name_at_a_time_two_are_made(new_book: Callable[..., SigningBook]) -> None:
    results = await asyncio.gather(*(new_book().rotate(SHOP, HOUR_MS) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, TooManySecrets) for result in results) == 3
    assert numbers(await new_book().read()) == [3, 2, 1]


async def test_a_rotation_of_all_rotates_what_was_rotated_by_itself_too(
    new_book: Callable[..., SigningBook], time: Time
) -> None:
    book = new_book(MASTER)
    await book.rotate(ORDER, HOUR_MS)
    book.use_masters([OTHER, MASTER])
    time.at += 1
    await book.rotate_all(HOUR_MS)
    ring = await new_book(OTHER, MASTER).read()
    assert (numbers(ring, ORDER), numbers(ring, SHOP), numbers(ring, None)) == ([3, 2, 1], [2, 1], [2, 1])
    assert ring.secrets(SHOP, time.at)[0] == derive_secret(OTHER, SHOP, 2)
    assert ring.missing_masters(time.at) == {}


async def test_a_rotation_of_all_is_refused_as_a_whole(new_book: Callable[..., SigningBook]) -> None:
    book = new_book()
    await book.rotate(ORDER, HOUR_MS)
    await book.rotate(ORDER, HOUR_MS)
    with pytest.raises(TooManySecrets):
        await book.rotate_all(HOUR_MS)
    assert numbers(await new_book().read(), SHOP) == [1]


async def test_a_store_that_lost_its_last_rotations_is_believed(
    store: StoreFixture, new_book: Callable[..., SigningBook]
) -> None:
    book = new_book()
    await book.rotate(SHOP, HOUR_MS)
    await store.redis.delete(store.keys.signing)
    assert numbers(await book.read()) == [1]


async def test_a_rotation_that_is_always_too_late_gives_up(
    new_book: Callable[..., SigningBook], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, other = new_book(), new_book()

    def interfere(now: Callable[[], Awaitable[Interval]]) -> Callable[[], Awaitable[Interval]]:
        async def with_interference() -> Interval:
            await other.rotate(ORDER, 0)
            return await now()

        return with_interference

    monkeypatch.setattr(book, "_now", interfere(book._now))
    with pytest.raises(Conflict, match="try again"):
        await book.rotate(SHOP, HOUR_MS)


async def test_a_store_that_is_away_is_said_to_be(
    store: StoreFixture, new_book: Callable[..., SigningBook], monkeypatch: pytest.MonkeyPatch
) -> None:
    book = new_book()
    ring = await book.rotate(SHOP, HOUR_MS)

    async def fail(*_: object) -> None:
        raise StoreDown("gone")

    monkeypatch.setattr(store.client, "execute", fail)
    with pytest.raises(StoreDown):
        await book.read()
    assert numbers(book.latest) == numbers(ring)


async def test_a_damaged_rotation_stops_what_it_signs_and_nothing_else(
    store: StoreFixture, new_book: Callable[..., SigningBook]
) -> None:
    book = new_book()
    await book.rotate(ORDER, HOUR_MS)
    await store.redis.hset(store.keys.signing, mapping={"namespace:shop": "[{", "host:a": "[]", "version": 2**52})
    ring = await book.read()
    assert numbers(ring, ORDER) == [2, 1]
    assert ring.secrets(SecretScope(Sign.NAMESPACE, "other"), NOW)
    with pytest.raises(MissingMaster, match="the rotations of a secret are damaged"):
        ring.secrets(SHOP, NOW)
    await book.rotate(SHOP, 0)
    assert book.latest.secrets(SHOP, NOW) == [derive_secret(MASTER, SHOP, 1_000_001)]
