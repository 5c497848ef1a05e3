"""Tasks of pulled topics, which have no callback: what is created, shown and edited."""

from __future__ import annotations

from later.core.address_guard import AddressGuard
from later.core.policy import Deliver, Policy
from tests.api.api_fixture import serve_api
from tests.builders import NOW, a_task

GUARD = AddressGuard(is_own=lambda address: False, is_on=True, https_only=True)


async def test_a_task_without_a_callback_is_created_and_shown_with_none_also_with_the_guard() -> None:
    async with serve_api(policy=Policy(deliver=Deliver.PULL), guard=GUARD) as api:
        status, created = await api.post("/create", {"topic": "jobs", "content": "hello"})
        assert status == 200
        assert (await api.post("/query", {"id": created["id"]}))[1]["callback"] is None
        status, answer = await api.post("/create", {"topic": "jobs", "callback": "https://h.example/"})
        assert (status, answer["field"]) == (400, "callback")
        status, answer = await api.post("/update", {"id": created["id"], "callback": "https://h.example/"})
        assert (status, answer["field"]) == (400, "callback")
        assert (await api.post("/update", {"id": created["id"], "content": "new"}))[0] == 200


async def test_the_explanation_of_a_due_task_names_its_consumers() -> None:
    async with serve_api(policy=Policy(deliver=Deliver.PULL)) as api:
        await api.store.tasks.create([a_task(id="a", callback="", created_at=NOW - 1000)])
        status, answer = await api.post("/explain", {"id": "a"})
        assert (status, answer["policy"]["deliver"]) == (200, "pull"), answer
        assert answer["sentence"].startswith("waits for a consumer (its topic has deliver pull); due for ")
