"""`POST /update`, `/run-now`, `/redrive` and `/topics/{topic}/purge`, in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from later.api.move_requests import MoveCursor, parse_cursor
from later.api.paging import encode_cursor
from later.api.problem_types import CHANGED, IN_FLIGHT
from later.api.requests import EXPECTED
from later.core.clock import rfc3339
from later.core.policy import Policy
from later.store import cursor, dead_letters
from tests.api.api_fixture import MINIMAL, Answer, ApiFixture, bad_request, create_result, ok, refusals, serve_api
from tests.api.states import DIED_AT, LAST_FAILURE, STATES, put_all_states, put_task
from tests.builders import NOW
from tests.cases import each_case

NO_TASK = "no task has the id 'a'"
NOW_S = NOW // 1000
ID_EXPECTED = EXPECTED["id"]
GONE = msgspec.structs.replace(LAST_FAILURE, reason="gone")


@pytest.fixture
async def api(shards: int) -> AsyncIterator[ApiFixture]:
    async with serve_api(shards=shards, policy=Policy(max_delay_ms=900_000)) as built:
        yield built


def conflict(detail: str) -> Answer:
    type = IN_FLIGHT if "is in flight" in detail else CHANGED
    return 409, {"type": type.reference, "title": type.title, "status": 409, "detail": detail}


def missing(detail: str, **more: object) -> Answer:
    return 404, {"type": "/problems/no-such-task", "title": "No such task", "status": 404, "detail": detail, **more}


async def query(api: ApiFixture, id: str) -> Any:
    status, task = await api.post("/query", {"id": id})
    assert status == 200
    return task


async def put_two_gone_behind_others(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put two dead tasks of the reason `gone` behind eight others, of which a call examines four."""
    monkeypatch.setattr(dead_letters, "MAX_EXAMINED", 4)
    monkeypatch.setattr(cursor, "MAX_TASKS", 2)
    for n in range(10):
        await put_task(api, "dead", f"n{n}", failure=GONE if n >= 8 else None)


async def states_by_id(api: ApiFixture) -> dict[str, str]:
    """Return the states of all tasks by id."""
    states: dict[str, str] = {}
    for state in STATES:
        _, page = await api.post("/list", {"topic": "order", "state": state, "limit": 1000})
        states |= {task["id"]: state for task in page["tasks"]}
    return states


WRONG_UPDATES: list[tuple[dict[str, Any], str]] = [
    ({"id": None}, f"id: expected {ID_EXPECTED}, got nothing"),
    ({"id": 5}, f"id: expected {ID_EXPECTED}, got 5"),
    ({"id": "a/b"}, f'id: expected {ID_EXPECTED}, got "a/b"'),
    ({"topic": "mail"}, "topic: unknown field"),
    ({"state": "dead"}, "state: unknown field"),
    ({"timeout": 5}, "timeout: not a field of this version"),
    ({"delay": "1"}, f'delay: expected {EXPECTED["delay"]}, got "1"'),
    ({"delay": -1}, f"delay: expected {EXPECTED['delay']}, got -1"),
    ({"delay": 1, "execute_time": 5}, "execute_time: expected either delay or execute_time, got both"),
    ({"retry": 1.5}, f"retry: expected {EXPECTED['retry']}, got 1.5"),
    ({"retry": 1001}, f"retry: expected {EXPECTED['retry']}, got 1001"),
    ({"content": 5}, f"content: expected {EXPECTED['content']}, got 5"),
    ({"callback": "x"}, f'callback: expected {EXPECTED["callback"]}, got "x"'),
    ({"headers": {"webhook-id": "x"}},
     'headers: expected a header of your own, got "webhook-id", which later sets'),
    ({"headers": {"Content_Length": "9"}},
     'headers: expected a header of your own, got "Content_Length", which later sets'),
    ({"headers": {"X": 5}}, f'headers: expected {EXPECTED["headers"]}, got a number in "X"'),
    ({"ttl": 0}, f"ttl: expected {EXPECTED['ttl']}, got 0"),
    ({"ttl": True}, f"ttl: expected {EXPECTED['ttl']}, got true"),
]  # fmt: skip


class TestUpdate:
    @each_case("state", ["delay", "error"])
    async def test_it_answers_as_a_query_does(self, api: ApiFixture, state: str) -> None:
        await put_task(api, state)
        answer = await api.post("/update", {"id": state, "content": "other", "headers": {"X-B": "b"}, "retry": 7})
        assert answer == (200, await query(api, state))
        task = answer[1]
        assert (task["content"], task["headers"], task["max_retry"], task["state"]) == ("other", ["X-B"], 7, state)

    @pytest.mark.parametrize("state", ["delay", "error"])
    async def test_a_new_delay_counts_from_now(self, api: ApiFixture, state: str) -> None:
        await put_task(api, state)
        status, task = await api.post("/update", {"id": state, "delay": 2.5})
        assert (status, task["state"], task["due_at"]) == (200, "delay", "2027-01-15T08:00:02.500Z")
        assert (task["execute_time"], task["creat_time"]) == (NOW_S + 3, NOW_S - 120)
        assert task["has_retry"] == (1 if state == "error" else 0)
        assert api.wakes == [NOW + 2500]

    async def test_a_new_execute_time_replaces_the_old(self, api: ApiFixture) -> None:
        await put_task(api, "delay")
        _, task = await api.post("/update", {"id": "delay", "execute_time": NOW_S + 60})
        assert (task["due_at"], task["execute_time"]) == ("2027-01-15T08:01:00.000Z", NOW_S + 60)

    @each_case("due_at", ["2027-01-15T08:01:00.007Z", "2027-01-15T09:01:00.007+01:00"])
    async def test_a_due_time_of_an_answer_can_be_sent_back(self, api: ApiFixture, due_at: str) -> None:
        await put_task(api, "delay")
        _, task = await api.post("/update", {"id": "delay", "execute_time": due_at, "retry": 5.0})
        assert (task["due_at"], task["max_retry"]) == ("2027-01-15T08:01:00.007Z", 5)
        assert (await api.post("/update", {"id": "delay", "execute_time": task["due_at"]}))[1] == task

    @each_case(
        ("state", "detail"),
        [
            ("unack", "task 'unack' is in flight: it can be edited if its delivery fails, or deleted now"),
            ("dead", "task 'dead' is dead: /redrive or /run-now bring it back, then it can be edited"),
        ],
    )
    async def test_a_task_that_is_not_waiting_is_409(self, api: ApiFixture, state: str, detail: str) -> None:
        await put_task(api, state)
        before = await query(api, state)
        assert await api.post("/update", {"id": state, "content": "other"}) == conflict(detail)
        assert await query(api, state) == before

    async def test_an_unknown_id_is_404(self, api: ApiFixture) -> None:
        assert await api.post("/update", {"id": "a", "delay": 1}) == missing(NO_TASK)

    async def test_an_update_obeys_the_policy_of_the_topic(self, api: ApiFixture) -> None:
        await put_task(api, "delay")
        detail = "Exceeds max allowed delivery delay of 900000 milliseconds"
        assert await api.post("/update", {"id": "delay", "delay": 901}) == bad_request(detail, "delay")
        await api.request("PATCH", "/topics/order/policy", {"max_delay": 0, "delays": False})
        detail = "delay: expected none, for the topic's policy allows no delays"
        assert await api.post("/update", {"id": "delay", "delay": 1}) == bad_request(detail, "delay")

    async def test_a_ttl_counts_from_the_creation_and_null_removes_it(self, api: ApiFixture) -> None:
        await put_task(api, "delay")
        _, task = await api.post("/update", {"id": "delay", "ttl": 600})
        assert task["expires_at"] == "2027-01-15T08:08:00.000Z"
        _, task = await api.post("/update", {"id": "delay", "ttl": None})
        assert "expires_at" not in task

    async def test_null_means_absent_except_for_a_ttl(self, api: ApiFixture) -> None:
        await put_task(api, "delay", ttl=600)
        before = await query(api, "delay")
        body = {"id": "delay", "delay": None, "content": None, "callback": None, "headers": None, "execute_time": None}
        assert await api.post("/update", {**body, "retry": 3}) == (200, before)

    @each_case("body", [{"id": "a"}, {"id": "a", "delay": None, "content": None}])
    async def test_an_update_without_changes_is_refused(self, api: ApiFixture, body: object) -> None:
        fields = "delay, execute_time, content, callback, headers, retry, ttl, context"
        detail = f"expected something to change: {fields}; got none of these"
        assert await api.post("/update", body) == bad_request(detail)

    async def test_a_wrong_field_is_refused_by_name(self, api: ApiFixture) -> None:
        await put_task(api, "delay")
        before = await query(api, "delay")
        update = {"id": "delay", "content": "other"}
        answers = [await api.post("/update", {**update, **fields}) for fields, _ in WRONG_UPDATES]
        assert answers == refusals(WRONG_UPDATES)
        assert await query(api, "delay") == before

    async def test_concurrent_updates_are_each_answered(self, api: ApiFixture) -> None:
        ids = [await put_task(api, "delay", f"n{n}") for n in range(30)]
        bodies = [{"id": id, "delay": n} for n, id in enumerate([*ids, "none"])]
        answers = await asyncio.gather(*(api.post("/update", body) for body in bodies))
        assert [status for status, _ in answers] == [200] * 30 + [404]
        assert [task["execute_time"] - NOW_S for _, task in answers[:-1]] == list(range(30))


class TestRunNow:
    @pytest.mark.parametrize("state", ["delay", "error", "dead"])
    async def test_a_task_that_is_run_now_is_due_now(self, api: ApiFixture, state: str) -> None:
        await put_task(api, state)
        answer = await api.post("/run-now", {"id": state})
        assert answer == (200, await query(api, state))
        assert (answer[1]["state"], answer[1]["due_at"]) == ("delay", "2027-01-15T08:00:00.000Z")
        assert (answer[1]["execute_time"], answer[1]["has_retry"]) == (
            NOW_S + 60 if state == "delay" else NOW_S - 120,
            1 if state == "error" else 0,
        )
        assert api.wakes == [NOW]

    async def test_a_task_in_flight_is_409(self, api: ApiFixture) -> None:
        await put_task(api, "unack")
        detail = "task 'unack' is in flight: it runs already"
        assert await api.post("/run-now", {"id": "unack"}) == conflict(detail)

    async def test_an_unknown_id_is_404(self, api: ApiFixture) -> None:
        assert await api.post("/run-now", {"id": "a"}) == missing(NO_TASK)

    async def test_another_field_is_refused(self, api: ApiFixture) -> None:
        assert await api.post("/run-now", {"id": "a", "delay": 5}) == bad_request("delay: unknown field", "delay")


class TestRedriveOne:
    async def test_a_redriven_task_is_due_now(self, api: ApiFixture) -> None:
        await put_task(api, "dead", ttl=600)
        assert await api.post("/redrive", {"id": "dead"}) == ok(redriven=1)
        task = await query(api, "dead")
        assert (task["state"], task["due_at"], task["last_error"]) == ("delay", "2027-01-15T08:00:00.000Z", None)
        assert (task["creat_time"], task["expires_at"]) == (NOW_S - 120, "2027-01-15T08:10:00.000Z")
        assert api.wakes == [NOW]

    @each_case(
        ("state", "detail"),
        [
            ("delay", "task 'delay' is in delay, not dead: /run-now makes it due now"),
            ("error", "task 'error' is in error, not dead: /run-now makes it due now"),
            ("unack", "task 'unack' is in flight, not dead: wait for what its delivery comes to"),
        ],
    )
    async def test_a_task_that_is_not_dead_is_409(self, api: ApiFixture, state: str, detail: str) -> None:
        await put_task(api, state)
        assert await api.post("/redrive", {"id": state}) == conflict(detail)

    async def test_an_unknown_id_is_404(self, api: ApiFixture) -> None:
        assert await api.post("/redrive", {"id": "a"}) == missing(NO_TASK)

    @each_case(
        ("field", "value"),
        [("topic", "order"), ("died_after", 5), ("died_before", 5), ("reason", "gone"), ("rate", 1), ("limit", 1)],
    )
    async def test_an_id_excludes_other_fields(self, api: ApiFixture, field: str, value: object) -> None:
        detail = f"{field}: expected either an id alone, or a topic, got both"
        assert await api.post("/redrive", {"id": "a", field: value}) == bad_request(detail, field)


WRONG_REDRIVES: list[tuple[dict[str, Any], str]] = [
    ({}, "topic: expected an id or a topic, got neither"),
    ({"topic": ""}, f'topic: expected {EXPECTED["topic"]}, got ""'),
    (
        {"topic": "order", "rate": 5e-324},
        "rate: expected a number of tasks a second, 0.0001 at least, got 5e-324",
    ),
    ({"topic": "order", "rate": 0}, "rate: expected a number of tasks a second, 0.0001 at least, got 0"),
    ({"topic": "order", "rate": "5"}, 'rate: expected a number of tasks a second, 0.0001 at least, got "5"'),
    ({"topic": "order", "limit": 0}, "limit: expected an integer ≥ 1, got 0"),
    ({"topic": "order", "limit": 1.5}, "limit: expected an integer ≥ 1, got 1.5"),
    ({"topic": "order", "reason": 5}, f"reason: expected {EXPECTED['reason']}, got 5"),
    (
        {"topic": "order", "reason": "exausted"},
        f'reason: expected {EXPECTED["reason"]}, got "exausted"',
    ),
    ({"topic": "order", "died_after": "x"}, f'died_after: expected {EXPECTED["died_after"]}, got "x"'),
    ({"topic": "order", "died_before": [1]}, f"died_before: expected {EXPECTED['died_after']}, got an array"),
    ({"topic": "order", "states": ["dead"]}, "states: unknown field"),
]


class TestRedriveMany:
    async def test_a_redrive_moves_the_dead_tasks_of_one_topic_only(self, api: ApiFixture) -> None:
        await put_all_states(api)
        await put_task(api, "dead", "other", topic="mail")
        await put_task(api, "dead", "more")
        assert await api.post("/redrive", {"topic": "default/order"}) == ok(redriven=2)
        assert await states_by_id(api) == {
            "delay": "delay", "unack": "unack", "error": "error", "dead": "delay", "more": "delay",
        }  # fmt: skip
        assert (await query(api, "other"))["state"] == "dead"
        assert api.wakes == [NOW]

    async def test_a_redrive_without_dead_tasks_wakes_no_ticker(self, api: ApiFixture) -> None:
        assert await api.post("/redrive", {"topic": "order"}) == ok(redriven=0)
        assert api.wakes == []

    async def test_a_rate_spreads_the_due_times(self, api: ApiFixture) -> None:
        for n in range(5):
            await put_task(api, "dead", f"n{n}")
        assert await api.post("/redrive", {"topic": "order", "rate": 0.5}) == ok(redriven=5)
        dues = [(await query(api, f"n{n}"))["due_at"][17:23] for n in range(5)]
        assert sorted(dues) == ["00.000", "02.000", "04.000", "06.000", "08.000"]

    async def test_a_limit_reports_that_there_are_more(self, api: ApiFixture) -> None:
        for n in range(5):
            await put_task(api, "dead", f"n{n}")
        assert await api.post("/redrive", {"topic": "order", "limit": 3}) == ok(redriven=3, more=True)
        assert await api.post("/redrive", {"topic": "order", "limit": 3}) == ok(redriven=2)

    @pytest.mark.parametrize(
        ("bounds", "count"),
        [
            ({"died_after": DIED_AT / 1000}, 1),
            ({"died_after": DIED_AT / 1000 + 0.001}, 0),
            ({"died_before": "2027-01-15T07:59:00Z"}, 0),
            ({"died_before": "2027-01-15T07:59:00.001Z"}, 1),
            ({"died_before": 9e9}, 1),
            ({"reason": "exhausted"}, 1),
            ({"reason": "gone"}, 0),
        ],
    )
    async def test_a_redrive_moves_only_the_selected_tasks(
        self, api: ApiFixture, bounds: dict[str, Any], count: int
    ) -> None:
        await put_task(api, "dead")
        assert await api.post("/redrive", {"topic": "order", **bounds}) == ok(redriven=count)

    async def test_a_wrong_field_is_refused_by_name(self, api: ApiFixture) -> None:
        await put_task(api, "dead")
        answers = [await api.post("/redrive", body) for body, _ in WRONG_REDRIVES]
        assert answers == refusals(WRONG_REDRIVES)
        assert (await query(api, "dead"))["state"] == "dead"

    async def test_a_redrive_without_a_limit_ends_after_a_slice_with_the_time_for_the_next(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "MAX_MOVES", 3)
        for n in range(7):
            await put_task(api, "dead", f"n{n}")
        answers: list[dict[str, Any]] = [{}]
        for _ in range(3):
            answers.append((await api.post("/redrive", {"topic": "order", "cursor": answers[-1].get("cursor")}))[1])
        assert [(answer["redriven"], answer.get("more")) for answer in answers[1:]] == [(3, True), (3, True), (1, None)]
        cursors = [parse_cursor(answer["cursor"]) for answer in answers[1:3]]
        assert [parsed and parsed.died_before for parsed in cursors] == [NOW, NOW]

    async def test_a_cursor_continues_after_the_tasks_of_other_reasons(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put_two_gone_behind_others(api, monkeypatch)
        answers: list[dict[str, Any]] = [{"more": True}]
        while answers[-1].get("more"):
            selected = {"topic": "order", "reason": "gone", "cursor": answers[-1].get("cursor")}
            answers.append((await api.post("/redrive", selected))[1])
        assert [answer["redriven"] for answer in answers[1:]][-1] > 0
        assert sum(answer["redriven"] for answer in answers[1:]) == 2
        assert len(answers) > 2

    async def test_a_cursor_keeps_the_rate(self, api: ApiFixture) -> None:
        for n in range(5):
            await put_task(api, "dead", f"n{n}")
        redrive = {"topic": "order", "rate": 0.5, "limit": 3}
        _, first = await api.post("/redrive", redrive)
        assert (first["redriven"], first["more"]) == (3, True)
        assert await api.post("/redrive", {**redrive, "cursor": first["cursor"]}) == ok(redriven=2)
        dues = [(await query(api, f"n{n}"))["due_at"][17:23] for n in range(5)]
        assert sorted(dues) == ["00.000", "02.000", "04.000", "06.000", "08.000"]

    async def test_a_cursor_leaves_alone_what_has_died_since_the_first_request(self, api: ApiFixture) -> None:
        await put_task(api, "dead")
        since_then = MoveCursor(0, "a", died_before=DIED_AT).encode()
        assert await api.post("/redrive", {"topic": "order", "cursor": since_then}) == ok(redriven=0)

    async def test_a_cursor_of_nobody_is_refused(self, api: ApiFixture) -> None:
        for made_up in ("x", encode_cursor("1 a"), encode_cursor("1 a 2 x"), encode_cursor("01 a 2 3")):
            status, answer = await api.post("/redrive", {"topic": "order", "cursor": made_up})
            assert (status, answer["field"]) == (400, "cursor")

    @pytest.mark.parametrize(
        ("selected", "count"), [({}, 2), ({"reason": "exhausted"}, 1), ({"died_before": 5}, 0), ({"rate": 5}, 2)]
    )
    async def test_a_dry_run_counts_and_changes_nothing(
        self, api: ApiFixture, selected: dict[str, Any], count: int
    ) -> None:
        await put_all_states(api)
        await put_task(api, "dead", "other", failure=GONE)
        before = await states_by_id(api)
        body = {"topic": "default/order", "dry_run": True, **selected}
        assert await api.post("/redrive", body) == ok(
            dry_run=True, topic="order", redriven=count, states={"dead": count}, at=rfc3339(NOW)
        )
        assert await states_by_id(api) == before
        assert api.wakes == []

    async def test_a_dry_run_of_one_task_is_refused(self, api: ApiFixture) -> None:
        await put_task(api, "dead")
        detail = "dry_run: expected either an id alone, or a topic, got both"
        assert await api.post("/redrive", {"id": "dead", "dry_run": True}) == bad_request(detail, "dry_run")
        assert (await query(api, "dead"))["state"] == "dead"


WRONG_PURGES: list[tuple[dict[str, Any], str]] = [
    ({"states": ["unack"]}, 'states: expected none but "delay", "error" and "dead": what is in flight stays'),
    ({"states": []}, f"states: expected {EXPECTED['states']}, got none"),
    ({"states": ["gone"]}, f'states: expected {EXPECTED["states"]}, got "gone"'),
    ({"states": "dead"}, f'states: expected {EXPECTED["states"]}, got "dead"'),
    ({"states": [5]}, f"states: expected {EXPECTED['states']}, got 5"),
    ({"state": "dead"}, "state: unknown field; did you mean states?"),
    ({"topic": "order"}, "topic: unknown field"),
    ({"limit": 0}, "limit: expected an integer ≥ 1, got 0"),
    ({"limit": True}, "limit: expected an integer ≥ 1, got true"),
    ({"reason": "x", "states": ["dead", "delay"]},
     'reason: expected it with "states": ["dead"] alone, because only the dead have died'),
    ({"died_after": 5, "states": ["delay"]},
     'died_after: expected it with "states": ["dead"] alone, because only the dead have died'),
    ({"reason": "timeout"},
     f'reason: expected {EXPECTED["reason"]}, got "timeout"'),
    ({"died_before": "x"}, f'died_before: expected {EXPECTED["died_before"]}, got "x"'),
]  # fmt: skip


class TestPurge:
    @pytest.mark.parametrize("body", [{}, None, b"", b" ", {"states": ["dead", "delay", "error", "dead"]}])
    async def test_a_purge_removes_all_but_tasks_in_flight(self, api: ApiFixture, body: object) -> None:
        await put_all_states(api)
        await put_task(api, "dead", "other", topic="mail")
        assert await api.request("POST", "/topics/order/purge", body) == ok(purged=3)
        assert await states_by_id(api) == {"unack": "unack"}
        assert (await query(api, "other"))["state"] == "dead"

    @pytest.mark.parametrize("state", ["delay", "error", "dead"])
    async def test_a_purge_removes_only_the_named_state(self, api: ApiFixture, state: str) -> None:
        await put_all_states(api)
        assert await api.post("/topics/order/purge", {"states": [state]}) == ok(purged=1)
        assert {*await states_by_id(api)} == {*STATES} - {state}

    async def test_a_purge_forgets_ids(self, api: ApiFixture) -> None:
        await put_task(api, "dead", "a")
        await api.post("/topics/order/purge", {})
        assert await api.post("/create", {**MINIMAL, "id": "a"}) == ok(**create_result("a"))

    async def test_a_topic_with_a_slash_is_purged(self, api: ApiFixture) -> None:
        await put_task(api, "dead", "a", topic="shop/order")
        assert await api.request("POST", "/topics/shop%2Forder/purge", {}) == ok(purged=1)

    async def test_a_limit_reports_that_there_are_more(self, api: ApiFixture) -> None:
        await put_all_states(api)
        assert await api.post("/topics/order/purge", {"limit": 2}) == ok(purged=2, more=True)
        assert await api.post("/topics/order/purge", {"limit": 2}) == ok(purged=1)

    async def test_a_purge_without_a_limit_ends_after_a_slice(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "MAX_MOVES", 2)
        await put_all_states(api)
        assert await api.post("/topics/order/purge", {}) == ok(purged=2, more=True)
        assert await api.post("/topics/order/purge", {}) == ok(purged=1)

    async def test_a_cursor_continues_after_the_tasks_of_other_reasons(
        self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put_two_gone_behind_others(api, monkeypatch)
        selected = {"reason": "gone"}
        _, first = await api.post("/topics/order/purge", selected)
        assert (first["purged"], first["more"]) == (0, True)
        purged, answer = 0, first
        while answer.get("more"):
            _, answer = await api.post("/topics/order/purge", {**selected, "cursor": answer["cursor"]})
            purged += answer["purged"]
        assert purged == 2
        assert len(await states_by_id(api)) == 8

    async def test_a_cursor_without_a_reason_is_refused(self, api: ApiFixture) -> None:
        status, answer = await api.post("/topics/order/purge", {"cursor": "x"})
        assert (status, answer["field"]) == (400, "cursor")

    @pytest.mark.parametrize(
        ("selected", "states"),
        [
            ({}, {"error": 1, "delay": 1, "dead": 2}),
            ({"states": ["error"]}, {"error": 1}),
            ({"reason": "exhausted"}, {"dead": 1}),
            ({"died_after": DIED_AT / 1000}, {"dead": 2}),
        ],
    )
    async def test_a_dry_run_counts_and_changes_nothing(
        self, api: ApiFixture, selected: dict[str, Any], states: dict[str, int]
    ) -> None:
        await put_all_states(api)
        await put_task(api, "dead", "other", failure=GONE)
        before = await states_by_id(api)
        answer = await api.post("/topics/order/purge", {"dry_run": True, **selected})
        purged = sum(states.values())
        assert answer == ok(dry_run=True, topic="order", purged=purged, states=states, at=rfc3339(NOW))
        assert await states_by_id(api) == before

    async def test_a_dry_run_obeys_the_limit(self, api: ApiFixture) -> None:
        await put_all_states(api)
        _, answer = await api.post("/topics/order/purge", {"dry_run": True, "limit": 2})
        assert (answer["purged"], answer["more"]) == (2, True)

    @pytest.mark.parametrize(
        ("bounds", "gone"),
        [
            ({"died_after": DIED_AT / 1000}, True),
            ({"died_after": DIED_AT / 1000 + 1, "states": ["dead"]}, False),
            ({"died_before": "2027-01-15T07:59:00Z"}, False),
            ({"reason": "exhausted", "states": ["dead"], "limit": 5}, True),
            ({"reason": "gone"}, False),
        ],
    )
    async def test_a_purge_removes_only_the_selected_dead_tasks(
        self, api: ApiFixture, bounds: dict[str, Any], gone: bool
    ) -> None:
        await put_all_states(api)
        assert await api.post("/topics/order/purge", bounds) == ok(purged=int(gone))
        assert {*await states_by_id(api)} == {*STATES} - ({"dead"} if gone else set())

    async def test_a_wrong_field_is_refused_by_name(self, api: ApiFixture) -> None:
        await put_all_states(api)
        answers = [await api.post("/topics/order/purge", body) for body, _ in WRONG_PURGES]
        assert answers == refusals(WRONG_PURGES)
        assert {*await states_by_id(api)} == {*STATES}

    async def test_a_query_parameter_is_refused(self, api: ApiFixture) -> None:
        answer = await api.request("POST", "/topics/order/purge?states=dead", {})
        assert answer == bad_request("states: unknown parameter, expected no parameters here", "states")


@each_case("path", ["/update", "/run-now", "/redrive", "/topics/order/purge", "/list", "/explain"])
async def test_a_body_that_is_not_an_object_is_refused(api: ApiFixture, path: str) -> None:
    bodies = [b"[]", b"5", b"{", b"\xff", b'"a"', b"\xef\xbb\xbf{}", b"[" * 5000]
    answers = [await api.post(path, body) for body in bodies]
    assert [(status, answer["title"]) for status, answer in answers] == [(400, "Bad Request")] * len(bodies)


@each_case(
    ("path", "body"),
    [
        ("/update", {"id": "a", "delay": 1}),
        ("/run-now", {"id": "a"}),
        ("/redrive", {"id": "a"}),
        ("/redrive", {"topic": "order"}),
        ("/topics/order/purge", {}),
        ("/topics/order/purge", {"reason": "gone"}),
        ("/explain", {"id": "a"}),
        ("/explain", {"topic": "order"}),
    ],
)
async def test_an_unavailable_store_is_503(api: ApiFixture, path: str, body: object) -> None:
    api.client.shards_down = range(len(api.keys.shards))
    assert (await api.post(path, body))[0] == 503
