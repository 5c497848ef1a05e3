"""Dead-letter topics over HTTP: their policies, what becomes of a dead task, and how it comes back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.clock import Clock
from later.core.task import Death
from later.metrics import Metrics
from tests.api.api_fixture import ApiFixture, bad_request, ok, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW, a_task
from tests.cases import each_case


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API in real time, on an empty store of two shards; consumers claim of `jobs`, whose dead move to `failed`."""
    async with serve_api(shards=2, clock=Clock(time.monotonic, time.time)) as built:
        await set_policy(built, "failed", deliver="pull")
        await set_policy(built, "jobs", deliver="pull", dead_to="failed")
        yield built


async def set_policy(api: ApiFixture, topic: str, **fields: Any) -> dict[str, Any]:
    status, answer = await api.request("PATCH", f"/topics/{topic}/policy", fields)
    assert status == 200, answer
    return dict(answer)


async def claim(api: ApiFixture, topic: str) -> list[dict[str, Any]]:
    """Claim tasks of a topic; wait until one is due."""
    status, answer = await api.post("/claim", {"topic": topic, "max": 9, "wait": 5})
    assert status == 200, answer
    return list(answer["tasks"])


async def query(api: ApiFixture, id: str) -> dict[str, Any]:
    status, answer = await api.post("/query", {"id": id})
    assert status == 200, answer
    return dict(answer)


async def reject(api: ApiFixture, *ids: str, **fields: Any) -> None:
    """Create tasks of the topic `jobs`, and let them die at once in the hands of their consumer."""
    for id in ids:
        assert (await api.post("/create", {"topic": "jobs", "id": id, "content": "hello", **fields}))[0] == 200
    leases: list[str] = []
    while len(leases) < len(ids):
        leases += [task["lease"] for task in await claim(api, "jobs")]
    nack = {"leases": leases, "dead": True, "message": "no such user"}
    assert await api.post("/nack", nack) == ok(nacked=len(ids), lost=[])
    assert await api.post("/nack", nack) == ok(nacked=0, lost=leases)


async def test_a_rejected_task_is_claimed_in_the_dead_letter_topic_and_says_how_it_died(api: ApiFixture) -> None:
    await reject(api, "a", ttl=60)
    [task] = await claim(api, "failed")
    assert (task["id"], task["topic"], task["attempt"], task["failures"]) == ("a", "failed", 1, 0)
    at = task["dead_letter"].pop("at")
    assert task["dead_letter"] == {
        "topic": "jobs", "reason": "rejected", "status": None, "message": "no such user", "attempts": 1,
    }  # fmt: skip
    assert task["last_error"] == {"reason": "rejected", "status": None, "message": "no such user", "at": at}
    assert "callback" not in task
    assert await api.post("/nack", {"leases": [task["lease"]], "message": "no disk"}) == ok(nacked=1, lost=[])
    shown = await query(api, "a")
    assert (shown["topic"], shown["state"], shown["attempts"], shown["has_retry"]) == ("failed", "error", 1, 1)
    assert (shown["last_error"]["message"], shown["dead_letter"]["message"]) == ("no disk", "no such user")
    assert "expires_at" not in shown


async def test_queries_lists_and_explanations_show_how_it_died(api: ApiFixture) -> None:
    await reject(api, "a")
    shown = await query(api, "a")
    assert (shown["topic"], shown["state"], shown["attempts"], shown["has_retry"]) == ("failed", "delay", 0, 0)
    assert (shown["last_error"]["reason"], shown["dead_letter"]["topic"]) == ("rejected", "jobs")
    assert [failure["message"] for failure in shown.pop("failures")] == ["no such user"]
    assert await api.post("/list", {"topic": "failed", "state": "delay"}) == ok(tasks=[shown], cursor=None)
    assert await api.post("/list", {"topic": "jobs", "state": "dead"}) == ok(tasks=[], cursor=None)
    _, explained = await api.post("/explain", {"id": "a"})
    assert explained["sentence"].endswith(
        "it came from jobs, where it died because its consumer rejected it: no such user"
    )
    assert explained["last_error"] == shown["last_error"]
    _, explained = await api.post("/explain", {"topic": "jobs"})
    assert (explained["policy"]["dead_to"], explained["policy"]["dead_ttl"]) == ("failed", 0)


async def test_the_death_is_counted_where_it_happened(api: ApiFixture) -> None:
    await reject(api, "a")
    assert _deaths(api.metrics, "jobs") == 1
    assert _deaths(api.metrics, "failed") is None


def _deaths(metrics: Metrics, topic: str) -> float | None:
    return metrics.registry.get_sample_value("later_topic_dead_total", {"topic": topic, "reason": "rejected"})


async def test_too_many_claims_let_a_task_move_when_it_is_claimed(api: ApiFixture) -> None:
    await set_policy(api, "jobs", max_claims=1)
    await api.post("/create", {"topic": "jobs", "id": "a"})
    [first] = await claim(api, "jobs")
    await api.post("/nack", {"leases": [first["lease"]], "delay": 0})
    await api.post("/run-now", {"id": "a"})
    assert (await api.post("/claim", {"topic": "jobs", "wait": 0.2}))[1]["tasks"] == []
    [second] = await claim(api, "failed")
    assert (second["dead_letter"]["reason"], second["dead_letter"]["attempts"]) == ("lost", 2)


async def test_a_task_with_a_callback_is_handed_out_with_it(api: ApiFixture) -> None:
    death = Death("order", "gone", 410, "answered 410", NOW, 1, None)
    await api.store.tasks.create([a_task(topic="failed", id="a", created_at=0, renewed_at=0, death=death)])
    [task] = await claim(api, "failed")
    assert (task["callback"], task["dead_letter"]["status"]) == ("http://127.0.0.1:8888/success", 410)


async def test_redrive_by_id_brings_a_waiting_task_back_to_where_it_died(api: ApiFixture) -> None:
    await reject(api, "a", "b", ttl=60)
    assert await api.post("/redrive", {"id": "a"}) == ok(redriven=1)
    shown = await query(api, "a")
    assert (shown["topic"], shown["state"], shown["last_error"]) == ("jobs", "delay", None)
    assert "expires_at" in shown
    assert "dead_letter" not in shown
    [task] = await claim(api, "jobs")
    assert (task["id"], task["attempt"]) == ("a", 1)
    assert await api.post("/redrive", {"topic": "failed"}) == ok(redriven=0)
    [other] = await claim(api, "failed")
    assert (other["id"], (await api.post("/redrive", {"id": "b"}))[0]) == ("b", 409)


async def test_a_namespaces_caller_brings_back_its_own_tasks_alone() -> None:
    async with serve_api(authorization=NamedCallers(), shards=2) as api:
        team, other = Tenant(api, "team"), Tenant(api, "other")
        death = Death("team/jobs", "gone", 410, "answered 410", NOW, 1, None)
        task = a_task(topic="team/failed", id="team/a", own_id=True, renewed_at=NOW, death=death)
        await api.store.tasks.create([task])
        assert (await other.post("/redrive", {"id": "team/a"}))[0] == 404
        assert (await team.post("/redrive", {"id": "a"}))[0] == 200
        assert (await team.post("/query", {"id": "a"}))[1]["topic"] == "team/jobs"


WARNING = (
    "Tasks of order have no callback (deliver pull), and lost calls one (deliver push): "
    'those that die move there, and are dead there, too ("no callback").'
)


async def test_a_pushed_dead_letter_topic_of_a_pulled_one_is_warned_of_at_either_write(api: ApiFixture) -> None:
    fields = {"dead_to": "lost", "deliver": "pull"}
    assert await set_policy(api, "order", **fields) == {**fields, "warning": WARNING}
    assert await api.get("/topics/order/policy") == (200, fields)
    assert await set_policy(api, "lost", retry=1) == {"retry": 1, "warning": WARNING}
    assert await set_policy(api, "lost", deliver="pull") == {"retry": 1, "deliver": "pull"}
    assert await set_policy(api, "order", dead_ttl=60) == {**fields, "dead_ttl": 60}


@each_case(
    ("topic", "dead_to", "detail"),
    [
        (
            "failed",
            "jobs",
            'a topic from which no dead task comes back, got "jobs": tasks that die in jobs move to failed',
        ),
        ("jobs", "jobs", 'another topic of the namespace default, got "jobs"'),
        ("jobs", "default/jobs", 'another topic of the namespace default, got "jobs"'),
        ("jobs", "shop/failed", 'another topic of the namespace default, got "shop/failed"'),
        ("shop%2Fjobs", "failed", 'another topic of the namespace shop, got "failed"'),
    ],
)
async def test_a_topic_is_refused_that_lets_tasks_come_back_or_leave_their_namespace(
    api: ApiFixture, topic: str, dead_to: str, detail: str
) -> None:
    answer = await api.request("PATCH", f"/topics/{topic}/policy", {"dead_to": dead_to})
    assert answer == bad_request(f"dead_to: expected {detail}", "dead_to")


async def test_the_applied_policy_shows_none_as_null_and_a_topic_may_have_none(api: ApiFixture) -> None:
    assert (await api.request("PATCH", "/namespaces/shop/policy", {"dead_to": "shop/failed", "dead_ttl": 9}))[0] == 200
    assert await set_policy(api, "shop%2Fmail", dead_to="") == {"dead_to": ""}
    applied = {}
    for topic in ("shop%2Fmail", "shop%2Forder", "order"):
        _, answer = await api.get(f"/topics/{topic}/policy?applied=true")
        applied[topic] = [(answer[field]["value"], answer[field]["level"]) for field in ("dead_to", "dead_ttl")]
    assert applied == {
        "shop%2Fmail": [(None, "topic"), (9, "namespace")],
        "shop%2Forder": [("shop/failed", "namespace"), (9, "namespace")],
        "order": [(None, "daemon"), (0, "daemon")],
    }


async def test_several_go_back_in_one_call(api: ApiFixture) -> None:
    await reject(api, "a", "b")
    status, answer = await api.post("/redrive", {"ids": ["b", "unknown", "a"]})
    assert (status, answer["moved"], answer["missing"], answer["failed"]) == (200, 2, 1, 0)
    assert [(await query(api, id))["topic"] for id in ("a", "b")] == ["jobs", "jobs"]
