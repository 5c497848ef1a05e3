"""The encoding of tasks and ids: what is stored is read back unchanged, and ids take little space."""

from __future__ import annotations

import contextlib
import os
import string
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from later.core.errors import UnreadableBody
from later.core.task import Death, Task, decode_task, encode_task, names_topic, new_id, pack_id, unpack_id
from tests.builders import NOW, a_task
from tests.cases import each_case

ID_CHARACTERS = string.ascii_letters + string.digits + "._~:-"
LEGAL_IDS = st.text(ID_CHARACTERS, min_size=1, max_size=128)
IDS_OF_16_CHARACTERS = st.text(ID_CHARACTERS, min_size=16, max_size=16)
UUIDS = st.uuids(allow_nil=True)
IDS = st.one_of(
    LEGAL_IDS,
    IDS_OF_16_CHARACTERS,
    UUIDS.map(str),
    UUIDS.map(lambda generated: str(generated).upper()),
    UUIDS.map(lambda generated: generated.hex),
    UUIDS.map(lambda generated: f"urn:uuid:{generated}"),
)
TIMES = st.integers(0, 2**62)
DEATHS = st.builds(
    Death, st.text(), st.text(), st.none() | st.integers(100, 599), st.text(), TIMES, TIMES, st.none() | TIMES
)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    created_at = draw(TIMES)
    ttl_ms = draw(st.none() | TIMES)
    return Task(
        id=draw(IDS),
        own_id=draw(st.booleans()),
        topic=draw(st.text()),
        callback=draw(st.text()),
        content=draw(st.text()),
        headers=draw(st.dictionaries(st.text(), st.text(), max_size=20)),
        max_retry=draw(st.integers(0, 1000)),
        created_at=created_at,
        execute_at=created_at + draw(TIMES),
        expires_at=None if ttl_ms is None else created_at + ttl_ms,
        renewed_at=draw(st.none() | TIMES.map(lambda ms: created_at + ms)),
        is_namespaced_uuid=draw(st.booleans()),
        client=draw(st.just(b"") | st.binary(min_size=16, max_size=16)),
        is_json=draw(st.booleans()),
        death=draw(st.none() | DEATHS),
        is_follow_up=draw(st.booleans()),
        remember_ms=draw(st.none() | TIMES),
        context=draw(st.none() | st.dictionaries(st.text(), st.text(), min_size=1, max_size=3)),
        trace_context=draw(st.just(b"") | st.binary(min_size=25, max_size=25)),
    )


class EarlierBody(msgspec.Struct, array_like=True):
    """The body as an earlier version reads it: without the two elements that messages of Zaqar's API have."""

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
    renewed_ms: int | None = None
    is_namespaced_uuid: bool = False


def decode_any(body: bytes) -> None:
    """Decode a body. Any error other than UnreadableBody fails the test."""
    with contextlib.suppress(UnreadableBody):
        assert isinstance(decode_task("some-id", body), Task)


class TestBody:
    @given(tasks())
    @example(a_task(content="\0\x7f\x85\u2028\ufeff\uffff\U0010ffff", topic="günther/🦔"))
    @example(a_task(content="x" * 2**20))
    @example(a_task(created_at=0, execute_at=0, expires_at=0, headers={"": ""}))
    @example(a_task(created_at=0, execute_at=2**63 - 1, expires_at=2**63 - 1))
    def test_a_task_is_read_as_it_was_written(self, task: Task) -> None:
        assert decode_task(task.id, encode_task(task)) == task

    @each_case(
        "changes, elements",
        [
            ({}, 10),
            ({"renewed_at": NOW}, 11),
            ({"is_namespaced_uuid": True}, 12),
            ({"client": b"c" * 16}, 13),
            ({"is_json": True}, 14),
            ({"death": Death("order", "gone", 410, "answered 410", NOW, 1, None)}, 15),
            ({"is_follow_up": True}, 16),
            ({"remember_ms": 0}, 17),
            ({"context": {"request": "r-1"}}, 18),
            ({"scheduled_at": NOW}, 19),
            ({"trace_context": b"c" * 25}, 20),
        ],
    )
    def test_a_body_ends_with_the_last_element_that_says_something(
        self, changes: dict[str, Any], elements: int
    ) -> None:
        assert len(msgspec.msgpack.decode(encode_task(a_task(**changes)))) == elements

    def test_an_earlier_version_reads_all_but_the_two_elements_of_messages(self) -> None:
        task = a_task(renewed_at=NOW, client=b"c" * 16, is_json=True, content="[1]")
        read = msgspec.msgpack.decode(encode_task(task), type=EarlierBody)
        assert (read.content, read.renewed_ms, read.is_namespaced_uuid) == ("[1]", 0, False)

    def test_an_earlier_version_reads_a_body_with_a_trace_context(self) -> None:
        read = msgspec.msgpack.decode(encode_task(a_task(trace_context=b"c" * 25)), type=EarlierBody)
        assert (read.content, read.topic) == ("hello", "order")

    def test_a_trace_context_takes_37_bytes_more_and_none_takes_no_byte(self) -> None:
        task, traced = a_task(), a_task(trace_context=b"c" * 25)
        assert len(encode_task(traced)) == len(encode_task(task)) + 37 + 2  # and two for the length of a longer array

    @pytest.mark.parametrize("stored", [b"c", b"c" * 24, b"c" * 26])
    def test_a_trace_context_of_another_length_is_none_and_the_task_can_be_called(self, stored: bytes) -> None:
        task = a_task(trace_context=stored)
        read = decode_task(task.id, encode_task(task))
        assert (read.trace_context, read.content) == (b"", task.content)

    @given(tasks(), st.data())
    def test_a_truncated_body_is_unreadable(self, task: Task, data: st.DataObject) -> None:
        body = encode_task(task)
        cut = data.draw(st.integers(0, len(body) - 1))
        with pytest.raises(UnreadableBody):
            decode_task(task.id, body[:cut])

    @given(tasks(), st.binary(min_size=1))
    def test_a_body_with_trailing_bytes_is_unreadable(self, task: Task, rest: bytes) -> None:
        with pytest.raises(UnreadableBody):
            decode_task(task.id, encode_task(task) + rest)

    @given(st.binary())
    @example(b"\xff" * 100)
    @example(b"\xdd\xff\xff\xff\xff")
    @example(b"\x9a\x01\xdb\xff\xff\xff\xff")
    def test_any_bytes_are_read_or_unreadable(self, body: bytes) -> None:
        decode_any(body)

    @given(tasks(), st.data())
    def test_a_body_with_a_wrong_byte_is_read_or_unreadable(self, task: Task, data: st.DataObject) -> None:
        body = bytearray(encode_task(task))
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        decode_any(bytes(body))

    @given(st.lists(st.none() | st.booleans() | st.integers(-1, 5) | st.floats() | st.text(), max_size=12))
    def test_a_list_of_anything_is_read_or_unreadable(self, fields: list[object]) -> None:
        decode_any(msgspec.msgpack.encode(fields))

    def test_a_body_that_is_nested_too_deep_is_unreadable(self) -> None:
        fields = encode_task(a_task())[1:]
        with pytest.raises(UnreadableBody):
            decode_task("some-id", b"\x9b" + fields + b"\x91" * 100_000 + b"\xc0")

    def test_a_body_of_another_version_is_unreadable_and_says_so(self) -> None:
        body = encode_task(a_task())
        with pytest.raises(UnreadableBody, match=r"'some-id' has version 2, not 1"):
            decode_task("some-id", body[:1] + b"\x02" + body[2:])

    def test_an_unreadable_body_is_named_by_its_id(self) -> None:
        with pytest.raises(UnreadableBody, match="'some-id'"):
            decode_task("some-id", b"")

    def test_a_small_task_takes_little_more_than_its_texts(self) -> None:
        task = a_task()
        assert len(encode_task(task)) < len(task.topic + task.callback + task.content) + 24


class TestId:
    @given(IDS)
    @example("00000000-0000-0000-0000-000000000000")
    @example("ffffffff-ffff-ffff-ffff-ffffffffffff")
    @example("0000000_-0000-4000-8000-000000000000")
    @example("00000000-0000-4000-800-0000000000000")
    @example("-" * 36)
    @example("00000000-0000-4000-8000-00000--00000")
    @example("00000000-0000-4000-8000-00000000000A")
    @example("00000000-0000-4000-8000-0000000 0000")
    @example("00000000-0000-4000-c000-000000000000")
    @example("0000000-0-0000-4000-8000-00000000000")
    def test_an_id_is_unpacked_as_it_was_packed(self, task_id: str) -> None:
        assert unpack_id(pack_id(task_id)) == task_id

    @each_case("version", range(1, 9))
    def test_a_uuid_of_any_version_takes_16_bytes(self, version: int) -> None:
        generated = uuid.UUID(int=(0x35ADBDE5_77C4_0D65_8DAC_0082D91F2554 & ~(0xF << 76)) | version << 76)
        assert pack_id(str(generated)) == generated.bytes

    @given(UUIDS, IDS_OF_16_CHARACTERS)
    def test_two_ids_are_never_packed_alike(self, generated: uuid.UUID, other_id: str) -> None:
        canonical = str(generated)
        ids = {canonical, canonical.upper(), generated.hex, generated.hex.upper(), f"urn:uuid:{generated}", other_id}
        assert len({pack_id(task_id) for task_id in ids}) == len(ids)

    @given(LEGAL_IDS)
    def test_an_id_that_is_not_a_uuid_is_kept_as_text(self, task_id: str) -> None:
        assert pack_id(task_id) == task_id.encode()

    @given(st.binary(max_size=40) | st.binary(min_size=16, max_size=16))
    def test_bytes_that_are_not_an_id_are_shown_escaped(self, stored: bytes) -> None:
        assert isinstance(unpack_id(stored), str)

    def test_a_fresh_id_takes_16_bytes(self) -> None:
        assert len(pack_id(new_id())) == 16

    def test_a_fresh_id_is_a_random_uuid(self) -> None:
        generated = [uuid.UUID(new_id()) for _ in range(100)]
        assert {(id.version, id.variant) for id in generated} == {(4, uuid.RFC_4122)}

    def test_fresh_ids_differ(self) -> None:
        assert len({new_id() for _ in range(1000)}) == 1000

    @pytest.mark.filterwarnings(
        "ignore::DeprecationWarning"
    )  # of forking beside threads: the child does next to nothing
    def test_a_forked_process_makes_ids_of_its_own(self) -> None:
        new_id()
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            os.write(write_end, new_id().encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read_end, 36).decode() != new_id()
        os.close(read_end)
        os.close(write_end)


class TestTheTopicAtTheBeginning:
    @pytest.mark.parametrize("topic", ["t", "order", "team/" + "x" * 40, "x" * 255, "ü" * 20])
    @pytest.mark.parametrize("fields", [{}, {"trace_context": b"c" * 25}])
    def test_a_body_names_its_own_topic_and_no_other(self, topic: str, fields: dict[str, Any]) -> None:
        body = encode_task(a_task(topic=topic, **fields))
        assert names_topic(body, topic.encode())
        for other in (topic + "x", topic[:-1], "other", ""):
            assert not names_topic(body, other.encode())

    @pytest.mark.parametrize("body", [b"", b"\x9a", b"\xc1", b"\x9a\x02\xa5order", b"\x00\x01\xa5order", b"\xa5order"])
    def test_no_other_text_names_it(self, body: bytes) -> None:
        assert not names_topic(body, b"order")

    def test_the_body_of_a_topic_that_is_no_text_names_none(self) -> None:
        assert not names_topic(encode_task(a_task(topic="\ufffd")), b"\xff")
