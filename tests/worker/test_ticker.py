"""The ticker's loop: it ticks again in time, and no error ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from later.core.errors import StoreDown
from later.metrics import Metrics
from later.worker.ticker import Ticker, TickResult, start_tickers
from tests.cases import each_case

NOW = 1_000_000
INTERVAL = 100


def a_ticker(
    tick: Callable[[int], Awaitable[TickResult]], counted: list[str] | None = None, *, now: int = NOW
) -> Ticker:
    async def clock() -> int:
        return now

    return Ticker(
        "test", tick, now=clock, interval_ms=INTERVAL, count_error=(counted if counted is not None else []).append
    )


def a_tick(*answers: TickResult | BaseException) -> Callable[[int], Awaitable[TickResult]]:
    """Return a tick function that returns or raises these in turn, and then has nothing to do."""
    left = list(answers)

    async def tick(now: int) -> TickResult:
        answer = left.pop(0) if left else TickResult(0, None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return tick


@each_case(
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
    ids=["idle", "all done", "more is due", "due but not claimable", "due soon", "moved, due soon", "due in an hour"],
)
async def test_the_pause_lasts_until_there_is_more_to_do(answer: TickResult, pause: int) -> None:
    assert await a_ticker(a_tick(answer)).tick() == pause


async def test_no_tick_runs_while_a_ticker_is_paused() -> None:
    running, may_end, ticks = asyncio.Event(), asyncio.Event(), list[str]()

    async def tick(now: int) -> TickResult:
        running.set()
        await may_end.wait()
        ticks.append("tick")
        return TickResult(0, None)

    ticker = a_ticker(tick)
    first = asyncio.create_task(ticker.tick())
    await running.wait()
    may_end.set()
    async with ticker.paused():
        second = asyncio.create_task(ticker.tick())
        await asyncio.sleep(0)
        ticks.append("the pause")
    await asyncio.gather(first, second)
    assert ticks == ["tick", "the pause", "tick"]


@each_case("error", [StoreDown("down"), ValueError(), RecursionError(), ExceptionGroup("", [KeyError()])])
async def test_a_failed_tick_is_counted_and_repeated_after_an_interval(error: Exception) -> None:
    counted: list[str] = []
    assert await a_ticker(a_tick(error), counted).tick() == INTERVAL
    assert counted == ["test"]


async def test_the_pause_after_an_error_may_be_shorter_than_an_interval() -> None:
    tick = a_tick(StoreDown("down"))
    ticker = Ticker(
        "test", tick, now=fixed_now, interval_ms=INTERVAL, count_error=lambda name: None, after_error_ms=INTERVAL // 10
    )
    assert [await ticker.tick(), await ticker.tick()] == [INTERVAL // 10, INTERVAL]


async def test_the_loop_survives_whatever_a_tick_raises() -> None:
    ticked = asyncio.Event()

    async def tick(now: int) -> TickResult:
        if len(counted) < 3:
            raise RuntimeError
        ticked.set()
        return TickResult(0, None)

    counted: list[str] = []
    ticker = Ticker("test", tick, now=fixed_now, interval_ms=1, count_error=counted.append)
    ticker.start()
    await asyncio.wait_for(ticked.wait(), 5)
    await ticker.stop()
    assert len(counted) == 3


async def test_an_unreadable_clock_is_a_failed_tick() -> None:
    async def no_clock() -> int:
        raise StoreDown("down")

    counted: list[str] = []
    ticker = Ticker("test", a_tick(), now=no_clock, interval_ms=INTERVAL, count_error=counted.append)
    assert await ticker.tick() == INTERVAL
    assert counted == ["test"]


@each_case("due_at", [None, NOW - 10, NOW, NOW + 10])
async def test_a_wake_ends_the_sleep_when_its_work_is_due(due_at: int | None) -> None:
    ticked_again = asyncio.Event()

    async def tick(now: int) -> TickResult:
        ticked_again.set()
        return TickResult(0, None)

    ticker = Ticker("test", tick, now=fixed_now, interval_ms=3_000_000, count_error=lambda name: None)
    ticker.start()
    await asyncio.wait_for(ticked_again.wait(), 5)
    await asyncio.sleep(0)  # the ticker falls asleep
    ticked_again.clear()
    ticker.wake(NOW + 1_000_000)
    ticker.wake(due_at)
    await asyncio.wait_for(ticked_again.wait(), 5)
    await ticker.stop()


async def test_a_wake_for_work_due_after_the_sleep_does_not_end_it() -> None:
    ticks = 0

    async def tick(now: int) -> TickResult:
        nonlocal ticks
        ticks += 1
        return TickResult(0, None)

    ticker = Ticker("test", tick, now=fixed_now, interval_ms=3_000_000, count_error=lambda name: None)
    ticker.start()
    for _ in range(10):
        await asyncio.sleep(0)
        ticker.wake(NOW + 3_600_000)
    assert ticks == 1
    await ticker.stop()


@each_case(("due_at", "pause"), [(None, 0), (NOW - 10, 0), (NOW + 20, 20), (NOW + 3_600_000, INTERVAL)])
async def test_a_wake_during_a_tick_is_not_lost(due_at: int | None, pause: int) -> None:
    async def tick(now: int) -> TickResult:
        ticker.wake(due_at)
        return TickResult(0, None)

    ticker = a_ticker(tick)
    assert await ticker.tick() == pause


async def test_no_wake_ends_the_pause_after_an_error() -> None:
    ticks = 0

    async def tick(now: int) -> TickResult:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            ticker.wake()
        raise StoreDown("down")

    ticker = Ticker("test", tick, now=fixed_now, interval_ms=3_000_000, count_error=lambda name: None)
    ticker.start()
    for _ in range(10):
        await asyncio.sleep(0)
        ticker.wake()
    assert ticks == 1
    await ticker.stop()


async def test_a_stop_lets_the_running_tick_finish() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    ended = False

    async def tick(now: int) -> TickResult:
        nonlocal ended
        started.set()
        await go_on.wait()
        ended = True
        return TickResult(1, NOW)

    ticker = a_ticker(tick)
    ticker.start()
    await started.wait()
    stop = asyncio.create_task(ticker.stop())
    go_on.set()
    await asyncio.wait_for(stop, 5)
    assert ended


async def test_a_cancelled_future_in_a_tick_does_not_end_the_loop() -> None:
    async def tick(now: int) -> TickResult:
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()
        await shared
        return TickResult(0, None)

    counted: list[str] = []
    assert await a_ticker(tick, counted).tick() == INTERVAL
    assert counted == ["test"]


async def test_a_cancel_ends_a_ticker_in_the_middle_of_a_tick() -> None:
    started = asyncio.Event()

    async def tick(now: int) -> TickResult:
        started.set()
        await asyncio.Event().wait()
        return TickResult(0, None)

    ticker = a_ticker(tick)
    ticker.start()
    await started.wait()
    await asyncio.wait_for(ticker.cancel(), 5)


async def test_a_ticker_hangs_when_a_tick_has_not_ended_for_a_minute_and_its_interval() -> None:
    started = asyncio.Event()

    async def hang(now: int) -> TickResult:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing ends this wait")

    metrics, ticker = Metrics(), a_ticker(hang)
    before = time.monotonic()
    start_tickers([ticker], metrics)
    await started.wait()
    limit_s = 60 + INTERVAL / 1000
    assert metrics.hung_tickers(before + limit_s) == []
    assert metrics.hung_tickers(time.monotonic() + limit_s + 0.1) == ["test"]
    await ticker.cancel()
    assert metrics.hung_tickers(time.monotonic() + limit_s + 0.1) == []


@each_case(("error", "hangs"), [(StoreDown("down"), False), (RuntimeError("a bug"), True)])
async def test_ticks_that_fail_by_a_fault_get_nothing_done(error: Exception, hangs: bool) -> None:
    ticker = a_ticker(a_tick(error, error))
    ticker.start()
    await asyncio.sleep(0.002)
    between = time.monotonic()
    await asyncio.sleep(0.002)
    await ticker.tick()
    assert ticker.hangs(between + 60 + INTERVAL / 1000) == hangs
    await ticker.cancel()


async def test_a_ticker_that_is_paused_does_not_hang() -> None:
    ticker = a_ticker(a_tick())
    ticker.start()
    async with ticker.paused():
        assert not ticker.hangs(time.monotonic() + 1000)
    assert not ticker.hangs(time.monotonic() + 30)
    await ticker.cancel()


async def fixed_now() -> int:
    return NOW


async def test_the_metrics_show_when_a_ticker_succeeded_last() -> None:
    metrics = Metrics()
    ticker = a_ticker(a_tick(TickResult(0, None), StoreDown("down")))
    started_at = time.time()
    start_tickers([ticker], metrics)
    shown = metrics.registry.get_sample_value("later_tick_last_success_timestamp_seconds", {"ticker": "test"})
    await ticker.cancel()
    assert shown is not None
    assert started_at <= shown <= time.time()
    await ticker.tick()
    succeeded_at = ticker.last_success_at()
    assert succeeded_at > shown
    await ticker.tick()
    assert ticker.last_success_at() == succeeded_at
    assert metrics.registry.get_sample_value("later_tick_errors_total", {"ticker": "test"}) == 0
