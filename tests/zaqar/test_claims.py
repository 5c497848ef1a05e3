"""Claims, with Zaqar's client: order, no overlap, what a claim may do, and what its end leaves."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.daemons import Daemon
from tests.zaqar.clients import bodies, claim, make_queue, open_client, post

if TYPE_CHECKING:
    from zaqarclient.queues.v2.client import Client

FEW = 5
CONSUMERS = 4
MANY = 200


def test_messages_are_claimed_in_the_order_in_which_they_were_posted(client: Client) -> None:
    queue = make_queue(client)
    for start in range(0, 60, 20):
        post(queue, *range(start, start + 20))
        time.sleep(0.002)  # two processes may get two posts within the same millisecond
    claimed = [bodies(claim(queue, limit=7)) for _ in range(10)]
    assert [len(part) for part in claimed] == [7] * 8 + [4, 0]
    assert [body for part in claimed for body in part] == list(range(60))


def test_each_message_is_done_once_by_consumers_that_also_release(daemon: Daemon, client: Client, project: str) -> None:
    queue = make_queue(client)

    def produce() -> list[Any]:
        for start in range(0, MANY, 10):
            post(queue, *range(start, start + 10))
        return []

    def consume() -> list[Any]:
        """Delete what is claimed one by one, and by many at once; pop some, and give back every third claim."""
        queue = open_client(daemon.url, project).queue("jobs")
        done: list[Any] = []
        for turn in itertools.count():
            made = claim(queue, limit=FEW)
            messages = list(made)
            if not messages:
                if producer.done():
                    return done
                continue
            first, *others = messages
            first.delete()
            done.append(first.body)
            if turn % 3 == 0:
                made.delete()
                done += bodies(queue.pop(2))
            elif others:
                queue.delete_messages(*(message.id for message in others))
                done += bodies(others)
        raise AssertionError

    with ThreadPoolExecutor(CONSUMERS + 1) as threads:
        producer = threads.submit(produce)
        consumers = [threads.submit(consume) for _ in range(CONSUMERS)]
        done = [body for consumer in consumers for body in consumer.result()]
    assert sorted(done) == list(range(MANY))
    assert queue.stats["messages"]["total"] == 0


def test_a_released_message_is_claimed_before_those_that_wait(client: Client) -> None:
    queue = make_queue(client)
    post(queue, *range(6))
    first = claim(queue, limit=3)
    claim(queue, limit=1)
    first.delete()
    assert bodies(claim(queue)) == [0, 1, 2, 4, 5]


def test_a_claim_shows_its_messages_until_they_are_deleted(client: Client) -> None:
    queue = make_queue(client)
    post(queue, *range(4))
    made = claim(queue, limit=3)
    messages = list(made)
    messages[1].delete()
    read = queue.claim(id=made.id)
    assert bodies(read) == [0, 2]
    assert [message.claim_id for message in messages] == [made.id] * 3
    assert read.ttl == 300
    assert 0 <= made.age <= 5


def test_an_update_sets_the_ttl_of_a_claim_anew(client: Client) -> None:
    queue = make_queue(client)
    post(queue, "x")
    made = claim(queue)
    made.update(ttl=1000, grace=60)
    assert queue.claim(id=made.id).ttl == 1000


def test_a_claim_lets_its_messages_live_until_it_ends_and_its_grace(client: Client) -> None:
    queue = make_queue(client)
    post(queue, "x", ttl=60)
    (message,) = claim(queue)
    assert message.ttl in (360, 361)
    assert queue.message(message.id).ttl == message.ttl


def test_a_claimed_message_is_deleted_by_its_claim_only(client: Client) -> None:
    from zaqarclient.transport import errors

    queue = make_queue(client)
    post(queue, "mine", "yours")
    mine, yours = claim(queue, limit=1), claim(queue, limit=1)
    (message,) = mine
    plain = queue.message(message.id)
    plain.href = plain.href.partition("?")[0]
    with pytest.raises(errors.ForbiddenError, match="it cannot be deleted without a valid claim ID"):
        plain.delete()
    plain.href += f"?claim_id={yours.id}"
    with pytest.raises(errors.ForbiddenError, match="This message is claimed"):
        plain.delete()
    message.delete()
    with pytest.raises(errors.ResourceNotFound, match=f"Message {message.id} does not exist in queue jobs for project"):
        queue.message(message.id)


def test_an_ended_claim_is_not_found(client: Client) -> None:
    from zaqarclient.transport import errors

    queue = make_queue(client)
    post(queue, "x")
    made = claim(queue)
    made.delete()
    made.delete()
    with pytest.raises(errors.ResourceNotFound, match=f"Claim {made.id} does not exist in queue jobs for project"):
        made.age  # noqa: B018 - it asks the server
    with pytest.raises(errors.ResourceNotFound):
        made.update(ttl=100)
    assert bodies(claim(queue)) == ["x"]


def test_a_claim_without_a_ttl_and_a_grace_has_the_default_ones(client: Client) -> None:
    queue = make_queue(client)
    post(queue, *range(12))
    made = queue.claim()
    assert len(list(made)) == 10
    assert queue.claim(id=made.id).ttl == 300


def test_a_claim_that_finds_nothing_is_empty(client: Client) -> None:
    queue = make_queue(client)
    assert bodies(claim(queue)) == []
    assert bodies(claim(client.queue("nowhere"))) == []


def test_pop_takes_the_oldest_that_are_free(client: Client) -> None:
    queue = make_queue(client)
    ids = post(queue, *range(6))
    claim(queue, limit=2)
    popped = list(queue.pop(3))
    assert bodies(popped) == [2, 3, 4]
    assert [message.id for message in popped] == ids[2:5]
    assert bodies(queue.pop(3)) == [5]
    assert bodies(queue.pop(3)) == []
    assert queue.stats["messages"] | {"oldest": 0, "newest": 0} == {
        "free": 0, "claimed": 2, "total": 2, "oldest": 0, "newest": 0,
    }  # fmt: skip
