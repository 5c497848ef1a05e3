"""Times as callers write them: numbers, and RFC 3339 with a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.clock import rfc3339
from later.core.errors import Refused
from later.core.validation import parse_time
from tests.cases import each_case

FIRST_MS = -62_135_596_800_000
"""The first millisecond of the year 1."""
LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


@given(st.integers(0, LAST_MS))
def test_a_time_of_an_answer_can_be_sent_back(ms: int) -> None:
    assert parse_time("execute_time", rfc3339(ms)) == ms


@given(st.integers(FIRST_MS, LAST_MS))
def test_a_time_is_written_as_the_calendar_has_it(ms: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert rfc3339(ms) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@given(
    st.datetimes(min_value=datetime(1000, 1, 2), max_value=datetime(9998, 12, 30)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.text("0123456789", min_size=1, max_size=18),
    st.sampled_from("Tt "),
)
def test_a_time_in_any_zone_is_rounded_up_to_the_millisecond(
    moment: datetime, offset_min: int, fraction: str, separator: str
) -> None:
    second = moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset_min)))
    text = second.isoformat(separator)
    text = f"{text[:19]}.{fraction}{text[19:]}"
    exact_ms = Fraction((second - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)) * 1000
    exact_ms += Fraction(int(fraction), 10 ** len(fraction)) * 1000
    assert 0 <= parse_time("execute_time", text) - exact_ms < 1


@each_case(
    "text",
    ["", " ", "now", "2027-01-15", "2027-01-15T08:00Z", "20270115T080000Z", "2027-W02-5T08:00:00Z", "08:00:00Z",
     "2027-01-15T08:00:00,5Z", "2027-01-15T08:00:00.Z", "2027-01-15T08:00:00+01", "2027-01-15T08:00:00+0100",
     "2027-01-15T08:00:00+01:00:00", "2027-01-15T08:00:00+24:00", "2027-02-30T08:00:00Z", "2027-01-15T24:00:00Z",
     "2027-01-15T23:59:60Z", "0000-01-01T00:00:00Z", "２027-01-15T08:00:00Z", "2027-01-15T08:00:00Z\n", "1800000000",
     "2027-01-15T08:00:00.1234567890123456789Z", "\ud800"],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"^t: expected a number of Unix seconds or an RFC 3339 time, got "):
        parse_time("t", text)


@each_case("text", ["2027-01-15T08:00:00", "2027-01-15 08:00:00.5"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"^t: expected a time with its zone, as in 2027-01-15T08:00:00Z or "):
        parse_time("t", text)


@each_case(
    ("value", "is_asked"),
    [(1_000_000_000_000, True), (1_800_000_000_000.5, True), (9_999_999_999_999, True), (999_999_999_999, False),
     (10_000_000_000_000, False), (-1_800_000_000_000, False)],
)  # fmt: skip
def test_thirteen_digits_are_asked_for_their_unit(value: float, is_asked: bool) -> None:
    refusal = None
    try:
        parse_time("t", value)
    except Refused as refused:
        refusal = refused.detail
    assert (refusal is not None and refusal.endswith(": are these milliseconds?")) is is_asked
