"""Reads the lines of an export: each becomes a record as a store holds it, or is refused with the reason.

What no daemon could read is refused, because one such value would stop all of them: a policy of an unknown level, a
topic that is no text. A body or an id of any bytes is not: daemons and the doctor pass over it.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, Raw, UnsetType

from later.core.errors import Refused, UnreadableBody
from later.core.export_lines import (
    COUNTS,
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    SETTINGS,
    AuditLine,
    ExportEnd,
    ExportHeader,
    ExportLine,
    FieldLine,
    JobLine,
    ScheduleLine,
    TaskLine,
    Text,
    TimeLine,
    attempts_entry,
)
from later.core.policy_scopes import Level, Settings
from later.core.retry import decode_failure, encode_failure
from later.core.schedule import Schedule, ScheduleState
from later.core.signing import Generations
from later.core.store_records import (
    FieldEntry,
    FieldKind,
    JobEntry,
    Record,
    ScheduleEntry,
    TaskEntry,
    TimeEntry,
    TimeKind,
    TrailEntry,
)
from later.core.task import Task, decode_task, encode_task, pack_id
from later.core.task_names import pack_remembered
from later.core.validation import MAX_EXACT, parse_topic

EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The beginning of the year 1, and the end of the year 9999: no other time can be shown."""
_NUMBER = re.compile(rb"[0-9]{1,16}")
_READABLE_ATTEMPTS = re.compile(rb"[0-9]{1,16}(?: [0-9]{1,20}(?: [0-9a-f]*)?)?")
_AUDIT_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class _AnyLine(msgspec.Struct):
    kind: str


_decode_settings = msgspec.json.Decoder(Settings).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_state = msgspec.json.Decoder(ScheduleState).decode
_decode_object = msgspec.json.Decoder(dict[str, object]).decode
_decode_generations = msgspec.json.Decoder(Generations).decode
_decode_kind = msgspec.json.Decoder(_AnyLine).decode
_LINES: dict[str, type[ExportLine]] = {
    "export": ExportHeader,
    "task": TaskLine,
    "schedule": ScheduleLine,
    "job": JobLine,
    "audit": AuditLine,
    **dict.fromkeys(FieldKind, FieldLine),
    **dict.fromkeys(TimeKind, TimeLine),
    "end": ExportEnd,
}
_DECODERS = {kind: msgspec.json.Decoder(line).decode for kind, line in _LINES.items()}


class BadLine(Refused):
    """A line that is no record of an export; the text says why."""


def decode_line(line: bytes) -> ExportHeader | Record | ExportEnd:
    """Return what a line says. Raises BadLine."""
    try:
        kind = _decode_kind(line).kind
        decode = _DECODERS.get(kind)
        if decode is None:
            raise BadLine(f"this version knows no kind {kind[:40]!r}")
        return _parse(decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise BadLine(f"it is no line of an export: {error}") from None
    except BadLine:
        raise
    except Refused as error:
        raise BadLine(str(error)) from None


def _parse(line: ExportLine) -> ExportHeader | Record | ExportEnd:
    match line:
        case TaskLine():
            return _task_entry(line)
        case FieldLine():
            return _field_entry(line)
        case JobLine():
            return _job_entry(line)
        case ExportHeader() | ExportEnd():
            return line
    return _parse_timed(line)


def _parse_timed(line: ExportLine) -> Record:
    """Return the record of a line of which the time is most of what it says."""
    match line:
        case TimeLine(kind=kind, name=name, until=until):
            is_id = kind == TimeKind.REMEMBERED and isinstance(name, str)
            return TimeEntry(
                TimeKind(kind), pack_remembered(str(name)) if is_id else _name(name), _time("until", until)
            )
        case ScheduleLine(id=id, definition=definition, state=state, next_at=next_at):
            at = None if next_at is None else _time("next_at", next_at)
            if _decode_schedule(definition).id != id:
                raise BadLine("id: expected that of the definition")
            _decode_state(state)
            return ScheduleEntry(_name(id, True), bytes(definition), bytes(state), at)
        case AuditLine(id=id, event=event, raw_event=raw):
            if not _AUDIT_ID.fullmatch(id):
                raise BadLine("id: expected that of an entry of a stream")
            return TrailEntry(id.encode(), _one_of("event", event, raw))
    raise AssertionError(line.kind)


def _field_entry(line: FieldLine) -> FieldEntry:
    """Return a field. What daemons could not read, and would not work with, is refused."""
    kind, value = FieldKind(line.kind), _one_of("value", line.value, line.raw_value)
    name = _name(line.name, kind is not FieldKind.EVENT_COUNT)
    if kind is FieldKind.POLICY:
        level, _, scope = name.decode().partition(":")
        if level not in tuple(Level) or not scope:
            raise BadLine("name: expected topic:NAME or namespace:NAME")
        _decode_settings(value)
    elif kind is FieldKind.QUEUE:
        _decode_object(value)
    elif kind is FieldKind.SIGNING and name != b"version":
        _decode_generations(value)
    elif (kind is FieldKind.KEY_USE or name == b"version") and not _NUMBER.fullmatch(value):
        raise BadLine("value: expected a time")
    elif kind is FieldKind.SIGNING and name == b"version":
        raise BadLine("name: expected what has a signing secret")
    elif kind is FieldKind.SETTING and name not in SETTINGS:
        raise BadLine(f"name: expected one of {', '.join(map(bytes.decode, SETTINGS))}")
    return FieldEntry(kind, name, value)


def _job_entry(line: JobLine) -> JobEntry:
    if not set(line.counts) <= set(COUNTS) or any(not 0 <= count <= MAX_EXACT for count in line.counts.values()):
        raise BadLine(f"counts: expected numbers of {', '.join(COUNTS)}")
    named = {field.encode(): b"%d" % count for field, count in line.counts.items()}
    if any(field.decode("latin-1") in COUNTS for field, _ in line.batches):
        raise BadLine("batches: expected digests")
    return JobEntry(_name(line.name, True), _time("forget_at", line.forget_at), {**dict(line.batches), **named})


def _task_entry(line: TaskLine) -> TaskEntry:
    id = pack_id(line.id) if isinstance(line.id, str) else line.id.base64
    if not 1 <= len(id) <= MAX_ID_BYTES:
        raise BadLine(f"id: expected 1 to {MAX_ID_BYTES} bytes")
    topic = _name(line.topic, True)
    if parse_topic(topic.decode()) != line.topic:
        raise BadLine("topic: expected the name of a topic")
    if (line.task is None) == (line.raw_body is None):
        raise BadLine("task, raw_body: expected one of them")
    if line.task is not None and not isinstance(line.id, str):
        raise BadLine("id: expected text beside a task")
    body = line.raw_body
    if line.task is not None:
        body = encode_task(msgspec.convert({**line.task, "id": line.id, "topic": line.topic}, Task))
    assert body is not None
    _check_body(body)
    attempts = line.raw_attempts
    if attempts is not None and not _READABLE_ATTEMPTS.fullmatch(attempts):
        raise BadLine("raw_attempts: expected numbers")
    if attempts is None and (line.attempts or line.first_due_at is not None):
        attempts = _attempts_of(line)
    failure = line.raw_failure if line.failure is None else encode_failure(line.failure)
    if failure is not None:
        _check_failure(failure)
    return TaskEntry(id, topic, line.state, _shown_time("at", line.at), body, attempts, failure)


def _check_body(body: bytes) -> None:
    """Check the numbers of a body, if it can be read: calls that show a task would fail. Raises BadLine."""
    try:
        task = decode_task("", body)
    except UnreadableBody:
        return
    for at in (task.created_at, task.execute_at, task.expires_at, task.renewed_at, task.scheduled_at):
        _shown_time("task", at)
    if not all(number is None or 0 <= number <= MAX_EXACT for number in (task.max_retry, task.remember_ms)):
        raise BadLine("task: expected numbers of at most 2^53")


def _check_failure(stored: bytes) -> None:
    """Check the times of a failure, if it can be read. Raises BadLine."""
    failure = decode_failure(stored)
    for at in (failure.at, failure.busy_since, *(earlier.at for earlier in failure.earlier)):
        _shown_time("failure", at)


def _attempts_of(line: TaskLine) -> bytes:
    if not 0 <= line.attempts <= MAX_EXACT:
        raise BadLine("attempts: expected a number")
    if line.first_due_at is None:
        return b"%d 0" % line.attempts
    return attempts_entry(line.attempts, _time("first_due_at", line.first_due_at), line.held or "origin")


def _one_of(name: str, value: Raw | UnsetType, raw: bytes | None) -> bytes:
    if (value is UNSET) == (raw is None):
        raise BadLine(f"{name}, raw_{name}: expected one of them")
    return bytes(value) if isinstance(value, Raw) else raw or b""


def _name(text: Text, is_text: bool = False) -> bytes:
    """Return a name as it is stored. With `is_text`, daemons take it for text."""
    if is_text and not isinstance(text, str):
        raise BadLine("expected a name that is text")
    name = text.encode() if isinstance(text, str) else text.base64
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        raise BadLine(f"expected a name of 1 to {MAX_NAME_BYTES} bytes")
    return name


def _shown_time(name: str, at: int | None) -> int:
    """Return a time that can be shown, as those of tasks are. Raises BadLine."""
    if at is not None and not EARLIEST_MS <= at <= LATEST_MS:
        raise BadLine(f"{name}: expected a time in ms from the year 1 to the year 9999, got {at}")
    return at or 0


def _time(name: str, at: int) -> int:
    if not -MAX_EXACT <= at <= MAX_EXACT:
        raise BadLine(f"{name}: expected a time in ms, got {at}")
    return at
