"""What handlers can rely on, from the create to the end of their tasks, on a virtual clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest

from later import Later, Task, current
from later.core.errors import Refused
from later.handlers.context import variables
from later.testing import VirtualClock, virtual_clock
from tests.cases import each_case

REQUEST: ContextVar[str] = ContextVar("request")


@pytest.fixture
def tasks() -> Later:
    return Later(context=[variables(request=REQUEST)])


@pytest.fixture
def clock(tasks: Later) -> Iterator[VirtualClock]:
    with virtual_clock(tasks) as clock:
        yield clock


async def test_fifty_creates_at_once_are_one_batch_with_fifty_ids(
    tasks: Later, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    answer = clock.backend.answer

    def count(method: str, path: str, body: bytes | None) -> Any:
        paths.append(path)
        return answer(method, path, body)

    @tasks.handler
    async def remind(number: int) -> None: ...

    monkeypatch.setattr(clock.backend, "answer", count)
    enqueued = await asyncio.gather(*(remind.enqueue(number) for number in range(50)))
    assert paths == ["/topics/remind/policy?applied=true", "/create/batch"]
    assert len({task.id for task in enqueued}) == 50
    await clock.run_all()
    assert sorted(clock.done(remind)) == [*range(50)]


async def test_no_task_is_created_twice_under_a_key(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(number: int) -> None: ...

    enqueued = [await remind.enqueue(number, key="cart 17", delay=10) for number in range(3)]
    assert [task.created for task in enqueued] == [True, False, False]
    await clock.run_all()
    assert clock.delivered(remind) == [0]
    assert not (await remind.enqueue(3, key="cart 17")).created


async def test_an_id_that_is_not_remembered_runs_again(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(number: int) -> None: ...

    for number in (1, 2):
        assert (await remind.enqueue(number, id="cart", remember=0)).created
        await clock.run_all()
    assert clock.done(remind) == [1, 2]


async def test_tasks_of_a_handler_that_was_removed_stay_and_run_once_it_is_back(
    tasks: Later, clock: VirtualClock
) -> None:
    @tasks.handler
    async def first(number: int) -> None: ...

    clock.policy("first", deliver="pull")
    await first.enqueue(1)
    assert tasks.remove(first)
    assert not tasks.remove(first)
    await clock.run_all()
    assert [(task.state, task.attempts) for task in clock.tasks("first")] == [("delay", 0)]

    @tasks.handler("first")
    async def second(number: int) -> None: ...

    await clock.run_all()
    assert clock.done(second) == [1]


@each_case("is_strict", [False, True])
async def test_what_a_handler_returns_counts_only_if_it_is_strict(is_strict: bool) -> None:
    tasks = Later()
    returned: list[object] = [True, False, None, "", 0, "true"]

    @tasks.handler("async", strict=is_strict)
    async def asynchronous(number: int) -> object:
        return returned[number]

    @tasks.handler("def", strict=is_strict)
    def in_thread(number: int) -> object:
        if number == len(returned):
            raise StopIteration
        return returned[number]

    with virtual_clock(tasks) as clock:
        for number in range(len(returned)):
            await asynchronous.enqueue(number, retry=0)
            await in_thread.enqueue(number, retry=0)
        await in_thread.enqueue(len(returned), retry=0)
        await clock.run_all()
        assert clock.done(asynchronous) == ([0] if is_strict else [*range(6)])
        assert clock.done(in_thread) == ([0] if is_strict else [*range(6)])
        raised = clock.tasks(in_thread, "dead")[-1]
    assert raised.last_error is not None
    assert "StopIteration" in raised.last_error.message


async def test_nothing_is_no_payload_and_no_time_is_without_its_zone(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(order: dict[str, int]) -> None: ...

    with pytest.raises(TypeError, match="remind: its handler cannot read this payload"):
        await remind.enqueue(None)  # type: ignore[arg-type]  # as a caller does that is not checked
    with pytest.raises(Refused, match="at: expected a time with its zone"):
        await remind.enqueue({}, at=datetime(2030, 1, 1))  # it is refused for that
    with pytest.raises(Refused, match="at: expected either delay or at, got both"):
        await remind.enqueue({}, at=datetime(2030, 1, 1, tzinfo=UTC), delay=1)
    assert clock.tasks(remind) == []


async def test_context_is_restored_in_async_functions_and_threads_and_put_back_after(
    tasks: Later, clock: VirtualClock
) -> None:
    seen: list[tuple[str, bool]] = []

    def note() -> None:
        task = current()
        assert task is not None
        seen.append((REQUEST.get(), task.context["request"] == REQUEST.get()))

    @tasks.handler
    async def asynchronous(fails: bool) -> None:
        note()
        REQUEST.set("of the handler")
        assert not fails

    @tasks.handler
    def in_thread(fails: bool) -> None:
        assert threading.current_thread() is not threading.main_thread()
        note()
        assert not fails

    for handler, fails in ((asynchronous, False), (in_thread, True), (asynchronous, True), (in_thread, False)):
        REQUEST.set(f"{handler.topic} {fails}")
        await handler.enqueue(fails, retry=0)
    REQUEST.set("of the test")
    await clock.run_all()
    assert seen == [(f"{topic} {fails}", True) for topic, fails in (
        ("asynchronous", False), ("in_thread", True), ("asynchronous", True), ("in_thread", False),
    )]  # fmt: skip
    assert (REQUEST.get(), current()) == ("of the test", None)


async def test_a_context_that_is_too_large_costs_no_task_but_one_of_ones_own_is_refused(clock: VirtualClock) -> None:
    class Numbers:
        """A part of the context whose values are no texts."""

        def capture(self) -> Any:
            return {"number": 17}

        def restore(self, values: Any) -> Any:
            return variables(request=REQUEST).restore({})

    tasks = Later(context=[variables(request=REQUEST), Numbers()])

    @tasks.handler
    async def remind(number: int, task: Task[Any]) -> None:
        contexts.append(dict(task.context))

    contexts: list[dict[str, str]] = []
    REQUEST.set("x" * 5000)
    with virtual_clock(tasks) as own:
        await remind.enqueue(1)
        with pytest.raises(Refused, match=r"^context: "):
            await remind.enqueue(2, context={"own": "x" * 5000})
        await own.run_all()
    assert contexts == [{"number": "17"}]


@dataclass
class Plain:
    at: datetime
    id: UUID


class Typed(TypedDict):
    amount: Decimal


class Record(msgspec.Struct):
    parts: list[Plain]


PLAIN = Plain(datetime(2030, 1, 1, tzinfo=UTC), UUID(int=1))


class Reversed:
    """A codec of texts, written from right to left."""

    def encode(self, payload: str) -> str:
        return payload[::-1]

    def decode(self, content: str) -> str:
        if content.startswith("!"):
            raise ValueError("it begins with an exclamation mark")
        return content[::-1]


async def test_every_payload_arrives_as_it_was_enqueued(tasks: Later, clock: VirtualClock) -> None:
    seen: list[Any] = []

    def note(payload: Any, task: Task[Any]) -> None:
        seen.append((payload, task.attempt, dict(task.context)))

    @tasks.handler
    async def plain(payload: Plain, task: Task[Any]) -> None:
        note(payload, task)

    @tasks.handler
    async def typed(payload: Typed, task: Task[Any]) -> None:
        note(payload, task)

    @tasks.handler
    async def record(payload: Record, task: Task[Any]) -> None:
        note(payload, task)

    @tasks.handler(codec=Reversed())
    async def text(payload: str, task: Task[Any]) -> None:
        note(payload, task)

    @tasks.handler
    async def nothing() -> None:
        task = current()
        assert task is not None
        note(None, task)

    context = {"tenant": "größe \U0001f408", "empty": ""}
    REQUEST.set("r-1")
    await plain.enqueue(PLAIN, context=context)
    await typed.enqueue({"amount": Decimal("0.10")}, context=context)
    await record.enqueue(Record([PLAIN]), context=context)
    await text.enqueue("größe \U0001f408", context=context)
    await nothing.enqueue(None, context=context)
    await clock.run_all()
    sent = {"request": "r-1", **context}
    assert seen == [
        (payload, 1, sent)
        for payload in (PLAIN, {"amount": Decimal("0.10")}, Record([PLAIN]), "größe \U0001f408", None)
    ]


async def test_a_content_that_a_codec_cannot_read_fails_with_its_text(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler(codec=Reversed())
    async def text(payload: str) -> None: ...

    with pytest.raises(TypeError, match="cannot read this payload: it begins with an exclamation mark"):
        await text.enqueue("no!")
    await tasks.enqueue("text", "!no", retry=0)
    await tasks.enqueue("text", "sey")
    await clock.run_all()
    [dead] = clock.tasks(text, "dead")
    assert dead.last_error is not None
    assert dead.last_error.message == "1 failure: ValueError: it begins with an exclamation mark"
    assert clock.done(text) == ["yes"]


async def test_a_reminder_is_cancelled_and_another_one_put_off(tasks: Later, clock: VirtualClock) -> None:
    @tasks.handler
    async def remind(number: int) -> None: ...

    began = clock.now
    first, second = [await remind.enqueue(number, delay="1h") for number in (1, 2)]
    await clock.advance("30m")
    assert await tasks.cancel(first.id)
    moved = await tasks.update(second.id, delay="1h", payload=3)
    assert moved.due_at == began + timedelta(minutes=90)
    await clock.run_all()
    assert [(delivery.payload, delivery.at - began) for delivery in clock.deliveries(remind)] == [
        (3, timedelta(minutes=90))
    ]
