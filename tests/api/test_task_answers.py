"""The bytes of tasks in answers: in one answer, and in all that are collected or sent at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import Raw

from later.api import task_answers
from later.api.json_response import json_response
from later.api.problem_types import TOO_MANY_WAITING
from later.api.task_answers import BytesInAnswers, send
from later.store import fanout
from tests.api.api_fixture import MINIMAL, ApiFixture, item_error, serve_api
from tests.builders import a_task
from tests.cases import each_case

KIB = 1024
FULL = item_error(413, "the answer is full: it holds 16 MiB at most; ask for this task again")


@pytest.fixture
async def api(shards: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiFixture]:
    """The API with 30 tasks of 10 KiB; an answer holds 100 KiB, and a round trip to the store reads 30 KiB."""
    monkeypatch.setattr(task_answers, "MAX_ANSWER_BYTES", 100 * KIB)
    monkeypatch.setattr(fanout, "MAX_READ_BYTES", 30 * KIB)
    async with serve_api(shards=shards) as built:
        tasks = [a_task(id=f"n{n:02}", own_id=True, delay=n, content="x" * 10 * KIB) for n in range(30)]
        await built.store.tasks.create(tasks)
        yield built


async def query_all(api: ApiFixture, ids: list[str]) -> list[dict[str, Any]]:
    status, answer = await api.post("/query/batch", [{"id": id} for id in ids])
    assert status == 200
    return answer["results"]  # type: ignore[no-any-return]  # of JSON


async def test_a_batch_holds_so_many_bytes_and_says_what_to_ask_for_again(api: ApiFixture) -> None:
    left = [f"n{n:02}" for n in range(30)]
    seen: list[str] = []
    rounds = 0
    while left:
        status, answer = await api.post("/query/batch", [{"id": id} for id in left])
        results = answer["results"]
        assert status == 200
        assert len(json.dumps(results)) < 130 * KIB
        found = [result["id"] for result in results if "id" in result]
        assert (answer["found"], answer.get("left_out", 0)) == (len(found), len(left) - len(found))
        assert all(result == FULL for result in results if "id" not in result)
        seen += found
        left = [id for id, result in zip(left, results, strict=True) if "id" not in result]
        rounds += 1
    assert sorted(seen) == [f"n{n:02}" for n in range(30)]
    assert rounds == 4


async def test_errors_of_items_are_told_in_a_full_answer_too(api: ApiFixture) -> None:
    results = await query_all(api, ["missing", " ", *(f"n{n:02}" for n in range(30))])
    assert [result["error"]["status"] for result in results[:2]] == [404, 400]


async def test_an_id_that_stands_twice_counts_twice(api: ApiFixture) -> None:
    results = await query_all(api, ["n00"] * 30)
    assert ["id" in result for result in results] == [True] * 9 + [False] * 21


async def test_what_is_sent_is_counted_not_what_is_stored(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id=f"c{n}", own_id=True, content="\x01" * 5 * KIB) for n in range(9)])
    results = await query_all(api, [f"c{n}" for n in range(9)])  # each control character is six bytes in JSON
    assert sum("id" in result for result in results) == 3


async def test_one_task_is_in_an_answer_whatever_its_size(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="huge", own_id=True, content="x" * 200 * KIB), a_task(id="z", own_id=True)])
    results = await query_all(api, ["huge", "z"])
    assert [result.get("id") for result in results] == ["huge", None]


async def test_no_round_trip_reads_more_bodies_than_fit(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    original, sizes = api.client.execute_each, list[int]()

    async def measured(verb: str, commands: Any) -> Any:
        answers = await original(verb, commands)
        sizes.append(len(repr(answers)))
        return answers

    monkeypatch.setattr(api.client, "execute_each", measured)
    ids = [f"n{n:02}" for n in range(30)]
    await query_all(api, ids)
    _, existing = await api.post("/create/batch", [{**MINIMAL, "id": id, "topic": "other"} for id in ids])
    _, preview = await api.post("/delete/batch?dry_run=true", [{"id": id} for id in ids])
    _, deleted = await api.post("/delete/batch", [{"id": id} for id in ids])
    assert (existing["existing"], preview["deleted"], deleted["deleted"]) == (30, 30, 30)
    one_of_each_shard = 11 * KIB * len(api.keys.shards)
    assert max(sizes) < max(40 * KIB, one_of_each_shard)


async def test_a_page_ends_early_and_its_cursor_goes_on(api: ApiFixture) -> None:
    ids: list[str] = []
    sizes: list[int] = []
    cursor = None
    while not sizes or cursor is not None:
        _, answer = await api.post("/list", {"topic": "order", "limit": 1000, "cursor": cursor})
        sizes.append(len(answer["tasks"]))
        ids += [task["id"] for task in answer["tasks"]]
        cursor = answer["cursor"]
    assert ids == [f"n{n:02}" for n in range(30)]
    assert sizes == [9, 9, 9, 3]


async def test_a_page_has_one_task_whatever_its_size(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="huge", own_id=True, created_at=1, content="x" * 200 * KIB)])
    _, answer = await api.post("/list", {"topic": "order"})
    assert [task["id"] for task in answer["tasks"]] == ["huge"]
    assert answer["cursor"] is not None


class TestAllAnswers:
    async def test_answers_end_early_while_many_bytes_are_being_sent(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_answers, "MAX_BYTES_IN_ANSWERS", 25 * KIB)
        for _ in range(5):  # the bytes of a finished answer do not count
            results = await query_all(api, ["n00", "n01", "n02"])
            assert ["id" in result for result in results] == [True, True, False]
        _, answer = await api.post("/list", {"topic": "order"})
        assert (len(answer["tasks"]), answer["cursor"] is None) == (2, False)

    async def test_at_the_limit_requests_are_refused_for_now(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_answers, "MAX_BYTES_IN_ANSWERS", 0)
        for path, body in (("/query/batch", [{"id": "n00"}]), ("/list", {"topic": "order"})):
            async with api.http.post(path, json=body) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert (await response.json())["type"] == TOO_MANY_WAITING.reference

    async def test_an_answer_counts_until_it_is_sent(self) -> None:
        all_answers = BytesInAnswers()
        with all_answers.open_answer() as first, all_answers.open_answer() as second:
            assert first.reserve(Raw(b"x" * 10))
            assert second.reserve(Raw(b"x" * 5))
            assert all_answers.count == 15
        assert all_answers.count == 0


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_answers, "SEND_TIMEOUT_S", 0.05)
    body, sent = {"a": "x" * 30_000_000}, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await send(request, json_response(body))
        sent.set()
        return response

    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        await sent.wait()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(30_000_000)
        writer.close()


@each_case("head", ["GET / HTTP/1.1", "HEAD / HTTP/1.1", "GET / HTTP/1.0"])
async def test_an_answer_that_was_sent_by_its_handler_is_sent_once(head: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, json_response({"a": 1}))

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(f"{head}\r\nHost: a\r\n\r\n".encode())
        if not head.endswith("1.0"):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        text = await reader.read()
        writer.close()
    assert text.count(b'{"a":1}') == (2 if head == "GET / HTTP/1.1" else 1)
