"""Holds of origins: over all instances, forgotten when they have ended, and not too many."""

from __future__ import annotations

import pytest

from later.core.origin import Origin
from later.store.origin_holds import MAX_HOLDS
from tests.builders import NOW
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

SHOP = Origin("https", "shop.example", 443)
MAIL = Origin("http", "::1", 8080)
PORTS = [Origin("http", "shop.example", port) for port in range(1, MAX_HOLDS + 2)]


async def test_a_hold_is_of_one_origin_in_one_topic(store: StoreFixture) -> None:
    await store.origin_holds.hold("order", SHOP, NOW + 5000, NOW)
    await store.origin_holds.hold("order", MAIL, NOW + 7000, NOW)
    held = await store.origin_holds.read(["order", "mail"], NOW)
    assert held == {"order": {SHOP: NOW + 5000, MAIL: NOW + 7000}, "mail": {}}
    assert await store.origin_holds.held_until("order", SHOP) == NOW + 5000
    assert await store.origin_holds.held_until("mail", SHOP) is None


async def test_the_longer_of_two_holds_of_an_origin_counts(store: StoreFixture) -> None:
    for until in (NOW + 1000, NOW + 5000, NOW + 3000):
        await store.origin_holds.hold("order", SHOP, until, NOW)
    assert await store.origin_holds.held_until("order", SHOP) == NOW + 5000


async def test_holds_that_have_ended_are_removed_when_they_are_read(store: StoreFixture) -> None:
    await store.origin_holds.hold("order", SHOP, NOW + 1000, NOW)
    await store.origin_holds.hold("order", MAIL, NOW + 2000, NOW)
    assert await store.origin_holds.read(["order"], NOW + 1000) == {"order": {MAIL: NOW + 2000}}
    assert await store.origin_holds.held_until("order", SHOP) is None


async def test_of_too_many_holds_those_that_end_first_are_dropped(store: StoreFixture) -> None:
    for origin in PORTS:
        await store.origin_holds.hold("order", origin, NOW + 1000 + origin.port, NOW)
    held = (await store.origin_holds.read(["order"], NOW))["order"]
    assert set(held) == set(PORTS[1:])


async def test_a_topic_that_is_never_read_again_leaves_no_holds(store: StoreFixture) -> None:
    await store.origin_holds.hold("order", SHOP, NOW + 1000, NOW)
    [rest_ms] = await ask(store, [("PTTL", store.keys.origin_holds("order"))])
    assert 0 < rest_ms <= 1000


@pytest.mark.parametrize("topic", ["order", "shop/order", "ordür"])
async def test_every_process_learns_which_topics_have_holds(store: StoreFixture, topic: str) -> None:
    book = store.new_policy_book()
    await book.read()
    assert book.held_origin_topics == {}
    await store.origin_holds.hold(topic, SHOP, NOW + 5000, NOW)
    await book.read()
    assert book.held_origin_topics == {topic: NOW + 5000}
    await store.origin_holds.hold("mail", SHOP, NOW + 9000, NOW + 5000)
    await book.read()
    assert book.held_origin_topics == {"mail": NOW + 9000}
