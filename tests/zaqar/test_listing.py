"""Listings of messages and queues, with Zaqar's client: echo, markers, and pages past what is hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.system.daemons import Daemon
from tests.zaqar.clients import bodies, claim, make_queue, open_client, post

if TYPE_CHECKING:
    from zaqarclient.queues.v2.client import Client
    from zaqarclient.queues.v2.queues import Queue

FAR_S = 600


def stream(queue: Queue, **parameters: Any) -> list[Any]:
    """Return the contents on all pages."""
    return bodies(queue.messages(**parameters).stream())


def first_page(client: Client, **parameters: Any) -> dict[str, Any]:
    """Return the first page of the queue `jobs` as it is answered."""
    from zaqarclient.queues.v2 import core

    request, transport = client._request_and_transport()
    return dict(core.message_list(transport, request, "jobs", **parameters))


def test_a_client_sees_its_own_messages_if_it_asks_for_them(client: Client, other: Client) -> None:
    post(make_queue(client), "mine")
    post(other.queue("jobs"), "yours")
    assert bodies(client.queue("jobs").messages()) == ["yours"]
    assert bodies(other.queue("jobs").messages(echo=False)) == ["mine"]
    assert bodies(client.queue("jobs").messages(echo=True)) == ["mine", "yours"]


def test_pages_lead_past_the_messages_of_a_client_itself(client: Client, other: Client) -> None:
    queue = make_queue(client)
    for _ in range(5):
        post(queue, *["mine"] * 20)
    post(other.queue("jobs"), *range(7))
    post(queue, *["mine"] * 20)
    post(other.queue("jobs"), *range(7, 12))
    assert len(first_page(client, limit=5)["messages"]) == 5
    assert stream(queue, limit=5) == list(range(12))
    assert stream(queue) == list(range(12))


def test_pages_lead_past_claimed_messages(client: Client) -> None:
    queue = make_queue(client)
    post(queue, *range(40))
    claim(queue, limit=20)
    claim(queue, limit=5)
    assert stream(queue, echo=True, limit=4) == list(range(25, 40))
    assert sorted(stream(queue, echo=True, limit=4, include_claimed=True)) == list(range(40))


def test_pages_lead_past_delayed_messages(client: Client) -> None:
    queue = make_queue(client, _default_message_delay=FAR_S)
    for start in range(0, 10, 2):
        post(queue, *["far"] * 15)
        post(queue, start, start + 1, delay=0)
    assert stream(queue, echo=True, limit=3) == list(range(10))
    assert len(stream(queue, echo=True, limit=20, include_delayed=True)) == 85


def test_a_marker_needs_nothing_to_be_there_still(client: Client) -> None:
    queue = make_queue(client)
    ids = post(queue, *range(9))
    page = first_page(client, echo=True, limit=3)
    queue.delete_messages(*ids[:4])
    (link,) = page["links"]
    followed = client.follow(link["href"])
    assert [message["body"] for message in followed["messages"]] == [4, 5, 6]
    assert (link["rel"], link["href"].startswith("/v2/queues/jobs/messages?")) == ("next", True)
    assert not set("{}") & set(link["href"])


def test_new_messages_appear_behind_a_marker(client: Client) -> None:
    queue = make_queue(client)
    post(queue, "old")
    page = first_page(client, echo=True)
    post(queue, "new")
    followed = client.follow(page["links"][0]["href"])
    assert [message["body"] for message in followed["messages"]] == ["new"]


def test_an_empty_page_has_no_links(client: Client) -> None:
    make_queue(client)
    assert first_page(client) == {"messages": [], "links": []}
    assert first_page(client, marker="no-such-marker") == {"messages": [], "links": []}


def test_the_default_page_has_ten_messages(client: Client) -> None:
    post(make_queue(client), *range(12))
    assert len(first_page(client, echo=True)["messages"]) == 10


def test_what_may_be_json_comes_back_as_it_was(client: Client) -> None:
    queue = make_queue(client)
    contents: list[Any] = [
        None, True, False, 0, -1, 1.5, 9223372036854775807, -9223372036854775808, "", "text", "{}", "é \U0001f600 \x00",
        [], {}, [None, [{}]], {"a": {"b": ["{c}", 0.1]}, "é": None}, "1", '"', 1e300,
    ]  # fmt: skip
    ids = post(queue, *contents)
    assert stream(queue, echo=True) == contents
    assert bodies(queue.messages(*ids)) == contents
    assert [queue.message(id).body for id in ids] == contents
    assert bodies(claim(queue)) == contents


def test_a_message_has_the_fields_that_the_client_knows_and_no_others(client: Client) -> None:
    queue = make_queue(client)
    post(queue, "x")
    (message,) = first_page(client, echo=True)["messages"]
    assert {"id", "href", "ttl", "age", "body"} <= set(message)
    assert set(message) <= {"id", "href", "ttl", "age", "body", "claim_id", "claim_count", "checksum"}
    assert (message["href"], message["ttl"]) == (f"/v2/queues/jobs/messages/{message['id']}", 300)
    assert 0 <= message["age"] <= 5


def test_queues_are_listed_by_name_on_pages(client: Client) -> None:
    names = sorted(f"q-{number}" for number in range(25))
    for name in reversed(names):
        make_queue(client, name, of=name)
    pages, count = client.queues(limit=7, with_count=True, detailed=True)
    listed = list(pages.stream())
    assert [queue.name for queue in listed] == names
    assert [queue._metadata["of"] for queue in listed] == names
    assert count == 25


def test_projects_see_nothing_of_each_other(daemon: Daemon, client: Client, project: str) -> None:
    stranger = open_client(daemon.url, f"{project}-not")
    (id,) = post(make_queue(client, color="red"), "secret")
    make_queue(stranger)
    queue = stranger.queue("jobs")
    assert "color" not in queue.metadata()
    assert stream(queue, echo=True, include_claimed=True, include_delayed=True) == []
    assert bodies(claim(queue)) == bodies(queue.pop(5)) == []
    queue.delete_messages(id)
    queue.purge()
    queue.delete()
    assert [queue.name for queue in stranger.queues()[0]] == []
    assert bodies(claim(client.queue("jobs"))) == ["secret"]
