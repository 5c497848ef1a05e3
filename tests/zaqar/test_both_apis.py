"""One queue, two APIs: what Zaqar's client makes is seen and done by later's own calls and commands, and back."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.api_client import call, create, post, query
from tests.system.daemons import COMMAND, Daemon, environment
from tests.system.waiting import wait_until
from tests.zaqar import clients
from tests.zaqar.clients import bodies, claim, make_queue

if TYPE_CHECKING:
    from zaqarclient.queues.v2.client import Client
    from zaqarclient.queues.v2.message import Message

FAR_S = 600
LONG_TTL_S = 100_000


@pytest.fixture
def topic(project: str) -> str:
    """The topic that the queue `jobs` is."""
    return f"{project}/jobs"


def run(daemon: Daemon, *words: str) -> list[Any]:
    """Run a command that succeeds, and return its output: JSON, one value in each line."""
    env = {**environment(), "LATER_URL": daemon.url}
    done = subprocess.run(
        [*COMMAND, *words, "--json"], capture_output=True, text=True, env=env, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_commands_show_a_queue_and_its_messages(daemon: Daemon, client: Client, topic: str) -> None:
    queue = make_queue(client, _default_message_delay=FAR_S, _default_message_ttl=1000, color="red")
    now, far = clients.post(queue, {"number": 1}, delay=0), clients.post(queue, "far")
    (shown,) = run(daemon, "topics", "show", topic)
    assert shown["set"] == {
        "deliver": "pull", "delay_mode": "queue", "max_delay": 900, "default_delay": FAR_S, "ttl": 1000,
    }  # fmt: skip
    listed = run(daemon, "list", topic)
    assert [(task["id"], task["content"], task["callback"]) for task in listed] == [
        (now[0], '{"number": 1}', None),
        (far[0], "far", None),
    ]
    assert query(daemon.url, far[0])["topic"] == topic


def test_a_task_is_claimed_by_the_client(daemon: Daemon, client: Client, topic: str) -> None:
    queue = make_queue(client)
    created = create(daemon.url, topic=topic, content="made by create", headers={})
    (message,) = claim(queue)
    assert (message.id, message.body) == (created, "made by create")
    message.delete()
    assert call(daemon.url, "POST", "/query", {"id": created}).status == 404


def test_a_message_is_claimed_and_acked_by_the_own_calls(daemon: Daemon, client: Client, topic: str) -> None:
    queue = make_queue(client)
    (id,) = clients.post(queue, {"number": 1})
    (task,) = post(daemon.url, "/claim", {"topic": topic}).body["tasks"]
    assert (task["id"], json.loads(task["content"]), task["attempt"]) == (id, {"number": 1}, 1)
    assert bodies(claim(queue)) == []
    assert post(daemon.url, "/ack", {"leases": [task["lease"]]}).body == {"acked": 1, "lost": []}
    assert bodies(queue.messages(echo=True, include_claimed=True)) == []


def test_both_kinds_of_claims_share_one_order_and_no_message(daemon: Daemon, client: Client, topic: str) -> None:
    queue = make_queue(client)
    clients.post(queue, *range(6))
    taken: list[int] = []
    for _ in range(2):
        taken += bodies(claim(queue, limit=1))
        answer = post(daemon.url, "/claim", {"topic": topic, "max": 2}).body
        taken += [json.loads(task["content"]) for task in answer["tasks"]]
    assert taken == list(range(6))


def test_a_failed_task_waits_hidden_for_its_backoff(daemon: Daemon, client: Client, topic: str) -> None:
    queue = make_queue(client)
    (id,) = clients.post(queue, "x")
    (task,) = post(daemon.url, "/claim", {"topic": topic}).body["tasks"]
    assert post(daemon.url, "/nack", {"leases": [task["lease"]], "delay": FAR_S}).body == {"nacked": 1, "lost": []}
    assert bodies(claim(queue)) == []
    assert queue.message(id).body == "x"


def test_a_queue_is_there_from_its_first_message_until_it_is_deleted(
    daemon: Daemon, client: Client, topic: str
) -> None:
    queue = client.queue("jobs")
    assert not queue.exists()
    clients.post(queue, "x", "y")
    claim(queue, limit=1)
    assert queue.exists()
    assert run(daemon, "topics", "show", topic)[0]["set"]["deliver"] == "pull"
    queue.delete()
    queue.delete()
    assert not queue.exists()
    assert run(daemon, "topics", "show", topic)[0]["set"] == {}
    assert run(daemon, "list", topic) == []
    assert queue.stats == {"messages": {"free": 0, "claimed": 0, "total": 0}}


def test_a_message_that_nobody_finishes_moves_to_the_dead_letter_queue(
    daemon: Daemon, client: Client, topic: str
) -> None:
    dead = make_queue(client, "dead")
    queue = make_queue(
        client, _max_claim_count=1, _dead_letter_queue=dead.name, _dead_letter_queue_messages_ttl=LONG_TTL_S
    )
    (id,) = clients.post(queue, {"number": 1})
    (task,) = post(daemon.url, "/claim", {"topic": topic, "lease": 1}).body["tasks"]

    def find_dead() -> list[Message]:
        assert bodies(claim(queue)) == []
        return list(dead.messages(echo=True))

    (message,) = wait_until(find_dead, "the message to move")
    assert (task["id"], message.id, message.body) == (id, id, {"number": 1})
    assert LONG_TTL_S <= message.ttl <= LONG_TTL_S + 60  # it counts from the message's post
    assert bodies(claim(dead)) == [{"number": 1}]


def test_the_queues_of_the_default_project_are_topics_without_a_namespace(daemon: Daemon) -> None:
    name = "of-the-default-project"
    client = clients.open_client(daemon.url, "default")
    (id,) = clients.post(make_queue(client, name), "x")
    assert query(daemon.url, id)["topic"] == name
    client.queue(name).delete()


def test_the_client_finds_the_server_well(client: Client) -> None:
    assert client.ping()
    assert isinstance(client.health(), dict)
    assert client.homedoc()["resources"]["rel/queue"]["href-template"] == "/v2/queues/{queue_name}"
