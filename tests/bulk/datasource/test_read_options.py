"""The options of a reader, and how each is refused."""

from __future__ import annotations

import pytest

from later.bulk.datasource.read_options import ReadOptions, parse_read_options
from later.core.errors import ConfigError, Refused
from later.store.keys import Bucket
from later.store.scan import ScanRange
from tests.cases import each_case

URL = "redis://127.0.0.1:6379/0"


def refused(name: str, text: str) -> str:
    with pytest.raises(Refused) as error:
        parse_read_options({"url": URL, name: text})
    assert error.value.field == name
    return str(error.value)


def test_the_url_alone_selects_all_tasks() -> None:
    assert parse_read_options({"url": URL}) == ReadOptions(
        url=URL, prefix="later", timeout_s=10, scan_range=ScanRange(None, tuple(Bucket)), partition_rows=100_000
    )


def test_names_of_options_have_any_case() -> None:
    options = parse_read_options(
        {
            "URL": "unix:///run/store.sock",
            "prefix": "mine",
            "TIMEOUT": "2.5",
            "topic": "default/order",
            "State": "dead, error",
            "dueafter": "2027-01-15T08:00:00.5Z",
            "DueBefore": "1800000001",
            "partitionROWS": "5000",
        }
    )
    scan_range = ScanRange("order", (Bucket.DEAD, Bucket.ERROR), 1_800_000_000_500, 1_800_000_001_000)
    assert options == ReadOptions(
        url="unix:///run/store.sock", prefix="mine", timeout_s=2.5, scan_range=scan_range, partition_rows=5000
    )


@each_case("name", ["duaAfter", "path", "states"])
def test_an_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    known = "url, prefix, timeout, topic, state, dueAfter, dueBefore, partitionRows, job, columns"
    with pytest.raises(Refused, match=f"{name.lower()}: unknown option; there are {known}"):
        parse_read_options({"url": URL, name: "1"})


@each_case(
    ("name", "text", "message"),
    [
        ("state", "deads", 'state: expected one or more of delay, unack, error and dead, with commas between them, '
         'got "deads"'),
        ("state", "", 'state: expected one or more of delay, unack, error and dead, with commas between them, got ""'),
        ("dueAfter", "tomorrow", 'dueAfter: expected a number of Unix seconds or an RFC 3339 time, got "tomorrow"'),
        ("dueBefore", "nan", 'dueBefore: expected a number of Unix seconds or an RFC 3339 time, got "nan"'),
        ("timeout", "0", 'timeout: expected a duration from 0.1 to 600 s, got "0"'),
        ("partitionRows", "1e6", 'partitionRows: expected an integer from 1000 to 10000000, got "1e6"'),
        ("partitionRows", "999", 'partitionRows: expected an integer from 1000 to 10000000, got "999"'),
        ("prefix", "a b", 'prefix: expected 1 to 64 characters without white space, control characters or any of '
         r'{}*?[]\^, got "a b"'),
        ("topic", "x/", 'topic: expected a string of 1 to 255 bytes without control characters or empty parts, '
         'got "x/"'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_what_is_expected(name: str, text: str, message: str) -> None:
    assert refused(name, text) == message


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(Refused, match="dueBefore: expected a time after dueAfter"):
        parse_read_options({"url": URL, "dueAfter": "20", "dueBefore": "20"})


def test_a_missing_url_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"url: expected the store's .*, got nothing"):
        parse_read_options({"topic": "order"})


def test_a_daemons_url_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"url http://h:8080: expected the store's .*because the API cannot list"):
        parse_read_options({"url": "http://h:8080"})


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD") as error:
        parse_read_options({"url": "redis://:hush@h"})
    assert "hush" not in str(error.value)
