"""Delays, with Zaqar's client: a message is handed out when its delay has passed, and never before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.zaqar.clients import bodies, claim, make_queue, post

if TYPE_CHECKING:
    from zaqarclient.queues.v2.client import Client

DELAY_S = 2
FAR_S = 600
WITHIN_S = 10


def test_a_message_is_handed_out_after_its_delay_and_never_before(client: Client) -> None:
    of_queue = make_queue(client, "of-queue", _default_message_delay=DELAY_S)
    of_message = make_queue(client, "of-message", _default_message_delay=FAR_S)
    queues = [of_queue, of_message]
    posted_at = time.time()
    post(of_queue, "late")
    post(of_message, "late", delay=DELAY_S)
    post(of_message, "never")
    handed_out_at: dict[str, float] = {}
    while len(handed_out_at) < len(queues) and time.time() < posted_at + WITHIN_S:
        for queue in queues:
            if queue.name not in handed_out_at and bodies(claim(queue)) == ["late"]:
                handed_out_at[queue.name] = time.time()
    assert sorted(handed_out_at) == ["of-message", "of-queue"]
    assert min(handed_out_at.values()) >= posted_at + DELAY_S
    assert bodies(claim(of_message)) == []


def test_a_message_without_a_delay_is_due_at_once(client: Client) -> None:
    delayed = make_queue(client, "delayed", _default_message_delay=FAR_S)
    normal = make_queue(client, "normal")
    post(delayed, "now", delay=0)
    post(normal, "now", delay=FAR_S)  # a queue without a default delay has no delayed messages
    assert bodies(claim(delayed)) == bodies(claim(normal)) == ["now"]


def test_a_delay_counts_as_soon_as_its_queue_is_made(client: Client) -> None:
    """Whichever process made the queue, and whichever gets the message."""
    for number in range(8):
        queue = make_queue(client, f"jobs-{number}", _default_message_delay=FAR_S)
        post(queue, "far")
        assert bodies(claim(queue)) == [], number


def test_a_change_of_the_default_moves_nothing_that_is_posted(client: Client) -> None:
    queue = make_queue(client, _default_message_delay=FAR_S)
    post(queue, "far")
    for number in range(4):
        queue.metadata(new_meta={"_default_message_delay": 0})
        post(queue, f"now-{number}")
        queue.metadata(new_meta={"_default_message_delay": FAR_S})
        post(queue, "far")
        assert bodies(claim(queue)) == [f"now-{number}"]


def test_nothing_hands_out_a_delayed_message(client: Client) -> None:
    queue = make_queue(client, _default_message_delay=FAR_S)
    ids = post(queue, *range(5))
    assert bodies(queue.pop(5)) == bodies(claim(queue)) == []
    assert bodies(queue.messages(echo=True, include_claimed=True)) == []
    assert bodies(queue.messages(echo=True, include_delayed=True)) == [0, 1, 2, 3, 4]
    assert queue.message(ids[0]).body == 0  # who has its id may read it


def test_a_message_may_expire_before_its_delay_has_passed(client: Client) -> None:
    queue = make_queue(client, _default_message_delay=FAR_S)
    (id,) = post(queue, "x", ttl=60)
    assert bodies(claim(queue)) == []
    assert queue.message(id).ttl == 60


def test_a_delayed_message_can_be_deleted(client: Client) -> None:
    queue = make_queue(client, _default_message_delay=FAR_S)
    first, second, third, *_ = post(queue, *range(5))
    queue.message(first).delete()
    queue.delete_messages(second, third)
    assert bodies(queue.messages(echo=True, include_delayed=True)) == [3, 4]
    queue.purge()
    assert bodies(queue.messages(echo=True, include_delayed=True)) == []
