"""The lines of an export say a record without a loss, whatever its bytes, and refuse what daemons could not read."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.caller import ANYBODY
from later.core.export_lines import FORMAT, ExportEnd, ExportHeader, encode_end, encode_header, encode_record
from later.core.export_parser import EARLIEST_MS, LATEST_MS, BadLine, decode_line
from later.core.past_failures import PastFailure
from later.core.retry import Failure, encode_failure
from later.core.schedule import ScheduleDraft, build_schedule, put_schedule
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
from later.core.task import Death, Task, encode_task, pack_id
from later.core.validation import MAX_EXACT
from tests.builders import NOW, a_task
from tests.cases import each_case

FAILURE = Failure(2, "status", 500, "no \u2028", NOW, None, 2, 17, (PastFailure(1, NOW, "timeout", None, 5, "late"),))
times = st.integers(EARLIEST_MS, LATEST_MS)
ids = st.one_of(st.uuids(version=4).map(lambda id: pack_id(str(id))), st.binary(min_size=1, max_size=40))
topics = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=50)
tasks = st.builds(
    a_task,
    content=st.text(), headers=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=2),
    client=st.sampled_from([b"", b"\xff" * 16]), is_json=st.booleans(), remember_ms=st.none() | st.integers(0, 2**40),
    context=st.none() | st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=2),
    death=st.none() | st.just(Death("other", "gone", 410, "", NOW, 3, None, 4, FAILURE.earlier)),
    is_follow_up=st.booleans(), ttl=st.none() | st.integers(1, 10**6),
)  # fmt: skip


@st.composite
def task_entries(draw: st.DrawFn) -> TaskEntry:
    """Tasks as a store may hold them: mostly sound, some of any bytes. An entry of a lease has no fence to be kept."""
    topic = draw(topics)
    body = draw(st.one_of(tasks.map(lambda task: encode_task(with_topic(task, topic))), st.binary()))
    attempts = draw(st.sampled_from([None, b"3 0", b"4", b"04 0", b"1 017000", b"2 0017000", b"1 0001"]))
    is_put_back = attempts is not None and attempts[1:3] == b" 0" and attempts != b"3 0"
    state = "delay" if is_put_back else draw(st.sampled_from(["delay", "error", "dead"]))
    failure = draw(st.one_of(st.none(), st.just(encode_failure(FAILURE)), st.binary(min_size=1)))
    return TaskEntry(draw(ids), topic.encode(), state, draw(times), body, attempts, failure)


def with_topic(task: Task, topic: str) -> Task:
    return a_task(**{**{name: getattr(task, name) for name in task.__struct_fields__}, "topic": topic})


@given(task_entries())
def test_a_task_of_any_bytes_is_the_same_after_it_was_written_and_read(entry: TaskEntry) -> None:
    line = encode_record(entry)
    assert b"\n" not in line
    assert decode_line(line) == entry


@each_case(
    "record",
    [
        FieldEntry(FieldKind.POLICY, b"topic:shop/\xc3\xbc", b'{"fields":{"rate":  5}}'),
        FieldEntry(FieldKind.QUEUE, b"shop/mail", b'{"a": [1.0, 1e40]}'),
        FieldEntry(FieldKind.API_KEY, b"key00001", b"\xff\0"),
        FieldEntry(FieldKind.KEY_USE, b"ended:key00001", b"1700000000000"),
        FieldEntry(FieldKind.SIGNING, b"origin:shop\x1fhttps://a", b'[{"g":2,"master":"ab"}]'),
        FieldEntry(FieldKind.EVENT_COUNT, b"dead\0a\0\xff", b"1\0\0"),
        FieldEntry(FieldKind.SETTING, b"signing", b"ab12"),
        FieldEntry(FieldKind.EVENT, b"ev:1", b'{"a":\n1}'),
        FieldEntry(FieldKind.EVENT, b"ev:1", b"[" * 5000),
        TimeEntry(TimeKind.RAMP, b"order", MAX_EXACT),
        TimeEntry(TimeKind.REMEMBERED, b"own", 0),
        TimeEntry(TimeKind.REMEMBERED, pack_id("4509c4bf-1561-401b-a58d-04c11fce4543"), 0),
        TimeEntry(TimeKind.REMEMBERED, b"team/4509c4bf-1561-401b-a58d-04c11fce4543", 0),
        TimeEntry(TimeKind.REMEMBERED, b"\xff\xfe", 0),
        ScheduleEntry(b"s", b'{"id":"s","topic":"a"}', b'{"created_at": 1, "start_at": 1}', None),
        JobEntry(b"/team/job/run", 7, {b"created": b"5", b"valid": b"70", b"\xff\0": b"1 2 \xff"}),
        TrailEntry(b"170-0", b'{"event": "key made"}'),
        TrailEntry(b"170-0", b"\xff"),
    ],
)
def test_any_other_record_is_the_same_after_it_was_written_and_read(record: Record) -> None:
    if isinstance(record, ScheduleEntry):
        record = record._replace(state=a_state())
    line = encode_record(record)
    assert b"\n" not in line
    assert decode_line(line) == record


def a_state() -> bytes:
    """Return the state of a schedule as it is stored."""
    definition = build_schedule(ScheduleDraft(topic="a", callback="http://127.0.0.1:9/", every=60), "s", ANYBODY)
    return msgspec.json.encode(put_schedule(definition, None, NOW).state)


def test_beginning_and_end_are_read_as_they_were_written() -> None:
    assert decode_line(encode_header("1.2", NOW, 16, ["pull"])) == ExportHeader(
        kind="export", format=FORMAT, version="1.2", at=NOW, shards=16, needs=["pull"]
    )
    assert decode_line(encode_end(5, 3)) == ExportEnd(kind="end", records=5, tasks=3)


def test_a_task_is_written_so_that_people_can_read_it() -> None:
    task = a_task(id="o1", own_id=True, topic="shop/order", content="hi")
    entry = TaskEntry(b"o1", b"shop/order", "delay", NOW, encode_task(task), b"1 0%d" % NOW, None)
    line = json.loads(encode_record(entry))
    assert (line["id"], line["topic"], line["state"], line["at"]) == ("o1", "shop/order", "delay", NOW)
    assert (line["attempts"], line["first_due_at"], line["held"]) == (1, NOW, "origin")
    assert line["task"]["content"] == "hi"
    assert not {"raw_body", "id", "topic"} & {*line["task"], *(name for name in line if name.startswith("raw"))}


def test_the_fence_of_a_lease_is_not_written() -> None:
    entry = TaskEntry(b"o1", b"order", "unack", NOW, b"\xff", b"2 4503599627370495 ab12", None)
    assert b"4503599627370495" not in encode_record(entry)
    assert decode_line(encode_record(entry)) == entry._replace(attempts=b"2 0")


TASK: dict[str, Any] = json.loads(
    encode_record(TaskEntry(b"o1", b"order", "delay", NOW, encode_task(a_task(id="o1", own_id=True)), None, None))
)

UNSHOWN = base64.b64encode(encode_task(a_task(id="o1", ttl=2**42))).decode()


@each_case(
    "line, says",
    [
        (b"", "no line of an export"),
        (b"\xff", "no line of an export"),
        (b"{}", "no line of an export"),
        (b"[" * 100_000, "no line of an export"),
        (b'{"kind": "surprise"}', "knows no kind"),
        ({**TASK, "surprise": 1}, "surprise"),
        ({**TASK, "state": "gone"}, "gone"),
        ({**TASK, "at": 2**60}, "at: expected a time"),
        ({**TASK, "at": 1.5}, "Expected `int`"),
        ({**TASK, "topic": "a\0b"}, "topic"),
        ({**TASK, "topic": "default/a"}, "topic"),
        ({**TASK, "topic": {"base64": "/w=="}}, "a name that is text"),
        ({**TASK, "id": ""}, "id: expected"),
        ({**TASK, "id": "x" * 1025}, "id: expected"),
        ({**TASK, "raw_body": "AA=="}, "one of them"),
        ({**TASK, "task": None}, "one of them"),
        ({**TASK, "task": {**TASK["task"], "created_at": 2**62}}, "a time in ms"),
        ({**TASK, "task": {"content": "x"}}, "no line of an export"),
        ({**TASK, "task": {**TASK["task"], "max_retry": 2**64}}, "ints"),
        ({**TASK, "task": {**TASK["task"], "remember_ms": -(2**60)}}, "numbers of at most"),
        ({**TASK, "failure": [2**64, "r", None, "", 1, None, 1]}, "ints"),
        ({**TASK, "attempts": -1}, "attempts"),
        ({**TASK, "raw_attempts": "/w=="}, "raw_attempts"),
        ({**TASK, "raw_attempts": "MSAw/w=="}, "raw_attempts"),
        ({"kind": "key-use", "name": "k", "value": "soon"}, "a time"),
        ({"kind": "api-key", "name": "version", "value": "x"}, "a time"),
        ({"kind": "signing", "name": "version", "value": 5}, "signing secret"),
        ({"kind": "job", "name": "j", "forget_at": 5, "batches": [["Y3JlYXRlZA==", "eA=="]]}, "digests"),
        ({"kind": "policy", "name": "planet:x", "value": {}}, "topic:NAME"),
        ({"kind": "policy", "name": "topic:x", "value": {"fields": 5}}, "Expected `object`"),
        ({"kind": "policy", "name": {"base64": "/w=="}, "value": {}}, "text"),
        ({"kind": "queue", "name": "x"}, "one of them"),
        ({**TASK, "task": {**TASK["task"], "expires_at": 2**48}}, "the year 9999"),
        ({**TASK, "task": None, "raw_body": UNSHOWN}, "the year 9999"),
        ({**TASK, "failure": [1, "r", None, "", 2**48, None, 1]}, "the year 9999"),
        ({"kind": "queue", "name": "x", "value": 5}, "Expected `object`"),
        ({"kind": "signing", "name": "all", "value": {}}, "Expected `array`"),
        ({"kind": "setting", "name": "shards", "value": 5}, "expected one of signing"),
        ({"kind": "ramp", "name": "x", "until": -(2**60)}, "until"),
        (
            {"kind": "schedule", "id": "s", "definition": {"id": "t", "topic": "a"}, "state": {}},
            "that of the definition",
        ),
        ({"kind": "schedule", "id": "s", "definition": {"id": "s"}, "state": {}}, "no line of an export"),
        ({"kind": "job", "name": "j", "forget_at": 5, "counts": {"other": 1}}, "counts"),
        ({"kind": "audit", "id": "*", "event": {}}, "entry of a stream"),
    ],
)
def test_a_line_that_is_wrong_is_refused_with_the_reason(line: Any, says: str) -> None:
    with pytest.raises(BadLine, match=says):
        decode_line(line if isinstance(line, bytes) else json.dumps(line).encode())


@given(st.binary() | st.recursive(st.none() | st.text() | st.integers(), lambda v: st.lists(v) | st.dictionaries(
    st.sampled_from(["kind", "id", "topic", "state", "at", "name", "value", "counts"]), v)).map(
        lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_line_is_worse_than_refused(line: bytes) -> None:
    with suppress(BadLine):
        decode_line(line)
