"""The dispatch of tasks to handlers: what each end of a handler means, for async handlers and for those in threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from later.core.retry import Outcome, OutcomeKind
from later.handlers.context import Carried, variables
from later.handlers.control import Busy, Dead, Hold, Retry
from later.handlers.dispatch import HandlerDispatcher
from later.handlers.handler import Handler
from later.handlers.parameters import Depends
from later.handlers.registry import CallNext, Handlers
from later.handlers.runner import RequestExecutor
from later.handlers.task import Task, current
from tests.cases import each_case
from tests.handlers.tasks import FixedDeadline, task_of

DONE = Outcome(kind=OutcomeKind.DONE)
REQUEST_ID: ContextVar[str] = ContextVar("request_id")


@dataclass
class Remind:
    order: int


def failed(reason: str, message: str, later_after_ms: int | None = None) -> Outcome:
    return Outcome(kind=OutcomeKind.FAILED, reason=reason, message=message, later_after_ms=later_after_ms)


def busy(reason: str, message: str, **pauses: int) -> Outcome:
    return Outcome(kind=OutcomeKind.BUSY, reason=reason, message=message, **pauses)


def wait_until_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def dispatch(function: Callable[..., Any], content: str = "", **options: Any) -> Outcome:
    """Dispatch one task to a function; `options` are those of `handler`."""
    handlers = Handlers()
    handlers.handler("order", **options)(function)
    dispatcher = HandlerDispatcher(handlers)
    try:
        return await dispatcher.dispatch(task_of("order"), content)
    finally:
        dispatcher.close()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


ENDS: list[tuple[object, Outcome]] = [
    (None, DONE),
    (False, DONE),
    (KeyError("amount"), failed("raised", "KeyError: 'amount'")),
    (TimeoutError(), failed("raised", "TimeoutError")),
    (StopIteration(), failed("raised", "RuntimeError")),
    (Unprintable(), failed("raised", "Unprintable")),
    (concurrent.futures.CancelledError(), failed("raised", "CancelledError")),
    (asyncio.CancelledError(), failed("raised", "CancelledError")),
    (Retry(), failed("retry", "retry")),
    (Retry("locked", after="1h30m"), failed("retry", "locked", 5_400_000)),
    (Busy(), busy("busy", "busy")),
    (Busy("overloaded", after=0.5), busy("busy", "overloaded", later_after_ms=500)),
    (Hold("2s", "rate limit"), busy("hold", "rate limit", retry_after_ms=2000)),
    (Dead("no such order"), Outcome(kind=OutcomeKind.GONE, reason="dead", message="no such order")),
]


def ending(end: object) -> Any:
    if isinstance(end, BaseException):
        raise end
    return end


@each_case("end, outcome", ENDS)
async def test_the_end_of_a_handler_decides_on_its_task(end: object, outcome: Outcome) -> None:
    async def on_the_loop() -> object:
        return ending(end)

    def in_a_thread() -> object:
        return ending(end)

    for function in (on_the_loop, in_a_thread):
        got = await dispatch(function)
        if outcome.message.startswith("RuntimeError"):
            assert got.message.startswith("RuntimeError")
        else:
            assert got == outcome, function


@each_case(
    "returned, outcome", [(True, DONE), (None, failed("result", "returned None")), (1, failed("result", "returned 1"))]
)
async def test_a_strict_handler_is_done_only_if_it_returns_true(returned: object, outcome: Outcome) -> None:
    assert await dispatch(lambda: returned, strict=True) == outcome


async def test_a_strict_handler_whose_result_cannot_be_shown_has_failed() -> None:
    class Unreadable:
        def __repr__(self) -> str:
            raise ValueError("no text")

    result = Unreadable()
    assert await dispatch(lambda: result, strict=True) == failed("raised", "ValueError: no text")


async def test_a_payload_is_decoded_to_its_type() -> None:
    got: list[Remind] = []

    async def remind(order: Remind) -> None:
        got.append(order)

    assert await dispatch(remind, '{"order": 17}') == DONE
    assert got == [Remind(17)]


@each_case(
    "content, message",
    [
        ('{"order": "x"}', "ValidationError: Expected `int`, got `str` - at `$.order`"),
        ("no JSON", "DecodeError: JSON is malformed: invalid character (byte 4)"),
    ],
)
async def test_a_payload_that_cannot_be_decoded_is_a_failure(content: str, message: str) -> None:
    async def remind(order: Remind) -> None:
        raise AssertionError

    assert await dispatch(remind, content) == failed("payload", message)


class Semicolons:
    """A codec of an application's own: numbers with semicolons between them."""

    def encode(self, payload: list[int]) -> str:
        return ";".join(map(str, payload))

    def decode(self, content: str) -> list[int]:
        return [int(part) for part in content.split(";")]


async def test_a_codec_of_ones_own_writes_and_reads_payloads_and_its_errors_are_failures() -> None:
    got: list[list[int]] = []

    async def order(numbers: list[int]) -> None:
        got.append(numbers)

    handler = Handlers().handler("order", codec=Semicolons())(order)
    assert handler.encode([1, 2, 3]) == "1;2;3"
    assert await dispatch(order, "1;2;3", codec=Semicolons()) == DONE
    assert got == [[1, 2, 3]]
    message = "ValueError: invalid literal for int() with base 10: 'x'"
    assert await dispatch(order, "1;x", codec=Semicolons()) == failed("payload", message)
    with pytest.raises(TypeError, match="order: its handler cannot read this payload: invalid literal"):
        handler.encode(["x"])  # type: ignore[list-item]  # that is what is refused


async def test_a_topic_without_handler_is_busy() -> None:
    assert await HandlerDispatcher(Handlers()).dispatch(task_of("shop/new"), "") == busy(
        "handler", "no handler for shop/new in this app"
    )


async def test_an_async_handler_is_cancelled_after_its_timeout() -> None:
    cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await dispatch(hang, timeout=0.01) == failed("timeout", "not done within 0.01 s")
    assert cancelled.is_set()


async def test_the_end_of_an_attempt_ends_its_handler_before() -> None:
    handlers = Handlers()

    @handlers.handler("order")
    async def hang() -> None:
        await asyncio.Event().wait()

    task = task_of("order", deadline=FixedDeadline(0.51))
    assert (await HandlerDispatcher(handlers).dispatch(task, "", cancel_before_s=0.5)).reason == "timeout"


async def test_a_thread_that_outlives_its_timeout_keeps_its_slot_and_its_dependencies() -> None:
    handlers, began, ends, closed = Handlers(), threading.Event(), threading.Event(), threading.Event()

    def session() -> Iterator[str]:
        try:
            yield "open"
        finally:
            if began.is_set():
                closed.set()

    @handlers.handler("order", concurrency=1, timeout=0.01)
    def block(session: Annotated[str, Depends(session)]) -> None:
        began.set()
        ends.wait(20)

    dispatcher = HandlerDispatcher(handlers)
    while not began.is_set():  # on a busy machine, the timeout may be over before the thread runs
        assert (await dispatcher.dispatch(task_of("order"), "")).reason in ("timeout", "handler")
    assert (await dispatcher.dispatch(task_of("order"), "")).message == "all 1 runs of the handler for order are taken"
    assert not closed.is_set()
    waiting = asyncio.create_task(dispatcher.dispatch(task_of("order"), "", slot_wait_s=20))
    ends.set()
    assert (await waiting).reason != "handler"  # it had a slot; its end may come after the timeout
    assert await asyncio.to_thread(closed.wait, 20)
    dispatcher.close()


async def test_a_cancelled_attempt_has_no_outcome_and_frees_its_slot() -> None:
    handlers = Handlers()
    begun = asyncio.Event()

    @handlers.handler("order", concurrency=1)
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    dispatch = asyncio.create_task(HandlerDispatcher(handlers).dispatch(task_of("order"), ""))
    await begun.wait()
    dispatch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dispatch
    assert hang.slots.free == 1


@each_case("error", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
async def test_what_ends_the_process_passes_through(error: BaseException) -> None:
    handlers = Handlers()

    @handlers.handler("order")
    async def end() -> None:
        raise error

    coroutine = HandlerDispatcher(handlers).dispatch(task_of("order"), "")
    with pytest.raises(type(error)):
        coroutine.send(None)
    assert end.slots.free == end.concurrency


@each_case("is_async", [True, False])
async def test_no_more_runs_than_the_concurrency_at_a_time(is_async: bool) -> None:
    handlers, lock, running, most = Handlers(), threading.Lock(), 0, 0

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def uncount() -> None:
        nonlocal running
        with lock:
            running -= 1

    async def on_the_loop() -> None:
        count()
        await asyncio.sleep(0.001)
        uncount()

    def in_a_thread() -> None:
        count()
        time.sleep(0.001)
        uncount()

    handlers.handler("order", concurrency=3)(on_the_loop if is_async else in_a_thread)
    dispatcher = HandlerDispatcher(handlers)
    outcomes = await asyncio.gather(*(dispatcher.dispatch(task_of("order"), "", slot_wait_s=20) for _ in range(30)))
    dispatcher.close()
    assert outcomes == [DONE] * 30
    assert most == 3


async def test_slots_are_shared_by_event_loops_in_several_threads() -> None:
    handlers, running = Handlers(), threading.Semaphore(2)

    @handlers.handler("order", concurrency=2)
    def work() -> None:
        assert running.acquire(blocking=False)
        time.sleep(0.002)
        running.release()

    def serve() -> Outcome:
        """Dispatch in a loop of its own, as a WSGI server does in each of its threads."""
        executor = RequestExecutor()
        call = HandlerDispatcher(handlers).dispatch(task_of("order"), "", slot_wait_s=20, executor=executor)
        return executor.run(call)

    outcomes = await asyncio.gather(*(asyncio.to_thread(serve) for _ in range(12)))
    assert outcomes == [DONE] * 12


def test_under_wsgi_functions_run_in_the_thread_of_the_request_and_beside_no_event_loop() -> None:
    handlers, threads = Handlers(), set[int]()

    def connection() -> Iterator[None]:
        threads.add(threading.get_ident())
        yield
        threads.add(threading.get_ident())

    @handlers.handler("order")
    def work(_connection: Annotated[None, Depends(connection)]) -> None:
        threads.add(threading.get_ident())
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        assert REQUEST_ID.get() == "r-1"

    REQUEST_ID.set("r-1")
    executor = RequestExecutor()
    assert executor.run(HandlerDispatcher(handlers).dispatch(task_of("order"), "", executor=executor)) == DONE
    assert threads == {threading.get_ident()}


async def test_threads_are_not_those_of_asyncio() -> None:
    names: list[str] = []
    assert await dispatch(lambda: names.append(threading.current_thread().name)) == DONE
    assert names[0].startswith("later-handler")


async def test_context_is_restored_and_put_back_also_after_an_error() -> None:
    handlers = Handlers()
    seen: list[tuple[str, Task[Any] | None]] = []

    @handlers.handler("async")
    async def on_the_loop() -> None:
        seen.append((REQUEST_ID.get(), current()))
        raise ValueError

    @handlers.handler("sync")
    def in_a_thread() -> None:
        seen.append((REQUEST_ID.get(), current()))
        raise ValueError

    REQUEST_ID.set("outer")
    dispatcher = HandlerDispatcher(handlers, carried=[variables(request=REQUEST_ID)])
    tasks = [task_of(topic, context={"request": "r-1"}) for topic in ("async", "sync")]
    for task in tasks:
        assert (await dispatcher.dispatch(task, "")).reason == "raised"
    assert seen == [("r-1", task) for task in tasks]
    assert (REQUEST_ID.get(), current()) == ("outer", None)
    dispatcher.close()


async def test_a_part_of_the_context_that_fails_does_not_cost_the_task() -> None:
    class Broken:
        def capture(self) -> dict[str, str]:
            raise ValueError

        def restore(self, values: object) -> Any:
            raise ValueError

    handlers, parts = Handlers(), list[Carried]([Broken(), variables(request=REQUEST_ID)])
    seen: list[str] = []
    handlers.handler("order")(lambda: seen.append(REQUEST_ID.get()))
    task = task_of("order", context={"request": "r-2"})
    assert await HandlerDispatcher(handlers, carried=parts).dispatch(task, "") == DONE
    assert seen == ["r-2"]


async def test_middlewares_are_around_each_run_the_outermost_first() -> None:
    app, shop, calls = Handlers(), Handlers(), list[str]()

    def noting(name: str) -> Callable[[Task[Any], CallNext], Any]:
        async def note(task: Task[Any], call_next: CallNext) -> object:
            calls.append(f"> {name}")
            result = await call_next(task)
            calls.append(f"< {name} {result}")
            return result

        return note

    @shop.handler("order")
    async def order() -> int:
        return 7

    app.include(shop)
    app.middleware(noting("app 1"))
    app.middleware(noting("app 2"))
    shop.middleware(noting("shop"))
    assert await HandlerDispatcher(app).dispatch(task_of("order"), "") == DONE
    assert calls == ["> app 1", "> app 2", "> shop", "< shop 7", "< app 2 7", "< app 1 7"]


async def test_a_middleware_can_decide_without_the_handler() -> None:
    handlers = Handlers()

    @handlers.middleware
    async def refuse(task: Task[Any], call_next: CallNext) -> object:
        raise Busy("maintenance")

    handlers.handler("order")(lambda: pytest.fail("the handler ran"))
    assert await HandlerDispatcher(handlers).dispatch(task_of("order"), "") == busy("busy", "maintenance")


async def test_dependencies_are_made_once_and_closed_after_the_handler_in_reverse() -> None:
    handlers, calls = Handlers(), list[str]()

    def settings() -> str:
        calls.append("settings")
        return "s"

    async def connection(task: Task[Any], settings: str = Depends(settings)) -> AsyncIterator[str]:
        calls.append(f"connection {settings} {task.id}")
        yield "c"
        calls.append("connection closed")

    def session(connection: str = Depends(connection), settings: Any = Depends(settings)) -> Iterator[str]:  # noqa: B008
        calls.append(f"session {connection} {settings}")
        yield "session"
        calls.append("session closed")

    @handlers.handler("order")
    async def order(payload: int, session: Annotated[str, Depends(session)]) -> None:
        calls.append(f"handler {payload} {session}")

    handlers.check()
    assert await HandlerDispatcher(handlers).dispatch(task_of("order"), "3") == DONE
    assert calls == [
        "settings", "connection s t1", "session c s", "handler 3 session", "session closed", "connection closed",
    ]  # fmt: skip


@each_case("error, seen", [(ValueError("x"), "ValueError"), (Retry("x"), "end"), (Dead("x"), "end"), (None, "end")])
async def test_a_dependency_sees_errors_of_the_handler_but_no_control_exceptions(error: object, seen: str) -> None:
    ends: list[str] = []

    async def on_the_loop() -> AsyncIterator[None]:
        try:
            yield
        except ValueError:
            ends.append("ValueError")
            raise
        ends.append("end")

    def in_a_thread() -> Iterator[None]:
        try:
            yield
        except ValueError:
            ends.append("ValueError")
            raise
        ends.append("end")

    async def order(a: None = Depends(on_the_loop), b: None = Depends(in_a_thread)) -> None:
        ending(error)

    await dispatch(order)
    assert ends == [seen, seen]


async def test_a_run_for_which_there_can_be_no_thread_takes_no_slot() -> None:
    handlers = Handlers()
    handler: Handler[Any] = handlers.handler("order")(lambda: None)
    with pytest.raises(ValueError, match="max_workers"):
        await HandlerDispatcher(handlers, threads=0).dispatch(task_of("order"), "")
    assert handler.slots.free == handler.concurrency


def group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("unhandled errors in a TaskGroup", errors)


@each_case(
    ("error", "outcome"),
    [
        (group(Dead("no order")), Outcome(kind=OutcomeKind.GONE, reason="dead", message="no order")),
        (group(group(Retry("locked", after=2))), failed("retry", "locked", 2000)),
        (
            group(Retry("locked"), Dead("no order")),
            failed("raised", "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)"),
        ),
        (
            group(Busy(), KeyError("x")),
            failed("raised", "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)"),
        ),
    ],
)
async def test_a_group_of_one_control_exception_means_that_one_and_any_other_group_is_a_failure(
    error: Exception, outcome: Outcome
) -> None:
    async def fail() -> None:
        raise error

    assert await dispatch(fail) == outcome


async def test_a_dependency_does_not_see_a_control_exception_of_a_task_group_as_an_error() -> None:
    seen: list[str] = []

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            seen.append("rollback")
            raise
        seen.append("commit")

    async def work(session: Annotated[None, Depends(session)]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refuse())

    async def refuse() -> None:
        raise Dead("no order")

    handlers = Handlers()
    handlers.handler("order")(work)
    assert (await HandlerDispatcher(handlers).dispatch(task_of("order"), "")).kind is OutcomeKind.GONE
    assert seen == ["commit"]


async def test_a_generator_in_a_thread_can_reset_the_context_variable_that_it_has_set() -> None:
    ended: list[str] = []

    def request_id() -> Iterator[str]:
        token = REQUEST_ID.set("own")
        yield REQUEST_ID.get()
        REQUEST_ID.reset(token)
        ended.append(REQUEST_ID.get("none"))

    def work(request_id: Annotated[str, Depends(request_id)]) -> None:
        assert request_id == "own"

    handlers = Handlers()
    handlers.handler("order")(work)
    dispatcher = HandlerDispatcher(handlers)
    assert await dispatcher.dispatch(task_of("order"), "") == DONE
    assert ended == [REQUEST_ID.get("none")]
    dispatcher.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on Windows")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of the thread that must not be needed
def test_threads_and_slots_that_were_used_before_a_fork_are_new_in_the_child() -> None:
    handlers = Handlers()
    handler = handlers.handler("order", concurrency=1)(lambda: None)
    dispatcher = HandlerDispatcher(handlers)
    assert asyncio.run(dispatcher.dispatch(task_of("order"), "")) == DONE
    assert asyncio.run(handler.slots.acquire())
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(0 if asyncio.run(dispatcher.dispatch(task_of("order"), "")) == DONE else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert handler.slots.free == 0
    dispatcher.close()
