"""The one loop: it looks again in time, and nothing ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from later.core.errors import StoreDown
from later.worker.ticker import Ticker, TickResult

NOW = 1_000_000
INTERVAL = 100


def a_ticker(
    errand: Callable[[int], Awaitable[TickResult]], counted: list[str] | None = None, *, now: int = NOW
) -> Ticker:
    async def clock() -> int:
        return now

    return Ticker(
        "test", errand, now=clock, interval_ms=INTERVAL, count_error=(counted if counted is not None else []).append
    )


def an_errand(*answers: TickResult | BaseException) -> Callable[[int], Awaitable[TickResult]]:
    """An errand that answers these in turn, and then nothing to do."""
    left = list(answers)

    async def errand(now: int) -> TickResult:
        answer = left.pop(0) if left else TickResult(0, None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return errand


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (TickResult(0, None), INTERVAL),
        (TickResult(7, None), INTERVAL),
        (TickResult(500, NOW), 0),
        (TickResult(0, NOW), INTERVAL),
        (TickResult(0, NOW + 30), 30),
        (TickResult(3, NOW + 30), 30),
        (TickResult(0, NOW + 3_600_000), INTERVAL),
    ],
    ids=["idle", "all done", "more is due", "due but not to be had", "due soon", "moved, due soon", "due in an hour"],
)
async def test_the_pause_ends_when_there_is_more_to_do(answer: TickResult, pause: int) -> None:
    assert await a_ticker(an_errand(answer)).tick() == pause


@pytest.mark.parametrize("error", [StoreDown("away"), ValueError(), RecursionError(), ExceptionGroup("", [KeyError()])])
async def test_a_tick_that_fails_is_counted_and_the_next_one_comes_after_an_interval(error: Exception) -> None:
    counted: list[str] = []
    assert await a_ticker(an_errand(error), counted).tick() == INTERVAL
    assert counted == ["test"]


async def test_the_pause_after_an_error_may_be_shorter_than_an_interval() -> None:
    errand = an_errand(StoreDown("away"))
    ticker = Ticker(
        "test", errand, now=_now, interval_ms=INTERVAL, count_error=lambda name: None, after_error_ms=INTERVAL // 10
    )
    assert [await ticker.tick(), await ticker.tick()] == [INTERVAL // 10, INTERVAL]


async def test_the_loop_survives_whatever_a_tick_raises() -> None:
    ticked = asyncio.Event()

    async def errand(now: int) -> TickResult:
        if len(counted) < 3:
            raise RuntimeError
        ticked.set()
        return TickResult(0, None)

    counted: list[str] = []
    ticker = Ticker("test", errand, now=_now, interval_ms=1, count_error=counted.append)
    ticker.start()
    await asyncio.wait_for(ticked.wait(), 5)
    await ticker.stop()
    assert len(counted) == 3


async def test_a_clock_that_cannot_be_read_is_a_failed_tick() -> None:
    async def no_clock() -> int:
        raise StoreDown("away")

    counted: list[str] = []
    ticker = Ticker("test", an_errand(), now=no_clock, interval_ms=INTERVAL, count_error=counted.append)
    assert await ticker.tick() == INTERVAL
    assert counted == ["test"]


@pytest.mark.parametrize("due_at", [None, NOW - 10, NOW, NOW + 10])
async def test_a_nudge_ends_the_sleep_when_its_work_is_due(due_at: int | None) -> None:
    looked = asyncio.Event()

    async def errand(now: int) -> TickResult:
        looked.set()
        return TickResult(0, None)

    ticker = Ticker("test", errand, now=_now, interval_ms=3_000_000, count_error=lambda name: None)
    ticker.start()
    await asyncio.wait_for(looked.wait(), 5)
    await asyncio.sleep(0)  # the ticker falls asleep
    looked.clear()
    ticker.wake(NOW + 1_000_000)
    ticker.wake(due_at)
    await asyncio.wait_for(looked.wait(), 5)
    await ticker.stop()


async def test_a_nudge_for_what_is_due_after_the_sleep_leaves_it_alone() -> None:
    looks = 0

    async def errand(now: int) -> TickResult:
        nonlocal looks
        looks += 1
        return TickResult(0, None)

    ticker = Ticker("test", errand, now=_now, interval_ms=3_000_000, count_error=lambda name: None)
    ticker.start()
    for _ in range(10):
        await asyncio.sleep(0)
        ticker.wake(NOW + 3_600_000)
    assert looks == 1
    await ticker.stop()


@pytest.mark.parametrize(("due_at", "pause"), [(None, 0), (NOW - 10, 0), (NOW + 20, 20), (NOW + 3_600_000, INTERVAL)])
async def test_a_nudge_during_a_tick_is_not_lost(due_at: int | None, pause: int) -> None:
    async def errand(now: int) -> TickResult:
        ticker.wake(due_at)
        return TickResult(0, None)

    ticker = a_ticker(errand)
    assert await ticker.tick() == pause


async def test_after_an_error_no_nudge_ends_the_sleep() -> None:
    looks = 0

    async def errand(now: int) -> TickResult:
        nonlocal looks
        looks += 1
        if looks == 1:
            ticker.wake()
        raise StoreDown("away")

    ticker = Ticker("test", errand, now=_now, interval_ms=3_000_000, count_error=lambda name: None)
    ticker.start()
    for _ in range(10):
        await asyncio.sleep(0)
        ticker.wake()
    assert looks == 1
    await ticker.stop()


async def test_a_stop_lets_the_tick_under_way_end() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended = False

    async def errand(now: int) -> TickResult:
        nonlocal ended
        begun.set()
        await go_on.wait()
        ended = True
        return TickResult(1, NOW)

    ticker = a_ticker(errand)
    ticker.start()
    await begun.wait()
    stop = asyncio.create_task(ticker.stop())
    go_on.set()
    await asyncio.wait_for(stop, 5)
    assert ended


async def test_what_somebody_else_cancelled_does_not_end_the_loop() -> None:
    async def errand(now: int) -> TickResult:
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()
        await shared
        return TickResult(0, None)

    counted: list[str] = []
    assert await a_ticker(errand, counted).tick() == INTERVAL
    assert counted == ["test"]


async def test_a_ticker_that_nothing_depends_on_is_cut_in_the_middle_of_a_tick() -> None:
    begun = asyncio.Event()

    async def errand(now: int) -> TickResult:
        begun.set()
        await asyncio.Event().wait()
        return TickResult(0, None)

    ticker = a_ticker(errand)
    ticker.start()
    await begun.wait()
    await asyncio.wait_for(ticker.cancel(), 5)


async def _now() -> int:
    return NOW
