"""An application with the API behind it: what it creates, and how it is set up and taken down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest

from later import Handlers, Later, Signed, Task
from later.core.errors import Exists, NotConfigured, NotFound, Refused
from later.handlers.context import variables
from tests.builders import NOW
from tests.client.api_servers import ApiServer, StubAnswer, api_server, stub_server
from tests.handlers.tasks import task_of

CALLBACK = "http://app.example/later"
REQUEST: ContextVar[str] = ContextVar("request")


@dataclass
class Remind:
    order: int


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server() as api:
        yield api


@pytest.fixture
def tasks(api: ApiServer) -> Later:
    return Later(api.url, callback=CALLBACK, context=[variables(request=REQUEST)])


def register(tasks: Handlers) -> Any:
    @tasks.handler
    async def remind(order: Remind) -> None: ...

    return remind


async def test_a_task_is_created_for_its_handler(tasks: Later) -> None:
    remind = register(tasks)
    REQUEST.set("r-1")
    async with tasks:
        enqueued = await remind.enqueue(
            Remind(17), delay="15m", ttl=timedelta(hours=1), retry=5, context={"tenant": "t"}
        )
        info = await tasks.get(enqueued.id)
    assert (enqueued.created, info.topic, info.content, info.callback) == (True, "remind", '{"order":17}', CALLBACK)
    assert info.max_retry == 5
    assert enqueued.due_at == datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(minutes=15)


async def test_a_key_makes_an_id_and_if_exists_decides_on_a_second_task(tasks: Later) -> None:
    remind = register(tasks)
    async with tasks:
        first = await remind.enqueue(Remind(1), key="order-1", delay="1h")
        assert (first.id, first.created) == (remind.id_of("order-1"), True)
        assert not (await remind.enqueue(Remind(2), key="order-1", delay="1h")).created
        assert (await tasks.get(first.id)).content == '{"order":1}'
        await remind.enqueue(Remind(3), key="order-1", delay="1h", if_exists="update")
        assert (await tasks.get(first.id)).content == '{"order":3}'
        with pytest.raises(Exists):
            await remind.enqueue(Remind(4), key="order-1", delay="1h", if_exists="error")
        with pytest.raises(Refused, match="either id or key"):
            await remind.enqueue(Remind(4), key="order-1", id="x")
        assert [await tasks.cancel(first.id), await tasks.cancel(first.id)] == [True, False]
        with pytest.raises(NotFound):
            await tasks.get(first.id)


async def test_many_tasks_are_created_with_an_answer_for_each(tasks: Later) -> None:
    remind = register(tasks)
    async with tasks:
        items = [remind.item(Remind(n), delay=60, id=f"many-{n}") for n in range(3)]
        answers = await tasks.enqueue_many([*items, remind.item(Remind(9), ttl=-1)])
        assert [answer.id for answer in answers[:3]] == ["many-0", "many-1", "many-2"]  # type: ignore[union-attr]  # created
        assert isinstance(answers[3], Refused)
        assert {info.id async for info in tasks.list(remind)} >= {"many-0", "many-1", "many-2"}
        assert (await tasks.run_now("many-0")).due_at is not None
        assert "due in" in (await tasks.explain("many-1")).sentence


async def test_a_thread_without_a_loop_uses_the_methods_with_sync(tasks: Later) -> None:
    remind = register(tasks)

    def work() -> list[object]:
        enqueued = remind.enqueue_sync(Remind(1), delay=60)
        info = tasks.get_sync(enqueued.id)
        others = tasks.enqueue_sync("mail", "text", delay=60, callback="http://mail.example/")
        many = tasks.enqueue_many_sync([remind.item(Remind(2), delay=60)])
        tasks.run_now_sync(enqueued.id)
        return [info.content, len(many), tasks.cancel_sync(others.id), tasks.cancel_sync(others.id)]

    assert await asyncio.to_thread(work) == ['{"order":1}', 1, True, False]
    for blocked in (lambda: remind.enqueue_sync(Remind(1)), lambda: tasks.get_sync("x")):
        with pytest.raises(RuntimeError, match="would block the event loop"):
            blocked()
    async with tasks:
        pass


async def test_a_payload_that_the_handler_cannot_read_is_not_sent() -> None:
    with stub_server(StubAnswer(500)) as server:
        remind = register(tasks := Later(server.url, callback=CALLBACK))
        async with tasks:
            for payload in (None, {"order": "x"}, "17"):
                with pytest.raises(TypeError, match="remind: its handler cannot read this payload"):
                    await remind.enqueue(payload)
        assert server.requests == []


async def test_policies_are_wishes_that_are_applied_when_they_are_told(tasks: Later) -> None:
    @tasks.handler("wishes", policy={"concurrency": 10, "retry": 5})
    async def work() -> None: ...

    async with tasks:
        dry = await tasks.apply_policies(dry_run=True)
        assert [(change.field, change.after) for change in dry] == [("concurrency", 10), ("retry", 5)]
        assert await tasks.apply_policies() == dry
        assert await tasks.apply_policies() == []
        assert (await tasks.policy(work)).values["retry"] == 5
        await tasks.pause(work)
        assert (await tasks.policy(work)).values["paused"] is True
        await tasks.resume(work)
        assert await tasks.redrive(work) == 0


async def test_modules_without_a_connection_use_that_of_the_application(tasks: Later) -> None:
    shop = Handlers(namespace="shop")
    remind = register(shop)
    with pytest.raises(NotConfigured, match="belong to no application"):
        await remind.enqueue(Remind(1))
    tasks.include(shop)
    async with tasks:
        assert (await tasks.get((await remind.enqueue(Remind(1), delay=60)).id)).topic == "shop/remind"
    Later("http://other.example").include(shop)
    with pytest.raises(NotConfigured, match="several applications"):
        await remind.enqueue(Remind(1))


async def test_an_application_is_configured_until_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Later()
    remind = register(tasks)
    with pytest.raises(NotConfigured, match="where is later"):
        await remind.enqueue(Remind(1))
    tasks.configure(url="http://127.0.0.1:1", callback=CALLBACK)
    _ = tasks.client
    with pytest.raises(RuntimeError, match="before the first use"):
        tasks.configure(url="http://127.0.0.1:2")
    monkeypatch.setenv("LATER_URL", "http://127.0.0.1:3")
    monkeypatch.setenv("LATER_SIGNING_SECRETS", "whsec_a2tra2s=, whsec_b29vb28=")
    found = Later.from_env(patience=1)
    assert (found._url, found._signed) == ("http://127.0.0.1:3", found._signed)
    assert repr(found._signed) == repr(Signed(["whsec_a2tra2s=", "whsec_b29vb28="]))


async def test_the_lifespan_is_entered_once_and_is_the_state_of_tasks() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Later) -> AsyncIterator[str]:
        events.append("opened")
        yield "pool"
        events.append("closed")

    tasks, seen = Later(lifespan=lifespan), list[object]()

    @tasks.handler
    async def work(task: Task[str]) -> None:
        seen.append(task.state)

    async with tasks, tasks.lifespan(object()):
        assert events == ["opened"]
        assert tasks._get_receiver()._state() == "pool"
        await tasks._dispatcher.dispatch(task_of("work", state=tasks._state), "")
    assert (events, seen) == (["opened", "closed"], ["pool"])


def test_under_wsgi_handlers_create_tasks_and_leave_no_connections(api: ApiServer) -> None:
    tasks, created = Later(api.url, callback=CALLBACK), list[str]()

    @tasks.handler
    async def on_the_loop() -> None:
        created.append((await tasks.enqueue("further", delay=60)).id)

    @tasks.handler
    def in_a_thread() -> None:
        created.append(tasks.enqueue_sync("further", delay=60).id)

    app = tasks.wsgi()
    for topic in ("on_the_loop", "in_a_thread"):
        body = f'{{"id":"t1","topic":"{topic}"}}'.encode()
        environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
        assert [*app(environ, lambda *_: None)] == [b'{"code":100}']
    assert tasks.client._loops == {}
    assert [tasks.get_sync(id).topic for id in created] == ["further"] * 2
    tasks.client_sync.close()


async def test_an_application_with_an_unknown_type_does_not_start() -> None:
    tasks = Later()

    def work(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # it is not

    tasks.handler(work)
    with pytest.raises(TypeError, match="work: the annotation 'Missing' of order cannot be resolved"):
        async with tasks:
            pass
