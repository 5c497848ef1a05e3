"""Reads that share a round trip: each has its own answer, or its own error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from later.core.errors import LaterError, StoreDown, StoreFault
from later.core.policy_scopes import topic_scope
from later.store.shared_read import JointRead, PacedRead, SharedRead
from tests.store_fixture import StoreFixture


@pytest.fixture
def shards() -> int:
    """Return 1: nothing here is in a shard."""
    return 1


def all_reads(store: StoreFixture) -> list[SharedRead]:
    return [store.policies.shared_read, store.signing.shared_read, store.key_book.shared_read]


def joint_read(store: StoreFixture) -> JointRead:
    return JointRead(store.client, all_reads(store))


async def test_all_reads_and_the_time_take_one_round_trip(store: StoreFixture) -> None:
    await store.new_policy_book().change(topic_scope("order"), lambda before: before.merge({"retry": 7}))
    for read in all_reads(store):
        await read.share()  # loads the scripts
    before = (await store.redis.info("stats"))["total_reads_processed"]
    await joint_read(store).run()
    after = (await store.redis.info("stats"))["total_reads_processed"]
    assert after - before == 2  # the second is that of the count
    assert store.policies.latest.for_topic("order").retry == 7
    assert store.clock.is_steady()


async def test_a_read_whose_answer_is_an_error_does_not_stop_the_others(store: StoreFixture) -> None:
    await store.redis.set(store.keys.policies, "x")
    await store.redis.hset(store.keys.api_keys, mapping={"version": 3})
    with pytest.raises(StoreFault):
        await joint_read(store).run()
    assert store.key_book.latest.has_had_keys
    await store.redis.delete(store.keys.policies, store.keys.api_keys)
    await store.redis.set(store.keys.api_keys, "x")
    with pytest.raises(StoreDown, match="the API keys cannot be read: "):
        await joint_read(store).run()
    assert await store.policies.current() is store.policies.latest


async def test_a_joint_read_leaves_out_one_that_is_running_and_is_shared_by_callers(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_each, asked, may_answer = store.client.execute_each, list[int](), asyncio.Event()

    async def count(verb: str, commands: Any) -> list[Any]:
        asked.append(len(commands))
        await may_answer.wait()
        return await execute_each(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", count)
    alone = asyncio.create_task(store.policies.current())
    await asyncio.sleep(0)
    together = asyncio.create_task(joint_read(store).run())
    await asyncio.sleep(0)
    shared = asyncio.create_task(store.key_book.current())
    await asyncio.sleep(0)
    may_answer.set()
    await asyncio.gather(alone, together, shared)
    assert asked == [1, 3]


async def test_callers_that_share_a_joint_read_get_its_error_when_the_store_is_away(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(verb: str, commands: Any) -> list[Any]:
        await asyncio.sleep(0)
        raise StoreDown("no answer", unknown=True)

    monkeypatch.setattr(store.client, "execute_each", lose)
    together = asyncio.create_task(joint_read(store).run())
    await asyncio.sleep(0)
    errors = await asyncio.gather(together, store.policies.current(), store.key_book.read(), return_exceptions=True)
    assert [(type(error), str(error)) for error in errors] == [(StoreDown, "no answer")] * 3
    assert not any(isinstance(error, LaterError) and getattr(error, "unknown", False) for error in errors)


async def test_what_is_read_is_as_old_as_its_question(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    execute_each, sent_at = store.client.execute_each, list[float]()

    async def note(verb: str, commands: Any) -> list[Any]:
        sent_at.append(time.monotonic())
        return await execute_each(verb, commands)

    monkeypatch.setattr(store.client, "execute_each", note)
    await joint_read(store).run()
    assert store.key_book.read_at <= sent_at[0]


async def test_an_error_of_the_store_is_not_its_own_cause(store: StoreFixture) -> None:
    await store.redis.set(store.keys.policies, "x")
    with pytest.raises(StoreFault) as raised:
        await store.policies.shared_read.share()
    assert raised.value.__cause__ is not raised.value


async def test_callers_wait_for_a_new_read_no_longer_than_for_a_call_of_the_store() -> None:
    """Otherwise one with an unknown key would wait for the reads before its own, each of which may take as long."""
    is_over, begun = asyncio.Event(), 0

    async def read() -> None:
        nonlocal begun
        begun += 1
        await is_over.wait()

    paced = PacedRead(read, timeout_s=0.02)
    for _ in range(3):
        with pytest.raises(StoreDown, match=r"the store did not answer within 0\.02 s"):
            await paced.wait()
    assert begun == 1
    is_over.set()
