"""JSON into tasks: values go out as they stand, and whatever a text is, it comes out once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from later.bulk.input.json import (
    ID_NOT_ALLOWED,
    MAX_SHOWN_BYTES,
    NO_ID,
    TEXT_COLUMN,
    JsonDocumentReader,
    JsonLinesReader,
    parse_key,
)
from later.bulk.input.payload import EMPTY_KEY, MISSING_KEY, Parsed
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.task import Task
from tests.builders import NOW
from tests.bulk.validation import CALLBACK, accepted_tasks, rejection_reasons, validate_bodies

JOB = "a-job"
ID = task_ids(JOB, [b"17"])[0]
GOOD = {"key": "17", "topic": "order", "callback": CALLBACK}
MARK = b"\xef\xbb\xbf"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def objects(
    *,
    sources: Mapping[str, str] | None = None,
    constants: Mapping[str, bytes] | None = None,
    keyless: bool = False,
    strangers: bool = True,
    spread_s: float = 0,
) -> JsonLinesReader:
    return JsonLinesReader(
        JOB,
        sources=sources or {},
        constants=constants or {},
        allow_duplicates=keyless,
        send_unknown_fields=strangers,
        spread_s=spread_s,
    )


def batch(*texts: str | bytes | None) -> pa.RecordBatch:
    """As Spark has lines: of any bytes."""
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return pa.record_batch({TEXT_COLUMN: pa.array(raw, pa.binary()).view(pa.string())})


def read(*texts: str | bytes | None, **options: Any) -> Parsed:
    return objects(**options).read(batch(*texts))


def documents(*texts: str | bytes) -> Parsed:
    return JsonDocumentReader(objects()).read(batch(*texts))


def good(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


class TestAnObject:
    def test_it_becomes_the_task_that_it_says(self) -> None:
        row = good(content="ä\n", delay=1.5, retry=7, ttl=60, headers={"A": "b"})
        assert accepted_tasks(read(row)) == [
            Task(
                id=ID, own_id=True, topic="order", callback=CALLBACK, content="ä\n", headers={"A": "b"}, max_retry=7,
                created_at=NOW, execute_at=NOW + 1500, expires_at=NOW + 60_000,
            )
        ]  # fmt: skip

    def test_null_is_absent(self) -> None:
        assert read(good(delay=None, id=None, other=None)).payloads == read(good()).payloads

    def test_of_a_name_that_comes_twice_the_last_counts(self) -> None:
        row = '{"key": 1, "topic": 5, ' + good()[1:]
        assert read(row).payloads == read(good()).payloads

    def test_a_number_is_what_json_says_it_is(self) -> None:
        row = '{"delay": 1.50e1, ' + good()[1:]
        assert b'"delay":1.50e1' in read(row).payloads.bodies[0]

    @pytest.mark.parametrize("around", [b"%s\r", b" \t%s ", MARK + b"%s"])
    def test_what_stands_around_it_is_none_of_it(self, around: bytes) -> None:
        assert read(around % good().encode()).payloads == read(good()).payloads

    @pytest.mark.parametrize("blank", ["", " \t\r", MARK, MARK + b" ", None])
    def test_a_blank_text_is_no_row(self, blank: str | bytes | None) -> None:
        assert read(blank) == (([], [], []), [])

    @pytest.mark.parametrize(
        ("text", "seconds"), [("2026-11-21T09:00:00Z", 1795251600.0), ("2026-11-21T09:00:00.5+01:00", 1795248000.5)]
    )
    def test_a_time_in_text_is_its_unix_seconds(self, text: str, seconds: float) -> None:
        (body,) = read(good(execute_time=text)).payloads.bodies
        assert json.loads(body)["execute_time"] == seconds

    @pytest.mark.parametrize("text", ["2026-11-21", "soon", "1795251600", "\ud800"])
    def test_a_text_that_is_no_time_is_refused_as_by_create(self, text: str) -> None:
        (refusal,) = rejection_reasons(read(good(execute_time=text)))
        assert refusal.startswith("execute_time: expected")


class TestWhatIsNoTask:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"delay": "5"}, 'delay: expected a number of seconds ≥ 0, got "5"'),
            ({"delay": True}, "delay: expected a number of seconds ≥ 0, got true"),
            ({"delay": float("nan")}, "delay: expected a number of seconds ≥ 0, got nan"),
            ({"delay": 10**400}, f"delay: expected a number of seconds ≥ 0, got 1{'0' * 76}…"),
            ({"retry": 3.0}, "retry: expected an integer from 0 to 1000, got 3.0"),
            ({"content": "\ud800"}, "content: expected Unicode text, got a lone surrogate in it"),
            ({"headers": []}, "headers: expected an object of up to 20 strings, got an array"),
            ({"dealy": 5}, "dealy: unknown field"),
            ({"\ud800": 5}, r"\\ud800: unknown field"),
            ({"method": "PUT"}, "method: not a field of this version"),
        ],
    )  # fmt: skip
    def test_a_wrong_field_is_refused_as_by_create(self, changes: dict[str, Any], reason: str) -> None:
        assert rejection_reasons(read(good(**changes))) == [reason]
        assert rejection_reasons(read(good(**changes), spread_s=3600)) == [reason]

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("[]", "expected a JSON object, got an array"),
            ("5", "expected a JSON object, got a number"),
            ('{"key": "17"', "expected JSON: Expecting ',' delimiter: line 1 column 13 (char 12)"),
            ('{"delay": NaN, "key": ' + "9" * 5000, "expected JSON, got an integer of too many digits in it"),
            ("{} {}", "expected JSON: Extra data: line 1 column 4 (char 3)"),
            (b'{"key": "caf\xe9"', "expected UTF-8, got the byte 0xe9 at position 12"),
            ("[" * 100_000, "expected JSON, got it nested too deeply"),
        ],
        ids=lambda text: str(text[:20]),
    )  # fmt: skip
    def test_what_is_no_object_is_refused_as_by_create(self, text: str | bytes, reason: str) -> None:
        assert rejection_reasons(read(text)) == [reason]

    def test_what_is_no_utf_8_fails_its_row_alone(self) -> None:
        first, second = validate_bodies(
            read(good(content="x").encode().replace(b'"x"', b'"\xe9"'), good()).payloads.bodies
        )
        assert "expected UTF-8, got the byte 0xe9" in str(first)
        assert isinstance(second, Task)

    def test_a_wrong_value_before_a_right_one_makes_no_task_without_the_jobs_id(self) -> None:
        row = '{"delay": NaN, ' + good(delay=5)[1:]
        assert [task.id for task in accepted_tasks(read(row))] == [ID]

    def test_an_id_is_no_field_of_a_row(self) -> None:
        (reject,) = read(good(id="mine")).rejected
        assert (reject.key, reject.field, reject.reason) == ("17", "id", ID_NOT_ALLOWED)
        assert json.loads(reject.row)["id"] == "mine"

    @example(b'{"topic": "order", "callback": "http://127.0.0.1:8888/", "content": "a\nb"}')
    @given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
    def test_whatever_a_text_is_it_comes_out_once_and_makes_no_task_without_an_id(self, text: bytes) -> None:
        blank = not text.removeprefix(MARK) or text.removeprefix(MARK).isspace()
        for keyless in (True, False):
            came = read(text, keyless=keyless)
            assert len(came.payloads.bodies) + len(came.rejected) == (0 if blank else 1)
            for id, task in zip(came.payloads.ids, validate_bodies(came.payloads.bodies), strict=True):
                assert isinstance(task, Refused) or task.id == id != NO_ID

    @given(
        st.dictionaries(st.sampled_from([*GOOD, "delay", "execute_time", "retry", "ttl", "headers", "id", "x"]), JSON)
    )
    def test_whatever_an_object_holds_it_comes_out_once(self, changes: dict[str, Any]) -> None:
        came = read(good(**changes), spread_s=60)
        assert (
            len(came.payloads.bodies) + len(came.rejected)
            == len(validate_bodies(came.payloads.bodies)) + len(came.rejected)
            == 1
        )


class TestKeys:
    @pytest.mark.parametrize(
        ("written", "text"),
        [
            ("5", b"5"),
            ('"5"', b"5"),
            (r'"\u0061\n"', b"a\n"),
            ("5.0", b"5.0"),
            ("true", b"true"),
            ('{"a": 1,\n "b": [2, null]}', b'{"a":1,"b":[2,null]}'),
            ("9" * 30, b"9" * 30),
        ],
    )
    def test_a_key_is_its_text_as_in_a_column(self, written: str, text: bytes) -> None:
        assert parse_key(msgspec.Raw(written.encode())) == text

    @pytest.mark.parametrize("key", [None, ""])
    def test_a_row_without_one_is_told_of(self, key: str | None) -> None:
        (reject,) = read(good(key=key)).rejected
        assert (reject.key, reject.field) == (None, "key")
        assert reject.reason == (MISSING_KEY if key is None else EMPTY_KEY)

    @pytest.mark.parametrize("key", [float("nan"), float("inf"), "\ud800"])
    def test_what_others_could_be_too_is_no_key(self, key: object) -> None:
        (reject,) = read(good(key=key)).rejected
        assert (reject.field, reject.reason) == ("key", "key: expected Unicode text or a finite number")

    def test_who_takes_duplicates_takes_rows_without_one_beside_those_with_one(self) -> None:
        came = read(good(), good(key=None), good(key=""), keyless=True)
        first, *others = accepted_tasks(came)
        assert (first.id, len({task.id for task in others} - {ID})) == (ID, 2)
        assert came.payloads.reject(1, None, "why").key is None


class TestMapping:
    def test_a_field_may_have_another_name(self) -> None:
        row = json.dumps({"order": 17, "hook": CALLBACK, "topic": "order"})
        assert read(row, sources={"key": "order", "callback": "hook"}).payloads == read(good()).payloads

    def test_one_may_be_two_fields(self) -> None:
        (task,) = accepted_tasks(read(good(topic="17"), sources={"key": "topic", "content": "key"}))
        assert (task.id, task.topic, task.content) == (ID, "17", "17")

    def test_what_is_another_field_is_not_its_own_any_more(self) -> None:
        (task,) = accepted_tasks(read(good(delay=NOW // 1000 + 5), sources={"execute_time": "delay"}))
        assert task.execute_at == NOW + 5000

    def test_what_is_mapped_counts_and_not_what_has_the_name(self) -> None:
        row = good(callback="no URL", hook=CALLBACK)
        assert read(row, sources={"callback": "hook"}).payloads == read(good()).payloads

    def test_what_is_for_all_rows_is_for_all_rows(self) -> None:
        first, second = accepted_tasks(read(good(retry=1), good(), constants={"retry": b"7"}))
        assert (first.max_retry, second.max_retry) == (7, 7)

    def test_fields_that_no_task_has_may_be_left_out(self) -> None:
        assert read(good(dealy=5, id="mine"), strangers=False).payloads == read(good()).payloads


class TestDocuments:
    def test_a_document_is_an_array_of_objects(self) -> None:
        rows = [GOOD, GOOD | {"key": 18, "headers": {"A": "b"}}]
        for indent in (None, 2):
            came = documents(json.dumps(rows, indent=indent))
            assert [task.id for task in accepted_tasks(came)] == task_ids(JOB, [b"17", b"18"])

    def test_or_one_object(self) -> None:
        row = json.dumps(GOOD | {"headers": {"A": "b"}}, indent=2)
        assert [task.id for task in accepted_tasks(documents(row, MARK + row.encode()))] == [ID, ID]

    def test_or_a_file_of_lines_which_spark_calls_json(self) -> None:
        came = documents(f"{good()}\r\n\r\n{good(key=18)}\n5\n")
        assert came.payloads.ids == [*task_ids(JOB, [b"17", b"18"]), NO_ID]

    @pytest.mark.parametrize(
        "bad", ['{"delay": NaN}', '{"content": "\\ud800"}', "5", "[1,\n2]", '"a"', '{"key": %s}' % ("9" * 9999)]
    )
    def test_one_wrong_element_spoils_no_other(self, bad: str) -> None:
        came = documents(f"[{good()}, {bad}\n, {good(key=18)} ]\n")
        there = [task.id for task in validate_bodies(came.payloads.bodies) if isinstance(task, Task)]
        assert there == task_ids(JOB, [b"17", b"18"])
        assert len(came.payloads.bodies) + len(came.rejected) == 3

    @pytest.mark.parametrize(
        "text",
        ["[1 2]", f"[{good()}", f"[{good()},]", f"[{good()}] 5", "{", '{"a": 1', "5", "[" * 100_000, b"[\xe9]", "nope"],
    )
    def test_what_is_none_of_these_is_told_of_once_and_shortly(self, text: str | bytes) -> None:
        (reject,) = documents(text).rejected
        assert reject.reason.startswith("expected JSON: ")
        assert len(reject.row) <= MAX_SHOWN_BYTES

    @pytest.mark.parametrize("text", ["", "\n", MARK, "[]", " [ ] "])
    def test_an_empty_one_has_no_rows(self, text: str | bytes) -> None:
        assert documents(text) == (([], [], []), [])


class TestPlaces:
    """Where a field is said to be."""

    def test_a_field_of_an_object_in_it_is_found_as_in_a_struct(self) -> None:
        text = line(meta={"id": 7, "to": {"url": CALLBACK}}, content="c")
        came = read(text, sources={"key": "meta.id", "callback": "meta.to.url"})
        assert [task.callback for task in accepted_tasks(came)] == [CALLBACK]
        assert came.payloads.keys == [b"7"]

    def test_a_name_with_dots_comes_before_a_place(self) -> None:
        came = read(line(**{"meta.id": 7, "meta": {"id": 8}, "callback": CALLBACK}), sources={"key": "meta.id"})
        assert came.payloads.keys == [b"7"]

    @pytest.mark.parametrize("meta", [None, 5, "x", [], {}, {"id": None}])
    def test_what_is_no_object_has_none(self, meta: Any) -> None:
        came = read(line(meta=meta, callback=CALLBACK), sources={"key": "meta.id"})
        assert [reject.reason for reject in came.rejected] == [MISSING_KEY]

    @pytest.mark.parametrize("field", ["delay", "execute_time"])
    def test_a_time_that_is_not_where_it_was_said_to_be_is_refused(self, field: str) -> None:
        [reject] = read(line(key=7, callback=CALLBACK, headers={"A": "hush"}), sources={field: "due"}).rejected
        assert (reject.key, reject.field) == ("7", field)
        assert reject.reason == f"{field}: expected a field due, or null in it, got none"
        assert json.loads(reject.row) == {"topic": "order", "key": 7, "callback": CALLBACK, "headers": {"A": "***"}}
        assert len(read(line(key=7, callback=CALLBACK, due=None), sources={field: "due"}).payloads.ids) == 1

    @pytest.mark.parametrize("key", [[], {}, [None], {"a": None}, {"a": {"b": ""}}, [[""]]])
    def test_a_key_of_nothing_is_none(self, key: Any) -> None:
        assert [reject.reason for reject in read(line(key=key, callback=CALLBACK)).rejected] == [EMPTY_KEY]


def line(**fields: Any) -> str:
    return json.dumps({"topic": "order"} | fields)
