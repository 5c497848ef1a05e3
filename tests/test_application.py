"""An application with the API behind it: what it creates, and how it is set up and taken down."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest

from later import Handler, Handlers, Later, Signed, Task
from later.client.answers import Info
from later.core.errors import Exists, HandlerExists, NotConfigured, NotFound, Refused
from later.core.retry import Outcome
from later.handlers.context import variables
from later.puller.claim_source import HandlerClaim
from tests.builders import NOW
from tests.cases import each_case
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


@each_case(
    "wish, text",
    [
        ({"rety": 1}, "wishes/other: rety: no field of a policy"),
        ({"retry": "many"}, 'wishes/other: retry: expected an integer from 0 to 1000, or null to inherit, got "many"'),
        ({"timeout": "soon"}, "timeout: expected a duration"),
    ],
)
async def test_a_wish_that_the_daemon_would_refuse_is_found_before_anything_is_set(
    api: ApiServer, wish: dict[str, object], text: str
) -> None:
    tasks = Later(api.url)
    tasks.handler("wishes/first", policy={"retry": 7})(lambda: None)
    tasks.handler("wishes/other", policy=wish)(lambda: None)
    async with tasks:
        for dry_run in (True, False):
            with pytest.raises(Refused, match=text):
                await tasks.apply_policies(dry_run=dry_run)
        assert (await tasks.policy("wishes/first")).values["retry"] == 3


async def test_wishes_are_compared_as_the_daemon_writes_them(tasks: Later) -> None:
    wishes = {"timeout": timedelta(seconds=30), "retry_base": "1m", "rate": 50, "dead_to": "", "ramp": None}
    tasks.handler("written", policy=wishes)(lambda: None)
    async with tasks:
        changes = await tasks.apply_policies()
        assert [(change.field, change.before, change.after) for change in changes] == [
            ("timeout", 15, 30), ("retry_base", 10, 60), ("rate", 0, 50),
        ]  # fmt: skip
        assert await tasks.apply_policies() == []
        await tasks.client.set_policy("written", {"ramp": 5, "dead_to": "graves"})
        changes = await tasks.apply_policies()
        assert [(change.field, change.before, change.after) for change in changes] == [
            ("dead_to", "graves", ""), ("ramp", 5, None),
        ]  # fmt: skip
        assert await tasks.apply_policies() == []


@each_case("policy, delivery", [({}, ("callback", CALLBACK)), ({"deliver": "pull"}, ("deliver", "pull"))])
async def test_dead_tasks_are_told_to_a_handler_as_the_dead_one_was_delivered(
    api: ApiServer, policy: dict[str, object], delivery: tuple[str, str]
) -> None:
    tasks, topic = Later(api.url, callback=CALLBACK), f"told-{delivery[0]}"

    @tasks.handler(topic, policy=policy)
    async def remind(order: Remind) -> None: ...

    @remind.on_dead
    async def gave_up(dead: Info) -> None: ...

    assert (gave_up.topic, [*tasks]) == (f"{topic}.on_dead", [remind, gave_up])
    async with tasks:
        changes = await tasks.apply_policies()
        assert {(change.topic, change.field, change.after) for change in changes} - {
            (topic, "deliver", "pull")
        } == {(topic, "on_dead", gave_up.topic), (gave_up.topic, *delivery)}  # fmt: skip
        assert await tasks.apply_policies() == []
        task = await remind.enqueue(Remind(17), delay=60)
        assert remind.payload_of(await tasks.get(task.id)) == Remind(17)


async def note_dead(dead: Info) -> None: ...


def test_a_handler_has_one_handler_of_its_dead_tasks() -> None:
    handlers = Handlers(namespace="shop")
    remind: Handler[Remind] = register(handlers)
    other = handlers.handler("other", policy={"on_dead": "graves"})(lambda: None)
    assert remind.on_dead(note_dead).topic == "shop/remind.on_dead"
    assert remind.policy == {"on_dead": "shop/remind.on_dead"}
    with pytest.raises(HandlerExists):
        remind.on_dead(note_dead)
    with pytest.raises(ValueError, match="other: its policy says which topic learns of its dead tasks: graves"):
        other.on_dead(note_dead)
    assert handlers.handler("default/plain")(lambda: None).on_dead(note_dead).topic == "plain.on_dead"


async def test_tasks_are_created_in_the_namespace_of_their_handler(api: ApiServer) -> None:
    tasks, library = Later(api.url, callback=CALLBACK, namespace="shop"), Handlers()
    tasks.include(library)
    handlers = [register(tasks), register(library), tasks.handler("default/plain")(lambda: None)]
    async with tasks:
        created = [await tasks.get((await handler.enqueue(payload, delay=60)).id)
                   for handler, payload in zip(handlers, (Remind(1), Remind(1), None), strict=True)]  # fmt: skip
        created.append(await tasks.get((await tasks.enqueue("others", delay=60)).id))
        by_key = await tasks.enqueue("remind", '{"order":1}', delay=60, key="k")
        assert by_key.id == handlers[0].id_of("k")
        assert not (await handlers[0].enqueue(Remind(1), key="k")).created
    assert [info.topic for info in created] == ["shop/remind", "remind", "plain", "shop/others"]


async def test_a_task_that_waits_is_updated_by_its_handlers_payload(tasks: Later) -> None:
    remind = register(tasks)
    async with tasks:
        id = (await remind.enqueue(Remind(1), delay=60, ttl="1h")).id
        info = await tasks.update(id, payload=Remind(2), delay="2m", retry=9)
        assert (info.content, info.max_retry) == ('{"order":2}', 9)
        assert info.expires_at is not None
        assert (await tasks.update(id, ttl=None)).expires_at is None
        with pytest.raises(TypeError, match="remind: its handler cannot read this payload"):
            await tasks.update(id, payload="x")
        other = (await tasks.enqueue("elsewhere", "text", delay=60)).id
        with pytest.raises(Refused, match="no handler for elsewhere here"):
            await tasks.update(other, payload="x")
        with pytest.raises(NotFound):
            await tasks.update("gone", payload=Remind(3))


def test_all_that_an_application_asks_has_a_twin_for_threads_without_a_loop(api: ApiServer) -> None:
    twins = {name.removesuffix("_sync") for name in dir(Later) if name.endswith("_sync")} - {"client", "send_draft"}
    assert twins == {
        "apply_policies", "apply_schedules", "cancel", "enqueue", "enqueue_many", "explain", "get", "list", "pause",
        "policy", "redrive", "resume", "run_now", "undeclared_schedules", "update",
    }  # fmt: skip
    for name in twins:
        assert signature_of(getattr(Later, name)) == signature_of(getattr(Later, f"{name}_sync"))
    tasks = Later(api.url, callback=CALLBACK)
    remind = register(shop := Handlers(namespace="twins"))
    tasks.include(shop)
    tasks.handler("twins/wishes", policy={"retry": 5})(lambda: None)
    id = remind.enqueue_sync(Remind(1), delay=60).id
    assert tasks.update_sync(id, payload=Remind(2)).content == '{"order":2}'
    assert [info.id for info in tasks.list_sync(remind)] == [id]
    assert "due in" in tasks.explain_sync(id).sentence
    tasks.pause_sync(remind)
    assert "paused" in tasks.explain_sync(remind).sentence
    tasks.resume_sync(remind)
    assert tasks.policy_sync(remind).values["paused"] is False
    assert [change.field for change in tasks.apply_policies_sync(dry_run=True)] == ["retry"]
    assert len(tasks.apply_policies_sync()) == 1
    assert (tasks.apply_policies_sync(), tasks.redrive_sync(remind)) == ([], 0)
    tasks.client_sync.close()


def signature_of(method: Any) -> list[str]:
    return [str(parameter) for parameter in inspect.signature(method).parameters.values()]


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


class WaitingClaims:
    """A source of claims that has none. `waiting` counts the claims that wait."""

    lease_s = 30.0

    def __init__(self) -> None:
        self.waiting = 0
        self.changed = asyncio.Event()

    async def claim(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        self.waiting += 1
        self.changed.set()
        await asyncio.Event().wait()
        return []

    async def settle(self, lease: str, outcome: Outcome) -> bool:
        return True

    async def extend(self, leases: Sequence[str]) -> Sequence[str]:
        return []

    async def give_back(self, lease: str) -> None: ...

    async def wait_for(self, waiting: int) -> None:
        async with asyncio.timeout(20):
            while self.waiting < waiting:
                self.changed.clear()
                await self.changed.wait()


@each_case("starts_within", [False, True])
async def test_workers_and_what_runs_beside_them_share_one_lifespan(starts_within: bool) -> None:
    events, claims = list[str](), WaitingClaims()

    def start_worker() -> asyncio.Task[None]:
        return asyncio.create_task(tasks.work(claims=claims, drain=0))

    @asynccontextmanager
    async def lifespan(app: Later) -> AsyncIterator[str]:
        within = [start_worker()] if starts_within else []
        await asyncio.sleep(0)
        events.append("opened")
        yield "pool"
        await stop(within)
        events.append("closed")

    async def stop(workers: list[asyncio.Task[None]]) -> None:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    tasks = Later("http://127.0.0.1:1", lifespan=lifespan)
    register(tasks)
    workers = [start_worker(), start_worker()]
    async with tasks:
        workers.append(start_worker())
        await claims.wait_for(4 if starts_within else 3)
    assert events == ["opened"]
    await stop(workers)
    assert events == ["opened", "closed"]


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
