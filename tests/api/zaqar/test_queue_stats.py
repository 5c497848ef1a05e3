"""`GET /v2/queues/{queue}/stats`: how many messages are free and claimed, and the oldest and the newest."""

from __future__ import annotations

from typing import Any

from later.core.task import Task
from later.store.types import ClaimRequest
from tests.api.api_fixture import ApiFixture
from tests.api.zaqar.zaqar_api import PROJECT, ZaqarApi
from tests.builders import NOW, a_task

STATS, TOPIC = "/v2/queues/jobs/stats", f"{PROJECT}/jobs"


def message(age: int = 0, **changes: Any) -> Task:
    """Return a message that was posted some seconds ago."""
    return a_task(topic=TOPIC, callback="", created_at=NOW - age * 1000, **changes)


async def stats(zaqar: ZaqarApi) -> dict[str, Any]:
    answer = await zaqar.call("GET", STATS)
    assert (answer.status, [*answer.body]) == (200, ["messages"])
    return dict(answer.body["messages"])


async def claim(api: ApiFixture, limit: int, lease_end: int) -> None:
    await api.store.tasks.claim([ClaimRequest(TOPIC, 0, limit, is_pull=True)], NOW, lease_end)


async def test_a_queue_without_messages_has_no_oldest_and_newest(zaqar: ZaqarApi) -> None:
    nothing = {"claimed": 0, "free": 0, "total": 0}
    assert await stats(zaqar) == nothing
    await zaqar.call("PUT", "/v2/queues/jobs")
    assert await stats(zaqar) == nothing


async def test_delayed_messages_are_free_and_the_total_is_the_sum(zaqar: ZaqarApi, api: ApiFixture) -> None:
    await zaqar.call("PUT", "/v2/queues/jobs")
    await api.store.tasks.create([message(), message(), message()])
    await claim(api, 2, NOW + 60_000)
    await api.store.tasks.create([message(delay=5)])
    counts = await stats(zaqar)
    assert (counts["claimed"], counts["free"], counts["total"]) == (2, 2, 4)


async def test_a_message_whose_claim_has_ended_is_free(zaqar: ZaqarApi, api: ApiFixture) -> None:
    await zaqar.call("PUT", "/v2/queues/jobs")
    await api.store.tasks.create([message()])
    await claim(api, 1, NOW - 2)
    counts = await stats(zaqar)
    assert (counts["claimed"], counts["free"], counts["total"]) == (0, 1, 1)


async def test_the_oldest_and_the_newest_message_are_shown_also_if_they_are_claimed(
    zaqar: ZaqarApi, api: ApiFixture
) -> None:
    await zaqar.call("PUT", "/v2/queues/jobs")
    tasks = [message(age=90), message(age=61), message(age=30), message(age=0, delay=1)]
    await api.store.tasks.create(tasks)
    await claim(api, 1, NOW + 60_000)
    counts = await stats(zaqar)
    path = "/v2/queues/jobs/messages/"
    assert counts["oldest"] == {"href": f"{path}{tasks[0].id}", "age": 90, "created": "2027-01-15T07:58:30Z"}
    assert counts["newest"] == {"href": f"{path}{tasks[-1].id}", "age": 0, "created": "2027-01-15T08:00:00Z"}
