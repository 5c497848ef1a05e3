"""An application on a virtual clock: what is delivered, when, and what the application is answered."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest

from later import Busy, Dead, Depends, Handlers, Hold, Later, Retry, Task
from later.core.errors import ConfigError, Conflict, NotConfigured, NotFound, Refused, Unavailable
from later.handlers.context import variables
from later.testing import VirtualClock, deliver, deliver_sync, virtual_clock

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


@dataclass
class Remind:
    order: int


@pytest.fixture
def tasks() -> Later:
    return Later()


@pytest.fixture
def clock(tasks: Later) -> Iterator[VirtualClock]:
    with virtual_clock(tasks, start=START) as clock:
        yield clock


def seconds(clock: VirtualClock, of: Any) -> list[float]:
    """Return when the attempts at tasks were made, in seconds since the start."""
    return [(delivery.at - START).total_seconds() for delivery in clock.deliveries(of)]


# Time


async def test_a_reminder_comes_after_a_quarter_of_an_hour(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(order: Remind) -> None: ...

    await remind.enqueue(Remind(17), delay="15m")
    await clock.advance("14m59s")
    assert (clock.pending(remind), clock.delivered(remind)) == ([Remind(17)], [])
    await clock.advance("1s")
    assert (clock.pending(remind), clock.done(remind)) == ([], [Remind(17)])
    assert clock.now == START + timedelta(minutes=15)


async def test_tasks_are_delivered_in_the_order_of_their_due_times_each_at_its_own(
    tasks: Later, clock: VirtualClock
) -> None:
    seen: list[tuple[int, datetime]] = []

    @tasks.handler
    async def first(number: int, task: Task[None]) -> None:
        seen.append((number, clock.now))

    @tasks.handler
    def second(number: int) -> None:
        seen.append((number, clock.now))

    for number in (3, 1, 2, 0):
        await (second if number % 2 else first).enqueue(number, delay=number)
    await second.enqueue(9, delay=1)
    await clock.advance(2.5)
    due = [(0, 0), (1, 1), (9, 1), (2, 2)]
    assert seen == [(number, START + timedelta(seconds=at)) for number, at in due]
    await clock.advance_to(START + timedelta(hours=1))
    assert seen[4:] == [(3, START + timedelta(seconds=3))]


async def test_tasks_that_handlers_create_take_part(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def parent(number: int) -> None:
        if number:
            await parent.enqueue(number - 1, delay=10)
            child.enqueue_sync(number) if number < 0 else await child.enqueue(number, delay=1)

    @tasks.handler
    def child(number: int) -> None:
        if number == 2:
            child.enqueue_sync(20, delay=0.5)

    await parent.enqueue(2)
    await clock.advance(15)
    assert (seconds(clock, parent), seconds(clock, child)) == ([0, 10], [1, 1.5, 11])
    assert clock.pending(parent) == [0]


async def test_time_is_not_moved_back_or_by_a_time_without_a_zone(clock: VirtualClock) -> None:
    with pytest.raises(Refused, match="by: expected a duration that is not negative, got -1"):
        await clock.advance(-1)
    with pytest.raises(Refused, match="at: expected 2026-11-23T12:00:00\\+00:00 or later"):
        await clock.advance_to(START - timedelta(seconds=1))
    with pytest.raises(Refused, match="at: expected a time with its zone"):
        await clock.advance_to(START.replace(tzinfo=None))
    with (
        pytest.raises(Refused, match="start: expected a time with its zone"),
        virtual_clock(Later(), start=datetime.min),
    ):
        pass


async def test_a_handler_cannot_move_the_clock(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler(policy={"retry": 0})
    async def mover() -> None:
        await clock.advance(1)

    await mover.enqueue(None, retry=0)
    await clock.run_all()
    [dead] = clock.tasks(mover, "dead")
    assert dead.last_error is not None
    assert (
        dead.last_error.message == "1 failure: RuntimeError: the clock is being moved already: a handler cannot move it"
    )


async def test_run_all_ends_when_nothing_waits(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def count_down(number: int) -> None:
        if number:
            await count_down.enqueue(number - 1, delay="1d")

    await count_down.enqueue(3)
    await clock.run_all()
    assert clock.done(count_down) == [3, 2, 1, 0]
    assert clock.now == START + timedelta(days=3)


async def test_run_all_names_the_handler_that_never_ends(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler("shop/again")
    async def again(number: int) -> None:
        await again.enqueue(number + 1, delay=1)

    @tasks.handler
    async def once() -> None: ...

    await again.enqueue(0)
    await once.enqueue(None)
    text = "after 50 deliveries, 49 of them to the handler for shop/again: does it create tasks without end"
    with pytest.raises(RuntimeError, match=f"tasks still wait {text}"):
        await clock.run_all(limit=50)
    assert clock.delivered(again) == [*range(49)]
    await clock.advance(1)  # it goes on


def test_a_test_without_an_event_loop_moves_the_clock(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(order: Remind) -> None: ...

    remind.enqueue_sync(Remind(1), delay=10)
    remind.enqueue_sync(Remind(2), delay=20)
    remind.enqueue_sync(Remind(3), delay="1d")
    clock.advance_sync(10)
    assert clock.done(remind) == [Remind(1)]
    clock.advance_to_sync(START + timedelta(seconds=20))
    assert clock.done(remind) == [Remind(1), Remind(2)]
    clock.run_all_sync()
    assert clock.pending(remind) == []
    assert tasks.get_sync(remind.enqueue_sync(Remind(4)).id).topic == "remind"


async def test_a_test_with_an_event_loop_awaits(clock: VirtualClock) -> None:
    with pytest.raises(RuntimeError, match="await the method without _sync"):
        clock.advance_sync(1)


# travel


async def test_datetime_follows_the_clock_if_it_travels(tasks: Later) -> None:
    pytest.importorskip("time_machine", reason="the library's tests run without it")
    seen: list[datetime] = []

    @tasks.handler
    async def look() -> None:
        seen.append(datetime.now(UTC))
        await asyncio.sleep(0.001)

    with virtual_clock(tasks, start=START, travel=True) as clock:
        await look.enqueue(None, at=datetime.now(UTC) + timedelta(days=30))
        await clock.run_all()
        assert time.time() == clock.now.timestamp()
    assert seen == [START + timedelta(days=30)]
    assert abs(datetime.now(UTC) - START) > timedelta(seconds=1)


async def test_without_time_machine_the_clock_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.testing.application_clock.find_spec", lambda name: None)
    text = r"travel=True needs time-machine: pip install 'later\[testing\]'"
    with pytest.raises(ConfigError, match=text), virtual_clock(Later(), travel=True):
        pass


# What becomes of tasks


async def test_a_task_that_fails_runs_four_times_at_0_10_30_and_70_s_and_is_dead_with_the_reason(
    tasks: Later, clock: VirtualClock
) -> None:
    @tasks.handler
    async def pay(order: dict[str, int]) -> None:
        print(order["amount"])

    await pay.enqueue({"order": 1})
    await clock.run_all()
    assert seconds(clock, pay) == [0, 10, 30, 70]
    assert (clock.dead(pay), clock.pending(pay), clock.done(pay)) == ([{"order": 1}], [], [])
    [dead] = clock.tasks(pay, "dead")
    assert dead.last_error is not None
    assert (dead.attempts, dead.last_error.reason) == (4, "exhausted")
    assert dead.last_error.message == "4 failures, the last: KeyError: 'amount'"


async def test_the_pauses_are_those_of_the_policy_and_of_the_handler(tasks: Later) -> None:
    @tasks.handler
    async def flaky(number: int, task: Task[None]) -> None:
        if task.attempt == 2:
            raise Retry("once more", after="1h")
        if task.attempt == 4:
            raise Busy("not now", after=7)
        if task.attempt < 6:
            raise ValueError

    with virtual_clock(
        tasks, start=START, policies={"flaky": {"retry_base": 1, "retry_cap": "3s", "retry": 9}}
    ) as clock:
        await flaky.enqueue(1)
        await clock.run_all()
    assert seconds(clock, flaky) == [0, 1, 3601, 3604, 3611, 3614]
    assert [delivery.attempt for delivery in clock.deliveries(flaky)] == [1, 2, 3, 4, 5, 6]


async def test_a_hold_keeps_other_tasks_of_the_topic_waiting_and_busy_does_not(
    tasks: Later, clock: VirtualClock
) -> None:
    @tasks.handler
    async def held(number: int, task: Task[None]) -> None:
        if task.attempt == 1 and number == 1:
            raise Hold(60, "rate limit")

    @tasks.handler
    async def busy(number: int, task: Task[None]) -> None:
        if task.attempt == 1 and number == 1:
            raise Busy(after=60)

    for handler in (held, busy):
        for number in (1, 2):
            await handler.enqueue(number, delay=number)
    await clock.advance(30)
    assert (clock.done(held), clock.done(busy)) == ([], [2])
    explained = await tasks.explain(held)
    assert "calls to application.invalid are held until 12:01:01Z, as it asked" in explained.sentence
    await clock.run_all()
    assert (seconds(clock, held), seconds(clock, busy)) == ([1, 61, 61], [1, 2, 61])


async def test_a_deleted_task_is_not_delivered(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(number: int) -> None:
        assert number != 3 or await tasks.cancel("itself")

    kept, deleted = [(await remind.enqueue(number, delay=number)).id for number in (1, 2)]
    await remind.enqueue(3, delay=3, id="itself")
    assert await tasks.cancel(deleted)
    assert not await tasks.cancel(deleted)
    await clock.run_all()
    assert (clock.delivered(remind), clock.done(remind)) == ([1, 3], [1])
    with pytest.raises(NotFound):
        await tasks.get(kept)


async def test_a_paused_topic_waits_and_goes_on(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(number: int) -> None: ...

    await tasks.pause(remind)
    await remind.enqueue(1)
    await clock.run_all()
    await clock.advance("1h")
    assert clock.pending(remind) == [1]
    assert (await tasks.explain(remind)).sentence.startswith("its topic is paused")
    await tasks.resume(remind)
    await clock.run_all()
    assert clock.done(remind) == [1]


async def test_a_rate_spaces_the_deliveries_of_a_topic(tasks: Later) -> None:
    @tasks.handler
    async def mail(number: int) -> None: ...

    with virtual_clock(tasks, start=START, policies={"mail": {"rate": 2}}) as clock:
        await tasks.enqueue_many([mail.item(number) for number in range(4)])
        await clock.run_all()
    assert (clock.done(mail), seconds(clock, mail)) == ([0, 1, 2, 3], [0, 0.5, 1, 1.5])


async def test_tasks_of_pulled_topics_are_given_as_a_worker_gives_them(tasks: Later) -> None:
    @tasks.handler
    async def resize(picture: str, task: Task[None]) -> None:
        await task.extend()
        assert task.time_left() == 30
        if task.attempt == 1:
            raise Hold(60)
        if task.attempt == 2:
            raise Dead("no such picture")

    with virtual_clock(
        tasks, start=START, policies={"resize": {"deliver": "pull"}, "other": {"deliver": "pull"}}
    ) as clock:
        await resize.enqueue("cat.jpg")
        await tasks.enqueue("other", "for another consumer")
        await clock.run_all()
        [dead] = clock.tasks(resize, "dead")
        assert (clock.pending("other"), dead.callback) == (["for another consumer"], None)
    assert seconds(clock, resize) == [0, 60]
    assert dead.last_error is not None
    assert (dead.last_error.reason, dead.last_error.message) == ("rejected", "no such picture")


async def test_a_call_to_another_application_is_done_when_it_is_due(tasks: Later, clock: VirtualClock) -> None:
    await tasks.enqueue("billing", "order 17", callback="http://billing.example/due", delay=10)
    await tasks.enqueue("misspelt", "order 17")
    await clock.advance(10)
    assert (clock.done("billing"), clock.pending("misspelt")) == (["order 17"], ["order 17"])
    [missing] = clock.tasks("misspelt")
    assert missing.last_error is not None
    assert missing.last_error.message == "no handler for misspelt in this app"


async def test_a_handler_learns_of_dead_tasks_once_its_policy_is_applied(tasks: Later, clock: VirtualClock) -> None:
    reasons: list[str] = []

    @tasks.handler
    async def pay(number: int) -> None:
        raise Dead("no such account")

    @pay.on_dead
    async def note(dead: Any) -> None:
        reasons.append(dead.last_error.message)

    await tasks.apply_policies()
    await pay.enqueue(1)
    await clock.run_all()
    assert reasons == ["no such account"]


async def test_a_content_that_no_handler_can_read_is_shown_as_it_is(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(order: Remind) -> None: ...

    await tasks.enqueue("remind", "garbage", retry=0)
    await remind.enqueue(Remind(1))
    await clock.run_all()
    dead: list[object] = [*clock.dead(remind)]
    assert (dead, clock.done(remind)) == (["garbage"], [Remind(1)])


async def test_aliases_are_the_handlers_too(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler(aliases=["old"])
    async def remind(order: int) -> None: ...

    await remind.enqueue(2, delay=2)
    await tasks.enqueue("old", "1", delay=1)
    assert clock.pending(remind) == [1, 2]
    await clock.run_all()
    assert clock.done(remind) == [1, 2]


async def test_declared_schedules_fire_and_run_all_does_not_wait_for_them(tasks: Later, clock: VirtualClock) -> None:
    @tasks.every("1h")
    @tasks.handler
    async def tidy() -> None: ...

    @tasks.handler
    async def remind(number: int) -> None: ...

    await tasks.apply_schedules()
    await clock.advance("150m")
    assert seconds(clock, tidy) == [0, 3600, 7200]
    await remind.enqueue(1, delay="1h")
    await clock.run_all()
    assert clock.now == START + timedelta(minutes=210)
    assert len(clock.done(tidy)) == 4


async def test_run_all_ends_although_a_schedule_fires_as_often_as_tasks_are_delivered(
    tasks: Later, clock: VirtualClock
) -> None:
    @tasks.every("1s")
    @tasks.handler
    async def tick() -> None: ...

    await tasks.apply_schedules()
    await tasks.enqueue("later-on", callback="http://other.example/", delay="30d")
    with pytest.raises(RuntimeError, match="20 of them to the handler for tick"):
        await clock.run_all(limit=20)


async def test_a_cron_expression_fires_on_the_clocks_of_its_zone(tasks: Later) -> None:
    pytest.importorskip("cronsim", reason="the library does without it")

    @tasks.cron("0 9 * * 1-5", zone="Europe/Berlin")
    @tasks.handler
    async def report() -> None: ...

    with virtual_clock(tasks, start=datetime(2026, 10, 23, 12, tzinfo=UTC)) as clock:  # a Friday; then summer time ends
        await tasks.apply_schedules()
        await clock.advance("4d")
        times = [delivery.at for delivery in clock.deliveries(report)]
    assert times == [datetime(2026, 10, day, 8, tzinfo=UTC) for day in (26, 27)]


async def test_without_cronsim_a_cron_expression_says_what_to_install(
    tasks: Later, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigError, match="cron expressions need cronsim"):
        await tasks.client.put_schedule("s", "report", cron="0 9 * * *", callback="http://app.example/")


# Context, state


async def test_context_dependencies_middlewares_and_state_are_those_of_a_delivery() -> None:
    request: ContextVar[str] = ContextVar("request")
    seen: list[object] = []

    @asynccontextmanager
    async def lifespan(tasks: Later) -> AsyncIterator[str]:
        yield "pool"

    async def session(task: Task[str]) -> AsyncIterator[str]:
        yield f"session of {task.state}"
        seen.append("closed")

    tasks = Later(context=[variables(request=request)], lifespan=lifespan)

    @tasks.middleware
    async def around(task: Task[Any], call_next: Any) -> object:
        seen.append((task.topic, task.headers["later-attempt"], task.retries_left))
        return await call_next(task)

    @tasks.handler
    def greet(name: str, session: Annotated[str, Depends(session)]) -> None:
        seen.append((name, session, request.get()))

    with virtual_clock(tasks, start=START) as clock:
        async with tasks:
            request.set("r-1")
            await greet.enqueue("world")
            request.set("r-2")
            await clock.run_all()
            assert request.get() == "r-2"
    assert seen == [("greet", "1", 3), ("world", "session of pool", "r-1"), "closed"]


# The daemon


async def test_calls_fail_that_are_to_fail(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(number: int) -> None: ...

    clock.fail_next(2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the virtual clock lets this call fail") as error:
            await remind.enqueue(1)
        assert not error.value.unknown
    clock.fail_next(1, Unavailable("the store is away", 503, unknown=True))
    with pytest.raises(Unavailable, match="the store is away") as error:
        await tasks.get("x")
    assert error.value.unknown
    await remind.enqueue(1)
    assert clock.pending(remind) == [1]


async def test_policies_are_checked_and_changed_as_those_of_a_daemon(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler(policy={"retry": 7})
    async def remind(number: int) -> None: ...

    clock.policy(remind, max_delay="15m")
    with pytest.raises(Refused, match="Exceeds max allowed delivery delay of 900000 milliseconds"):
        await remind.enqueue(1, delay=901)
    await clock.advance("30d")
    await remind.enqueue(1, at=clock.now + timedelta(minutes=15))
    with pytest.raises(Refused, match="Exceeds max allowed"):
        await remind.enqueue(1, at=clock.now + timedelta(minutes=17))
    assert [change.field for change in await tasks.apply_policies()] == ["retry"]
    assert (await tasks.policy(remind)).values["retry"] == 7
    with pytest.raises(Refused, match="max_delai: no field of a policy"):
        clock.policy(remind, max_delai=1)
    with pytest.raises(Refused, match="gives the tasks of pulled topics to their handlers by itself"):
        await tasks.client.claim("remind")


async def test_an_application_is_as_before_when_the_clock_ends() -> None:
    tasks = Later()
    with virtual_clock(tasks):
        await tasks.enqueue("x", callback="http://x.example/")
        with pytest.raises(RuntimeError):
            tasks.configure(url="http://127.0.0.1:1")
    with pytest.raises(NotConfigured):
        await tasks.enqueue("x", callback="http://x.example/")
    tasks.configure(url="http://127.0.0.1:1", callback="http://127.0.0.1:2/later")
    with virtual_clock(tasks) as clock:
        assert (tasks.callback, await tasks.cancel("x")) == ("http://127.0.0.1:2/later", False)
    assert tasks.url == "http://127.0.0.1:1"
    assert clock.now.tzinfo is UTC


async def test_an_attempt_that_is_cancelled_has_not_been_made(tasks: Later, clock: VirtualClock) -> None:
    started = asyncio.Event()

    @tasks.handler
    async def slow(number: int) -> None:
        started.set()
        await asyncio.sleep(60)

    await slow.enqueue(1)
    moving = asyncio.create_task(clock.run_all())
    await started.wait()
    with pytest.raises(Conflict):
        await tasks.run_now(clock.tasks(slow)[0].id)
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    [task] = clock.tasks(slow)
    assert (task.state, task.attempts, clock.deliveries(slow)) == ("delay", 0, [])


# One delivery


async def test_one_delivery_goes_through_the_codec_and_the_middlewares(tasks: Later) -> None:
    seen: list[Any] = []

    @tasks.middleware
    async def around(task: Task[Any], call_next: Any) -> object:
        seen.append(task.attempt)
        return await call_next(task)

    @tasks.handler
    async def remind(order: Remind, task: Task[Any]) -> None:
        seen.append((order, task.failures, task.retries_left, dict(task.context)))
        if task.retries_left == 0:
            raise Dead("the last try")

    outcome = await deliver(remind, Remind(17), attempt=3, failures=2, context={"tenant": "t"})
    assert (outcome.kind, seen) == ("done", [3, (Remind(17), 2, 1, {"tenant": "t"})])
    outcome = await deliver(remind, Remind(17), attempt=4)
    assert (outcome.kind, outcome.message) == ("gone", "the last try")
    with pytest.raises(TypeError):
        await deliver(remind, 17)  # type: ignore[misc]  # as a test may do that is not checked


def test_one_delivery_without_an_event_loop(tasks: Later) -> None:
    @tasks.handler(strict=True)
    def remind(number: int) -> bool:
        return number == 1

    assert [deliver_sync(remind, number).kind for number in (1, 2)] == ["done", "failed"]


async def test_a_handler_of_no_application_cannot_be_delivered_to() -> None:
    handlers = Handlers()

    @handlers.handler
    async def remind() -> None: ...

    with pytest.raises(NotConfigured, match="belong to no application"):
        await deliver(remind, None)
