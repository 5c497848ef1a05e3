"""Ids and keys of rows. They never change, because existing jobs depend on them."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.bulk.input.row_keys import key_decoder
from later.bulk.input.task_ids import MAX_JOB_CHARS, check_job, task_ids
from later.core.errors import Refused
from later.core.validation import check_id
from tests.cases import each_case


def keys(values: Any, kind: pa.DataType | None = None) -> list[bytes | None]:
    array = pa.array(values, kind)
    return list(key_decoder(array.type)(array))


class TestIds:
    def test_an_id_is_the_jobs_id_and_a_hash_of_the_key(self) -> None:
        assert task_ids("orders-7", [b"17"]) == ["orders-7:RSNUDxUEzRcQDEg16Ft-"]

    @given(st.lists(st.binary(max_size=40)))
    def test_the_hash_is_the_documented_one(self, keys: list[bytes]) -> None:
        hashes = [base64.urlsafe_b64encode(sha256(key).digest())[:20].decode() for key in keys]
        assert task_ids("j", keys) == [f"j:{hash}" for hash in hashes]

    @given(st.text("azAZ09._~:-", min_size=1, max_size=MAX_JOB_CHARS), st.binary(max_size=9))
    def test_ids_of_any_job_are_valid(self, job: str, key: bytes) -> None:
        (id,) = task_ids(check_job(job), [key])
        assert check_id(id) == id

    @each_case("job", ["", "a b", "a/b", "ä", "a\n", "x" * (MAX_JOB_CHARS + 1)])
    def test_a_job_that_no_id_can_begin_with_is_refused(self, job: str) -> None:
        with pytest.raises(Refused, match=f"expected 1 to {MAX_JOB_CHARS} characters"):
            check_job(job)

    def test_a_job_whose_ids_would_be_reserved_is_refused(self) -> None:
        for job in ("s:a", "ev:a"):
            with pytest.raises(Refused, match="expected one that does not begin with s: or ev:"):
                check_job(job)


class TestKeys:
    @each_case("kind", [pa.string(), pa.large_string(), pa.string_view()])
    def test_a_string_is_its_bytes(self, kind: pa.DataType) -> None:
        assert keys(["5", "ä\n", " ", None], kind) == [b"5", "ä\n".encode(), b" ", None]

    @each_case("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.decimal128(38, 0), pa.decimal256(76, 0)])
    def test_an_integer_is_its_digits(self, kind: pa.DataType) -> None:
        assert keys([5, None, 0], kind) == [b"5", None, b"0"]
        assert keys([2**64 - 1], pa.uint64()) == [b"18446744073709551615"]

    @each_case(
        ("number", "scale", "text"),
        [("5", 2, b"5.00"), ("-0.05", 2, b"-0.05"), ("0.0000000001", 10, b"0.0000000001"), ("0", 10, b"0.0000000000"),
         ("500", -2, b"500")],
    )  # fmt: skip
    def test_a_decimal_has_the_digits_of_its_column_and_no_exponent(self, number: str, scale: int, text: bytes) -> None:
        assert keys([Decimal(number), None], pa.decimal128(38, scale)) == [text, None]

    @each_case("kind", [pa.binary(), pa.large_binary()])
    def test_bytes_stay_unchanged(self, kind: pa.DataType) -> None:
        assert keys([b"5", b"\xff", None], kind) == [b"5", b"\xff", None]

    def test_a_string_that_is_not_utf_8_is_its_bytes(self) -> None:
        broken = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
        assert list(key_decoder(broken.type)(broken)) == [b"caf\xe9"]

    @each_case("unit", ["s", "ms", "us"])
    @each_case("zone", ["UTC", "Etc/UTC", "+02:00", "America/New_York"])
    def test_a_timestamp_is_in_utc_whatever_the_columns_zone(self, unit: str, zone: str) -> None:
        moment = datetime(2026, 11, 21, 22, tzinfo=UTC)
        assert keys([moment, None], pa.timestamp(unit, zone)) == [b"2026-11-21T22:00:00+00:00", None]

    def test_a_timestamp_without_a_zone_stays_without_one(self) -> None:
        local = datetime(1969, 12, 31, 23, 59, 59, 500)
        assert keys([local], pa.timestamp("us")) == [b"1969-12-31T23:59:59.000500"]

    def test_a_date_is_in_iso_8601(self) -> None:
        assert keys([date(2026, 11, 21), None], pa.date32()) == [b"2026-11-21", None]
        assert keys([date(2026, 11, 21)], pa.date64()) == [b"2026-11-21"]

    def test_times_beyond_pythons_years_are_numbers(self) -> None:
        assert keys([2**62, -(2**62)], pa.timestamp("us", "UTC")) == [b"4611686018427387904", b"-4611686018427387904"]
        assert keys([10**7, -(10**7)], pa.date32()) == [b"10000000", b"-10000000"]

    def test_a_boolean_is_its_json(self) -> None:
        assert keys([True, False, None]) == [b"true", b"false", None]

    def test_a_struct_is_the_array_of_its_values(self) -> None:
        kind = pa.struct(
            [("a", pa.int64()), ("b", pa.string()), ("c", pa.decimal128(9, 1)), ("d", pa.timestamp("us", "+02:00")),
             ("e", pa.struct([("f", pa.bool_()), ("g", pa.date32())]))]
        )  # fmt: skip
        row = {"a": 1, "b": '"ä', "c": Decimal(5), "d": datetime(2026, 1, 1, tzinfo=UTC), "e": {"f": True, "g": None}}

        assert keys([row, None, {}], kind) == [
            '[1,"\\"ä",5.0,"2026-01-01T00:00:00+00:00",[true,null]]'.encode(),
            None,
            None,
        ]

    @each_case("row", [{}, {"a": ""}, {"b": {"c": None}}, {"a": "", "b": {"c": ""}}])
    def test_an_empty_struct_is_not_a_key(self, row: dict[str, Any]) -> None:
        kind = pa.struct([("a", pa.string()), ("b", pa.struct([("c", pa.string())]))])
        assert keys([row, {"a": "x"}], kind) == [None, b'["x",null]']

    def test_a_slice_of_structs_is_read_from_its_offset(self) -> None:
        array = pa.array([{"a": 1}, None, {"a": 3}, {"a": None}])[1:]
        assert list(key_decoder(array.type)(array)) == [None, b"[3]", None]

    @each_case(
        "kind",
        [pa.float64(), pa.float16(), pa.list_(pa.string()), pa.map_(pa.string(), pa.string()), pa.null(), pa.struct([]),
         pa.struct([("a", pa.float32())]), pa.timestamp("ns"), pa.duration("us"), pa.time64("us"), pa.binary(2)],
    )  # fmt: skip
    def test_a_column_of_an_inexact_type_is_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(Refused, match=r"key: expected strings, integers, .*, got a column of ") as refused:
            key_decoder(kind)
        assert refused.value.field == "key"
