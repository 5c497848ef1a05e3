"""JSON to tasks: values are sent as written, and any text comes out exactly once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from later.bulk.input.column_names import MISSING_TIME, TIME_REQUIRED, TimeRules
from later.bulk.input.json import (
    ID_NOT_ALLOWED,
    MAX_SHOWN_BYTES,
    NO_ID,
    TEXT_COLUMN,
    JsonDocumentReader,
    JsonLinesReader,
    parse_key,
)
from later.bulk.input.payload import Parsed
from later.bulk.input.rejects import EMPTY_KEY, MISSING_KEY
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.task import Task
from tests.builders import NOW
from tests.bulk.validation import CALLBACK, NO_TIME_NEEDED, accepted_tasks, rejection_reasons, validate_bodies
from tests.cases import each_case

JOB = "a-job"
ID = task_ids(JOB, [b"17"])[0]
VALID = {"key": "17", "topic": "order", "callback": CALLBACK}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def build_reader(
    *,
    sources: Mapping[str, str] | None = None,
    constants: Mapping[str, bytes] | None = None,
    allow_duplicates: bool = False,
    send_unknown_fields: bool = True,
    spread_s: float = 0,
    time_rules: TimeRules = NO_TIME_NEEDED,
) -> JsonLinesReader:
    return JsonLinesReader(
        JOB,
        sources=sources or {},
        constants=constants or {},
        allow_duplicates=allow_duplicates,
        send_unknown_fields=send_unknown_fields,
        spread_s=spread_s,
        time_rules=time_rules,
    )


def batch(*texts: str | bytes | None) -> pa.RecordBatch:
    """Build a batch of texts with any bytes, as Spark does."""
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return pa.record_batch({TEXT_COLUMN: pa.array(raw, pa.binary()).view(pa.string())})


def read(*texts: str | bytes | None, **options: Any) -> Parsed:
    return build_reader(**options).read(batch(*texts))


def read_documents(*texts: str | bytes) -> Parsed:
    return JsonDocumentReader(build_reader()).read(batch(*texts))


def valid(**changes: Any) -> str:
    return json.dumps(VALID | changes)


class TestObjects:
    def test_an_object_becomes_its_task(self) -> None:
        row = valid(content="ä\n", delay=1.5, retry=7, ttl=60, headers={"A": "b"})
        assert accepted_tasks(read(row)) == [
            Task(
                id=ID, own_id=True, topic="order", callback=CALLBACK, content="ä\n", headers={"A": "b"}, max_retry=7,
                created_at=NOW, execute_at=NOW + 1500, expires_at=NOW + 60_000,
            )
        ]  # fmt: skip

    def test_null_is_absent(self) -> None:
        assert read(valid(delay=None, id=None, other=None)).payloads == read(valid()).payloads

    def test_the_last_of_two_fields_with_the_same_name_counts(self) -> None:
        row = '{"key": 1, "topic": 5, ' + valid()[1:]
        assert read(row).payloads == read(valid()).payloads

    def test_a_number_is_sent_as_written(self) -> None:
        row = '{"delay": 1.50e1, ' + valid()[1:]
        assert b'"delay":1.50e1' in read(row).payloads.bodies[0]

    @each_case("around", [b"%s\r", b" \t%s ", BYTE_ORDER_MARK + b"%s"])
    def test_space_around_an_object_is_ignored(self, around: bytes) -> None:
        assert read(around % valid().encode()).payloads == read(valid()).payloads

    @each_case("blank", ["", " \t\r", BYTE_ORDER_MARK, BYTE_ORDER_MARK + b" ", None])
    def test_a_blank_text_is_not_a_row(self, blank: str | bytes | None) -> None:
        parsed = read(blank)
        assert (parsed.payloads[:3], parsed.rejected) == (([], [], []), [])

    @each_case(
        ("text", "seconds"), [("2026-11-21T09:00:00Z", 1795251600.0), ("2026-11-21T09:00:00.5+01:00", 1795248000.5)]
    )
    def test_an_rfc_3339_time_becomes_unix_seconds(self, text: str, seconds: float) -> None:
        (body,) = read(valid(execute_time=text)).payloads.bodies
        assert json.loads(body)["execute_time"] == seconds

    @each_case("text", ["2026-11-21", "soon", "1795251600", "\ud800"])
    def test_a_string_that_is_not_a_time_is_rejected_as_by_create(self, text: str) -> None:
        (refusal,) = rejection_reasons(read(valid(execute_time=text)))
        assert refusal.startswith("execute_time: expected")


class TestRejects:
    @each_case(
        ("changes", "reason"),
        [
            ({"delay": "5"}, 'delay: expected a number of seconds ≥ 0, got "5"'),
            ({"delay": True}, "delay: expected a number of seconds ≥ 0, got true"),
            ({"delay": float("nan")}, "delay: expected a number of seconds ≥ 0, got nan"),
            ({"delay": 10**400}, f"delay: expected a number of seconds ≥ 0, got 1{'0' * 76}…"),
            ({"retry": 3.5}, "retry: expected an integer from 0 to 1000, got 3.5"),
            ({"content": "\ud800"}, "content: expected Unicode text, got a lone surrogate in it"),
            ({"headers": []}, "headers: expected an object of up to 20 strings, got an array"),
            ({"context": {"a": "***"}},
             "context: expected their values, got *** as in a table of rejects: "
             "--set context=… gives them to all rows"),
            ({"headers": {"Later_Due": "x"}},
             'headers: expected a header of your own, got "Later_Due", which later sets'),
            ({"dealy": 5}, "dealy: unknown field; did you mean delay?"),
            ({"\ud800": 5}, r"\\ud800: unknown field"),
            ({"method": "PUT"}, "method: not a field of this version"),
        ],
    )  # fmt: skip
    def test_a_wrong_field_is_rejected_as_by_create(self, changes: dict[str, Any], reason: str) -> None:
        assert rejection_reasons(read(valid(**changes))) == [reason]
        assert rejection_reasons(read(valid(**changes), spread_s=3600)) == [reason]

    @each_case(
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
    )  # fmt: skip
    def test_a_text_that_is_not_an_object_is_rejected_as_by_create(self, text: str | bytes, reason: str) -> None:
        assert rejection_reasons(read(text)) == [reason]

    def test_a_text_that_is_not_utf_8_fails_its_row_only(self) -> None:
        first, second = validate_bodies(
            read(valid(content="x").encode().replace(b'"x"', b'"\xe9"'), valid()).payloads.bodies
        )
        assert "expected UTF-8, got the byte 0xe9" in str(first)
        assert isinstance(second, Task)

    def test_a_wrong_value_before_a_valid_one_keeps_the_jobs_id(self) -> None:
        row = '{"delay": NaN, ' + valid(delay=5)[1:]
        assert [task.id for task in accepted_tasks(read(row))] == [ID]

    def test_an_object_with_an_id_is_rejected(self) -> None:
        (reject,) = read(valid(id="mine")).rejected
        assert (reject.key, reject.field, reject.reason) == ("17", "id", ID_NOT_ALLOWED)
        assert json.loads(reject.row)["id"] == "mine"

    @example(b'{"topic": "order", "callback": "http://127.0.0.1:8888/", "content": "a\nb"}')
    @given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
    def test_any_text_comes_out_once_and_no_task_is_without_an_id(self, text: bytes) -> None:
        blank = not text.removeprefix(BYTE_ORDER_MARK) or text.removeprefix(BYTE_ORDER_MARK).isspace()
        for allow_duplicates in (True, False):
            parsed = read(text, allow_duplicates=allow_duplicates)
            assert len(parsed.payloads.bodies) + len(parsed.rejected) == (0 if blank else 1)
            for id, task in zip(parsed.payloads.ids, validate_bodies(parsed.payloads.bodies), strict=True):
                assert isinstance(task, Refused) or task.id == id != NO_ID

    @given(
        st.dictionaries(st.sampled_from([*VALID, "delay", "execute_time", "retry", "ttl", "headers", "id", "x"]), JSON)
    )
    def test_any_object_comes_out_once(self, changes: dict[str, Any]) -> None:
        parsed = read(valid(**changes), spread_s=60)
        assert (
            len(parsed.payloads.bodies) + len(parsed.rejected)
            == len(validate_bodies(parsed.payloads.bodies)) + len(parsed.rejected)
            == 1
        )


class TestKeys:
    @each_case(
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
    def test_a_key_is_the_same_as_in_a_column(self, written: str, text: bytes) -> None:
        assert parse_key(msgspec.Raw(written.encode())) == text

    @each_case("key", [None, ""])
    def test_a_row_without_a_key_is_rejected(self, key: str | None) -> None:
        (reject,) = read(valid(key=key)).rejected
        assert (reject.key, reject.field) == (None, "key")
        assert reject.reason == (MISSING_KEY if key is None else EMPTY_KEY)

    @each_case("key", [float("nan"), float("inf"), "\ud800"])
    def test_an_inexact_value_is_not_a_key(self, key: object) -> None:
        (reject,) = read(valid(key=key)).rejected
        assert (reject.field, reject.reason) == ("key", "key: expected Unicode text or a finite number")

    def test_with_duplicates_allowed_only_some_rows_need_keys(self) -> None:
        parsed = read(valid(), valid(key=None), valid(key=""), allow_duplicates=True)
        first, *others = accepted_tasks(parsed)
        assert (first.id, len({task.id for task in others} - {ID})) == (ID, 2)
        assert parsed.payloads.reject(1, Refused("why")).key is None


class TestMapping:
    def test_a_field_may_have_another_name(self) -> None:
        row = json.dumps({"order": 17, "hook": CALLBACK, "topic": "order"})
        assert read(row, sources={"key": "order", "callback": "hook"}).payloads == read(valid()).payloads

    def test_a_name_may_be_mapped_to_two_fields(self) -> None:
        (task,) = accepted_tasks(read(valid(topic="17"), sources={"key": "topic", "content": "key"}))
        assert (task.id, task.topic, task.content) == (ID, "17", "17")

    def test_a_mapped_name_no_longer_counts_as_its_own_field(self) -> None:
        (task,) = accepted_tasks(read(valid(delay=NOW // 1000 + 5), sources={"execute_time": "delay"}))
        assert task.execute_at == NOW + 5000

    def test_the_mapped_field_counts_before_the_one_of_the_name(self) -> None:
        row = valid(callback="no URL", hook=CALLBACK)
        assert read(row, sources={"callback": "hook"}).payloads == read(valid()).payloads

    def test_constants_override_the_objects_fields(self) -> None:
        first, second = accepted_tasks(read(valid(retry=1), valid(), constants={"retry": b"7"}))
        assert (first.max_retry, second.max_retry) == (7, 7)

    def test_unknown_fields_may_be_dropped(self) -> None:
        assert read(valid(dealy=5, id="mine"), send_unknown_fields=False).payloads == read(valid()).payloads


class TestDocuments:
    def test_a_document_may_be_an_array_of_objects(self) -> None:
        rows = [VALID, VALID | {"key": 18, "headers": {"A": "b"}}]
        for indent in (None, 2):
            parsed = read_documents(json.dumps(rows, indent=indent))
            assert [task.id for task in accepted_tasks(parsed)] == task_ids(JOB, [b"17", b"18"])

    def test_a_document_may_be_one_object(self) -> None:
        row = json.dumps(VALID | {"headers": {"A": "b"}}, indent=2)
        assert [task.id for task in accepted_tasks(read_documents(row, BYTE_ORDER_MARK + row.encode()))] == [ID, ID]

    def test_a_document_may_be_lines_of_objects(self) -> None:
        parsed = read_documents(f"{valid()}\r\n\r\n{valid(key=18)}\n5\n")
        assert parsed.payloads.ids == [*task_ids(JOB, [b"17", b"18"]), NO_ID]

    @each_case(
        "wrong", ['{"delay": NaN}', '{"content": "\\ud800"}', "5", "[1,\n2]", '"a"', '{"key": %s}' % ("9" * 9999)]
    )
    def test_a_wrong_element_fails_no_other(self, wrong: str) -> None:
        parsed = read_documents(f"[{valid()}, {wrong}\n, {valid(key=18)} ]\n")
        created = [task.id for task in validate_bodies(parsed.payloads.bodies) if isinstance(task, Task)]
        assert created == task_ids(JOB, [b"17", b"18"])
        assert len(parsed.payloads.bodies) + len(parsed.rejected) == 3

    @each_case(
        "text",
        [
            "[1 2]",
            f"[{valid()}",
            f"[{valid()},]",
            f"[{valid()}] 5",
            "{",
            '{"a": 1',
            "5",
            "[" * 100_000,
            b"[\xe9]",
            "nope",
        ],
    )
    def test_any_other_document_is_rejected_once_and_shown_short(self, text: str | bytes) -> None:
        (reject,) = read_documents(text).rejected
        assert reject.reason.startswith("expected JSON: ")
        assert len(reject.row) <= MAX_SHOWN_BYTES

    @each_case("text", ["", "\n", BYTE_ORDER_MARK, "[]", " [ ] "])
    def test_an_empty_document_has_no_rows(self, text: str | bytes) -> None:
        parsed = read_documents(text)
        assert (parsed.payloads[:3], parsed.rejected) == (([], [], []), [])


class TestNestedFields:
    """Fields mapped with dots."""

    def test_a_field_of_an_inner_object_is_found_as_in_a_struct(self) -> None:
        text = line(meta={"id": 7, "to": {"url": CALLBACK}}, content="c")
        parsed = read(text, sources={"key": "meta.id", "callback": "meta.to.url"})
        assert [task.callback for task in accepted_tasks(parsed)] == [CALLBACK]
        assert parsed.payloads.keys == [b"7"]

    def test_a_name_with_dots_comes_before_an_inner_field(self) -> None:
        parsed = read(line(**{"meta.id": 7, "meta": {"id": 8}, "callback": CALLBACK}), sources={"key": "meta.id"})
        assert parsed.payloads.keys == [b"7"]

    @each_case("meta", [None, 5, "x", [], {}, {"id": None}])
    def test_a_value_that_is_not_an_object_has_no_inner_field(self, meta: Any) -> None:
        parsed = read(line(meta=meta, callback=CALLBACK), sources={"key": "meta.id"})
        assert [reject.reason for reject in parsed.rejected] == [MISSING_KEY]

    @each_case("field", ["delay", "execute_time"])
    def test_a_missing_mapped_time_is_rejected(self, field: str) -> None:
        [reject] = read(line(key=7, callback=CALLBACK, headers={"A": "secret"}), sources={field: "due"}).rejected
        assert (reject.key, reject.field) == ("7", field)
        assert reject.reason == f"{field}: expected a field due, or null in it, got nothing"
        assert json.loads(reject.row) == {"key": "7", "topic": "order", "callback": CALLBACK, "headers": {"A": "***"}}
        assert len(read(line(key=7, callback=CALLBACK, due=None), sources={field: "due"}).payloads.ids) == 1

    @each_case("key", [[], {}, [None], {"a": None}, {"a": {"b": ""}}, [[""]]])
    def test_an_empty_key_is_rejected(self, key: Any) -> None:
        assert [reject.reason for reject in read(line(key=key, callback=CALLBACK)).rejected] == [EMPTY_KEY]


def line(**fields: Any) -> str:
    return json.dumps({"topic": "order"} | fields)


class TestTimes:
    @each_case("changes", [{}, {"delay": None}, {"execute_time": ""}, {"delay": "  "}])
    def test_an_object_without_a_time_is_rejected(self, changes: dict[str, Any]) -> None:
        parsed = read(valid(**changes), valid(delay=5), time_rules=TIME_REQUIRED)
        (reject,) = parsed.rejected
        assert reject.reason.endswith(f": {MISSING_TIME}")
        assert len(parsed.payloads.ids) == 1

    @each_case("rules", [TimeRules(all_now=True), TimeRules(null_now=True)])
    @each_case("changes", [{}, {"delay": None}, {"execute_time": ""}])
    def test_with_now_or_null_time_now_it_is_due_at_once(self, rules: TimeRules, changes: dict[str, Any]) -> None:
        (task,) = accepted_tasks(read(valid(**changes), time_rules=rules))
        assert task.execute_at == NOW

    def test_an_ignored_field_that_may_be_the_time_is_named(self) -> None:
        (reject,) = read(valid(due=5), send_unknown_fields=False, time_rules=TIME_REQUIRED).rejected
        assert reject.reason == f"execute_time: {MISSING_TIME} (did you mean execute_time by 'due'?)"

    @each_case("name", ["Delay", " delay", "DELAY\t"])
    def test_a_field_matches_whatever_its_case_and_the_spaces_around_it(self, name: str) -> None:
        (task,) = accepted_tasks(read(valid(**{name: 5}), time_rules=TIME_REQUIRED))
        assert task.execute_at == NOW + 5000

    def test_an_object_with_two_fields_of_one_name_is_rejected(self) -> None:
        (reject,) = read(valid(delay=5, Delay=7)).rejected
        assert (reject.field, reject.key) == ("delay", "17")
        assert reject.reason == "delay: expected one field of that name, got another: 'Delay'"
