"""Claims of Zaqar's API: what their clients send, get, and are refused."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from later.core.clock import Interval
from later.core.policy import Deliver, Policy
from later.core.policy_scopes import topic_scope
from later.core.task import Task
from later.store.claim_records import ClaimRecords
from later.store.keys import Bucket
from later.store.policies import PolicyBook
from later.store.types import DueTopic, TaskRecord
from tests.api.api_fixture import ApiFixture, serve_api
from tests.api.zaqar.zaqar_api import PROJECT, ZaqarAnswer, ZaqarApi
from tests.builders import NOW, a_task
from tests.cases import each_case

TOPIC = f"{PROJECT}/fizbit"
QUEUE = "/v2/queues/fizbit"
CLAIMS = f"{QUEUE}/claims"
EARLIER = NOW - 5500
BAD_TTL = "The TTL for a claim may not exceed 43200 seconds, and must be at least 60 seconds long."
BAD_GRACE = "The grace for a claim may not exceed 43200 seconds, and must be at least 60 seconds long."
BAD_LIMIT = "Limit must be at least 1 and may not be greater than 20."
NO_INTEGER = 'The "limit" parameter is invalid. The value must be an integer.'
TOO_LARGE = "JSON contains integer that is too large."
MALFORMED = "Request body could not be parsed."
REQUEST, BODY = "Invalid API request", "Invalid request body"


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API on an empty store of two shards, in which every topic is pulled."""
    async with serve_api(policy=Policy(deliver=Deliver.PULL), shards=2) as built:
        yield built


def a_message(**changes: Any) -> Task:
    """Return a message that was posted five and a half seconds ago, with a ttl of 300 s."""
    return a_task(**{"callback": "", "topic": TOPIC, "created_at": EARLIER, "ttl": 300, **changes})


async def post(zaqar: ZaqarApi, *messages: Task) -> None:
    assert await zaqar.api.store.tasks.create(messages) == [True] * len(messages)


async def claim(zaqar: ZaqarApi, query: str = "", **terms: Any) -> ZaqarAnswer:
    return await zaqar.call("POST", f"{CLAIMS}{query}", terms)


async def find(zaqar: ZaqarApi, id: str) -> TaskRecord:
    [record] = await zaqar.api.store.lookup.query([id])
    assert isinstance(record, TaskRecord)
    return record


async def test_a_claim_has_a_life_from_its_creation_to_its_end(zaqar: ZaqarApi) -> None:
    await post(zaqar, *(a_message(id=f"m{n}", content=f"body {n}", created_at=EARLIER + n) for n in range(3)))
    status, body, headers = await claim(zaqar, ttl=100, grace=60)
    location = headers["Location"]
    claim_id = location.removeprefix(f"{CLAIMS}/")
    assert (status, body["messages"][0]) == (201, {
        "id": "m0", "href": f"{QUEUE}/messages/m0?claim_id={claim_id}", "ttl": 300, "age": 5, "body": "body 0",
        "claim_count": 1,
    })  # fmt: skip
    assert [message["id"] for message in body["messages"]] == ["m0", "m1", "m2"]
    assert (await zaqar.call("GET", location)).body == {
        "age": 0, "ttl": 100, "grace": 60, "href": location, "messages": body["messages"],
    }  # fmt: skip
    assert (await claim(zaqar)).status == 204

    assert (await zaqar.call("PATCH", location, {"ttl": 200, "grace": 90})).status == 204
    assert (await find(zaqar, "m0")).score == zaqar.api.store.clock.now().low + 200_000
    again = (await zaqar.call("GET", location)).body
    assert (again["ttl"], again["grace"]) == (200, 90)

    assert (await zaqar.call("DELETE", location)).status == 204
    assert (await find(zaqar, "m0")).state is Bucket.DELAY
    missing = (404, "Not found", f"Claim {claim_id} does not exist in queue fizbit for project {PROJECT}")
    assert await zaqar.error("GET", location) == missing
    assert await zaqar.error("PATCH", location, {"ttl": 100}) == missing
    assert (await zaqar.call("DELETE", location)).status == 204
    consumed = [zaqar.api.metric(f"later_{name}_total") for name in ("extended", "released")]
    assert consumed == [3, 3]


@each_case("path", [f"{CLAIMS}/{id}" for id in ("a", "None", "f" * 24, "f" * 25, "0" * 3000, "%C3%A9" * 24)])
async def test_an_unknown_claim_is_not_found_and_its_end_is_no_error(zaqar: ZaqarApi, path: str) -> None:
    assert (await zaqar.call("GET", path)).status == 404
    assert (await zaqar.call("PATCH", path, {"ttl": 100})).status == 404
    assert (await zaqar.call("DELETE", path)).status == 204


async def test_a_claim_is_of_its_own_queue_only(zaqar: ZaqarApi) -> None:
    await post(zaqar, a_message(id="a"))
    location = (await claim(zaqar)).headers["Location"]
    other_queue = location.replace("fizbit", "other")
    other_project = ZaqarApi(zaqar.api, project="other")
    for caller, path in ((zaqar, other_queue), (other_project, location)):
        assert (await caller.call("GET", path)).status == 404
        assert (await caller.call("PATCH", path, {"ttl": 100})).status == 404
        assert (await caller.call("DELETE", path)).status == 204
    assert (await zaqar.call("GET", location)).status == 200


@each_case("body", [None, {}, {"ttl": None, "grace": None}, {"other": 1}])
async def test_a_claim_lasts_for_300_s_and_gives_60_s_of_grace_unless_it_says_otherwise(
    zaqar: ZaqarApi, body: object
) -> None:
    await post(zaqar, a_message())
    location = (await zaqar.call("POST", CLAIMS, body)).headers["Location"]
    shown = (await zaqar.call("GET", location)).body
    assert (shown["ttl"], shown["grace"], len(shown["messages"])) == (300, 60, 1)
    assert (await zaqar.call("PATCH", location, {"ttl": 100, "grace": 100})).status == 204
    assert (await zaqar.call("PATCH", location, {})).status == 204
    shown = (await zaqar.call("GET", location)).body
    assert (shown["ttl"], shown["grace"]) == (300, 60)


async def test_a_claim_takes_ten_messages_unless_it_says_how_many(zaqar: ZaqarApi) -> None:
    await post(zaqar, *(a_message(id=f"{n:02}", created_at=EARLIER + n) for n in range(35)))
    counts = [len((await claim(zaqar, query)).body["messages"]) for query in ("", "?limit=20", "?limit=1", "?limit=20")]
    assert counts == [10, 20, 1, 4]


@each_case(("query", "body", "error"), [
    ("?limit=0", {}, (REQUEST, BAD_LIMIT)),
    ("?limit=21", {}, (REQUEST, BAD_LIMIT)),
    ("?limit=-1", {}, (REQUEST, BAD_LIMIT)),
    ("?limit=x", {}, ("Invalid parameter", NO_INTEGER)),
    ("?limit=0", {"ttl": 59, "grace": 59}, (REQUEST, BAD_TTL)),
    ("?limit=0", {"grace": 59}, (REQUEST, BAD_LIMIT)),
    ("", {"ttl": -1, "grace": -1}, (REQUEST, BAD_TTL)),
    ("", {"ttl": 59, "grace": 60}, (REQUEST, BAD_TTL)),
    ("", {"ttl": 43201, "grace": 60}, (REQUEST, BAD_TTL)),
    ("", {"ttl": 60, "grace": 59}, (REQUEST, BAD_GRACE)),
    ("", {"ttl": 60, "grace": 43201}, (REQUEST, BAD_GRACE)),
    ("", {"ttl": "60"}, (BODY, 'The value of the "ttl" field must be a int.')),
    ("", {"ttl": 60.0}, (BODY, 'The value of the "ttl" field must be a int.')),
    ("", {"ttl": True}, (BODY, 'The value of the "ttl" field must be a int.')),
    ("", {"grace": []}, (BODY, 'The value of the "grace" field must be a int.')),
    ("", {"ttl": 10**19}, (BODY, TOO_LARGE)),
    ("", b"[", (BODY, MALFORMED)),
    ("", b".", (BODY, MALFORMED)),
    ("", b'"fail"', (BODY, MALFORMED)),
    ("", b"[]", (BODY, "Document type not supported.")),
])  # fmt: skip
async def test_a_claim_is_refused_with_zaqars_words(
    zaqar: ZaqarApi, query: str, body: object, error: tuple[str, str]
) -> None:
    assert await zaqar.error("POST", CLAIMS + query, body) == (400, *error)


@each_case(("body", "error"), [
    ({"ttl": 59}, (REQUEST, BAD_TTL)),
    ({"ttl": 43201}, (REQUEST, BAD_TTL)),
    ({"ttl": -1}, (REQUEST, BAD_TTL)),
    ({"ttl": "60"}, (BODY, 'The value of the "ttl" field must be a int.')),
    (b"[]", (BODY, "Document type not supported.")),
    (b"{", (BODY, MALFORMED)),
    (None, (BODY, "Request body can not be empty")),
])  # fmt: skip
async def test_a_change_of_a_claim_is_refused_with_zaqars_words(
    zaqar: ZaqarApi, body: object, error: tuple[str, str]
) -> None:
    assert await zaqar.error("PATCH", f"{CLAIMS}/{'f' * 24}", body) == (400, *error)


async def test_a_claim_lets_messages_live_for_its_time_and_grace_at_least(zaqar: ZaqarApi) -> None:
    await post(zaqar, a_message(id="short", ttl=60), a_message(id="long", ttl=9000), a_message(id="none", ttl=None))
    _, body, headers = await claim(zaqar, ttl=100, grace=70)
    ttls = {message["id"]: message["ttl"] for message in body["messages"]}
    assert ttls == {"short": 175, "long": 9000, "none": 1_209_600}  # the claim, its grace and the age
    assert (await zaqar.call("PATCH", headers["Location"], {"ttl": 60, "grace": 10**12})).status == 204
    shown = (await zaqar.call("GET", headers["Location"])).body["messages"]
    assert {message["id"]: message["ttl"] for message in shown} == {**ttls, "short": 43_265, "long": 43_265}
    assert (await zaqar.call("PATCH", headers["Location"], {"ttl": 60, "grace": -5})).status == 204
    assert (await zaqar.call("GET", headers["Location"])).body["messages"] == shown


async def test_each_claim_of_a_message_counts_and_the_last_is_the_one_that_its_queue_allows(zaqar: ZaqarApi) -> None:
    store = zaqar.api.store
    await store.policies.change(topic_scope(TOPIC), lambda settings: settings.merge({"max_claims": 2}))
    await post(zaqar, a_message(id="a", ttl=None))
    for count in (1, 2):
        [message] = (await claim(zaqar, ttl=60)).body["messages"]
        assert message["claim_count"] == count
        shard = store.keys.shard_of("a")
        await store.tasks.release(Bucket.UNACK, [DueTopic(NOW, TOPIC, shard.index)], NOW + 60_000)
        await zaqar.api.redis.zadd(shard.bucket(Bucket.DELAY, TOPIC.encode()), {b"a": EARLIER})
    assert (await claim(zaqar)).status == 204
    found = await find(zaqar, "a")
    assert (found.state, found.failure and found.failure.reason) == (Bucket.DEAD, "lost")


async def test_nothing_is_claimed_of_a_queue_that_is_paused_or_missing_or_whose_tasks_are_delivered() -> None:
    async with serve_api() as api:
        zaqar, change = ZaqarApi(api), partial(api.store.policies.change, topic_scope(TOPIC))
        assert (await claim(zaqar)).status == 204
        await post(zaqar, a_message(id="a"))
        await change(lambda settings: settings.merge({"deliver": "push"}))
        status, title, _ = await zaqar.error("POST", CLAIMS, {})
        assert (status, title) == (409, "Resource conflict")
        await change(lambda settings: settings.merge({"deliver": "pull", "paused": True}))
        assert (await claim(zaqar)).status == 204
        await change(lambda settings: settings.merge({"paused": False}))
        assert (await claim(zaqar)).status == 201


async def test_a_queue_that_another_process_has_just_made_can_be_claimed_of() -> None:
    async with serve_api() as api:
        other_process = PolicyBook(api.store.client, api.keys, Policy(), time.monotonic)
        await other_process.change(topic_scope(TOPIC), lambda settings: settings.merge({"deliver": "pull"}))
        assert api.store.policies.latest.for_topic(TOPIC).deliver is Deliver.PUSH
        zaqar = ZaqarApi(api)
        await post(zaqar, a_message(id="a"))
        assert (await claim(zaqar)).status == 201


async def test_a_claim_whose_leases_have_ended_is_none_although_its_record_is_there(zaqar: ZaqarApi) -> None:
    await post(zaqar, a_message(id="a", created_at=NOW - 80_000))
    long_ago = Interval(NOW - 70_000, NOW - 70_000)
    [pulled] = (await zaqar.api.store.claim_records.claim(TOPIC, 60_000, 60_000, 10, long_ago)).tasks
    path = f"{CLAIMS}/{pulled.claim_id}"
    assert (await zaqar.call("GET", path)).status == 404
    assert (await zaqar.call("PATCH", path, {"ttl": 100})).status == 404
    assert (await zaqar.call("DELETE", path)).status == 204
    assert (await find(zaqar, "a")).state is Bucket.UNACK


async def reach(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what is waited for is seen from outside only
        await asyncio.sleep(0.001)


async def test_messages_of_an_answer_that_nobody_reads_are_given_back(
    zaqar: ZaqarApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await post(zaqar, a_message(id="a"))
    is_claimed, may_go_on = asyncio.Event(), asyncio.Event()
    claim_messages = ClaimRecords.claim

    async def claim_slowly(self: ClaimRecords, *args: Any, **options: Any) -> Any:
        result = await claim_messages(self, *args, **options)
        is_claimed.set()
        await may_go_on.wait()
        return result

    monkeypatch.setattr(ClaimRecords, "claim", claim_slowly)
    runner = zaqar.api.http.server.runner
    assert runner is not None
    server: web.Server | None = runner.server
    assert server is not None
    url = zaqar.api.http.make_url("/")
    _, writer = await asyncio.open_connection(url.host, url.port)
    headers = "".join(f"{name}: {value}\r\n" for name, value in zaqar.headers.items())
    writer.write(f"POST {CLAIMS} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    async with asyncio.timeout(10):
        await is_claimed.wait()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await reach(lambda: all(connection.transport is None for connection in server.connections))
        may_go_on.set()
        await reach(lambda: zaqar.api.metric("later_released_total") == 1)
    assert (await find(zaqar, "a")).state is Bucket.DELAY


async def test_while_the_store_is_away_each_call_says_what_it_could_not_do(zaqar: ZaqarApi) -> None:
    await zaqar.api.lose_store()
    path = f"{CLAIMS}/{'f' * 24}0"
    errors = {
        word: await zaqar.error(method, target, body)
        for word, method, target, body in (
            ("created", "POST", CLAIMS, {}),
            ("queried", "GET", path, None),
            ("updated", "PATCH", path, {"ttl": 100}),
            ("deleted", "DELETE", path, None),
        )
    }
    title = "Service temporarily unavailable"
    assert errors == {
        word: (503, title, f"Claim could not be {word}. Please try again in a few seconds.") for word in errors
    }
