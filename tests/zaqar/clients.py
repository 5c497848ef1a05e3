"""Zaqar's client as its users have it: each call opens a connection, so that any process of a daemon gets it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zaqarclient.queues import client
from zaqarclient.queues.v2 import core
from zaqarclient.queues.v2.claim import Claim
from zaqarclient.queues.v2.client import Client
from zaqarclient.queues.v2.message import Message
from zaqarclient.queues.v2.queues import Queue

TTL_S = 300


def open_client(url: str, project: str) -> Client:
    """Return a client of version 2 without authentication."""
    return client.Client(
        url, version=2, conf={"auth_opts": {"backend": "noauth", "options": {"os_project_id": project}}}
    )


def make_queue(client: Client, name: str = "jobs", **metadata: Any) -> Queue:
    """Make a queue with these metadata, and return it."""
    request, transport = client._request_and_transport()
    core.queue_create(transport, request, name, metadata=metadata)
    return client.queue(name)


def post(queue: Queue, *contents: object, **fields: Any) -> list[str]:
    """Post messages in one call, with the same further fields, and return their ids."""
    posted = queue.post([{"body": body, "ttl": TTL_S, **fields} for body in contents])
    return [href.rpartition("/")[2] for href in posted["resources"]]


def claim(queue: Queue, limit: int = 20) -> Claim:
    """Claim up to so many messages."""
    return queue.claim(ttl=TTL_S, grace=60, limit=limit)


def bodies(messages: Iterable[Message]) -> list[Any]:
    return [message.body for message in messages]
