"""Cron expressions: their times in zones whose clocks are set, beside a reference that looks at each minute."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.cron import CronTimes, find_zone, parse_cron
from later.core.errors import ConfigError, Refused
from tests.cases import each_case

MINUTE = timedelta(minutes=1)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def utc(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def times(cron: str, zone: str, since: str, count: int) -> list[str]:
    found, at, cron_times = list[str](), ms(since), CronTimes(parse_cron(cron), ZoneInfo(zone))
    while len(found) < count and (next_at := cron_times.first(at)) is not None:
        found.append(utc(next_at))
        at = next_at + 1
    return found


# The clocks are set: in spring from 2:00 to 3:00, in autumn from 3:00 to 2:00


@each_case(
    "cron, zone, since, expected",
    [
        # skipped: it fires when the gap ends
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        # several skipped times, and one at the end of the gap: once
        ("*/20 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z"]),
        # twice there: it fires the first time
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        # every half hour: not again in the hour that comes back
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", ["2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z"]),
        # clocks that are set by half an hour, and by the fasting month
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]),
        ("30 2 * * *", "Africa/Casablanca", "2027-02-06T12:00:00Z", ["2027-02-07T01:30:00Z", "2027-02-08T02:30:00Z"]),
        # a day that a zone left out
        ("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", ["2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    ],
)
def test_a_skipped_time_fires_at_the_end_of_the_gap_and_one_that_comes_twice_fires_the_first_time(
    cron: str, zone: str, since: str, expected: list[str]
) -> None:
    assert times(cron, zone, since, len(expected)) == expected


class Fields(NamedTuple):
    """The values of each field, and whether the days of month and of week were given."""

    minutes: list[int]
    hours: list[int]
    days: list[int] | None
    weekdays: list[int] | None

    @property
    def cron(self) -> str:
        days = "*" if self.days is None else ",".join(map(str, self.days))
        weekdays = "*" if self.weekdays is None else ",".join(map(str, self.weekdays))
        return f"{','.join(map(str, self.minutes))} {','.join(map(str, self.hours))} {days} * {weekdays}"

    def match(self, local: datetime) -> bool:
        if local.minute not in self.minutes or local.hour not in self.hours:
            return False
        named = [local.day in self.days] if self.days is not None else []
        named += [local.isoweekday() % 7 in self.weekdays] if self.weekdays is not None else []
        return any(named) or not named


def reference(fields: Fields, zone: ZoneInfo, since: datetime, until: datetime) -> list[int]:
    """Return the times from `since` to `until`, found by a look at each minute of UTC and each local minute skipped."""
    found: list[int] = []
    shown = set[datetime]()
    start = since - timedelta(hours=3)
    moments = [start + n * MINUTE for n in range((until - start) // MINUTE + 1)]
    for before, now in pairwise(moments):
        local_before, local = (moment.astimezone(zone).replace(tzinfo=None) for moment in (before, now))
        new = [local_before + n * MINUTE for n in range(1, (local - local_before) // MINUTE + 1)]
        if any(fields.match(minute) for minute in new if minute not in shown) and now >= since:
            found.append(round(now.timestamp() * 1000))
        shown |= {*new}
    return found


def some(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=1, max_size=6, unique=True)


@given(
    fields=st.builds(
        Fields, some(0, 59), some(0, 4) | some(0, 23), st.none() | some(1, 31), st.none() | some(0, 6)
    ),
    zone_and_day=st.sampled_from([
        ("Europe/Berlin", "2026-03-29"), ("Europe/Berlin", "2026-10-25"), ("America/New_York", "2026-03-08"),
        ("America/New_York", "2026-11-01"), ("Australia/Lord_Howe", "2026-04-05"),
        ("Australia/Lord_Howe", "2026-10-04"), ("Africa/Casablanca", "2026-02-15"), ("Africa/Casablanca", "2026-03-22"),
        ("UTC", "2026-03-29"), ("Asia/Kathmandu", "2026-03-29"),
    ]),
    offset=st.integers(-2 * 24 * 60, 60),
)  # fmt: skip
def test_times_are_those_that_a_look_at_each_minute_finds(
    fields: Fields, zone_and_day: tuple[str, str], offset: int
) -> None:
    zone = ZoneInfo(zone_and_day[0])
    since = datetime.fromisoformat(f"{zone_and_day[1]}T00:00:00+00:00") + offset * MINUTE
    until = since + timedelta(days=2)
    expected = reference(fields, zone, since, until)
    cron_times = CronTimes(parse_cron(fields.cron), zone)
    at, end, found = round(since.timestamp() * 1000), round(until.timestamp() * 1000), list[int]()
    while (next_at := cron_times.first(at)) is not None and next_at <= end:
        found.append(next_at)
        at = next_at + 1

    assert found == expected
    assert list(takewhile(lambda at: at <= end, cron_times.all(round(since.timestamp() * 1000)))) == expected
    for earlier, later_one in pairwise(expected):
        assert cron_times.last(later_one - 1) == earlier
        assert cron_times.last(later_one) == later_one
        assert cron_times.first(earlier + 1) == later_one


# Expressions


@each_case(
    "written, fields",
    [
        ("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@weekly", "0 0 * * 0"), ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"), ("0 9 * * 1-5", "0 9 * * 1-5"), ("  */5\t0  1,15 JAN-MAR  mon ",
        "*/5 0 1,15 JAN-MAR mon"), ("0 0 L * *", "0 0 L * *"), ("0 0 * * MON#2", "0 0 * * MON#2"),
        ("0 0 * * 5L", "0 0 * * 5L"), ("0 0 30 2 1", "0 0 30 2 1"),
    ],
)  # fmt: skip
def test_an_expression_has_five_fields_or_is_one_of_the_short_forms(written: str, fields: str) -> None:
    assert parse_cron(written) == fields


@each_case("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "* * */20 * 1L"])
def test_an_expression_that_is_never_true_is_refused_with_the_reason(cron: str) -> None:
    with pytest.raises(Refused, match="no such day in fifty years") as refusal:
        parse_cron(cron)
    assert refusal.value.field == "cron"


@each_case(
    "cron",
    ["", "*", "60 * * * *", "* * * * * *", "0 0 0 * *", "@never", "@reboot", "0 0 * * 8", "a b c d e", "1-0 * * * *",
     "*/0 * * * *", f"{'9' * 5000} * * * *", f"{'1,' * 200}1 * * * *", "1/2/3 * * * *", "0 0 * * ²L", "0 0 * * MON#6"],
)  # fmt: skip
def test_an_expression_that_cannot_be_read_is_refused(cron: str) -> None:
    with pytest.raises(Refused, match=r"^cron: expected five fields like"):
        parse_cron(cron)


@given(st.lists(st.text("0123456789*,-/#LWMONJA@ ²", min_size=1, max_size=6), min_size=4, max_size=6).map(" ".join))
def test_no_expression_makes_the_parser_fail(cron: str) -> None:
    with suppress(Refused):
        assert len(parse_cron(cron).split()) == 5


@each_case(
    "zone", ["", "Mars/Phobos", "Europe", "../etc/passwd", "/etc/localtime", "posix/UTC", "right/UTC", "tzdata.zi",
             "localtime", "Factory", "Europe/Berlin ", "Ä", "a/" * 40]
)  # fmt: skip
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(Refused, match=r"^zone: expected the name of a time zone"):
        find_zone(zone)


def test_a_schedule_that_fires_once_in_28_years_is_found() -> None:
    """No search goes on beyond fifty years, and days are only looked at in months that match."""
    found = times("0 0 29 2 */7", "Europe/Berlin", "2026-01-01T00:00:00Z", 10)
    assert found[:2] == ["2032-02-28T23:00:00Z", "2060-02-28T23:00:00Z"]
    assert len(found) == 10


@each_case(
    ("zone", "nearest"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("New_York", "America/New_York"),
        ("Asia/Calcuta", "Asia/Calcutta"),
        ("utc", "UTC"),
    ],
)
def test_a_misspelt_zone_is_refused_with_the_one_that_is_meant(zone: str, nearest: str) -> None:
    with pytest.raises(Refused, match=rf"; did you mean {nearest}\?$"):
        find_zone(zone)


def test_without_cronsim_an_expression_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigError, match=r"cron expressions need cronsim: pip install 'later\[server\]'"):
        parse_cron("0 9 * * *")
