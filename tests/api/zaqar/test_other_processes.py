"""Queues that another process of the API has made or deleted a moment ago, of which this one has read nothing yet."""

from __future__ import annotations

import pytest

from later.core.json_patch import MetadataChange
from later.core.policy import Policy
from later.store.policies import PolicyBook
from later.store.queue_book import QueueBook
from tests.api.api_fixture import ApiFixture
from tests.api.zaqar.zaqar_api import PROJECT, ZaqarApi
from tests.builders import a_task

JOBS, TOPIC = "/v2/queues/jobs", f"{PROJECT}/jobs"
ONE = {"messages": [{"body": 1}]}


@pytest.fixture
def other(api: ApiFixture) -> QueueBook:
    """The queues as another process has them. The time in which policies are fresh does not pass here."""
    store = api.store
    policies = PolicyBook(store.client, store.keys, Policy(), store.clock.monotonic)
    return QueueBook(store.client, store.keys, policies, store.stats, store.topic_index, store.dead_letters)


async def test_a_queue_that_was_made_elsewhere_is_there(zaqar: ZaqarApi, other: QueueBook) -> None:
    await other.create(TOPIC, {"node": 31})
    assert (await zaqar.call("HEAD", JOBS)).status == 204
    await other.change(TOPIC, [MetadataChange("add", "node", 32)])
    assert (await zaqar.call("GET", JOBS)).body["node"] == 32
    await other.create(f"{PROJECT}/more", {})
    assert [queue["name"] for queue in (await zaqar.call("GET", "/v2/queues")).body["queues"]] == ["jobs", "more"]


async def test_messages_of_a_queue_that_was_made_elsewhere_are_popped(
    zaqar: ZaqarApi, api: ApiFixture, other: QueueBook
) -> None:
    await other.ensure(TOPIC)
    await api.store.tasks.create([a_task(topic=TOPIC, callback="", delay=-1)])
    answer = await zaqar.call("DELETE", f"{JOBS}/messages?pop=1")
    assert (answer.status, len(answer.body["messages"])) == (200, 1)


async def test_a_queue_that_was_deleted_elsewhere_is_made_anew_by_its_next_message(
    zaqar: ZaqarApi, api: ApiFixture, other: QueueBook
) -> None:
    await zaqar.call("PUT", JOBS, {"_default_message_delay": 60})
    await other.delete(TOPIC)
    assert (await zaqar.call("POST", f"{JOBS}/messages", ONE)).status == 201
    metadata = (await zaqar.call("GET", JOBS)).body
    assert metadata["_default_message_delay"] == 0
    assert (await zaqar.call("DELETE", f"{JOBS}/messages?pop=1")).body["messages"][0]["body"] == 1
