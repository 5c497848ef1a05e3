"""Draft and Task: the task that a caller requests, and the task that the store holds."""

from __future__ import annotations

import os
import re

import msgspec

from later.core.clock import rfc3339
from later.core.errors import UnreadableBody
from later.core.past_failures import PastFailure, PastFailures
from later.core.trace_context import (
    TRACE_HEADERS,
    TRACEPARENT,
    find_traceparent,
    format_traceparent,
    parse_traceparent,
    stored_context,
)

BODY_VERSION = 1
SCHEDULED_HEADER = "later-scheduled"
"""The header that says at which time a task's schedule fired."""


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as a caller requests it: every field as it came, None if absent.

    Units are those of the HTTP interface: seconds, and for `execute_time` Unix seconds or RFC 3339.
    """

    topic: str | None = None
    callback: str | None = None
    delay: float | None = None
    execute_time: float | str | None = None
    retry: int | None = None
    content: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    id: str | None = None
    remember: float | None = None
    context: dict[str, str] | None = None
    if_exists: str | None = None
    durability: str | None = None


class Death(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task's death in the topic `topic`, from which it moved to that topic's dead-letter topic.

    `reason`, `status` and `message` are those of its last failure there, at `at` (ms), after so many `attempts`.
    `ttl_ms` is the ttl that it had there; None: it had none. `took_ms` and `earlier` are those of its last failure.
    Fields are only ever added at the end, with a default, as to a `Failure`.
    """

    topic: str
    reason: str
    status: int | None
    message: str
    at: int
    attempts: int
    ttl_ms: int | None
    took_ms: int | None = None
    earlier: PastFailures = ()

    @property
    def failures(self) -> PastFailures:
        """The failures of which it died, the oldest first."""
        last = PastFailure(self.attempts, self.at, self.reason, self.status, self.took_ms, self.message)
        return (*self.earlier, last)


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that was admitted. Times are ms of the store's clock.

    `gc=False`: strings and numbers form no reference cycles, and tracking them takes a fifth of the time that reading
    many tasks takes.
    """

    id: str
    own_id: bool
    """True if the caller chose the id, or may have to repeat the create with it. It is remembered after the end."""
    topic: str
    callback: str
    """"" if it has none: then consumers claim it, or the one of its topic's policy is called when it is due."""
    content: str
    headers: dict[str, str]
    max_retry: int
    created_at: int
    execute_at: int
    """The time at which it was first meant to run. It never changes."""
    expires_at: int | None
    """The time from which on it is not delivered any more; None: it does not expire."""
    renewed_at: int | None = None
    """The time from which its ttl counts if that is not its creation: it came back from `dead`, or moved, then."""
    is_namespaced_uuid: bool = False
    """True if the id is a UUID that a caller of the topic's namespace chose: that namespace alone remembers it."""
    client: bytes = b""
    """The 16 bytes of the Client-ID by which a message of Zaqar's API was posted; empty for any other task."""
    is_json: bool = False
    """True if the content is a JSON document, because the body of such a message was no string."""
    death: Death | None = None
    """Its death in another topic, from which it moved to this one; None: it did not."""
    is_follow_up: bool = False
    """True if later made it because another task ended. Its own end makes no task."""
    remember_ms: int | None = None
    """How long its id is remembered after its end, 0: not at all; None: for as long as the policy then says."""
    context: dict[str, str] | None = None
    """Values that its receiver gets beside the content, such as the id of the request that made it; None: no value."""
    scheduled_at: int | None = None
    """The time at which its schedule fired, which is earlier than `created_at` if that was late; None: no schedule."""
    trace_context: bytes = b""
    """The trace context of the request that created it, if that was kept (see `trace_context`)."""

    @property
    def ttl_starts_at(self) -> int:
        """The time from which its ttl counts."""
        return self.created_at if self.renewed_at is None else self.renewed_at


def headers_of_call(task: Task) -> dict[str, str]:
    """Return the task's own headers, with the trace context that was kept unless they have another one."""
    if not task.trace_context or find_traceparent(task.headers) is not None:
        return task.headers
    return {**task.headers, TRACEPARENT: format_traceparent(task.trace_context)}


def headers_of_claim(task: Task) -> dict[str, str]:
    """Return the headers that a consumer gets with a task: those of a call, and when its schedule fired."""
    headers = headers_of_call(task)
    if task.scheduled_at is None:
        return headers
    return {**headers, SCHEDULED_HEADER: rfc3339(task.scheduled_at)}


def creation_context(task: Task) -> bytes:
    """Return the trace context in which a task was created; b"" if there is none.

    Its header `traceparent` says so, or its field `context`, into which the Python library writes it, or else what was
    kept of the request.
    """
    own = find_traceparent(task.headers)
    if own is None and task.context is not None:
        own = task.context.get(TRACEPARENT)
    return task.trace_context if own is None else parse_traceparent(own)


def names_own_context(task: Task) -> bool:
    """Return True if the task's own headers, or its `context`, say which trace it belongs to."""
    return find_traceparent(task.headers) is not None or (task.context is not None and TRACEPARENT in task.context)


def task_in_span(task: Task, span: bytes, *, is_new_trace: bool) -> Task:
    """Return a task as it is called within a span: that is the context which its receiver gets.

    The header `tracestate` belongs to the trace in which the task was created, so it goes into no other.
    """
    if not task.headers:
        return msgspec.structs.replace(task, trace_context=span)
    left_out = TRACE_HEADERS if is_new_trace else {TRACEPARENT}
    headers = {name: value for name, value in task.headers.items() if name.lower() not in left_out}
    return msgspec.structs.replace(task, headers=headers, trace_context=span)


class _TaskBody(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The task's body in the store: a MessagePack array. Times are differences, because these are shorter."""

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


class _LongTaskBody(_TaskBody, frozen=True, array_like=True, gc=False):
    """A body with fields that few tasks have. They cost the others nothing."""

    renewed_ms: int | None = None
    is_namespaced_uuid: bool = False
    client: bytes = b""
    is_json: bool = False
    death: Death | None = None
    is_follow_up: bool = False
    remember_ms: int | None = None
    context: dict[str, str] | None = None
    scheduled_ms: int | None = None
    trace_context: bytes = b""


_LONG_DEFAULTS = _LongTaskBody.__struct_defaults__
"""The values of those fields in a body that ends before them. A daemon that does not know the last ones skips them."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_LongTaskBody)


def encode_task(task: Task) -> bytes:
    """Return the body to store under the task's id."""
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
    is_short = task.renewed_at is None and task.remember_ms is None and task.context is None
    is_short = is_short and task.scheduled_at is None and not task.trace_context
    if is_short and not (task.is_namespaced_uuid or task.client or task.is_json or task.death or task.is_follow_up):
        return _encoder.encode(body)
    renewed_ms = None if task.renewed_at is None else task.renewed_at - task.created_at
    scheduled_ms = None if task.scheduled_at is None else task.scheduled_at - task.created_at
    fields: list[object] = [
        renewed_ms, task.is_namespaced_uuid, task.client, task.is_json, task.death, task.is_follow_up, task.remember_ms,
        task.context, scheduled_ms, task.trace_context,
    ]  # fmt: skip
    while fields[-1] == _LONG_DEFAULTS[len(fields) - 1]:
        fields.pop()
    return _encoder.encode([*msgspec.structs.astuple(body), *fields])


def decode_task(task_id: str, body: bytes) -> Task:
    """Return the task that `encode_task` made `body` from.

    Raises:
        UnreadableBody: it is not a body, or it has a version that this code does not know.
    """
    try:
        stored = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableBody(f"the body of task {task_id!r} cannot be read: {error}") from error
    if stored.version != BODY_VERSION:
        raise UnreadableBody(f"the body of task {task_id!r} has version {stored.version}, not {BODY_VERSION}")
    return Task(
        id=task_id,
        own_id=stored.own_id,
        topic=stored.topic,
        callback=stored.callback,
        content=stored.content,
        headers=stored.headers or {},
        max_retry=stored.max_retry,
        created_at=stored.created_at,
        execute_at=stored.created_at + stored.delay_ms,
        expires_at=None if stored.ttl_ms is None else stored.created_at + stored.ttl_ms,
        renewed_at=None if stored.renewed_ms is None else stored.created_at + stored.renewed_ms,
        is_namespaced_uuid=stored.is_namespaced_uuid,
        client=stored.client,
        is_json=stored.is_json,
        death=stored.death,
        is_follow_up=stored.is_follow_up,
        remember_ms=stored.remember_ms,
        context=stored.context,
        scheduled_at=None if stored.scheduled_ms is None else stored.created_at + stored.scheduled_ms,
        trace_context=stored.trace_context and stored_context(stored.trace_context),
    )


def names_topic(body: bytes, topic: bytes) -> bool:
    """Return True if the beginning of `body`, which is all that is read, is that of a task of this topic.

    False leaves it open: other software may encode the same body in other bytes, which only `decode_task` reads.
    """
    start = _TOPIC_STARTS.get(body[:1], 0)
    try:
        return start > 0 and body.startswith(_VERSION + _encoder.encode(topic.decode()), start)
    except UnicodeDecodeError:
        return False


_VERSION = _encoder.encode(BODY_VERSION)
_TOPIC_STARTS = {bytes([first]): 1 for first in range(0x90, 0xA0)} | {b"\xdc": 3}
"""Where the version and the topic begin, by a body's first byte: the array's length takes one byte or three."""


def decode_task_or_error(task_id: str, body: bytes) -> Task | UnreadableBody:
    """Return the task that `encode_task` made `body` from, or the error if it cannot be decoded."""
    try:
        return decode_task(task_id, body)
    except UnreadableBody as error:
        return error


_unused_ids: list[str] = []
"""Ids made in advance, because asking the system for random bytes takes longer than all else about an id."""
os.register_at_fork(after_in_child=_unused_ids.clear)  # otherwise parent and child would give out the same ids


def new_id() -> str:
    """Return an id for a task whose caller chose none: a UUID of version 4 (RFC 9562)."""
    if not _unused_ids:
        bits = int.from_bytes(os.urandom(16 * _IDS_AT_ONCE)) & _RANDOM_BITS | _FIXED_BITS
        parts = _PARTS_OF_UUID.findall(bits.to_bytes(16 * _IDS_AT_ONCE).hex())
        _unused_ids.extend(map("-".join, parts))
    return _unused_ids.pop()


_IDS_AT_ONCE = 256
_RANDOM_BITS = int.from_bytes(bytes.fromhex("ffffffffffff0fff3fffffffffffffff") * _IDS_AT_ONCE)
"""The bits of so many UUIDs that are random; the others are the version and the variant."""
_FIXED_BITS = int.from_bytes(bytes.fromhex("00000000000040008000000000000000") * _IDS_AT_ONCE)
_PARTS_OF_UUID = re.compile(r"(.{8})(.{4})(.{4})(.{4})(.{12})")
_VARIANT_BYTES = range(0x80, 0xC0)
"""The values of byte 8 in a UUID of the variant that RFC 9562 defines."""
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""A canonical UUID: in lower case, of the variant that RFC 9562 defines."""


_from_hex = bytes.fromhex  # bound once: that takes as long as the call


def is_uuid(task_id: str) -> bool:
    """Return True if the id is a canonical UUID."""
    return _UUID.fullmatch(task_id) is not None


def pack_id(name: str) -> bytes:
    """Return the id as the store holds it: a canonical UUID as its 16 bytes, which saves 24 each time.

    No other id can be mistaken for one, because ids are ASCII, and byte 8 of a UUID of the RFC 9562 variant is not. Of
    the name of a UUID, `team/<UUID>`, the store holds the UUID alone (see `task_names`).
    """
    digits = name.replace("-", "")
    if len(name) == 36 and len(digits) == 32 and name[8:24:5] == "----":  # a regular expression takes twice as long
        try:
            packed = _from_hex(digits)
        except ValueError:
            return name.encode()
        if packed.hex() == digits and packed[8] in _VARIANT_BYTES:  # not in upper case, and without spaces
            return packed
    if "/" in name and _UUID.fullmatch(name, name.index("/") + 1):
        return _from_hex(name[name.index("/") + 1 :].replace("-", ""))
    return name.encode()


def unpack_id(stored: bytes) -> str:
    """Return the id that `pack_id` packed into `stored`. Bytes that cannot be an id are escaped."""
    if len(stored) == 16 and stored[8] in _VARIANT_BYTES:
        text = stored.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return stored.decode("utf-8", "backslashreplace")
