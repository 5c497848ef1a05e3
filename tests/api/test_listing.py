"""`POST /list`."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from later.api.requests import EXPECTED
from tests.api.api_fixture import ApiFixture, bad_request, refusals, serve_api
from tests.api.states import DIED_AT, LAST_FAILURE, STATES, put_task
from tests.builders import NOW, a_task
from tests.cases import each_case

NOW_S = NOW // 1000


@pytest.fixture
async def api(shards: int) -> AsyncIterator[ApiFixture]:
    async with serve_api(shards=shards) as built:
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
    queried = (await api.post("/query", {"id": "a"}))[1]
    queried.pop("failures", None)
    assert (tasks, cursor) == ([queried], None)
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


@each_case(
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


WRONG_LISTINGS: list[tuple[dict[str, Any], str]] = [
    ({"topic": None}, f"{TOPIC_EXPECTED} nothing"),
    ({"topic": ""}, f'{TOPIC_EXPECTED} ""'),
    ({"topic": 5}, f"{TOPIC_EXPECTED} 5"),
    ({"state": "gone"}, 'state: expected "delay", "unack", "error", "dead" or "pending", got "gone"'),
    ({"state": ["delay"]}, 'state: expected "delay", "unack", "error", "dead" or "pending", got an array'),
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
]


async def test_a_wrong_field_is_refused_by_name(api: ApiFixture) -> None:
    answers = [await api.post("/list", {"topic": "order", **fields}) for fields, _ in WRONG_LISTINGS]
    assert answers == refusals(WRONG_LISTINGS)


@each_case("number", [b"NaN", b"1e400", b"-Infinity"])
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


class TestPending:
    async def test_delay_unack_and_error_are_listed_together_by_due_at(self, api: ApiFixture) -> None:
        for state in STATES:
            await put_task(api, state)
        await create(api, "first", "last")
        await create(api, "very-last", delay=3600)
        tasks, cursor = await list_page(api, state="pending")
        assert [task["id"] for task in tasks] == ["first", "last", "error", "unack", "delay", "very-last"]
        assert [task["due_at"] for task in tasks] == sorted(task["due_at"] for task in tasks)
        assert {task["state"] for task in tasks} == {"delay", "unack", "error"}
        assert cursor is None

    async def test_pages_follow_one_another(self, api: ApiFixture) -> None:
        for n in range(4):
            for state in ("delay", "unack", "error"):
                await put_task(api, state, f"{state}{n}")
        ids: list[str] = []
        cursor = None
        while True:
            tasks, cursor = await list_page(api, state="pending", limit=5, cursor=cursor)
            ids += [task["id"] for task in tasks]
            if cursor is None:
                break
        assert sorted(ids) == sorted(f"{state}{n}" for n in range(4) for state in ("delay", "unack", "error"))

    async def test_a_delete_of_pending_tasks_speaks_of_the_same(self, api: ApiFixture) -> None:
        for state in STATES:
            await put_task(api, state)
        listed = await list_ids(api, state="pending")
        _, answer = await api.post("/delete/batch?pending=true", [{"id": id} for id in STATES])
        assert [result["id"] for result in answer["results"] if "id" in result] == [id for id in STATES if id in listed]
        assert await list_ids(api, state="pending") == []


class TestDead:
    async def test_only_tasks_that_died_for_the_reason_are_listed(self, api: ApiFixture) -> None:
        gone = msgspec.structs.replace(LAST_FAILURE, reason="gone")
        for n in range(6):
            await put_task(api, "dead", f"n{n}", failure=gone if n % 2 else None)
        assert await list_ids(api, state="dead", reason="gone") == ["n1", "n3", "n5"]
        assert await list_ids(api, reason="exhausted") == ["n0", "n2", "n4"]
        first, cursor = await list_page(api, reason="gone", limit=2)
        second, end = await list_page(api, reason="gone", limit=2, cursor=cursor)
        assert ([task["id"] for task in (*first, *second)], end) == (["n1", "n3", "n5"], None)
        assert await list_ids(api, reason="expired") == []
        status, answer = await api.post("/list", {"topic": "order", "reason": "vanished"})
        assert (status, answer["field"]) == (400, "reason")

    @pytest.mark.parametrize(
        ("bounds", "count"),
        [
            ({"died_after": DIED_AT / 1000}, 1),
            ({"died_after": DIED_AT / 1000 + 0.001}, 0),
            ({"died_before": DIED_AT / 1000}, 0),
            ({"died_before": "2027-01-15T07:59:00.001Z"}, 1),
            ({"died_after": DIED_AT / 1000, "died_before": 9e9, "reason": "exhausted"}, 1),
        ],
    )
    async def test_a_time_of_death_selects_dead_tasks(
        self, api: ApiFixture, bounds: dict[str, Any], count: int
    ) -> None:
        for state in STATES:
            await put_task(api, state)
        assert len(await list_ids(api, **bounds)) == count

    async def test_a_page_ends_when_many_tasks_of_other_reasons_were_passed(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("later.api.listing.MAX_EXAMINED", 10)
        monkeypatch.setattr("later.store.cursor.MAX_TASKS", 10)
        for n in range(25):
            await put_task(api, "dead", f"n{n:02}")
        await put_task(api, "dead", "z", failure=msgspec.structs.replace(LAST_FAILURE, reason="gone"))
        pages = 0
        found: list[str] = []
        cursor = None
        while pages == 0 or cursor is not None:
            tasks, cursor = await list_page(api, reason="gone", cursor=cursor)
            found += [task["id"] for task in tasks]
            pages += 1
        assert found == ["z"]
        assert pages > 1

    @each_case(
        ("fields", "detail", "field"),
        [
            (
                {"state": "error", "reason": "gone"},
                'reason: expected it with the state "dead", got "error"',
                "reason",
            ),
            (
                {"due_after": 1, "died_after": 1},
                "died_after: expected either due_after or died_after, got both",
                "died_after",
            ),
        ],
    )
    async def test_what_only_the_dead_have_goes_with_no_other_state(
        self, api: ApiFixture, fields: dict[str, Any], detail: str, field: str
    ) -> None:
        assert await api.post("/list", {"topic": "order", **fields}) == bad_request(detail, field)
