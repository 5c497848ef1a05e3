"""Two tenants and an operator use the same ids: what a tenant is answered does not depend on what the others do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.api.topics import TOPIC_ORDERS
from later.core.delivery_sample import SampledDelivery
from later.core.history import LONG, SHORT
from later.core.retry import SettleTarget, Verdict
from later.store.history import HistoryEntry
from later.store.types import ClaimRequest, Settlement
from tests.api.api_fixture import MINIMAL, Answer, ApiFixture, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW, a_task

TENANTS = ("alpha", "omega")
UUIDS = {
    "alpha": "0190163d-8694-739b-aea5-966c26f8ad90",
    "omega": "5f0c6b1e-7d3a-4f6b-9a1d-2c3b4a5d6e7f",
    "operator": "a3bb189e-8bf9-4c44-9c3a-1b2f3c4d5e6f",
}
"""The UUIDs that each caller creates. All tenants ask for all of them."""
IDS = ("a", "b", *UUIDS.values(), *(f"{tenant}/a" for tenant in TENANTS))
OPERATORS_IDS = ("a", "b", UUIDS["operator"])
"""The ids that the operator names: it may change a tenant's task, if it names it."""
Step = tuple[str, str, str, str]
"""A caller, what it does, an id, and a topic of its own."""

ACTIONS = (
    "create", "create", "create", "create/batch", "query", "query/batch", "update", "run-now", "redrive", "delete",
    "delete/batch", "explain", "list", "topics", "purge", "job", "jobs", "deliver", "bury",
)  # fmt: skip
actions, topics = st.sampled_from(ACTIONS), st.sampled_from(["x", "y"])
tenants_steps = st.tuples(st.sampled_from(TENANTS), actions, st.sampled_from(IDS), topics)
operators_steps = st.tuples(st.just("operator"), actions, st.sampled_from(OPERATORS_IDS), topics)
steps = st.lists(st.one_of(tenants_steps, tenants_steps, operators_steps), max_size=16)


def test_a_tenant_is_answered_the_same_whatever_the_others_do() -> None:
    with asyncio.Runner() as runner:
        served = serve_api(authorization=NamedCallers(), shards=2)
        api = runner.run(served.__aenter__())

        @given(steps)
        def check(taken: list[Step]) -> None:
            together = runner.run(answers(api, taken))
            for tenant in TENANTS:
                own = [step for step in taken if step[0] == tenant]
                alone = runner.run(answers(api, own))
                assert [answer for step, answer in together if step[0] == tenant] == [answer for _, answer in alone]
                others = [name.encode() for name in (*TENANTS, "operator") if name != tenant]
                for (_, action, id, _), answer in alone:
                    assert not any(name in answer.replace(id.encode(), b"") for name in others), action

        check()
        runner.run(served.__aexit__(None, None, None))


FIGURES = (
    "/overview", "/overview?topics=200", *(f"/topics?sort={order}" for order in TOPIC_ORDERS),
    "/topics?sort=due&namespace=omega", "/forecast", "/forecast?hours=168", "/topics/alpha%2Fx/forecast?rate=1",
    "/topics/omega%2Fx/forecast", "/deliveries", "/deliveries?outcome=failed", "/deliveries?topic=omega%2Fx",
    "/history?series=done", "/history?series=done,dead,due&topic=alpha%2Fx", "/history?series=due&topic=omega%2Fx",
    "/workers", "/jobs", "/jobs?limit=1", "/jobs/a",
)  # fmt: skip


@pytest.mark.parametrize("own", [["alpha"], []], ids=["a busy tenant", "a tenant without tasks"])
async def test_the_figures_of_a_tenant_are_the_same_whatever_others_have(own: list[str]) -> None:
    alone = await figures_of("alpha", own)
    together = await figures_of("alpha", [*own, "omega", "default", "a", "alphabet"])
    assert [*together] == [*alone]
    for path, answer in alone.items():
        assert together[path] == answer, path


async def figures_of(tenant: str, namespaces: Sequence[str]) -> dict[str, Answer]:
    """Return what a tenant is answered at the figures, in a store where these namespaces have tasks of all kinds."""
    async with serve_api(authorization=NamedCallers(), shards=2) as api:
        for resolution in (SHORT, LONG):  # a daemon was there
            await api.store.history.add(resolution.last_full(NOW - 2), NOW, HistoryEntry(due_tasks={}))
        for name in namespaces:
            await add_tasks_of_all_kinds(api, name, 20 if name == tenant else 600_000)
        if {*namespaces} - {tenant}:
            operator = Tenant(api, "operator")
            await operator.call("PATCH", "/topics/omega%2Fqueue/policy", {"deliver": "pull"})
            await operator.call("POST", "/topics/omega%2Fx/pause", {})
        return {path: await Tenant(api, tenant).get(path) for path in FIGURES}


async def add_tasks_of_all_kinds(api: ApiFixture, namespace: str, late_ms: int) -> None:
    """Add tasks that wait, are due, in flight, dead and of a job, and what the history has of their topics."""
    x, y = f"{namespace}/x", f"{namespace}/y"
    tasks = [
        a_task(id=f"{namespace}/{kind}", own_id=True, topic=topic, created_at=NOW - late_ms, delay=delay)
        for kind, topic, delay in (("dead", y, 0), ("unack", y, 0), ("due", x, 0), ("delay", x, 900), ("week", y, 9**6))
    ]
    await api.store.tasks.create(tasks)
    requests = [ClaimRequest(y, shard.index, 9) for shard in api.keys.shards]
    results: list[Any] = await api.store.tasks.claim(requests, NOW, NOW + 30_000)
    dead = [claim for result in results for claim in result.claims if claim.id.endswith("dead")]
    await api.store.tasks.settle([Settlement(claim, Verdict(SettleTarget.DEAD, NOW), NOW + 60_000) for claim in dead])
    body = [{**MINIMAL, "topic": x, "id": "row"}]
    assert (await Tenant(api, namespace).post("/create/batch?job=a", body))[0] == 200
    delivery = SampledDelivery(
        id=f"{namespace}/due", topic=x, attempt=1, due_at=NOW, began_at=NOW, took_ms=3, outcome="failed", status=500,
        host=f"{namespace}.example", reason="status",
    )  # fmt: skip
    entry = HistoryEntry(counts={"c": 5, "xe": 1}, topics={x: [5, 4, 3, 2, 1]}, due_tasks={x: 1}, deliveries=[delivery])
    for resolution in (SHORT, LONG):
        await api.store.history.add(resolution.last_full(NOW - 2), NOW, entry)


async def answers(api: ApiFixture, taken: Sequence[Step]) -> list[tuple[Step, bytes]]:
    """Take these steps on an empty store, and return the answers."""
    await api.redis.flushall()
    return [(step, await take(api, *step)) for step in taken]


async def take(api: ApiFixture, caller: str, action: str, id: str, name: str) -> bytes:
    topic = name if caller == "operator" else f"{caller}/{name}"
    tenant = Tenant(api, caller)
    own_id = UUIDS[caller] if "-" in id else id
    body = {**MINIMAL, "topic": topic, "content": caller, "callback": f"http://{caller}.example/"}
    posts: dict[str, tuple[str, Any]] = {
        "create": ("/create", {**body, "id": own_id}),
        "create/batch": ("/create/batch?job=a", [{**body, "id": own_id}, {"id": id, "topic": "?"}]),
        "update": ("/update", {"id": id, "content": "changed"}),
        "query/batch": ("/query/batch", [{"id": id}, {"id": "b"}]),
        "delete/batch": ("/delete/batch", [{"id": id}, {"id": "b"}]),
        "list": ("/list", {"topic": topic, "state": "pending"}),
        "purge": (f"/topics/{topic.replace('/', '%2F')}/purge", {}),
        **{name: (f"/{name}", {"id": id}) for name in ("query", "run-now", "redrive", "delete", "explain")},
    }
    gets = {"topics": "/topics", "job": "/jobs/a", "jobs": "/jobs?limit=1"}
    if action in posts:
        return await tenant.send(*posts[action])
    if action in gets:
        return repr(await tenant.get(gets[action])).encode()
    return await end(api, topic, SettleTarget.DONE if action == "deliver" else SettleTarget.DEAD)


async def end(api: ApiFixture, topic: str, target: SettleTarget) -> bytes:
    """End the due tasks of a topic as a worker does, and return their ids, as receivers see them."""
    requests = [ClaimRequest(topic, shard.index, 9) for shard in api.keys.shards]
    results: list[Any] = await api.store.tasks.claim(requests, NOW, NOW + 30_000)
    claims = [claim for result in results for claim in result.claims]
    await api.store.tasks.settle([Settlement(claim, Verdict(target, NOW), NOW + 60_000) for claim in claims])
    return " ".join(sorted(claim.id for claim in claims)).encode()
