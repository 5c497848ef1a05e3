"""The callback of a policy in the API: creates without one, edits, explanations, and the policies themselves."""

from __future__ import annotations

import json
from typing import Any

from tests.api.api_fixture import ApiFixture, serve_api
from tests.builders import NOW, a_task
from tests.cases import each_case

OLD, NEW, OWN = "http://old.example/", "http://new.example/", "http://own.example/"
MISSING = (
    "callback: expected an absolute http or https URL of at most 2048 characters, got nothing: "
    "only a topic with deliver pull has tasks without, or one whose policy has a callback"
)


async def set_policy(api: ApiFixture, path: str = "topics/order", **fields: object) -> dict[str, Any]:
    status, answer = await api.request("PATCH", f"/{path}/policy", fields)
    assert status == 200, answer
    return dict(answer)


async def callback_of(api: ApiFixture, id: str) -> str | None:
    status, task = await api.post("/query", {"id": id})
    assert status == 200
    return task["callback"]  # type: ignore[no-any-return]  # as JSON has it


async def test_a_create_needs_no_callback_where_the_policy_has_one(api: ApiFixture) -> None:
    await set_policy(api, callback=OLD)
    await set_policy(api, "namespaces/shop", callback=OLD)
    await set_policy(api, "topics/shop%2Fnone", callback="")
    for topic in ("order", "shop/mail"):
        for id, own in ((f"{topic[:4]}-none", None), (f"{topic[:4]}-own", OWN)):
            body = {"id": id, "topic": topic, "callback": own}
            assert (await api.post("/create", body))[0] == 200
            assert await callback_of(api, id) == own
    for topic in ("shop/none", "other"):
        status, answer = await api.post("/create", {"topic": topic})
        assert (status, answer["field"], answer["detail"]) == (400, "callback", MISSING)
    _, batch = await api.post("/create/batch", [{"topic": "order"}, {"topic": "other"}, {"topic": "shop/mail"}])
    assert (batch["created"], batch["refused"]) == (2, 1)
    _, listed = await api.post("/list", {"topic": "order", "state": "delay"})
    assert sorted(str(task["callback"]) for task in listed["tasks"]) == sorted(["None", "None", OWN])


async def test_in_a_pulled_topic_a_callback_is_refused_whatever_its_policy_has(api: ApiFixture) -> None:
    await set_policy(api, callback=OLD, deliver="pull")
    assert (await api.post("/create", {"topic": "order", "delay": 60}))[0] == 200
    await api.store.tasks.create([a_task(id="a", callback="", created_at=NOW - 1000)])
    status, answer = await api.post("/create", {"topic": "order", "callback": OWN})
    assert (status, answer["field"]) == (400, "callback")
    _, claimed = await api.post("/claim", {"topic": "order"})
    assert [("callback" in task, task["id"]) for task in claimed["tasks"]] == [(False, "a")]


async def test_an_update_gives_a_task_a_callback_of_its_own_and_null_takes_it_away(api: ApiFixture) -> None:
    await set_policy(api, callback=OLD)
    await api.post("/create", {"id": "a", "topic": "order", "delay": 60})
    for callback in (OWN, None, NEW):
        status, task = await api.post("/update", {"id": "a", "callback": callback})
        assert (status, task["callback"]) == (200, callback)
    status, task = await api.post("/update", {"id": "a", "callback": None, "retry": 7})
    assert (status, task["callback"], task["max_retry"]) == (200, None, 7)


async def test_null_takes_no_callback_away_that_a_task_needs(api: ApiFixture) -> None:
    await api.post("/create", {"id": "a", "topic": "order", "delay": 60, "callback": OWN})
    status, answer = await api.post("/update", {"id": "a", "callback": None})
    assert (status, answer["field"], answer["detail"]) == (400, "callback", MISSING)
    status, task = await api.post("/update", {"id": "a", "callback": None, "retry": 7})
    assert (status, task["callback"], task["max_retry"]) == (200, OWN, 7)


@each_case(
    ("policies", "sentence", "details"),
    [
        ({"topics/shop%2Forder": {"callback": OLD}},
         f"it has no callback of its own: that of its topic's policy is called, {OLD}",
         (OLD, "topic", "old.example")),
        ({"namespaces/shop": {"callback": OLD}},
         f"it has no callback of its own: that of its namespace's policy is called, {OLD}",
         (OLD, "namespace", "old.example")),
        ({}, "it has no callback, and neither has its topic's policy: without one it will be dead when it is due",
         (None, None, None)),
        ({"namespaces/shop": {"callback": OLD, "deliver": "pull"}}, "due in 60 s", ("absent", "absent", None)),
    ],
)  # fmt: skip
async def test_an_explanation_says_whose_callback_is_called(
    policies: dict[str, dict[str, Any]], sentence: str, details: tuple[str | None, str | None, str | None]
) -> None:
    async with serve_api() as api:
        for path, fields in policies.items():
            await set_policy(api, path, **fields)
        await api.store.tasks.create([a_task(id="a", topic="shop/order", callback="", created_at=NOW, delay=60)])
        _, answer = await api.post("/explain", {"id": "a"})
        assert answer["sentence"].endswith(sentence)
        assert (answer.get("callback", "absent"), answer.get("callback_from", "absent"), answer["origin"]) == details


async def test_an_explanation_of_a_task_with_a_callback_is_as_before(api: ApiFixture) -> None:
    await set_policy(api, callback=OLD)
    await api.post("/create", {"id": "a", "topic": "order", "callback": OWN, "delay": 60})
    _, answer = await api.post("/explain", {"id": "a"})
    assert "callback" not in answer
    assert "callback" not in answer["sentence"]
    assert answer["origin"] == "own.example"


async def test_topics_show_the_callback_that_applies(api: ApiFixture) -> None:
    assert await set_policy(api, callback=OLD) == {"callback": OLD}
    assert (await api.get("/topics/order"))[1]["policy"]["callback"] == OLD
    assert (await api.get("/topics/other"))[1]["policy"]["callback"] is None
    assert await set_policy(api, callback=None) == {}


async def test_the_audit_trail_shows_no_query_of_a_callback(api: ApiFixture) -> None:
    await set_policy(api, callback=f"{OLD}hook?token=s3cret")
    await set_policy(api, callback=f"{NEW}?token=s3cret")
    await api.store.audit_trail.flush()
    events = [entry.fields async for entry in api.store.audit_trail.read()]
    assert "s3cret" not in json.dumps(events)
    shown = [(event["before"], event["after"]) for event in events]
    assert shown[-1] == ({"callback": f"{OLD}hook?…"}, {"callback": f"{NEW}?…"})


async def test_pulsars_routes_leave_the_callback_alone(api: ApiFixture) -> None:
    path = "/admin/v2/persistent/public/default/order/delayedDelivery"
    await set_policy(api, callback=OLD)
    for method, body in (("POST", {"maxDeliveryDelayInMillis": 5000}), ("DELETE", None)):
        assert (await api.request(method, path, body))[0] == 204
        assert (await api.get("/topics/order/policy"))[1]["callback"] == OLD


async def test_older_daemons_refuse_a_store_with_such_a_policy(api: ApiFixture) -> None:
    await set_policy(api, callback="")
    assert not await api.client.execute("needs", ("HGET", api.keys.meta, "needs"))
    await set_policy(api, callback=OLD)
    assert await api.client.execute("needs", ("HGET", api.keys.meta, "needs")) == b"callback"


async def test_tasks_that_die_without_a_callback_of_their_own_are_warned_of(api: ApiFixture) -> None:
    warned = await set_policy(api, callback=OLD, dead_to="failed")
    assert warned["warning"] == (
        "Tasks of order may have no callback of their own, and failed calls one (deliver push): "
        'those that die move there, and are dead there, too ("no callback").'
    )
    assert "warning" not in await set_policy(api, "topics/failed", callback=NEW)
