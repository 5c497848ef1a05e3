"""Uses of handlers. A type checker must refuse the lines that end with a comment which says so, and no other one.

No test imports this file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from later import Depends, Handler, Handlers, Later, Task, current
from later.client import Info
from later.errors import Unavailable
from later.testing import Outcome, VirtualClock, deliver, deliver_sync, virtual_clock

tasks = Later("http://127.0.0.1:8080")
shop = Handlers(namespace="shop")


@dataclass
class Remind:
    order: int


async def session() -> AsyncIterator[str]:
    yield "session"


@tasks.handler
async def bare(reminder: Remind) -> None: ...


@tasks.handler("named", concurrency=3, timeout="30s", aliases=["old"])
def with_options(reminder: Remind) -> None: ...


@shop.handler()
async def empty() -> None: ...


@tasks.handler
async def injected(number: int, task: Task[dict[str, str]], session: Annotated[str, Depends(session)]) -> str:
    return task.state["x"] + session


@tasks.handler("default")
def injected_by_default(number: int, session: str = Depends(session)) -> None: ...


@bare.on_dead
async def gave_up(dead: Info, task: Task[Any]) -> None:
    print(bare.payload_of(dead).order, task.id)


@bare.on_dead  # error: "Callable[[int], Coroutine[Any, Any, None]]"
async def wrong_gave_up(dead: int) -> None: ...


@tasks.every("1h")
async def hourly() -> None: ...


@tasks.cron("0 9 * * 1-5", zone="Europe/Berlin", catch_up="all")
@tasks.handler("morning", concurrency=1)
async def morning() -> None: ...


@tasks.every(60, payload=Remind(1))
@tasks.every(timedelta(hours=1), payload=Remind(2), id="hourly-remind")
async def remind_hourly(reminder: Remind) -> None: ...


@tasks.every(60, payload=17)  # error: expected "def (int, /, *Any, **Any) -> Any"
async def wrong_payload(reminder: Remind) -> None: ...


def schedules() -> None:
    i: Handler[None] = hourly
    j: Handler[None] = morning
    k: Handler[Remind] = remind_hourly
    tasks.every()  # error: All overload variants
    tasks.cron("@daily", catch_up="some")  # error: No overload variant
    late: timedelta | None = current().lateness  # error: "None"
    print(i, j, k, late)


def types() -> None:
    a: Handler[Remind] = bare
    b: Handler[Remind] = with_options
    c: Handler[None] = empty
    d: Handler[int] = injected
    e: Handler[int] = injected_by_default
    f: Handler[str] = bare  # error: Handler[Remind]
    task: Task[Any] | None = current()
    g: Handler[Info] = gave_up
    h: str = bare.payload_of(tasks.get_sync("id"))  # error: "Remind"
    print(a, b, c, d, e, f, g, h, task)


async def enqueue() -> None:
    await bare.enqueue(Remind(17), delay="15m")
    await bare.enqueue(Remind(17), delay=timedelta(minutes=15), if_exists="update", key="x")
    await with_options.enqueue(Remind(17), delay=1.5)
    await empty.enqueue(None)
    await injected.enqueue(7)
    await bare.enqueue(17)  # error: "int"
    await bare.enqueue({"order": 17})  # error: "dict[str, int]"
    await with_options.enqueue("17")  # error: "str"
    await empty.enqueue(17)  # error: "int"
    await injected.enqueue("7")  # error: "str"
    await bare.enqueue(Remind(17), if_exists="replace")  # error: "Literal['replace']"
    await bare.enqueue(Remind(17), soon=True)  # error: "soon"
    await bare.enqueue()  # error: "payload"
    bare.enqueue_sync("x")  # error: "str"
    bare.item(1)  # error: "int"
    created: bool = (await bare.enqueue(Remind(1))).created
    id: int = (await bare.enqueue(Remind(1))).id  # error: "str"
    print(created, id)


async def on_a_clock(later_clock: VirtualClock) -> None:
    with virtual_clock(tasks, start=datetime(2030, 1, 1, tzinfo=UTC), policies={"bare": {"retry": 1}}) as clock:
        await clock.advance("15m")
        await clock.advance_to(clock.now + timedelta(days=1))
        await clock.run_all(limit=10)
    a: list[Remind] = clock.pending(bare) + clock.dead(bare) + clock.done(bare) + clock.delivered(bare)
    b: list[str] = clock.pending("another/topic")
    c: list[int] = clock.pending(bare)  # error: "Handler[Remind]"
    d: list[str] = [info.state for info in later_clock.tasks(bare, "dead")]
    clock.fail_next(2, Unavailable)
    clock.fail_next(1, Unavailable("away", 503, unknown=True))
    clock.fail_next(1, ValueError)  # error: "type[ValueError]"
    clock.policy(bare, retry=5)
    outcome: Outcome = await deliver(bare, Remind(17), attempt=3, failures=2)
    await deliver(bare, 17)  # error: "Payload"
    deliver_sync(injected, "17")  # error: "Payload"
    print(a, b, c, d, outcome)
