"""Creates of one turn of the event loop go together, and each caller gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from later.client import AsyncClient
from later.core.errors import Refused, Unavailable
from tests.client.api_servers import StubAnswer, StubRequest, StubServer, problem, stub_server

CALLBACK = "http://127.0.0.1:8888/success"
OpenClient = Callable[[StubServer], AsyncClient]


@pytest.fixture
async def open_client() -> AsyncIterator[OpenClient]:
    clients: list[AsyncClient] = []

    def open_one(server: StubServer) -> AsyncClient:
        clients.append(AsyncClient(server.url, check=False, patience=5))
        return clients[-1]

    yield open_one
    for client in clients:
        await client.aclose()


def answer_all(request: StubRequest) -> StubAnswer:
    """Create what a request has, but refuse the id `bad`."""
    if request.path == "/create":
        return StubAnswer(200, {"id": request.ids[0], "created": True})
    results: list[dict[str, Any]] = [{"id": id, "created": True} for id in request.ids]
    for position, id in enumerate(request.ids):
        if id == "bad":
            results[position] = {"error": {"status": 400, "detail": "why", "field": "id"}}
    return StubAnswer(200, {"results": results})


async def test_creates_of_one_turn_are_one_batch_and_each_has_its_own_answer(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        client = open_client(server)
        ids = [f"a{number}" for number in range(50)]
        answers = await asyncio.gather(*(client.create("order", id=id) for id in ids))
        assert [answer.id for answer in answers] == ids
        assert [(request.path, len(request.ids)) for request in server.requests] == [("/create/batch", 50)]


async def test_a_create_that_is_alone_goes_alone(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        client = open_client(server)
        for id in "ab":
            assert (await client.create("order", id=id)).id == id
        assert [request.path for request in server.requests] == ["/create", "/create"]


async def test_a_create_whose_id_must_be_new_goes_alone(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        client = open_client(server)
        await asyncio.gather(*(client.create("order", id=id, if_exists="error") for id in "ab"))
        assert [request.path for request in server.requests] == ["/create", "/create"]


async def test_an_error_reaches_the_caller_whose_task_it_was(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        client = open_client(server)
        created, refused = await asyncio.gather(
            client.create("order", id="a"), client.create("order", id="bad"), return_exceptions=True
        )
    assert getattr(created, "id", created) == "a"
    assert isinstance(refused, Refused)
    assert (refused.detail, refused.field) == ("why", "id")


async def test_a_failure_of_the_whole_batch_reaches_every_caller(open_client: OpenClient) -> None:
    with stub_server(problem(503, "the store is away", retry_after="60")) as server:
        client = open_client(server)
        results = await asyncio.gather(*(client.create("order") for _ in range(3)), return_exceptions=True)
        assert len(server.requests) == 1
    assert [(type(result), str(result)) for result in results] == [(Unavailable, "the store is away")] * 3


async def test_a_create_whose_caller_is_cancelled_in_its_turn_is_not_sent(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        client = open_client(server)
        kept, cancelled = (asyncio.ensure_future(client.create("order", id=id)) for id in "ab")
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await kept).id == "a"
        assert [request.ids for request in server.requests] == [["a"]]


async def test_a_cancelled_caller_takes_no_answer_from_the_others(open_client: OpenClient) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(request: StubRequest) -> StubAnswer:
        asyncio.run_coroutine_threadsafe(cancel(), loop).result()
        return answer_all(request)

    async def cancel() -> None:
        cancelled.cancel()
        started.set()

    with stub_server(answer) as server:
        client = open_client(server)
        kept, cancelled = (asyncio.ensure_future(client.create("order", id=id)) for id in "ab")
        assert (await kept).id == "a"
        assert started.is_set()
        assert cancelled.cancelled()


async def test_closing_a_client_waits_for_its_creates(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        client = open_client(server)
        creates = [asyncio.ensure_future(client.create("order", id=id)) for id in "ab"]
        await asyncio.sleep(0)
        await client.aclose()
        assert [answer.id for answer in await asyncio.gather(*creates)] == ["a", "b"]
        assert len(server.requests) == 1
        assert client._loops == {}  # no further session was opened for them


async def test_many_first_creates_read_the_policy_once() -> None:
    def answer(request: StubRequest) -> StubAnswer:
        return answer_all(request) if request.path.startswith("/create") else StubAnswer(200, {})

    with stub_server(answer) as server:
        async with AsyncClient(server.url) as client:
            await asyncio.gather(*(client.create("order", callback=CALLBACK, id=f"a{number}") for number in range(20)))
        assert [request.path for request in server.requests] == ["/topics/order/policy?applied=true", "/create/batch"]


async def test_without_coalescing_each_create_is_a_call(open_client: OpenClient) -> None:
    with stub_server(answer_all) as server:
        async with AsyncClient(server.url, check=False, coalesce=False) as client:
            await asyncio.gather(*(client.create("order", id=id) for id in "ab"))
        assert [request.path for request in server.requests] == ["/create", "/create"]
