"""Types of option values that the configuration's tests do not cover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from later.address_types import host_names, mask_url, origins
from later.core.durations import MAX_DURATION_MS, duration_literal, parse_duration_ms
from later.core.policy import Ack
from later.option_types import (
    OptionType,
    any_integer,
    any_rate,
    any_share,
    choice,
    duration_s,
)
from tests.cases import each_case


@given(integers(0, MAX_DURATION_MS))
def test_a_duration_literal_is_read_as_the_same_duration(ms: int) -> None:
    assert parse_duration_ms(duration_literal(ms / 1000)) == ms


@each_case(
    ("option_type", "text", "value"),
    [
        (duration_s, "1.5m", 90),
        (duration_s, "250ms", 0.25),
        (duration_s, "1h30m", 5400),
        (duration_s, "1d2h3m4.5s6ms", 93_784.506),
        (any_rate, "50/s", 50),
        (any_rate, "0.5", 0.5),
        (any_integer, "-1", -1),
        (any_share, "1e-3", 0.001),
        (choice(*Ack), "code", Ack.CODE),
    ],
)
def test_a_text_is_read(option_type: OptionType, text: str, value: object) -> None:
    assert option_type(text) == value


def test_a_choice_of_an_enum_is_read_as_its_member() -> None:
    assert choice(*Ack)("code") is Ack.CODE


@each_case(
    ("option_type", "text", "expected"),
    [
        (duration_s, "soon", "a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (duration_s, "", "a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (duration_s, "30m1h", "a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (duration_s, "1m30", "a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (duration_s, "1m1m", "a duration, like 15, 500ms, 15s, 10m, 2h or 7d"),
        (duration_s, "11000d", "a duration of at most ten years"),
        (any_rate, "50/min", "a number, like 50, 0.5 or 50/s"),
        (any_rate, "nan", "a number, like 50, 0.5 or 50/s"),
        (any_integer, "1.5", "an integer"),
        (any_share, "inf", "a number"),
        (choice("a", "b", "c"), "d", "a, b or c"),
    ],
)
def test_an_error_says_what_the_type_takes(option_type: OptionType, text: str, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        option_type(text)
    assert str(caught.value) == expected


@each_case(
    ("url", "shown"),
    [
        ("redis://me:hunter2@a:6379/0", "redis://***@a:6379/0"),
        ("redis://a:6379/0", "redis://a:6379/0"),
        ("rediss://a?ssl_ca_certs=/x", "rediss://a?***"),
        ("redis://me:hun?hunter2@a", "redis://***"),
        ("unix:///tmp/a.sock", "unix:///tmp/a.sock"),
        ("redis+sentinel://me:hunter2@[::1]:1,b:2/orders/0?x=1", "redis+sentinel://***@[::1]:1,b:2/orders/0?***"),
        ("redis+sentinel://b:2/orders&sentinel_password=hunter2", "redis+sentinel://***"),
    ],
)
def test_a_url_is_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@each_case("text", ["", ",", "a,", "a:80", "http://a", "a b", "ä", "a/b", "*", "*.a", ".a", "a..b", "[::1]", "a" * 64])
def test_a_text_that_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a host's name without a port"):
        host_names(text)


@each_case(
    "text", ["", "a", "a:80", "ftp://a", "http://", "http://a/", "http://a,", "http://u@a", "http://a?x", "null", "*"]
)
def test_a_text_that_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a page's origin"):
        origins(text)
