"""The store of a data directory: run by the application that came first, joined by the others."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from later import Later, StoreClaims
from later.embedded import EmbeddedError, answers_ping
from later.embedded.probe import read_info
from later.in_process import data_directory
from tests.in_process.embedded import until, until_true, working


async def test_an_application_runs_the_store_and_another_joins_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_directory, "CHECK_EVERY_MS", 20)
    runs = Counter[int]()
    first, second = (Later(StoreClaims(tmp_path / "data")) for _ in range(2))

    async def count(number: int) -> None:
        runs[number] += 1

    handler, _ = first.handler("count")(count), second.handler("count")(count)
    async with second:
        async with first:
            await handler.enqueue(1)
            kept = await handler.enqueue(2, delay="1h")
        assert await answers_ping(tmp_path / "data")
    assert not await answers_ping(tmp_path / "data")
    async with first:
        assert (await first.get(kept.id)).state == "delay"
        async with working(second):
            await until(lambda: runs == {1: 1})


async def test_the_store_goes_on_when_the_application_that_ran_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_directory, "CHECK_EVERY_MS", 20)
    first, second = (Later(StoreClaims(tmp_path / "data"), patience=60) for _ in range(2))
    handler = first.handler("count")(lambda: None)
    async with first:
        await second.__aenter__()
        id = (await handler.enqueue(None, delay="1h")).id
        assert (await second.get(id)).state == "delay"
    try:

        async def is_there() -> bool:
            return await answers_ping(tmp_path / "data")

        await until_true(is_there)
        assert (await second.get(id)).state == "delay"
    finally:
        await second.__aexit__(None, None, None)
    assert not await is_there()


async def test_a_store_that_is_opened_again_is_started_again_when_it_exits(tmp_path: Path) -> None:
    data, store = tmp_path / "data", StoreClaims(tmp_path / "data")
    async with store:
        pass
    async with store:
        killed = (await read_info(data, "server"))["process_id"]
        os.kill(killed, signal.SIGKILL)

        async def is_another_there() -> bool:
            return bool((await read_info(data, "server")).get("process_id", killed) != killed)

        await until_true(is_another_there)


async def test_a_directory_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match="choose another --data"):
        async with Later(StoreClaims(tmp_path / "file")):
            pass
