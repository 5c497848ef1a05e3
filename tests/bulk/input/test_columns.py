"""The reader of columns: no value changes its meaning, and no row fails another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.bulk.input.arrow_text import is_string_type
from later.bulk.input.column_names import (
    CORRUPT_COLUMN,
    MISSING_TIME,
    TIME_REQUIRED,
    TimeRules,
    find_time_name,
    match_columns,
    source_columns,
)
from later.bulk.input.columns import WRONG_COLUMN_COUNT, ColumnReader
from later.bulk.input.csv_checks import NOT_UTF_8, UNCLOSED_QUOTE, CsvLayout
from later.bulk.input.payload import Parsed
from later.bulk.input.rejects import EMPTY_KEY, MISSING_KEY, RejectCode
from later.bulk.input.task_ids import task_ids
from later.core.errors import Refused
from later.core.policy import DEFAULT_POLICY
from later.core.task import Task
from later.core.validation import to_milliseconds
from tests.builders import NOW
from tests.bulk.validation import CALLBACK, NO_TIME_NEEDED, NOW_S, accepted_tasks, rejection_reasons, validate_bodies
from tests.cases import each_case

DELAY = "delay: expected a number of seconds ≥ 0, got"
TIME = "execute_time: expected a number of Unix seconds or an RFC 3339 time, got"
HEADERS = "maps or structs of strings, or JSON objects"
NOT_UNICODE = "expected Unicode text, got a lone surrogate in it"
HOUR = 3600.0
JOB = "a-job"


def read(
    *, spread_s: float = 0, allow_duplicates: bool = False, time_rules: TimeRules = NO_TIME_NEEDED, **columns: Any
) -> Parsed:
    """Read rows with these columns, each an array or its values, with defaults for topic, callback and key."""
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    count = len(next(iter(arrays.values())))
    defaults = {"topic": ["order"] * count, "callback": [CALLBACK] * count}
    if not allow_duplicates:
        defaults["key"] = [f"row {number}" for number in range(count)]
    batch = pa.record_batch({name: pa.array(values) for name, values in defaults.items()} | arrays)
    return ColumnReader(
        batch.schema,
        JOB,
        allow_duplicates=allow_duplicates,
        spread_s=spread_s,
        time_rules=time_rules,
        now=lambda: NOW_S,
    ).read(batch)


def column_refusal(name: str, kind: pa.DataType) -> str:
    """Return the reason why a column of a type is refused."""
    with pytest.raises(Refused) as refused:
        ColumnReader(pa.schema([("key", pa.string()), (name, kind)]), JOB, allow_duplicates=False)
    assert refused.value.field == name
    return refused.value.detail


def due_s(parsed: Parsed) -> list[float]:
    """Return the seconds until each task is due."""
    return [(task.execute_at - NOW) / 1000 for task in accepted_tasks(parsed)]


def raw_strings(*values: bytes | None) -> pa.Array:
    """Build a column of strings with any bytes, as Spark does."""
    return pa.array(values, pa.binary()).view(pa.string())


def build_array(kind: pa.DataType, values: Sequence[int | None]) -> pa.Array:
    """Build a column of numbers in a type; null for those that it does not have."""
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_unsigned_integer(kind):
        values = [None if value is None or value < 0 else value for value in values]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(
        [None if value is None else str(value) if is_string_type(kind) else value for value in values], kind
    )


class TestColumns:
    def test_a_row_becomes_its_task(self) -> None:
        (task,) = accepted_tasks(
            read(
                key=["17"], topic=["t"], content=["c"], delay=[1.5], retry=[7], ttl=[60], remember=[0.5],
                headers=[{"A": "b"}], context=['{"tenant": "b"}'],
            )
        )  # fmt: skip
        assert task == Task(
            id=task_ids(JOB, [b"17"])[0], own_id=True, topic="t", callback=CALLBACK, content="c", headers={"A": "b"},
            max_retry=7, created_at=NOW, execute_at=NOW + 1500, expires_at=NOW + 60_000, context={"tenant": "b"},
            remember_ms=500,
        )  # fmt: skip

    def test_null_is_absent(self) -> None:
        nulls = {name: pa.nulls(1, pa.string()) for name in ("content", "delay", "retry", "ttl", "remember", "headers")}
        assert read(**nulls).payloads.bodies == read(topic=["order"]).payloads.bodies
        assert read(**{name: pa.nulls(1) for name in nulls}).payloads.bodies == read(topic=["order"]).payloads.bodies

    def test_no_rows_are_no_payloads(self) -> None:
        empty = read(delay=pa.array([], pa.float64()), key=pa.array([], pa.int64()), spread_s=HOUR)
        assert (empty.payloads[:3], empty.rejected) == (([], [], []), [])

    def test_an_unknown_column_is_refused(self) -> None:
        assert column_refusal("dealy", pa.string()).startswith("dealy: unknown column; expected topic, callback, ")

    def test_a_repeated_column_is_refused(self) -> None:
        twice = pa.schema([("key", pa.string()), ("topic", pa.string()), ("topic", pa.string())])
        with pytest.raises(Refused, match="topic: expected one column of that name"):
            ColumnReader(twice, JOB, allow_duplicates=False)

    @each_case(
        ("name", "kind", "expected"),
        [
            ("topic", pa.int64(), "strings (to_json makes them of others)"),
            ("callback", pa.binary(), "strings (to_json makes them of others)"),
            ("content", pa.struct([("a", pa.string())]), "strings (to_json makes them of others)"),
            ("delay", pa.bool_(), "numbers"),
            ("delay", pa.timestamp("us", "UTC"), "numbers"),
            ("retry", pa.duration("us"), "numbers"),
            ("ttl", pa.list_(pa.int64()), "numbers"),
            ("execute_time", pa.timestamp("us"), "Unix seconds, timestamps (with a time zone: cast) or RFC 3339 text"),
            ("execute_time", pa.date32(), "Unix seconds, timestamps (with a time zone: cast) or RFC 3339 text"),
            ("execute_time", pa.duration("us"), "Unix seconds, timestamps (with a time zone: cast) or RFC 3339 text"),
            ("headers", pa.list_(pa.string()), HEADERS),
            ("context", pa.map_(pa.string(), pa.int64()), HEADERS),
            ("headers", pa.map_(pa.string(), pa.int64()), HEADERS),
            ("headers", pa.struct([("a", pa.int64())]), HEADERS),
            ("headers", pa.struct([("a", pa.string()), ("a", pa.string())]), HEADERS),
        ],
    )  # fmt: skip
    def test_a_column_of_a_wrong_type_is_refused_as_a_whole(self, name: str, kind: pa.DataType, expected: str) -> None:
        assert column_refusal(name, kind) == f"{name}: expected {expected}, got a column of {kind}"


class TestStrings:
    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
    @given(content=st.text(max_size=30))
    def test_any_string_arrives_unchanged(self, kind: pa.DataType, content: str) -> None:
        assert [task.content for task in accepted_tasks(read(content=pa.array([content], kind)))] == [content]

    @each_case("content", ["a\nb", "\r\n", "\u2028", "\0", "\ufeff", "x" * 5_000_000])
    def test_characters_special_to_lines_or_json_arrive_unchanged(self, content: str) -> None:
        (body,) = read(content=[content]).payloads.bodies
        assert b"\n" not in body
        assert json.loads(body)["content"] == content

    @each_case(("name", "good"), [("topic", b"t"), ("callback", CALLBACK.encode()), ("content", b"")])
    def test_a_string_that_is_not_utf_8_fails_its_row_only(self, name: str, good: bytes) -> None:
        parsed = validate_bodies(read(**{name: raw_strings(b"caf\xe9", good, b"\xed\xa0\x80")}).payloads.bodies)
        assert [str(task) for task in parsed if isinstance(task, Refused)] == [f"{name}: {NOT_UNICODE}"] * 2
        assert isinstance(parsed[1], Task)

    @each_case(("name", "reason"), [("delay", f'{DELAY} "5\\udce9"'), ("execute_time", f"execute_time: {NOT_UNICODE}")])
    def test_a_string_that_is_not_utf_8_is_not_a_number(self, name: str, reason: str) -> None:
        for spread_s in (0, HOUR):
            assert rejection_reasons(read(**{name: raw_strings(b"5\xe9")}, spread_s=spread_s)) == [reason]

    def test_a_rejected_row_shows_bytes_that_are_not_utf_8(self) -> None:
        payloads = read(content=raw_strings(b"caf\xe9")).payloads
        assert json.loads(payloads.reject(0, Refused("why", "content")).row)["content"] == "caf\udce9"


class TestNumbers:
    @each_case(
        "values",
        [
            pa.array([5], pa.int8()),
            pa.array([5], pa.uint64()),
            pa.array([5], pa.float32()),
            pa.array([5.0]),
            pa.array([Decimal(5)], pa.decimal128(9, 4)),
            pa.array([Decimal(5)], pa.decimal256(76, 0)),
            pa.array(["5"]),
            pa.array(["5"], pa.large_string()),
            pa.array([" 5.00\t"]),
            pa.array(["0.5e1"]),
            pa.array(["\u00a05"]),
            *(pa.array([timedelta(seconds=5)], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")),
        ],
    )
    def test_a_number_of_any_type_is_the_same(self, values: pa.Array) -> None:
        assert due_s(read(delay=values)) == [5]

    @each_case("text", ["1_000", "٣", "+5", "05", ".5", "5.", "0x10", "5s", "NaN", "inf", "null", "1e", "5\n6"])
    def test_a_string_that_is_not_a_json_number_is_rejected(self, text: str) -> None:
        assert rejection_reasons(read(delay=[text])) == [f"{DELAY} {json.dumps(text, ensure_ascii=False)}"]

    @each_case("blank", ["", " ", "\t", "\u2003"])
    def test_a_blank_string_is_absent(self, blank: str) -> None:
        columns: dict[str, Any] = {name: [blank] for name in ("delay", "execute_time", "retry", "ttl", "headers")}
        assert read(**columns).payloads.bodies == read(topic=["order"]).payloads.bodies

    @each_case(
        ("values", "got"),
        [
            (pa.array([math.nan], pa.float32()), "nan"),
            ([math.inf], "inf"),
            ([-math.inf], "-inf"),
            (pa.array([-1]), "-1"),
            (["1e400"], "inf"),
            (pa.array([timedelta(seconds=-1)]), "-1"),
        ],
    )
    def test_a_wrong_delay_is_rejected_and_not_ignored(self, values: Any, got: str) -> None:
        assert rejection_reasons(read(delay=values)) == [f"{DELAY} {got}"]

    @given(st.lists(st.none() | st.floats() | st.floats(0, 1e9), min_size=1, max_size=20), st.booleans())
    def test_a_float_is_a_delay_or_rejected(self, values: list[float | None], spread: bool) -> None:
        payloads = read(delay=pa.array(values, pa.float64()), spread_s=HOUR if spread else 0).payloads
        for value, task in zip(values, validate_bodies(payloads.bodies), strict=True):
            if isinstance(task, Task):
                own, latest = 0 if value is None else to_milliseconds(value), HOUR * 1000 + 1 if spread else 0
                assert 0 <= task.execute_at - NOW - own <= latest
            else:
                assert value is not None
                assert task.field == "delay"
                assert not 0 <= value < 300_000_000

    @given(st.lists(st.none() | st.text("0123456789.eE+-_ n", max_size=12), min_size=1, max_size=20))
    def test_a_string_is_a_delay_or_rejected(self, values: list[str | None]) -> None:
        payloads = read(delay=pa.array(values, pa.string())).payloads
        for value, task in zip(values, validate_bodies(payloads.bodies), strict=True):
            if isinstance(task, Task):
                assert task.execute_at - NOW == to_milliseconds(float(value or "0") if (value or "").strip() else 0)
            else:
                assert task.field == "delay"

    @each_case(
        ("value", "got"),
        [(3.5, "3.5"), ("3.5", "3.5"), (Decimal("3.5"), "3.5"), (1001.0, "1001"), (math.nan, "nan"), (math.inf, "inf")],
    )
    def test_retry_is_an_integer(self, value: Any, got: str) -> None:
        assert rejection_reasons(read(retry=[value])) == [f"retry: expected an integer from 0 to 1000, got {got}"]

    @each_case("values", [[3.0, None, 0.0], ["3.0", None, "0e0"], [Decimal("3.00"), None, Decimal(0)], [3, None, 0]])
    def test_whole_numbers_of_other_types_are_integers(self, values: list[Any]) -> None:
        assert [task.max_retry for task in accepted_tasks(read(retry=values))] == [3, DEFAULT_POLICY.retry, 0]


class TestTimes:
    @each_case("unit", ["s", "ms", "us", "ns"])
    @each_case("zone", ["UTC", "Europe/Berlin", "America/New_York", "-11:30"])
    def test_a_timestamp_is_independent_of_the_columns_zone(self, unit: str, zone: str) -> None:
        moment = datetime.fromtimestamp(NOW_S, UTC) + timedelta(days=200)
        assert due_s(read(execute_time=pa.array([moment], pa.timestamp(unit, zone)))) == [200 * 86_400]

    @given(st.integers(-(2**62), 2**62) | st.integers(NOW * 1000, NOW * 1000 + 10**14))
    def test_no_timestamp_is_early_or_a_millisecond_late(self, micros: int) -> None:
        (task,) = validate_bodies(read(execute_time=pa.array([micros], pa.timestamp("us", "UTC"))).payloads.bodies)
        if isinstance(task, Task):
            assert task.execute_at == max(-(-micros // 1000), NOW)
        else:
            assert str(task).startswith(("execute_time: expected a time at most ten years ahead", TIME))

    @each_case("unit", ["s", "ms"])
    def test_a_timestamp_beyond_pythons_years_is_rejected(self, unit: str) -> None:
        (reason,) = rejection_reasons(read(execute_time=pa.array([2**62], pa.timestamp(unit, "UTC"))))
        assert "at most ten years ahead" in reason

    def test_a_timestamp_in_the_past_means_now(self) -> None:
        moments = pa.array([0, -1, -(2**55)], pa.timestamp("us", "UTC"))
        assert due_s(read(execute_time=moments)) == [0, 0, 0]

    @each_case(
        "text",
        [
            "2027-01-15T08:00:05Z",
            "2027-01-15T09:00:05+01:00",
            "2027-01-15t08:00:05z",
            "2027-01-15 08:00:05Z",
            "2027-01-15T13:30:05.000+05:30",
            "2027-01-14T21:00:05-11:00",
            " 1800000005 ",
            "1800000005.0",
            "1.800000005e9",
        ],
    )
    def test_a_string_may_be_a_number_or_an_rfc_3339_time(self, text: str) -> None:
        assert due_s(read(execute_time=[text])) == [5]

    @each_case(
        "text",
        ["2027-01-15", "20270115T080005Z", "2027-W02-5T08:00:05Z", "2027-01-15T08:00Z", "now",
         "2027-01-15T24:00:00Z", "2027-02-30T08:00:00Z", "2027-01-15T08:00:05,5Z", "0000-00-00T00:00:00Z", "08:00:05Z"],
    )  # fmt: skip
    def test_an_ambiguous_time_is_rejected(self, text: str) -> None:
        assert rejection_reasons(read(execute_time=[text])) == [f'{TIME} "{text}"']

    def test_a_time_without_a_zone_is_rejected(self) -> None:
        (reason,) = rejection_reasons(read(execute_time=["2027-01-15T08:00:05"]))
        assert reason.startswith("execute_time: expected a time with its zone, as in ")


class TestHeaders:
    @each_case(
        "values",
        [
            pa.array([{"A": "1", "B": "ä"}]),
            pa.array([{"A": "1", "B": "ä", "C": None}]),
            pa.array([[("A", "1"), ("B", "ä")]], pa.map_(pa.string(), pa.string())),
            pa.array(['{"A": "1",\r\n "B": "\\u00e4"}']),
            pa.array(['{"A": "0", "B": "ä", "A": "1"}']),
        ],
    )  # fmt: skip
    def test_maps_structs_and_objects_are_headers(self, values: pa.Array) -> None:
        assert [task.headers for task in accepted_tasks(read(headers=values))] == [{"A": "1", "B": "ä"}]

    @each_case(
        "values",
        [
            pa.array([None], pa.map_(pa.string(), pa.string())),
            pa.array([[]], pa.map_(pa.string(), pa.string())),
            pa.array([None], pa.struct([("A", pa.string())])),
            pa.array([{"A": None}], pa.struct([("A", pa.string())])),
            pa.array(["{}"]),
        ],
    )
    def test_headers_may_be_empty(self, values: pa.Array) -> None:
        assert [task.headers for task in accepted_tasks(read(headers=values))] == [{}]

    def test_a_null_is_rejected_in_a_map_and_dropped_from_a_struct(self) -> None:
        (reason,) = rejection_reasons(read(headers=pa.array([[("A", None)]], pa.map_(pa.string(), pa.string()))))
        assert reason == 'headers: expected an object of up to 20 strings, got null in "A"'

    @each_case("text", ["[]", "null", '"x"', "A: b", '{"A": NaN}', '{"A": "\\ud800"}', '{"A": "b"', "{" * 5000])
    def test_a_string_that_is_not_an_object_is_rejected_as_a_string(self, text: str) -> None:
        assert rejection_reasons(read(headers=[text])) == [
            "headers: expected an object of up to 20 strings, got a string"
        ]

    @each_case(
        "values",
        [
            pa.MapArray.from_arrays([0, 1, 2], pa.array(["A", "A"]), raw_strings(b"\xe9", b"ok")),
            pa.StructArray.from_arrays([raw_strings(b"\xe9", b"ok")], ["A"]),
        ],
    )
    def test_headers_that_are_not_utf_8_fail_their_row_only(self, values: pa.Array) -> None:
        first, second = validate_bodies(read(headers=values).payloads.bodies)
        assert str(first) == f"headers: {NOT_UNICODE}"
        assert isinstance(second, Task)
        assert second.headers == {"A": "ok"}


class TestKeys:
    def test_a_row_without_a_key_is_rejected_and_the_others_are_sent(self) -> None:
        parsed = read(key=["a", None, "", "b"], delay=[1, 2, math.nan, 4])
        row = {"topic": "order", "callback": CALLBACK}
        assert parsed.payloads.ids == task_ids(JOB, [b"a", b"b"])
        assert parsed.payloads.keys == [b"a", b"b"]
        assert [(reject.field, reject.reason) for reject in parsed.rejected] == [
            ("key", MISSING_KEY),
            ("key", EMPTY_KEY),
        ]
        assert json.loads(parsed.rejected[0].row) == {**row, "delay": 2}
        assert [
            task.execute_at - NOW for task in validate_bodies(parsed.payloads.bodies) if isinstance(task, Task)
        ] == [
            1000,
            4000,
        ]

    def test_all_rows_may_be_rejected(self) -> None:
        parsed = read(key=pa.array([None, None], pa.int64()))
        assert (parsed.payloads.bodies, len(parsed.rejected)) == ([], 2)

    def test_a_job_without_keys_must_allow_duplicates(self) -> None:
        with pytest.raises(Refused, match="key: expected a column of that name"):
            ColumnReader(pa.schema([("topic", pa.string())]), JOB, allow_duplicates=False)
        one, other = accepted_tasks(read(topic=["a", "a"], allow_duplicates=True))
        assert one.id != other.id

    def test_with_duplicates_allowed_only_some_rows_need_keys(self) -> None:
        parsed = read(key=["a", None, "", "b"], allow_duplicates=True)
        assert parsed.rejected == []
        assert [parsed.payloads.ids[0], parsed.payloads.ids[3]] == task_ids(JOB, [b"a", b"b"])
        assert len(set(parsed.payloads.ids)) == 4
        assert parsed.payloads.keys == [b"a", None, None, b"b"]
        assert parsed.payloads.reject(1, Refused("why")).key is None

    def test_a_key_may_have_any_length(self) -> None:
        assert accepted_tasks(read(key=["k" * 100_000]))[0].id == task_ids(JOB, [b"k" * 100_000])[0]


class TestCorruptRows:
    def test_a_corrupt_row_is_rejected_as_text_and_the_others_are_sent(self) -> None:
        parsed = read(key=[None, "a"], **{CORRUPT_COLUMN: raw_strings(b"a;b;caf\xe9", None)})
        [reject] = parsed.rejected
        assert (reject.row, reject.code, reject.reason) == ("a;b;caf\\xe9", RejectCode.MALFORMED, WRONG_COLUMN_COUNT)
        assert parsed.payloads.ids == task_ids(JOB, [b"a"])

    def test_the_column_of_corrupt_rows_is_of_strings(self) -> None:
        assert column_refusal(CORRUPT_COLUMN, pa.int64()) == "_corrupt: expected strings, got a column of int64"


class TestNames:
    @each_case("name", ["Delay", " delay", "DELAY ", "\tdelay"])
    def test_a_column_matches_whatever_its_case_and_the_spaces_around_it(self, name: str) -> None:
        columns: dict[str, Any] = {name: [5]}
        assert due_s(read(**columns, time_rules=TIME_REQUIRED)) == [5]

    def test_two_columns_that_match_one_name_are_refused(self) -> None:
        with pytest.raises(Refused, match=r"^delay: expected one column of that name, got 'delay' and ' Delay'$"):
            match_columns(["delay", "note", " Delay"])

    @each_case(
        ("name", "field"),
        [("due", "execute_time"), ("at", "execute_time"), ("Run_At", "execute_time"), ("run-at", "execute_time"),
         ("Execute Time", "execute_time"), ("countdown", "delay"), ("dealy", "delay"), ("delays", "delay"),
         ("exec_time", "execute_time")],
    )  # fmt: skip
    def test_another_name_for_a_time_is_recognized(self, name: str, field: str) -> None:
        assert find_time_name(["note", name]) == (name, field)

    def test_names_of_other_things_are_no_times(self) -> None:
        assert find_time_name(["customer", "id", "amount", "relay_server", "created_by"]) is None

    def test_an_unknown_column_that_may_be_the_time_is_refused_with_the_field_that_is_meant(self) -> None:
        assert column_refusal("due", pa.int64()).endswith(" or key; did you mean execute_time?")

    def test_a_table_without_a_time_is_refused_unless_now_is_given(self) -> None:
        with pytest.raises(Refused, match=r"^execute_time: expected a column execute_time or delay, got neither; "):
            read(content=["x"], time_rules=TIME_REQUIRED)
        assert due_s(read(content=["x"], time_rules=TimeRules(all_now=True))) == [0]

    @each_case("values", [[None, 5], ["", "5"], [" ", "5"]])
    def test_a_row_whose_time_is_null_or_empty_is_rejected_unless_null_times_are_now(self, values: list[Any]) -> None:
        parsed = read(key=["a", "b"], delay=values, time_rules=TIME_REQUIRED)
        (reject,) = parsed.rejected
        assert (reject.key, reject.field, reject.reason) == ("a", "delay", f"delay: {MISSING_TIME}")
        assert len(parsed.payloads.ids) == 1
        assert due_s(read(delay=values, time_rules=TimeRules(null_now=True))) == [0, 5]

    def test_a_row_needs_only_one_of_two_times(self) -> None:
        parsed = read(delay=[5, None, None], execute_time=[None, NOW_S + 7, None], time_rules=TIME_REQUIRED)
        assert (len(parsed.payloads.ids), len(parsed.rejected)) == (2, 1)

    def test_a_time_that_all_rows_share_is_a_time(self) -> None:
        schema = pa.schema([("key", pa.string())])
        ColumnReader(schema, JOB, allow_duplicates=False, constants={"delay": b"5"})
        with pytest.raises(Refused, match=r"^execute_time: "):
            ColumnReader(schema, JOB, allow_duplicates=False, constants={"delay": b"null"})


class TestSources:
    def test_a_field_is_the_mapped_column_or_the_one_of_its_name(self) -> None:
        sources = source_columns({"callback": "hook"})
        assert (sources["callback"], sources["topic"], sources["key"]) == ("hook", "topic", "key")

    def test_a_mapped_column_no_longer_counts_under_its_own_name(self) -> None:
        sources = source_columns({"execute_time": "delay"})
        assert sources["execute_time"] == "delay"
        assert "delay" not in sources

    def test_a_key_may_also_be_a_field(self) -> None:
        sources = source_columns({"key": "topic", "content": "key"})
        assert (sources["key"], sources["topic"], sources["content"]) == ("topic", "topic", "key")
        assert source_columns({"content": "key"})["key"] == "key"

    def test_a_column_may_be_mapped_to_two_fields(self) -> None:
        sources = source_columns({"topic": "x", "content": "x"})
        assert (sources["topic"], sources["content"]) == ("x", "x")


KINDS = (
    pa.string(), pa.large_string(), pa.string_view(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(),
    pa.float64(), pa.decimal128(38, 18), pa.decimal256(76, 3), pa.timestamp("us", "Asia/Kolkata"), pa.duration("us"),
    pa.null(),
)  # fmt: skip


@each_case("kind", KINDS)
@each_case("name", ["topic", "content", "delay", "execute_time", "retry", "ttl", "remember", "headers", "key"])
@each_case("spread_s", [0, HOUR])
def test_each_row_of_a_column_of_any_type_comes_out_once(name: str, kind: pa.DataType, spread_s: float) -> None:
    values = build_array(kind, [None, 0, -1, 5, 127])
    try:
        parsed = read(**{name: values}, spread_s=spread_s)
    except Refused:
        return  # as a whole, before any row is read
    assert len(parsed.payloads.bodies) + len(parsed.rejected) == len(values)
    assert len(validate_bodies(parsed.payloads.bodies)) == len(parsed.payloads.ids)


class TestSpread:
    @each_case(
        ("values", "got"),
        [
            ([math.nan], "nan"),
            ([math.inf], "inf"),
            (["1e400"], "inf"),
            (["9" * 400], "9" * 77 + "…"),
            ([-5], "-5"),
            (["-5"], "-5"),
            ([-0.5], "-0.5"),
            (["soon"], '"soon"'),
        ],
    )
    def test_a_wrong_delay_does_not_become_a_valid_one(self, values: list[Any], got: str) -> None:
        assert rejection_reasons(read(delay=values, spread_s=HOUR)) == [f"{DELAY} {got}"]
        assert rejection_reasons(read(delay=values)) == [f"{DELAY} {got}"]

    @each_case("value", [math.nan, math.inf, "1e400", "tomorrow"])
    def test_a_wrong_time_does_not_become_now(self, value: Any) -> None:
        (reason,) = rejection_reasons(read(execute_time=[value], spread_s=HOUR))
        assert reason.startswith(TIME)

    def test_tasks_are_spread_evenly(self) -> None:
        due = sorted(due_s(read(content=["x"] * 4000, spread_s=HOUR)))
        assert 0 <= due[0] < 5
        assert HOUR - 5 < due[-1] <= HOUR
        assert abs(due[2000] - HOUR / 2) < 120

    def test_a_row_always_has_the_same_offset(self) -> None:
        assert due_s(read(delay=[5, None], spread_s=HOUR)) == due_s(read(delay=["5", ""], spread_s=HOUR))

    def test_the_offset_counts_from_the_rows_time(self) -> None:
        offset = due_s(read(content=["x"], spread_s=HOUR))[0]
        assert due_s(read(delay=[10], spread_s=HOUR)) == [pytest.approx(10 + offset, abs=0.002)]
        assert due_s(read(execute_time=[NOW_S + 10.5], spread_s=HOUR)) == [pytest.approx(10.5 + offset, abs=0.001)]

    @each_case("past", [NOW_S - 1000, 0, -86_400, "2020-01-01T00:00:00Z"])
    def test_for_times_in_the_past_the_offset_counts_from_now(self, past: Any) -> None:
        offset = due_s(read(content=["x"], spread_s=HOUR))[0]
        assert due_s(read(execute_time=[past], spread_s=HOUR)) == [pytest.approx(offset, abs=0.001)]

    def test_both_a_delay_and_a_time_are_rejected(self) -> None:
        assert "got both" in rejection_reasons(read(delay=[5], execute_time=[NOW_S], spread_s=HOUR))[0]


class TestConstants:
    def test_all_rows_have_the_constants(self) -> None:
        parsed = read_with(constants={"topic": b'"order"', "headers": b'{"A":"b"}'}, callback=[CALLBACK] * 2)
        assert [(task.topic, task.headers) for task in accepted_tasks(parsed)] == [("order", {"A": "b"})] * 2

    def test_a_constant_of_null_is_absent(self) -> None:
        parsed = read_with(constants={"topic": b'"order"', "execute_time": b"null"}, callback=[CALLBACK], delay=[5])
        assert due_s(parsed) == [5]

    def test_constants_are_delayed_as_other_values(self) -> None:
        offset = due_s(read(content=["x"], spread_s=HOUR))[0]
        constants = {"topic": b'"order"', "delay": b"10"}
        parsed = read_with(constants=constants, spread_s=HOUR, callback=[CALLBACK])
        assert due_s(parsed) == [pytest.approx(10 + offset, abs=0.002)]


CSV = CsvLayout(separator=";", columns=4, callback=2)


class TestMisread:
    """CSV that was misread: U+FFFD in place of other bytes, or rows in a value."""

    def test_keys_with_replacement_characters_are_rejected(self) -> None:
        parsed = read_with(csv=CSV, key=["M\ufffdller", "M\ufffdller", "Maier"], content=["x", None, "z"])
        assert [json.loads(body)["content"] for body in parsed.payloads.bodies] == ["z"]
        assert [(reject.key, reject.field, reject.reason) for reject in parsed.rejected] == [
            ("M\ufffdller", "key", f"key: {NOT_UTF_8}")
        ] * 2

    def test_strings_with_replacement_characters_are_rejected(self) -> None:
        parsed = read_with(csv=CSV, content=["caf\ufffd", "tea"])
        assert [(reject.key, reject.field) for reject in parsed.rejected] == [("row 0", "content")]
        assert json.loads(parsed.rejected[0].row)["content"] == "caf\ufffd"
        assert len(parsed.payloads.ids) == 1

    def test_misread_rows_without_keys_are_rejected(self) -> None:
        parsed = read_with(csv=CSV, allow_duplicates=True, key=None, content=["caf\ufffd", "tea"])
        assert ([reject.key for reject in parsed.rejected], len(parsed.payloads.ids)) == ([None], 1)

    @each_case("inner", [f"2;t;{CALLBACK};c", f'2;t;"{CALLBACK}";c;', "2;t; https://h/;c\n3;t", "x\n2;t;http://h;"])
    def test_rows_in_a_value_are_rejected(self, inner: str) -> None:
        [reject] = read_with(csv=CSV, content=[f"hello\n{inner}"]).rejected
        assert (reject.key, reject.field, reject.reason) == ("row 0", "content", f"content: {UNCLOSED_QUOTE}")

    @each_case(
        "inner", ["a; b; c; d; e", f"2;t;{CALLBACK}", f"2,t,{CALLBACK},c", f"{CALLBACK};b;c;d", "", f"\r;{CALLBACK}"]
    )
    def test_lines_that_are_no_rows_are_accepted(self, inner: str) -> None:
        assert len(read_with(csv=CSV, content=[f"hello\n{inner}\nbye"]).payloads.ids) == 1
        assert len(read_with(csv=CSV._replace(callback=None), content=[f"hello\n{inner}"]).payloads.ids) == 1

    def test_outside_csv_a_replacement_character_is_accepted(self) -> None:
        assert len(read(content=["caf\ufffd"]).payloads.ids) == 1


def read_with(
    *, constants: Mapping[str, bytes] | None = None, csv: CsvLayout | None = None, allow_duplicates: bool = False,
    spread_s: float = 0, **columns: list[Any] | None,
) -> Parsed:  # fmt: skip
    """Read rows as `read` does, with constants and a CSV layout."""
    count = len(next(values for values in columns.values() if values is not None))
    defaults = {"topic": ["order"] * count, "callback": [CALLBACK] * count, "key": [f"row {n}" for n in range(count)]}
    present = {name: values for name, values in (defaults | columns).items() if values is not None}
    batch = pa.record_batch({name: values for name, values in present.items() if name not in (constants or {})})
    reader = ColumnReader(
        batch.schema,
        JOB,
        allow_duplicates=allow_duplicates,
        spread_s=spread_s,
        constants=constants,
        csv=csv,
        time_rules=NO_TIME_NEEDED,
        now=lambda: NOW_S,
    )
    return reader.read(batch)
