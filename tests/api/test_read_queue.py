"""The queue of calls that read much: one at a time, and all that wait are told if the store is lost."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from later.api.read_queue import ReadQueue
from later.core.errors import StoreDown
from tests.api.api_fixture import ApiFixture


async def test_one_reads_at_a_time() -> None:
    queue, reading, most = ReadQueue(), 0, 0

    async def read() -> None:
        nonlocal reading, most
        async with queue.turn():
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0)
            reading -= 1

    await asyncio.gather(*(read() for _ in range(5)))
    assert most == 1


async def test_a_failure_is_that_of_all_that_wait_and_of_none_that_comes_later() -> None:
    queue, reads, is_lost = ReadQueue(), 0, asyncio.Event()

    async def read() -> None:
        nonlocal reads
        async with queue.turn():
            reads += 1
            await is_lost.wait()
            raise StoreDown("the store is gone")

    calls = [asyncio.create_task(read()) for _ in range(5)]
    await asyncio.sleep(0)
    is_lost.set()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [(type(error), str(error)) for error in errors] == [(StoreDown, "the store is gone")] * 5
    assert reads == 1
    async with queue.turn():
        pass


@pytest.mark.parametrize("path", ["/history?series=done", "/history?series=done&topic=order", "/forecast"])
async def test_calls_that_wait_for_a_store_that_is_away_ask_it_once(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    asked = 0

    async def execute_each(verb: str, commands: object) -> NoReturn:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2)
        raise StoreDown("the store did not answer")

    monkeypatch.setattr(api.client, "execute_each", execute_each)
    answers = await asyncio.gather(*(api.get(path) for _ in range(20)))
    assert [status for status, _ in answers] == [503] * 20
    assert asked < 20
