"""`POST /list`."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.api.requests import EXPECTED
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.states import STATES, put_task
from tests.builders import NOW, a_task

NOW_S = NOW // 1000


@pytest.fixture(params=[1, 16], ids=["1-shard", "16-shards"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[ApiFixture]:
    async with serve_api(shards=request.param) as built:
        yield built


async def list_page(api: ApiFixture, **body: Any) -> tuple[list[dict[str, Any]], str | None]:
    status, answer = await api.post("/list", {"topic": "order", **body})
    assert status == 200, answer
    assert list(answer) == ["tasks", "cursor"]
    return answer["tasks"], answer["cursor"]


async def list_ids(api: ApiFixture, **body: Any) -> list[str]:
    tasks, cursor = await list_page(api, **body)
    assert cursor is None
    return [task["id"] for task in tasks]


async def create(api: ApiFixture, *ids: str, delay: float = 1, **changes: Any) -> None:
    await api.store.tasks.create([a_task(id=id, own_id=True, delay=delay, **changes) for id in ids])


async def test_an_unknown_topic_gives_an_empty_page(api: ApiFixture) -> None:
    assert await list_page(api) == ([], None)


@pytest.mark.parametrize("state", STATES)
async def test_tasks_are_shown_as_a_query_shows_them(api: ApiFixture, state: str) -> None:
    await put_task(api, state, "a")
    tasks, cursor = await list_page(api, state=state)
    assert (tasks, cursor) == ([(await api.post("/query", {"id": "a"}))[1]], None)
    assert tasks[0]["state"] == state
    for other in {*STATES} - {state}:
        assert await list_ids(api, state=other) == []


async def test_pages_follow_one_another(api: ApiFixture) -> None:
    await create(api, *(f"n{n:03}" for n in range(250)))
    first, cursor = await list_page(api)
    second, cursor = await list_page(api, cursor=cursor)
    third, end = await list_page(api, cursor=cursor)
    assert [task["id"] for task in (*first, *second, *third)] == [f"n{n:03}" for n in range(250)]
    assert (len(first), len(second), len(third), end) == (100, 100, 50, None)


async def test_null_means_absent(api: ApiFixture) -> None:
    await create(api, "a")
    assert await list_ids(api, state=None, due_after=None, due_before=None, limit=None, cursor=None) == ["a"]


async def test_a_topic_is_known_by_its_canonical_name(api: ApiFixture) -> None:
    await create(api, "a")
    assert await list_ids(api, topic="default/order") == ["a"]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"due_after": NOW_S + 2}, ["b", "c"]),
        ({"due_before": NOW_S + 2}, ["a"]),
        ({"due_after": NOW_S + 1.001, "due_before": NOW_S + 2.0001}, ["b"]),
        ({"due_after": "2027-01-15T08:00:02Z"}, ["b", "c"]),
        ({"due_before": "2027-01-15 09:00:02.000+01:00"}, ["a"]),
        ({"due_after": "2027-01-15T08:00:01.9999Z", "due_before": "2027-01-15T08:00:02.0001Z"}, ["b"]),
        ({"due_after": -1e300, "due_before": 1e300}, ["a", "b", "c"]),
        ({"due_after": NOW_S + 3, "due_before": NOW_S + 1}, []),
        ({"due_after": "0001-01-01T00:00:00Z", "due_before": "9999-12-31T23:59:59Z"}, ["a", "b", "c"]),
    ],
)
async def test_time_bounds_are_seconds_or_rfc_3339(
    api: ApiFixture, bounds: dict[str, Any], expected: list[str]
) -> None:
    for second, id in enumerate("abc", 1):
        await create(api, id, delay=second)
    assert await list_ids(api, **bounds) == expected


TIME_EXPECTED = EXPECTED["due_after"]
CURSOR_EXPECTED = "cursor: expected one of an earlier answer's, got"
TOPIC_EXPECTED = f"topic: expected {EXPECTED['topic']}, got"


def encode_cursor(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"topic": None}, f"{TOPIC_EXPECTED} nothing"),
        ({"topic": ""}, f'{TOPIC_EXPECTED} ""'),
        ({"topic": 5}, f"{TOPIC_EXPECTED} 5"),
        ({"state": "gone"}, 'state: expected "delay", "unack", "error" or "dead", got "gone"'),
        ({"state": ["delay"]}, 'state: expected "delay", "unack", "error" or "dead", got an array'),
        ({"due_after": "yesterday"}, f'due_after: expected {TIME_EXPECTED}, got "yesterday"'),
        ({"due_after": "2027-01-15"}, f'due_after: expected {TIME_EXPECTED}, got "2027-01-15"'),
        (
            {"due_after": "2027-01-15T08:00:00"},
            "due_after: expected a time with its zone, as in 2027-01-15T08:00:00Z or 2027-01-15T09:00:00+01:00, got "
            '"2027-01-15T08:00:00"',
        ),
        (
            {"due_after": 1800000000000},
            f"due_after: expected {TIME_EXPECTED}, got 1800000000000: are these milliseconds?",
        ),
        ({"due_before": "\ud800"}, "due_before: expected Unicode text, got a lone surrogate in it"),
        ({"due_before": True}, f"due_before: expected {TIME_EXPECTED}, got true"),
        ({"due_before": {}}, f"due_before: expected {TIME_EXPECTED}, got an object"),
        ({"limit": 0}, "limit: expected an integer from 1 to 1000, got 0"),
        ({"limit": 1001}, "limit: expected an integer from 1 to 1000, got 1001"),
        ({"limit": 10**30}, f"limit: expected an integer from 1 to 1000, got {10**30}"),
        ({"limit": 1.5}, "limit: expected an integer from 1 to 1000, got 1.5"),
        ({"limit": "7"}, 'limit: expected an integer from 1 to 1000, got "7"'),
        ({"cursor": 7}, f"{CURSOR_EXPECTED} 7"),
        ({"cursor": ""}, f'{CURSOR_EXPECTED} ""'),
        ({"cursor": "é"}, f'{CURSOR_EXPECTED} "é"'),
        ({"cursor": "a"}, f'{CURSOR_EXPECTED} "a"'),
        ({"cursor": encode_cursor("1800000000000")}, f'{CURSOR_EXPECTED} "{encode_cursor("1800000000000")}"'),
        ({"cursor": encode_cursor("1 a/b")}, f'{CURSOR_EXPECTED} "{encode_cursor("1 a/b")}"'),
        ({"cursor": encode_cursor("1_0 ab")}, f'{CURSOR_EXPECTED} "{encode_cursor("1_0 ab")}"'),
        ({"cursor": encode_cursor("inf ab")}, f'{CURSOR_EXPECTED} "{encode_cursor("inf ab")}"'),
        ({"cursor": f"{encode_cursor('1 ab')}="}, f'{CURSOR_EXPECTED} "{encode_cursor("1 ab")}="'),
        ({"tpoic": "order"}, "tpoic: unknown field; did you mean topic?"),
        ({"states": ["delay"]}, "states: unknown field; did you mean state?"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(api: ApiFixture, fields: dict[str, Any], detail: str) -> None:
    field = detail.partition(":")[0]
    assert await api.post("/list", {"topic": "order", **fields}) == bad_request(detail, field)


@pytest.mark.parametrize("number", [b"NaN", b"1e400", b"-Infinity"])
async def test_a_bound_that_is_not_a_number_is_refused(api: ApiFixture, number: bytes) -> None:
    status, answer = await api.post("/list", b'{"topic": "order", "due_after": %s}' % number)
    assert (status, answer["field"]) == (400, "due_after")


async def test_a_cursor_of_any_score_is_accepted(api: ApiFixture) -> None:
    await create(api, "a")
    assert await list_ids(api, cursor=encode_cursor(f"{10**300} a")) == []
    assert await list_ids(api, cursor=encode_cursor("-5 a")) == ["a"]


async def test_an_unavailable_store_is_503(api: ApiFixture) -> None:
    api.client.shards_down = [0]
    assert (await api.post("/list", {"topic": "order"}))[0] == 503
