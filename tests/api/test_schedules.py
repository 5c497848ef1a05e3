"""The calls of schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.api import task_answers
from later.core.address_guard import AddressGuard
from later.core.clock import rfc3339
from later.core.schedule import MAX_SCHEDULE_BYTES, FiringRefusal, firing_task, move_on
from later.store.schedules import ScheduleMove, Schedules
from tests.api.api_fixture import MINIMAL, ApiFixture, bad_request, ok, refusals, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.api.test_audit_records import event, recorded_events
from tests.builders import NOW
from tests.cases import each_case

HOURLY = {**MINIMAL, "every": 3600}
"""A schedule that fires each hour."""
NOW_S = NOW // 1000


def times(*hours: int) -> list[str]:
    return [rfc3339(NOW + 3_600_000 * hour) for hour in hours]


async def put(api: ApiFixture, id: str, body: Any = None, **fields: Any) -> Any:
    return await api.request("PUT", f"/schedules/{id}", {**HOURLY, **fields} if body is None else body)


async def fire(api: ApiFixture, id: str, *refused: FiringRefusal) -> None:
    """Let a schedule move on to its next time, as a worker does."""
    [due] = (await api.store.schedules.due(NOW, 100)).schedules
    state = move_on(due.schedule.state, NOW + 3_600_000, None, [*refused])
    assert await api.store.schedules.move_on([ScheduleMove(due, state)]) == [True]


# Put and show


async def test_a_schedule_is_put_and_says_its_next_ten_times(api: ApiFixture) -> None:
    assert await put(api, "report") == ok(id="report", created=True, next=times(*range(10)))
    assert await put(api, "report") == ok(id="report", created=False, next=times(*range(10)))
    changed = await put(api, "report", every=7200)
    assert changed == ok(id="report", created=False, next=times(*range(0, 20, 2)))


async def test_a_schedule_that_ends_says_only_the_times_before(api: ApiFixture) -> None:
    answer = await put(api, "report", end=NOW_S + 7200)
    assert answer == ok(id="report", created=True, next=times(0, 1, 2))


async def test_a_schedule_is_shown_with_what_was_given_and_without_secrets(api: ApiFixture) -> None:
    await put(api, "a")
    assert await api.get("/schedules/a") == ok(
        id="a", topic="order", every=3600, zone="UTC", start=rfc3339(NOW), catch_up="one", jitter=0, paused=False,
        callback=MINIMAL["callback"], content="", created_at=rfc3339(NOW), next=times(*range(10)), last=None,
        last_error=None, refused=0,
    )  # fmt: skip
    body = {
        "topic": "default/order", "callback": MINIMAL["callback"], "cron": "0 9 * * 1-5", "zone": "Europe/Berlin",
        "start": "2030-01-01T00:00:00Z", "end": "2031-01-01T00:00:00+01:00", "catch_up": "all", "jitter": 0.5,
        "paused": True, "content": "hi", "retry": 5, "ttl": 60, "remember": 7200.5, "headers": {"x-a": "secret"},
        "context": {"tenant": "secret"},
    }  # fmt: skip
    await put(api, "b", body)
    status, shown = await api.get("/schedules/b")
    assert (status, shown.pop("next")[:2]) == (200, ["2030-01-01T08:00:00.000Z", "2030-01-02T08:00:00.000Z"])
    assert shown == {
        **body, "id": "b", "topic": "order", "start": "2030-01-01T00:00:00.000Z", "end": "2030-12-31T23:00:00.000Z",
        "headers": ["x-a"], "context": ["tenant"], "created_at": rfc3339(NOW), "last": None, "last_error": None,
        "refused": 0,
    }  # fmt: skip


async def test_a_cron_expression_is_shown_as_it_was_written(api: ApiFixture) -> None:
    for written in ("@daily", "0 9 * * MON-FRI", "*/5 * * * *"):
        body = {"topic": "order", "callback": MINIMAL["callback"], "cron": written}
        assert (await put(api, "a", body))[0] == 200
        assert (await api.get("/schedules/a"))[1]["cron"] == written


async def test_a_pause_lasts_when_the_schedule_is_put_again(api: ApiFixture) -> None:
    await put(api, "a")
    assert await api.post("/schedules/a/pause", {}) == ok(id="a", paused=True)
    await put(api, "a")
    await put(api, "a", every=7200)
    assert (await api.get("/schedules/a"))[1]["paused"] is True
    assert await api.post("/schedules/a/resume", b"") == ok(id="a", paused=False)
    await put(api, "a", paused=True)
    assert (await api.get("/schedules/a"))[1]["paused"] is True


async def test_the_last_refusal_is_shown_and_counted(api: ApiFixture) -> None:
    await put(api, "a")
    await fire(api, "a", FiringRefusal(NOW, "callback: expected none", "callback"))
    _, shown = await api.get("/schedules/a")
    assert shown["last_error"] == {"time": rfc3339(NOW), "message": "callback: expected none", "field": "callback"}
    assert (shown["refused"], shown["next"][0]) == (1, times(1)[0])


# Refusals

ANY = {"topic": "order", "callback": MINIMAL["callback"]}
CALLBACK = "callback: expected an absolute http or https URL of at most 2048 characters"
WRONG: list[tuple[Any, str]] = [
    (ANY, "cron: expected either cron or every, got neither"),
    ({**HOURLY, "cron": "@daily"}, "cron: expected either cron or every, got both"),
    ({**HOURLY, "id": "x"}, "id: expected none, because the path has it"),
    ({**HOURLY, "delay": 5}, "delay: expected none, because cron or every says when"),
    ({**HOURLY, "execute_time": 5}, "execute_time: expected none, because cron or every says when"),
    ({**HOURLY, "if_exists": "keep"}, "if_exists: expected none, because each firing has an id of its own"),
    ({**HOURLY, "evry": 5}, "evry: unknown field; did you mean every?"),
    ({**HOURLY, "backoff": 5}, "backoff: not a field of this version"),
    ({**ANY, "every": 0.999}, "every: expected a number of seconds ≥ 1, ten years at most, got 0.999"),
    ({**ANY, "every": "1h"}, 'every: expected a number of seconds ≥ 1, ten years at most, got "1h"'),
    ({**ANY, "every": 400_000_000}, "every: expected a number of seconds ≥ 1, ten years at most, got 400000000"),
    ({**ANY, "cron": "0 9 * *"}, 'cron: expected five fields like "0 9 * * 1-5", or @hourly, @daily, @weekly, '
                                 '@monthly or @yearly, got "0 9 * *"'),
    ({**HOURLY, "zone": "Mars/Base"}, "zone: expected the name of a time zone, such as Europe/Berlin, "
                                      'got "Mars/Base"'),
    ({**HOURLY, "start": "soon"}, "start: expected a number of Unix seconds or an RFC 3339 time, got \"soon\""),
    ({**HOURLY, "start": True}, "start: expected a number of Unix seconds or an RFC 3339 time, got true"),
    ({**HOURLY, "start": 9, "end": 8}, "end: expected a time that is not before start, got 8"),
    ({**HOURLY, "catch_up": "some"}, 'catch_up: expected "one", "all" or "none", got "some"'),
    ({**HOURLY, "jitter": -1}, "jitter: expected a number of seconds ≥ 0, got -1"),
    ({**HOURLY, "paused": 1}, "paused: expected true or false, got 1"),
    ({"every": 60}, "topic: expected a string of 1 to 255 bytes without control characters or empty parts, "
                    "got nothing"),
    ({**HOURLY, "topic": "later/x"}, "topic: expected another one, because the namespace later is reserved"),
    ({"topic": "order", "every": 60}, f"{CALLBACK}, got nothing: only a topic with deliver pull has tasks without, or "
                                      "one whose policy has a callback"),
    ({**HOURLY, "callback": "ftp://a/"}, f'{CALLBACK}, got "ftp://a/"'),
    ({**HOURLY, "retry": 1001}, "retry: expected an integer from 0 to 1000, got 1001"),
    ({**HOURLY, "ttl": 0}, "ttl: expected a number of seconds > 0, got 0"),
    ({**HOURLY, "remember": -1}, "remember: expected a number of seconds ≥ 0, got -1"),
    ({**HOURLY, "headers": {"later-x": "1"}}, 'headers: expected a header of your own, got "later-x", which later '
                                              "sets"),
    ({**HOURLY, "context": {"a": 1}}, 'context: expected an object of strings, of at most 4096 bytes as JSON, got a '
                                      'number in "a"'),
]  # fmt: skip


async def test_a_wrong_schedule_is_refused_as_a_create_is_and_not_stored(api: ApiFixture) -> None:
    assert [await put(api, "a", body) for body, _ in WRONG] == refusals(WRONG)
    assert (await api.get("/schedules/a"))[0] == 404
    assert await put(api, "a", b"[]") == bad_request("expected a JSON object, got an array")


async def test_what_create_refuses_of_a_task_a_schedule_is_refused_for_in_the_same_words(api: ApiFixture) -> None:
    for fields in ({"callback": "http://a/#x"}, {"retry": -1}, {"ttl": -1}, {"topic": "/x"}, {"content": 5},
                   {"headers": {"Host": "x"}}, {"context": {"a": "x" * 5000}}):  # fmt: skip
        assert await put(api, "a", **fields) == await api.post("/create", {**MINIMAL, **fields})


@each_case(
    ("id", "detail"),
    [
        ("a%20b", 'id: expected 1 to 128 characters of A-Za-z0-9._~:-, got "a b"'),
        ("a%2Fb", 'id: expected 1 to 128 characters of A-Za-z0-9._~:-, got "a/b"'),
        ("s:x", 'id: expected one that does not begin with s: or ev:, got "s:x"'),
        ("%FF", "id: expected percent-encoded UTF-8"),
    ],
)
async def test_a_schedule_has_an_id_as_a_task_has(api: ApiFixture, id: str, detail: str) -> None:
    assert await put(api, id) == bad_request(detail, "id")


async def test_an_id_has_a_hundred_characters_at_most(api: ApiFixture) -> None:
    assert (await put(api, "a" * 100))[0] == 200
    status, problem = await put(api, "a" * 101)
    assert (status, problem["field"]) == (400, "id")
    assert problem["detail"].startswith("id: expected 1 to 100 characters of A-Za-z0-9._~:-, got ")


async def test_a_schedule_has_128_kib_at_most(api: ApiFixture) -> None:
    status, problem = await put(api, "a", content="x" * MAX_SCHEDULE_BYTES)
    assert (status, problem["detail"]) == (413, "expected a body of at most 131072 bytes")
    assert (await put(api, "a", content="x" * 130_000))[0] == 200


async def test_there_are_a_hundred_thousand_schedules_at_most(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Schedules(api.client, api.keys)._max_schedules == 100_000
    monkeypatch.setattr(api.store.schedules, "_max_schedules", 1)
    await put(api, "a")
    status, problem = await put(api, "b")
    assert (status, problem["type"]) == (409, "/problems/too-many-schedules")
    assert (await put(api, "a", every=60))[0] == 200


async def test_the_policy_of_the_topic_judges_the_callback_when_a_schedule_is_put(api: ApiFixture) -> None:
    await api.request("PUT", "/topics/order/policy", {"deliver": "pull"})
    detail = "callback: expected none, because consumers claim the topic's tasks (deliver pull), got "
    assert await put(api, "a") == bad_request(f'{detail}"{MINIMAL["callback"]}"', "callback")
    assert (await put(api, "a", {"topic": "order", "every": 60}))[0] == 200
    await api.request("PUT", "/topics/mail/policy", {"callback": "http://a/"})
    assert (await put(api, "b", {"topic": "mail", "every": 60}))[0] == 200


async def test_the_guard_judges_the_callback_when_a_schedule_is_put() -> None:
    async with serve_api(guard=AddressGuard(is_own=lambda address: False, is_on=True)) as api:
        status, problem = await put(api, "a")
        assert (status, problem["field"]) == (400, "callback")
        assert (await put(api, "a", callback="http://example.com/"))[0] == 200


# Delete, pause, run


@each_case(
    ("method", "path"),
    [
        ("GET", "/schedules/a%2Fb"),
        ("DELETE", "/schedules/a%20b"),
        ("POST", "/schedules/x*/pause"),
        ("POST", "/schedules/x*/run-now"),
    ],
)
async def test_what_is_no_id_is_refused(api: ApiFixture, method: str, path: str) -> None:
    status, problem = await api.request(method, path)
    assert (status, problem["field"]) == (400, "id")


@each_case("path", ["a", "a/pause", "a/resume", "a/run-now"])
async def test_a_schedule_that_is_not_there_is_not_found(api: ApiFixture, path: str) -> None:
    method = "POST" if "/" in path else "DELETE"
    assert await api.request(method, f"/schedules/{path}") == (
        404,
        {
            "type": "/problems/no-such-schedule", "title": "No such schedule", "status": 404,
            "detail": "no schedule has the id 'a'",
        },
    )  # fmt: skip
    assert await api.get("/schedules/a") == await api.request("DELETE", "/schedules/a")


async def test_a_schedule_is_deleted(api: ApiFixture) -> None:
    await put(api, "a")
    assert await api.request("DELETE", "/schedules/a") == ok(id="a")
    assert (await api.get("/schedules/a"))[0] == 404
    assert await api.get("/schedules") == ok(schedules=[], cursor=None)


@each_case("call", ["pause", "resume", "run-now"])
async def test_a_callbacks_body_is_no_call(api: ApiFixture, call: str) -> None:
    await put(api, "a")
    assert await api.post(f"/schedules/a/{call}", {"id": "x"}) == bad_request("id: unknown field", "id")
    assert (await api.get("/schedules/a"))[1]["last"] is None


async def test_run_now_creates_a_task_beside_those_of_the_schedules_times(api: ApiFixture) -> None:
    await put(api, "a", content="hi", jitter=600, paused=True)
    ids = [(await api.post("/schedules/a/run-now", {}))[1]["id"] for _ in range(2)]
    assert len({*ids}) == 2
    assert all(id.startswith("s:a:now-") and len(id) == 24 for id in ids)
    status, task = await api.post("/query", {"id": ids[0]})
    assert (status, task["topic"], task["content"], task["due_at"]) == (200, "order", "hi", rfc3339(NOW))
    _, shown = await api.get("/schedules/a")
    assert shown["last"] == {"time": rfc3339(NOW), "task_id": ids[1]}
    assert shown["next"][0] == times(0)[0]
    assert api.wakes
    assert api.metric("later_tasks_created_total") == 2


async def test_a_consumer_gets_the_time_of_the_schedule_among_the_headers(api: ApiFixture) -> None:
    await api.request("PUT", "/topics/jobs/policy", {"deliver": "pull"})
    await put(api, "a", {"topic": "jobs", "every": 3600, "headers": {"x-a": "1"}})
    definition = (await api.store.schedules.get("a")).definition
    earlier = NOW - 60_000
    await api.store.tasks.create([firing_task(definition, earlier, api.store.policies.latest, earlier)])
    [task] = (await api.post("/claim", {"topic": "jobs"}))[1]["tasks"]
    assert task["headers"] == {"x-a": "1", "later-scheduled": rfc3339(earlier)}


async def test_a_task_of_run_now_that_its_topic_refuses_is_refused(api: ApiFixture) -> None:
    await put(api, "a")
    await api.request("PUT", "/topics/order/policy", {"deliver": "pull"})
    status, problem = await api.post("/schedules/a/run-now", {})
    assert (status, problem["field"]) == (400, "callback")
    assert (await api.get("/schedules/a"))[1]["last"] is None


# Listing


async def test_schedules_are_listed_in_pages_with_the_first_of_their_next_times(api: ApiFixture) -> None:
    for id, topic in (("b", "order"), ("a", "order"), ("c", "shop/order"), ("d", "shop/mail")):
        await put(api, id, topic=topic)

    async def ids(query: str) -> list[list[str]]:
        pages, cursor = list[list[str]](), ""
        while True:
            _, page = await api.get(f"/schedules?{query}{cursor}")
            pages.append([schedule["id"] for schedule in page["schedules"]])
            if page["cursor"] is None:
                return pages
            cursor = f"&cursor={page['cursor']}"

    assert await ids("") == [["a", "b", "c", "d"]]
    assert await ids("limit=3") == [["a", "b", "c"], ["d"]]
    assert await ids("namespace=shop&limit=1") == [["c"], ["d"]]
    assert await ids("namespace=mail") == [[]]
    _, page = await api.get("/schedules?limit=1")
    _, shown = await api.get("/schedules/a")
    assert page["schedules"] == [{**shown, "next": shown["next"][:1]}]


async def test_the_bytes_of_pages_are_limited_in_all_answers_together(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise many requests at once for schedules of 128 KiB would fill the memory of the daemon."""
    ids = [f"n{n:02}" for n in range(40)]
    for id in ids:
        await put(api, id, content="x" * 120_000)
    monkeypatch.setattr(task_answers, "MAX_BYTES_IN_ANSWERS", 1_000_000)
    _, page = await api.get("/schedules?limit=1000")
    listed = [schedule["id"] for schedule in page["schedules"]]
    assert page["cursor"] is not None
    while page["cursor"] is not None:  # the bytes of a finished answer do not count
        _, page = await api.get(f"/schedules?limit=1000&cursor={page['cursor']}")
        listed += [schedule["id"] for schedule in page["schedules"]]
    assert listed == ids
    monkeypatch.setattr(task_answers, "MAX_BYTES_IN_ANSWERS", 0)
    status, problem = await api.get("/schedules")
    assert (status, problem["type"]) == (503, "/problems/too-many-waiting")


@each_case(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=YQ", "cursor"),
        ("namespace=a%2Fb", "namespace"),
        ("topic=a", "topic"),
        ("limit=1&limit=2", "limit"),
    ],
)
async def test_a_wrong_query_of_a_listing_is_refused(api: ApiFixture, query: str, field: str) -> None:
    status, problem = await api.get(f"/schedules?{query}")
    assert (status, problem["field"]) == (400, field)


async def test_other_methods_are_answered_with_those_that_are_taken(api: ApiFixture) -> None:
    paths = {"/schedules": "GET,HEAD", "/schedules/a": "DELETE,GET,HEAD,PUT", "/schedules/a/pause": "POST"}
    for path, allowed in paths.items():
        async with api.http.patch(path) as response:
            assert (response.status, response.headers["Allow"]) == (405, allowed)


# Namespaces


@pytest.fixture
async def tenants() -> AsyncIterator[ApiFixture]:
    async with serve_api(authorization=NamedCallers()) as api:
        yield api


async def test_a_schedule_of_a_namespace_has_that_in_front_and_so_have_its_tasks(tenants: ApiFixture) -> None:
    team, other, operator = (Tenant(tenants, key) for key in ("team", "other", "operator"))
    body = {**HOURLY, "topic": "team/order"}
    assert (await team.call("PUT", "/schedules/report", body))[1]["id"] == "team/report"
    assert (await team.call("PUT", "/schedules/team%2Freport", body))[1]["created"] is False
    assert (await other.call("PUT", "/schedules/report", {**body, "topic": "other/order"}))[1]["id"] == "other/report"
    _, run = await team.call("POST", "/schedules/report/run-now")
    assert run["id"].startswith("team/s:report:now-")
    assert (await team.post("/query", {"id": run["id"]}))[0] == 200
    assert (await operator.get("/schedules/team%2Freport"))[1]["last"]["task_id"] == run["id"]
    for caller, namespace in ((team, "team"), (other, "other")):
        _, page = await caller.get("/schedules")
        assert [schedule["id"] for schedule in page["schedules"]] == [f"{namespace}/report"]
    assert len((await operator.get("/schedules"))[1]["schedules"]) == 2


async def test_what_is_of_another_namespace_is_refused_or_not_found(tenants: ApiFixture) -> None:
    team, other = Tenant(tenants, "team"), Tenant(tenants, "other")
    await team.call("PUT", "/schedules/report", {**HOURLY, "topic": "team/order"})
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run-now")):
        for id in ("report", "team%2Freport"):
            found, missing = [await other.call(method, f"/schedules/{name}{path}") for name in (id, f"{id}x")]
            assert found[0] == missing[0] == 404
    status, problem = await other.call("PUT", "/schedules/x", {**HOURLY, "topic": "team/order"})
    assert (status, problem["detail"]) == (403, "topic: this key is for the namespace other")
    assert (await other.call("PUT", "/schedules/team%2Fx", {**HOURLY, "topic": "other/x"}))[0] == 403
    assert (await other.get("/schedules?namespace=team"))[0] == 403
    _, page = await team.get("/schedules?limit=1000")
    assert len(page["schedules"]) == 1


async def test_a_cursor_of_another_namespace_is_refused(tenants: ApiFixture) -> None:
    team, other = Tenant(tenants, "team"), Tenant(tenants, "other")
    for id in ("a", "b"):
        await team.call("PUT", f"/schedules/{id}", {**HOURLY, "topic": "team/order"})
    _, page = await team.get("/schedules?limit=1")
    assert (await other.get(f"/schedules?cursor={page['cursor']}"))[1]["field"] == "cursor"


# The audit trail


async def test_changes_of_schedules_are_recorded(api: ApiFixture) -> None:
    canary = {"content": "canary", "headers": {"Authorization": "canary"}}
    await put(api, "a", topic="shop/order", **canary)
    await put(api, "a", topic="shop/order", **canary)
    await put(api, "b", topic="shop/order", callback=None)
    await api.post("/schedules/a/pause", {})
    await api.post("/schedules/a/resume", {})
    await api.post("/schedules/a/run-now", {})
    await api.request("DELETE", "/schedules/a")
    await api.request("DELETE", "/schedules/a")
    found = await recorded_events(api)
    assert found == [
        event("schedule put", schedule="a", topic="shop/order", created=True, changed=True),
        event("schedule put", schedule="a", topic="shop/order", created=False, changed=False),
        event("schedule put", "refused", schedule="b", topic="shop/order"),
        event("schedule paused", schedule="a", topic="shop/order"),
        event("schedule resumed", schedule="a", topic="shop/order"),
        event("schedule deleted", schedule="a", topic="shop/order"),
        event("schedule deleted", "refused", namespace=None, schedule="a"),
    ]
    assert "canary" not in str(found)


# The store is away


async def test_a_store_that_is_away_is_answered_with_503(api: ApiFixture) -> None:
    await put(api, "a")
    await api.lose_store()
    for method, path in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run-now")):
        status, problem = await api.request(method, f"/schedules/a{path}", HOURLY if method == "PUT" else None)
        assert (status, problem["type"]) == (503, "/problems/store-away")


async def test_while_many_requests_wait_for_the_store_schedules_are_refused_too() -> None:
    async with serve_api(max_pending_writes=0) as api:
        status, problem = await put(api, "a")
        assert (status, problem["type"]) == (503, "/problems/too-many-waiting")
