"""The lease of a consumer on a claimed task, and its token: the text by which any process knows the lease again.

A consumer sends the token back to finish the task, to give it back or to keep it for longer. It is opaque to the
consumer, and not signed: its fence is drawn at random, so that nobody can make up a token that counts, and a token
that has lost its lease changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import struct

import msgspec

from later.core.errors import Refused
from later.core.policy_scopes import namespace_from_topic
from later.core.task import Task, pack_id, unpack_id
from later.core.task_names import name_prefix
from later.core.validation import MAX_EXACT, MAX_TTL_MS, parse_topic

MAX_CLAIMED = 500
"""Tasks of one claim; leases of its `done`, and of its `failed`."""
MAX_TOKEN_CHARS = 2048
"""More than a token has with the longest topic and the longest id, that of a namespace's caller."""
_VERSION = 1
_HEAD = struct.Struct(">BBQQB")
"""Version, flags, fence, due time, number of bytes of the topic's name; the name and the packed id follow.

With the flag `_REMEMBERS` the task's `remember_ms` stands between them and the head."""
_REMEMBER = struct.Struct(">Q")
_HAS_TTL, _OWN_ID, _NAMESPACED_UUID, _REMEMBERS = 1, 2, 4, 8
_ALL_FLAGS = 15


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A consumer's lease on a task: which claim of it, and what the store must know to finish the task.

    `due_at` (ms) is when the task was due, to which it returns if it is given back. The other fields are those of
    `Task`.
    """

    topic: str
    id: str
    fence: int
    due_at: int
    has_ttl: bool = False
    own_id: bool = False
    is_namespaced_uuid: bool = False
    remember_ms: int | None = None

    @property
    def name(self) -> str:
        """The name of the task (see `task_names`)."""
        return f"{name_prefix(namespace_from_topic(self.topic))}{self.id}" if self.is_namespaced_uuid else self.id


def lease_of(task: Task, fence: int, due_at: int) -> Lease:
    """Return the lease of a claim of a task."""
    return Lease(
        topic=task.topic,
        id=task.id,
        fence=fence,
        due_at=due_at,
        has_ttl=task.expires_at is not None,
        own_id=task.own_id,
        is_namespaced_uuid=task.is_namespaced_uuid,
        remember_ms=task.remember_ms,
    )


def encode_lease(lease: Lease) -> str:
    """Return the token of a lease: letters, digits, `-` and `_`."""
    topic = lease.topic.encode()
    flags = lease.has_ttl * _HAS_TTL | lease.own_id * _OWN_ID | lease.is_namespaced_uuid * _NAMESPACED_UUID
    memory = b""
    if lease.remember_ms is not None:
        flags, memory = flags | _REMEMBERS, _REMEMBER.pack(lease.remember_ms)
    head = _HEAD.pack(_VERSION, flags, lease.fence, lease.due_at, len(topic)) + memory
    return base64.urlsafe_b64encode(head + topic + pack_id(lease.id)).rstrip(b"=").decode()


def decode_lease(token: str, field: str = "leases") -> Lease:
    """Return the lease that `encode_lease` made `token` from; `field` is where it was given.

    Raises:
        Refused: it is no token.
    """
    try:
        lease = _decode(token)
    except (ValueError, struct.error, binascii.Error, Refused):
        lease = None
    if lease is None:
        raise Refused(f"{field}: expected leases as /claim answers them, got something else", field)
    return lease


def _decode(token: str) -> Lease | None:
    """Return a token's lease; None if it cannot be one. Raises ValueError or Refused for some that cannot."""
    if len(token) > MAX_TOKEN_CHARS:
        return None
    data = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), b"-_", validate=True)
    version, flags, fence, due_at, topic_bytes = _HEAD.unpack_from(data)
    if base64.urlsafe_b64encode(data).rstrip(b"=") != token.encode():
        return None
    if version != _VERSION or flags > _ALL_FLAGS or max(fence, due_at) > MAX_EXACT:
        return None
    remember_ms, names = None, data[_HEAD.size :]
    if flags & _REMEMBERS:
        [remember_ms], names = _REMEMBER.unpack_from(names), names[_REMEMBER.size :]
    topic, packed = names[:topic_bytes].decode(), names[topic_bytes:]
    id = unpack_id(packed)
    if parse_topic(topic) != topic or not id or pack_id(id) != packed or (remember_ms or 0) > MAX_TTL_MS:
        return None
    return Lease(
        topic=topic,
        id=id,
        fence=fence,
        due_at=due_at,
        has_ttl=bool(flags & _HAS_TTL),
        own_id=bool(flags & _OWN_ID),
        is_namespaced_uuid=bool(flags & _NAMESPACED_UUID),
        remember_ms=remember_ms,
    )
