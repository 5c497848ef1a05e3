"""Draft and Task: what a caller asks for, and what later remembers of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from later.core.errors import UnreadableBody

BODY_VERSION = 1


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as a caller asks for it: every field as it came, None where it is absent.

    Units are those of the HTTP interface: `delay` and `ttl` in seconds, `execute_time` in Unix seconds.
    """

    topic: str | None = None
    callback: str | None = None
    delay: float | None = None
    execute_time: float | None = None
    retry: int | None = None
    content: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    id: str | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that was admitted. Times are ms of the store's clock.

    Strings and numbers make no circle: the collector, looking through them for one, takes a fifth of the work of
    reading many.
    """

    id: str
    own_id: bool
    """Did the caller choose the id? Then it is remembered for a while after the task has ended."""
    topic: str
    callback: str
    content: str
    headers: dict[str, str]
    max_retry: int
    created_at: int
    execute_at: int
    """When it was first meant to run. It never changes."""
    expires_at: int | None
    """From this moment on it is not delivered any more. None: never."""
    renewed_at: int | None = None
    """Since when its ttl counts, where it is not since its creation: it was dead, and brought back."""

    @property
    def ttl_starts_at(self) -> int:
        """Since when its ttl counts."""
        return self.created_at if self.renewed_at is None else self.renewed_at

    def is_expired(self, now: int) -> bool:
        """At the tie, expiry wins."""
        return self.expires_at is not None and now >= self.expires_at


class _TaskBody(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the pool holds of a task: a MessagePack array, times as differences, for they are shorter."""

    version: int
    topic: str
    callback: str
    created_at: int
    delay_ms: int
    max_retry: int
    content: str
    own_id: bool
    headers: dict[str, str] | None
    ttl_ms: int | None


class _RenewedTaskBody(_TaskBody, frozen=True, array_like=True, gc=False):
    """The same with one more, which few tasks have: it costs the others nothing."""

    renewed_ms: int | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_RenewedTaskBody)


def encode(task: Task) -> bytes:
    """The body to store under the task's id."""
    body = _TaskBody(
        BODY_VERSION,
        task.topic,
        task.callback,
        task.created_at,
        task.execute_at - task.created_at,
        task.max_retry,
        task.content,
        task.own_id,
        task.headers or None,
        None if task.expires_at is None else task.expires_at - task.created_at,
    )
    if task.renewed_at is None:
        return _encoder.encode(body)
    return _encoder.encode([*msgspec.structs.astuple(body), task.renewed_at - task.created_at])


def decode(task_id: str, body: bytes) -> Task:
    """The task that `encode` made `body` from.

    Raises:
        UnreadableBody: it is none of ours, or of a version that this one does not know.
    """
    try:
        read = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableBody(f"the body of task {task_id!r} cannot be read: {error}") from error
    if read.version != BODY_VERSION:
        raise UnreadableBody(f"the body of task {task_id!r} has version {read.version}, not {BODY_VERSION}")
    return Task(
        id=task_id,
        own_id=read.own_id,
        topic=read.topic,
        callback=read.callback,
        content=read.content,
        headers=read.headers or {},
        max_retry=read.max_retry,
        created_at=read.created_at,
        execute_at=read.created_at + read.delay_ms,
        expires_at=None if read.ttl_ms is None else read.created_at + read.ttl_ms,
        renewed_at=None if read.renewed_ms is None else read.created_at + read.renewed_ms,
    )


class _RandomPool:
    """Random bytes, many at a time: asking the system for each id takes a quarter of the work on a task of a batch."""

    def __init__(self) -> None:
        self._left: Iterator[bytes] = iter(())
        os.register_at_fork(after_in_child=self._forget)

    def next(self) -> bytes:
        """Sixteen bytes that nobody has had."""
        for sixteen in self._left:
            return sixteen
        some = os.urandom(4096)
        self._left = iter([some[start : start + 16] for start in range(0, len(some), 16)])
        return self.next()

    def _forget(self) -> None:
        """Or parent and child would make the same ids."""
        self._left = iter(())


_random_pool = _RandomPool()


def new_id() -> str:
    """An id for a task whose caller chose none: a UUID of version 4 (RFC 9562)."""
    random = _random_pool.next()
    text = random.hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[random[8] >> 6]}{text[17:20]}-{text[20:]}"


_VARIANT = "89ab"
_RFC_VARIANT = range(0x80, 0xC0)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""A canonical one: in lower case, of the RFC's variant."""


def pack_id(task_id: str) -> bytes:
    """The id as the store holds it: a canonical UUID as its 16 bytes, which saves 24 wherever it stands.

    No caller's id can be mistaken for one: ids are ASCII, and byte 8 of a UUID of the RFC 9562 variant is
    not.
    """
    return bytes.fromhex(task_id.replace("-", "")) if _UUID.fullmatch(task_id) else task_id.encode()


def unpack_id(stored: bytes) -> str:
    """The inverse of `pack_id`; bytes that no id has are shown as they are, escaped."""
    if len(stored) == 16 and stored[8] in _RFC_VARIANT:
        text = stored.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return stored.decode("utf-8", "backslashreplace")
