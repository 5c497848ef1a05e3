"""`POST /update`, `/run-now`, `/redrive` and `/topics/{topic}/purge`, in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.api.requests import EXPECTED
from later.core.policy import Policy
from tests.api.frontend import MINIMAL, Answer, Frontend, bad_request, ok, serve_frontend
from tests.api.states import DIED_AT, STATES, put_all_states, put_task
from tests.builders import NOW

NO_TASK = "no task has the id 'a'"
SECOND = NOW // 1000
ID = EXPECTED["id"]


@pytest.fixture(params=[1, 16], ids=["1-shard", "16-shards"])
async def frontend(request: pytest.FixtureRequest) -> AsyncIterator[Frontend]:
    async with serve_frontend(shards=request.param, policy=Policy(max_delay_ms=900_000)) as built:
        yield built


def conflict(detail: str) -> Answer:
    return 409, {"type": "about:blank", "title": "Conflict", "status": 409, "detail": detail}


def missing(detail: str, **more: object) -> Answer:
    return 404, {"type": "about:blank", "title": "Not Found", "status": 404, "detail": detail, **more}


async def query(frontend: Frontend, id: str) -> Any:
    status, task = await frontend.post("/query", {"id": id})
    assert status == 200
    return task


async def states_by_id(frontend: Frontend) -> dict[str, str]:
    """Return the states of all tasks by id."""
    states: dict[str, str] = {}
    for state in STATES:
        _, page = await frontend.post("/list", {"topic": "order", "state": state, "limit": 1000})
        states |= {task["id"]: state for task in page["tasks"]}
    return states


class TestUpdate:
    @pytest.mark.parametrize("state", ["delay", "error"])
    async def test_it_answers_as_a_query_does(self, frontend: Frontend, state: str) -> None:
        await put_task(frontend, state)
        answer = await frontend.post("/update", {"id": state, "content": "other", "headers": {"X-B": "b"}, "retry": 7})
        assert answer == (200, await query(frontend, state))
        task = answer[1]
        assert (task["content"], task["headers"], task["max_retry"], task["state"]) == ("other", ["X-B"], 7, state)

    @pytest.mark.parametrize("state", ["delay", "error"])
    async def test_a_new_delay_counts_from_now(self, frontend: Frontend, state: str) -> None:
        await put_task(frontend, state)
        status, task = await frontend.post("/update", {"id": state, "delay": 2.5})
        assert (status, task["state"], task["due_at"]) == (200, "delay", "2027-01-15T08:00:02.500Z")
        assert (task["execute_time"], task["creat_time"]) == (SECOND + 3, SECOND - 120)
        assert task["has_retry"] == (1 if state == "error" else 0)
        assert frontend.wakes == [NOW + 2500]

    async def test_a_new_execute_time_replaces_the_old(self, frontend: Frontend) -> None:
        await put_task(frontend, "delay")
        _, task = await frontend.post("/update", {"id": "delay", "execute_time": SECOND + 60})
        assert (task["due_at"], task["execute_time"]) == ("2027-01-15T08:01:00.000Z", SECOND + 60)

    @pytest.mark.parametrize(
        ("state", "detail"),
        [
            ("unack", "task 'unack' is in flight: it can be edited if its delivery fails, or deleted now"),
            ("dead", "task 'dead' is dead: /redrive or /run-now bring it back, then it can be edited"),
        ],
    )
    async def test_a_task_that_is_not_waiting_is_409(self, frontend: Frontend, state: str, detail: str) -> None:
        await put_task(frontend, state)
        before = await query(frontend, state)
        assert await frontend.post("/update", {"id": state, "content": "other"}) == conflict(detail)
        assert await query(frontend, state) == before

    async def test_an_unknown_id_is_404(self, frontend: Frontend) -> None:
        assert await frontend.post("/update", {"id": "a", "delay": 1}) == missing(NO_TASK)

    async def test_an_update_obeys_the_policy_of_the_topic(self, frontend: Frontend) -> None:
        await put_task(frontend, "delay")
        detail = "Exceeds max allowed delivery delay of 900000 milliseconds"
        assert await frontend.post("/update", {"id": "delay", "delay": 901}) == bad_request(detail, "delay")
        await frontend.request("PATCH", "/topics/order/policy", {"max_delay": 0, "delays": False})
        detail = "delay: expected none, for the topic's policy allows no delays"
        assert await frontend.post("/update", {"id": "delay", "delay": 1}) == bad_request(detail, "delay")

    async def test_a_ttl_counts_from_the_creation_and_null_removes_it(self, frontend: Frontend) -> None:
        await put_task(frontend, "delay")
        _, task = await frontend.post("/update", {"id": "delay", "ttl": 600})
        assert task["expires_at"] == "2027-01-15T08:08:00.000Z"
        _, task = await frontend.post("/update", {"id": "delay", "ttl": None})
        assert "expires_at" not in task

    async def test_null_means_absent_except_for_a_ttl(self, frontend: Frontend) -> None:
        await put_task(frontend, "delay", ttl=600)
        before = await query(frontend, "delay")
        body = {"id": "delay", "delay": None, "content": None, "callback": None, "headers": None, "execute_time": None}
        assert await frontend.post("/update", {**body, "retry": 3}) == (200, before)

    @pytest.mark.parametrize("body", [{"id": "a"}, {"id": "a", "delay": None, "content": None}])
    async def test_an_update_without_changes_is_refused(self, frontend: Frontend, body: object) -> None:
        fields = "delay, execute_time, content, callback, headers, retry, ttl"
        detail = f"expected something to change: {fields}; got none of these"
        assert await frontend.post("/update", body) == bad_request(detail)

    @pytest.mark.parametrize(
        ("fields", "detail"),
        [
            ({"id": None}, f"id: expected {ID}, got nothing"),
            ({"id": 5}, f"id: expected {ID}, got 5"),
            ({"id": "a/b"}, f'id: expected {ID}, got "a/b"'),
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
            ({"headers": {"X": 5}}, f'headers: expected {EXPECTED["headers"]}, got a number in "X"'),
            ({"ttl": 0}, f"ttl: expected {EXPECTED['ttl']}, got 0"),
            ({"ttl": True}, f"ttl: expected {EXPECTED['ttl']}, got true"),
        ],
    )  # fmt: skip
    async def test_a_wrong_field_is_refused_by_name(
        self, frontend: Frontend, fields: dict[str, Any], detail: str
    ) -> None:
        await put_task(frontend, "delay")
        before = await query(frontend, "delay")
        answer = await frontend.post("/update", {"id": "delay", "content": "other", **fields})
        assert answer == bad_request(detail, detail.partition(":")[0])
        assert await query(frontend, "delay") == before

    async def test_concurrent_updates_are_each_answered(self, frontend: Frontend) -> None:
        ids = [await put_task(frontend, "delay", f"n{n}") for n in range(30)]
        bodies = [{"id": id, "delay": n} for n, id in enumerate([*ids, "none"])]
        answers = await asyncio.gather(*(frontend.post("/update", body) for body in bodies))
        assert [status for status, _ in answers] == [200] * 30 + [404]
        assert [task["execute_time"] - SECOND for _, task in answers[:-1]] == list(range(30))


class TestRunNow:
    @pytest.mark.parametrize("state", ["delay", "error", "dead"])
    async def test_a_task_that_is_run_now_is_due_now(self, frontend: Frontend, state: str) -> None:
        await put_task(frontend, state)
        answer = await frontend.post("/run-now", {"id": state})
        assert answer == (200, await query(frontend, state))
        assert (answer[1]["state"], answer[1]["due_at"]) == ("delay", "2027-01-15T08:00:00.000Z")
        assert (answer[1]["execute_time"], answer[1]["has_retry"]) == (
            SECOND + 60 if state == "delay" else SECOND - 120,
            1 if state == "error" else 0,
        )
        assert frontend.wakes == [NOW]

    async def test_a_task_in_flight_is_409(self, frontend: Frontend) -> None:
        await put_task(frontend, "unack")
        detail = "task 'unack' is in flight: it runs already"
        assert await frontend.post("/run-now", {"id": "unack"}) == conflict(detail)

    async def test_an_unknown_id_is_404(self, frontend: Frontend) -> None:
        assert await frontend.post("/run-now", {"id": "a"}) == missing(NO_TASK)

    async def test_another_field_is_refused(self, frontend: Frontend) -> None:
        assert await frontend.post("/run-now", {"id": "a", "delay": 5}) == bad_request("delay: unknown field", "delay")


class TestRedriveOne:
    async def test_a_redriven_task_is_due_now(self, frontend: Frontend) -> None:
        await put_task(frontend, "dead", ttl=600)
        assert await frontend.post("/redrive", {"id": "dead"}) == ok(redriven=1)
        task = await query(frontend, "dead")
        assert (task["state"], task["due_at"], task["last_error"]) == ("delay", "2027-01-15T08:00:00.000Z", None)
        assert (task["creat_time"], task["expires_at"]) == (SECOND - 120, "2027-01-15T08:10:00.000Z")
        assert frontend.wakes == [NOW]

    @pytest.mark.parametrize(
        ("state", "detail"),
        [
            ("delay", "task 'delay' is in delay, not dead: /run-now makes it due now"),
            ("error", "task 'error' is in error, not dead: /run-now makes it due now"),
            ("unack", "task 'unack' is in flight, not dead: wait for what its delivery comes to"),
        ],
    )
    async def test_a_task_that_is_not_dead_is_409(self, frontend: Frontend, state: str, detail: str) -> None:
        await put_task(frontend, state)
        assert await frontend.post("/redrive", {"id": state}) == conflict(detail)

    async def test_an_unknown_id_is_404(self, frontend: Frontend) -> None:
        assert await frontend.post("/redrive", {"id": "a"}) == missing(NO_TASK)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("topic", "order"), ("died_after", 5), ("died_before", 5), ("reason", "gone"), ("rate", 1), ("limit", 1)],
    )
    async def test_an_id_excludes_other_fields(self, frontend: Frontend, field: str, value: object) -> None:
        detail = f"{field}: expected either an id alone, or a topic, got both"
        assert await frontend.post("/redrive", {"id": "a", field: value}) == bad_request(detail, field)


class TestRedriveMany:
    async def test_a_redrive_moves_the_dead_tasks_of_one_topic_only(self, frontend: Frontend) -> None:
        await put_all_states(frontend)
        await put_task(frontend, "dead", "other", topic="mail")
        await put_task(frontend, "dead", "more")
        assert await frontend.post("/redrive", {"topic": "default/order"}) == ok(redriven=2)
        assert await states_by_id(frontend) == {
            "delay": "delay", "unack": "unack", "error": "error", "dead": "delay", "more": "delay",
        }  # fmt: skip
        assert (await query(frontend, "other"))["state"] == "dead"
        assert frontend.wakes == [NOW]

    async def test_a_redrive_without_dead_tasks_wakes_no_ticker(self, frontend: Frontend) -> None:
        assert await frontend.post("/redrive", {"topic": "order"}) == ok(redriven=0)
        assert frontend.wakes == []

    async def test_a_rate_spreads_the_due_times(self, frontend: Frontend) -> None:
        for n in range(5):
            await put_task(frontend, "dead", f"n{n}")
        assert await frontend.post("/redrive", {"topic": "order", "rate": 0.5}) == ok(redriven=5)
        dues = [(await query(frontend, f"n{n}"))["due_at"][17:23] for n in range(5)]
        assert sorted(dues) == ["00.000", "02.000", "04.000", "06.000", "08.000"]

    async def test_a_limit_reports_that_there_are_more(self, frontend: Frontend) -> None:
        for n in range(5):
            await put_task(frontend, "dead", f"n{n}")
        assert await frontend.post("/redrive", {"topic": "order", "limit": 3}) == ok(redriven=3, more=True)
        assert await frontend.post("/redrive", {"topic": "order", "limit": 3}) == ok(redriven=2)

    @pytest.mark.parametrize(
        ("bounds", "count"),
        [
            ({"died_after": DIED_AT / 1000}, 1),
            ({"died_after": DIED_AT / 1000 + 0.001}, 0),
            ({"died_before": "2027-01-15T07:59:00Z"}, 0),
            ({"died_before": "2027-01-15T07:59:00.001Z"}, 1),
            ({"died_before": 9e9}, 1),
            ({"reason": "status"}, 1),
            ({"reason": "gone"}, 0),
        ],
    )
    async def test_a_redrive_moves_only_the_selected_tasks(
        self, frontend: Frontend, bounds: dict[str, Any], count: int
    ) -> None:
        await put_task(frontend, "dead")
        assert await frontend.post("/redrive", {"topic": "order", **bounds}) == ok(redriven=count)

    @pytest.mark.parametrize(
        ("body", "detail"),
        [
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
            ({"topic": "order", "reason": 5}, "reason: expected a string, got 5"),
            ({"topic": "order", "died_after": "x"}, f'died_after: expected {EXPECTED["died_after"]}, got "x"'),
            ({"topic": "order", "died_before": [1]}, f"died_before: expected {EXPECTED['died_after']}, got an array"),
            ({"topic": "order", "states": ["dead"]}, "states: unknown field"),
        ],
    )
    async def test_a_wrong_field_is_refused_by_name(self, frontend: Frontend, body: object, detail: str) -> None:
        await put_task(frontend, "dead")
        assert await frontend.post("/redrive", body) == bad_request(detail, detail.partition(":")[0])
        assert (await query(frontend, "dead"))["state"] == "dead"


class TestPurge:
    @pytest.mark.parametrize("body", [{}, None, b"", b" ", {"states": ["dead", "delay", "error", "dead"]}])
    async def test_a_purge_removes_all_but_tasks_in_flight(self, frontend: Frontend, body: object) -> None:
        await put_all_states(frontend)
        await put_task(frontend, "dead", "other", topic="mail")
        assert await frontend.request("POST", "/topics/order/purge", body) == ok(purged=3)
        assert await states_by_id(frontend) == {"unack": "unack"}
        assert (await query(frontend, "other"))["state"] == "dead"

    @pytest.mark.parametrize("state", ["delay", "error", "dead"])
    async def test_a_purge_removes_only_the_named_state(self, frontend: Frontend, state: str) -> None:
        await put_all_states(frontend)
        assert await frontend.post("/topics/order/purge", {"states": [state]}) == ok(purged=1)
        assert {*await states_by_id(frontend)} == {*STATES} - {state}

    async def test_a_purge_forgets_ids(self, frontend: Frontend) -> None:
        await put_task(frontend, "dead", "a")
        await frontend.post("/topics/order/purge", {})
        assert await frontend.post("/create", {**MINIMAL, "id": "a"}) == ok(id="a", created=True)

    async def test_a_topic_with_a_slash_is_purged(self, frontend: Frontend) -> None:
        await put_task(frontend, "dead", "a", topic="shop/order")
        assert await frontend.request("POST", "/topics/shop%2Forder/purge", {}) == ok(purged=1)

    async def test_a_limit_reports_that_there_are_more(self, frontend: Frontend) -> None:
        await put_all_states(frontend)
        assert await frontend.post("/topics/order/purge", {"limit": 2}) == ok(purged=2, more=True)
        assert await frontend.post("/topics/order/purge", {"limit": 2}) == ok(purged=1)

    @pytest.mark.parametrize(
        ("bounds", "gone"),
        [
            ({"died_after": DIED_AT / 1000}, True),
            ({"died_after": DIED_AT / 1000 + 1, "states": ["dead"]}, False),
            ({"died_before": "2027-01-15T07:59:00Z"}, False),
            ({"reason": "status", "states": ["dead"], "limit": 5}, True),
            ({"reason": "gone"}, False),
        ],
    )
    async def test_a_purge_removes_only_the_selected_dead_tasks(
        self, frontend: Frontend, bounds: dict[str, Any], gone: bool
    ) -> None:
        await put_all_states(frontend)
        assert await frontend.post("/topics/order/purge", bounds) == ok(purged=int(gone))
        assert {*await states_by_id(frontend)} == {*STATES} - ({"dead"} if gone else set())

    @pytest.mark.parametrize(
        ("body", "detail"),
        [
            ({"states": ["unack"]}, 'states: expected none but "delay", "error" and "dead": what is in flight stays'),
            ({"states": []}, f"states: expected {EXPECTED['states']}, got none"),
            ({"states": ["gone"]}, f'states: expected {EXPECTED["states"]}, got "gone"'),
            ({"states": "dead"}, f'states: expected {EXPECTED["states"]}, got "dead"'),
            ({"states": [5]}, f"states: expected {EXPECTED['states']}, got 5"),
            ({"state": "dead"}, "state: unknown field"),
            ({"topic": "order"}, "topic: unknown field"),
            ({"limit": 0}, "limit: expected an integer ≥ 1, got 0"),
            ({"limit": True}, "limit: expected an integer ≥ 1, got true"),
            ({"reason": "x", "states": ["dead", "delay"]},
             'reason: expected it with "states": ["dead"] alone, for only the dead have died'),
            ({"died_after": 5, "states": ["delay"]},
             'died_after: expected it with "states": ["dead"] alone, for only the dead have died'),
            ({"died_before": "x"}, f'died_before: expected {EXPECTED["died_before"]}, got "x"'),
        ],
    )  # fmt: skip
    async def test_a_wrong_field_is_refused_by_name(self, frontend: Frontend, body: object, detail: str) -> None:
        await put_all_states(frontend)
        assert await frontend.post("/topics/order/purge", body) == bad_request(detail, detail.partition(":")[0])
        assert {*await states_by_id(frontend)} == {*STATES}

    async def test_a_query_parameter_is_refused(self, frontend: Frontend) -> None:
        answer = await frontend.request("POST", "/topics/order/purge?states=dead", {})
        assert answer == bad_request("states: unknown parameter", "states")


@pytest.mark.parametrize("path", ["/update", "/run-now", "/redrive", "/topics/order/purge", "/list", "/explain"])
@pytest.mark.parametrize("body", [b"[]", b"5", b"{", b"\xff", b'"a"', b"\xef\xbb\xbf{}", b"[" * 5000])
async def test_a_body_that_is_not_an_object_is_refused(frontend: Frontend, path: str, body: bytes) -> None:
    status, answer = await frontend.post(path, body)
    assert (status, answer["title"]) == (400, "Bad Request")


@pytest.mark.parametrize(
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
async def test_an_unavailable_store_is_503(frontend: Frontend, path: str, body: object) -> None:
    frontend.client.shards_down = range(16)
    assert (await frontend.post(path, body))[0] == 503
