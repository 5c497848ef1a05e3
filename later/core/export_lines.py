"""Lines of an export: each is one JSON object with a `kind`, so that any version, and other programs, can read it.

The first line names the format, the last one says that the export is whole. Between them is one record a line. What
this version can say in names and numbers without a loss is written so; any other bytes are written in base64.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from later.core.errors import UnreadableBody
from later.core.held import Held
from later.core.retry import Failure, decode_failure, encode_failure
from later.core.store_records import (
    FieldEntry,
    JobEntry,
    Record,
    ScheduleEntry,
    TaskEntry,
    TimeEntry,
    TimeKind,
    TrailEntry,
)
from later.core.task import Task, decode_task, encode_task, pack_id, unpack_id
from later.core.task_names import pack_remembered

FORMAT = 1
MAX_LINE_BYTES = 128 * 1024 * 1024
"""The longest line that is read: the largest body, with each of its characters escaped."""
MAX_NAME_BYTES = 4096
"""The longest name of anything but a task, such as the name of a topic's policy."""
SETTINGS = (b"signing", b"admission")
"""Fields of `later:meta` that another store takes over."""
MAX_ID_BYTES = 1024
"""The longest id of a task: that of a namespace's task, with the namespace percent-encoded."""


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: bytes


Text = str | Base64


class ExportLine(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line. Times are ms of the store's clock."""

    kind: str


class ExportHeader(ExportLine, kw_only=True):
    """The first line: the format, the version that wrote it, when, and of what store."""

    format: int
    version: str
    at: int
    shards: int
    needs: list[str] = []


class ExportEnd(ExportLine, kw_only=True):
    """The last line: how many records are before it, and how many of them are tasks."""

    records: int
    tasks: int


class TaskLine(ExportLine, kw_only=True):
    """A task. What names and numbers cannot say is in the fields `raw_…`."""

    id: Text
    topic: Text
    state: Literal["delay", "unack", "error", "dead"]
    at: int
    attempts: int = 0
    first_due_at: int | None = None
    held: Literal["origin", "fault"] | None = None
    failure: Failure | None = None
    task: dict[str, Any] | None = None
    raw_body: bytes | None = None
    raw_attempts: bytes | None = None
    raw_failure: bytes | None = None


class FieldLine(ExportLine, kw_only=True):
    """A field of a hash."""

    name: Text
    value: Raw | UnsetType = UNSET
    raw_value: bytes | None = None


class TimeLine(ExportLine, kw_only=True):
    """A member of a sorted set, and its time."""

    name: Text
    until: int


class ScheduleLine(ExportLine, kw_only=True):
    """A schedule, and when it fires next."""

    id: Text
    definition: Raw
    state: Raw
    next_at: int | None = None


class JobLine(ExportLine, kw_only=True):
    """Counts of a bulk job or of a run, in all and by batch."""

    name: Text
    forget_at: int
    counts: dict[str, int] = {}
    batches: list[tuple[bytes, bytes]] = []


class AuditLine(ExportLine, kw_only=True):
    """An entry of the audit trail."""

    id: str
    event: Raw | UnsetType = UNSET
    raw_event: bytes | None = None


_encode = msgspec.json.Encoder().encode
_TASK_DEFAULTS = dict(zip(Task.__struct_fields__[-len(Task.__struct_defaults__) :], Task.__struct_defaults__))  # noqa: B905  # as many
_ATTEMPTS = re.compile(rb"(0|[1-9][0-9]{0,15}) ([0-9]{1,20})(?: [0-9a-f]+)?")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,15}")
COUNTS = ("created", "valid", "refused")
_COUNT_FIELDS = frozenset(map(str.encode, COUNTS))


def encode_header(version: str, at: int, shards: int, needs: list[str]) -> bytes:
    """Return the first line of an export that begins at `at` (ms)."""
    return _encode(ExportHeader(kind="export", format=FORMAT, version=version, at=at, shards=shards, needs=needs))


def encode_end(records: int, tasks: int) -> bytes:
    """Return the last line of an export."""
    return _encode(ExportEnd(kind="end", records=records, tasks=tasks))


def encode_record(record: Record) -> bytes:
    """Return a record's line, without its end."""
    match record:
        case TaskEntry():
            return _encode(_task_line(record))
        case FieldEntry(kind, name, value):
            line = FieldLine(kind=kind.value, name=_text(name))
            if _is_json(value):
                line.value = Raw(value)
            else:
                line.raw_value = value
            return _encode(line)
        case TimeEntry(kind, name, at):
            id = unpack_id(name)
            is_id = kind is TimeKind.REMEMBERED and pack_remembered(id) == name
            return _encode(TimeLine(kind=kind.value, name=id if is_id else _text(name), until=at))
        case ScheduleEntry(id, definition, state, next_at):
            line_of = ScheduleLine(
                kind="schedule", id=_text(id), definition=Raw(definition), state=Raw(state), next_at=next_at
            )
            return _encode(line_of)
        case JobEntry():
            return _encode(_job_line(record))
        case TrailEntry(id, event):
            entry = AuditLine(kind="audit", id=id.decode())
            if _is_json(event):
                entry.event = Raw(event)
            else:
                entry.raw_event = event
            return _encode(entry)


def _task_line(entry: TaskEntry) -> TaskLine:
    id, topic = unpack_id(entry.id), _text(entry.topic)
    line = TaskLine(kind="task", id=id, topic=topic, state="delay", at=entry.at)
    line.state = entry.bucket  # type: ignore[assignment]  # one of the four
    if pack_id(id) != entry.id:
        line.id = Base64(entry.id)
    task = _exact_task(id, entry.body)
    if task is None or task.topic != topic or line.id != id:
        line.raw_body = entry.body
    else:
        line.task = {
            name: value
            for name in Task.__struct_fields__
            if name not in ("id", "topic") and (value := getattr(task, name)) != _TASK_DEFAULTS.get(name, UNSET)
        }
    if entry.attempts is not None:
        _write_attempts(line, entry.attempts)
    if entry.failure is not None:
        line.failure = _exact_failure(entry.failure)
        line.raw_failure = entry.failure if line.failure is None else None
    return line


def _job_line(entry: JobEntry) -> JobLine:
    line = JobLine(kind="job", name=_text(entry.counter), forget_at=entry.forget_at, counts={}, batches=[])
    for field, count in entry.counts.items():
        if field in _COUNT_FIELDS and _NUMBER.fullmatch(count):
            line.counts[field.decode()] = int(count)
        else:
            line.batches.append((field, count))
    return line


def _exact_task(id: str, body: bytes) -> Task | None:
    """Return the task of a body; None if it says more, or less, than this version can write."""
    try:
        task = decode_task(id, body)
        return task if encode_task(task) == body else None
    except (UnreadableBody, OverflowError):
        return None


def _exact_failure(stored: bytes) -> Failure | None:
    """Return a failure; None if it says more, or less, than this version can write."""
    try:
        failure = decode_failure(stored)
        return failure if encode_failure(failure) == stored else None
    except (UnreadableBody, ValueError, OverflowError):
        return None


def _write_attempts(line: TaskLine, stored: bytes) -> None:
    """Write a task's entry in `attempts`, without the fence of a lease: only the store that gave it knows it."""
    match = _ATTEMPTS.fullmatch(stored)
    if match is None:
        line.raw_attempts = stored
        return
    begun, rest = int(match[1]), match[2]
    if line.state != "delay" or not rest.startswith(b"0") or rest == b"0":
        line.attempts = begun
        return
    held: Literal["origin", "fault"] = "fault" if rest.startswith(b"00") else "origin"
    if attempts_entry(begun, int(rest), held) == stored:
        line.attempts, line.first_due_at, line.held = begun, int(rest), held
    else:
        line.raw_attempts = stored


def _text(stored: bytes) -> Text:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return Base64(stored)


def _is_json(stored: bytes) -> bool:
    """Return True if the bytes can stand in a line as they are: JSON without a line break or spaces around it."""
    if b"\n" in stored or b"\r" in stored or stored.strip() != stored:
        return False
    try:
        msgspec.json.decode(stored)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def attempts_entry(begun: int, first_due_at: int, held: str) -> bytes:
    """Return the entry of a task that was put back, as in prelude.lua."""
    return b"%d %s%d" % (begun, b"00" if held == Held.FAULT else b"0", first_due_at)
