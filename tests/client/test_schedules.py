"""The calls of schedules: each test runs with the sync and with the async client, with prepared answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from later.client import LastFiring
from later.core.errors import NotFound, Refused, Unavailable
from tests.cases import each_case
from tests.client.api_servers import StubAnswer, StubRequest, stub_server
from tests.client.both_clients import open_client

CALLBACK = "http://127.0.0.1:8888/success"
AT = datetime(2027, 1, 15, 8, tzinfo=UTC)
PUT = StubAnswer(200, {"id": "report", "created": True, "next": ["2027-01-15T08:00:00.000Z"]})
REPORT = {
    "id": "report", "topic": "report", "callback": CALLBACK, "content": "hi", "cron": "0 9 * * 1-5", "every": None,
    "zone": "Europe/Berlin", "start": None, "end": None, "catch_up": "one", "jitter": 0, "paused": False,
    "next": ["2027-01-15T08:00:00.000Z"], "headers": ["x-a"],
    "last": {"time": "2027-01-14T08:00:00.000Z", "task_id": "s:report:1799913600"},
    "last_error": {"time": "2027-01-13T08:00:00.000Z", "message": "ttl: expected …", "field": "ttl"},
    "refused": 2,
}  # fmt: skip


def pushed(request: StubRequest) -> StubAnswer:
    """Answer that the topic is pushed, and that the schedule was put."""
    return PUT if request.method == "PUT" else StubAnswer(200, {"deliver": {"value": "push", "level": "daemon"}})


def pulled(request: StubRequest) -> StubAnswer:
    return PUT if request.method == "PUT" else StubAnswer(200, {"deliver": {"value": "pull", "level": "topic"}})


def test_a_schedule_is_put_with_the_fields_that_are_given(kind: str) -> None:
    with stub_server(pushed) as server, open_client(kind, server.url) as client:
        put = client.put_schedule(
            "report", "shop/report", "hi", cron="0 9 * * 1-5", zone="Europe/Berlin", callback=CALLBACK, start=AT,
            jitter="5m", catch_up="all", ttl=timedelta(hours=1), headers={"x-a": "1"}, paused=False,
        )  # fmt: skip
        client.put_schedule("a b", "report", every="1h30m")
    assert (put.created, put.next) == (True, [AT])
    first, second = [(request.path, json.loads(request.body)) for request in server.requests if request.body]
    assert first == (
        "/schedules/report",
        {
            "topic": "shop/report", "content": "hi", "cron": "0 9 * * 1-5", "zone": "Europe/Berlin",
            "callback": CALLBACK, "start": "2027-01-15T08:00:00+00:00", "jitter": 300.0, "catch_up": "all",
            "ttl": 3600.0, "headers": {"x-a": "1"}, "paused": False,
        },
    )  # fmt: skip
    assert second == ("/schedules/a%20b", {"topic": "report", "every": 5400.0})


def test_the_callback_is_left_out_where_consumers_claim_the_tasks(kind: str) -> None:
    with stub_server(pulled) as server, open_client(kind, server.url) as client:
        client.put_schedule("report", "report", every=60, callback=CALLBACK)
        assert json.loads(server.requests[-1].body) == {"topic": "report", "every": 60}
    with stub_server(PUT) as server, open_client(kind, server.url, check=False) as client:
        client.put_schedule("report", "report", every=60, callback=CALLBACK)
        assert [request.method for request in server.requests] == ["PUT"]


def test_a_schedule_is_shown_and_all_are_listed_page_by_page(kind: str) -> None:
    pages = [StubAnswer(200, {"schedules": [REPORT], "cursor": cursor}) for cursor in ("x", None)]
    with stub_server(StubAnswer(200, REPORT), *pages) as server, open_client(kind, server.url) as client:
        shown = client.schedule("report")
        listed = [schedule.id for schedule in client.schedules(namespace="shop")]
    assert (shown.cron, shown.zone, shown.next, shown.headers) == ("0 9 * * 1-5", "Europe/Berlin", [AT], ["x-a"])
    assert shown.last == LastFiring(time=AT - timedelta(days=1), task_id="s:report:1799913600")
    assert shown.last_error is not None
    assert (shown.last_error.message, shown.last_error.field, shown.refused) == ("ttl: expected …", "ttl", 2)
    assert listed == ["report", "report"]
    assert [request.path for request in server.requests[1:]] == [
        "/schedules?limit=500&namespace=shop",
        "/schedules?limit=500&namespace=shop&cursor=x",
    ]


@each_case(
    ("call", "sent", "answer", "result"),
    [
        (lambda client: client.delete_schedule("a"), "DELETE a", {"id": "a"}, "a"),
        (lambda client: client.pause_schedule("a"), "POST a/pause", {"id": "a", "paused": True}, True),
        (
            lambda client: client.resume_schedule("a"),
            "POST a/resume",
            {"id": "a", "paused": False},
            False,
        ),
        (lambda client: client.run_schedule_now("a"), "POST a/run-now", {"id": "s:a:now-1"}, "s:a:now-1"),
    ],
)
def test_a_schedule_is_deleted_paused_resumed_and_run(
    kind: str, call: Any, sent: str, answer: dict[str, Any], result: object
) -> None:
    with stub_server(StubAnswer(200, answer)) as server, open_client(kind, server.url) as client:
        assert call(client) == result
    method, _, path = sent.partition(" ")
    assert [(request.method, request.path) for request in server.requests] == [(method, f"/schedules/{path}")]


def test_a_schedule_that_is_missing_is_not_found(kind: str) -> None:
    missing = {"type": "/problems/no-such-schedule", "status": 404, "detail": "no schedule has the id 'a'"}
    with (
        stub_server(StubAnswer(404, missing)) as server,
        open_client(kind, server.url) as client,
        pytest.raises(NotFound, match="no schedule has the id 'a'"),
    ):
        client.schedule("a")


def test_wrong_times_are_refused_unsent(kind: str) -> None:
    with stub_server(PUT) as server, open_client(kind, server.url) as client:
        with pytest.raises(Refused, match="start: expected a time with its zone"):
            client.put_schedule("a", "t", every=60, start=datetime(2027, 1, 1))  # it has no zone
        with pytest.raises(Refused, match="every: expected a duration"):
            client.put_schedule("a", "t", every="soon")
    assert server.requests == []


def test_only_a_task_of_a_schedule_is_not_asked_for_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.client.call.FIRST_PAUSE_S", 0.001)

    def attempts(call: Any) -> int:
        lost = StubAnswer(200, {"id": "a"}, cut=True)
        with (
            stub_server(lost) as server,
            open_client(kind, server.url, patience=0.2) as client,
            pytest.raises(Unavailable),
        ):
            call(client)
        return len(server.requests)

    assert attempts(lambda client: client.run_schedule_now("a")) == 1
    repeated: list[Any] = [
        lambda client: client.delete_schedule("a"),
        lambda client: client.pause_schedule("a"),
        lambda client: client.put_schedule("a", "t", every=60),
    ]
    assert all(attempts(call) > 1 for call in repeated)
