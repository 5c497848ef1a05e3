"""Hosts that are addresses, however they are written."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from later.core.host_address import parse_host_address
from tests.cases import each_case


@each_case(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("127.0.258", "127.0.1.2"),
        ("0", "0.0.0.0"),
        ("0x", "0.0.0.0"),
        ("2130706433", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("0177.0x0.00.01", "127.0.0.1"),
        ("4294967295", "255.255.255.255"),
        ("169.254.169.254", "169.254.169.254"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_every_form_of_an_address_is_that_address(host: str, address: str) -> None:
    expected = IPv6Address(address) if ":" in address else IPv4Address(address)
    assert parse_host_address(host) == expected


@each_case(
    "host", ["localhost", "a.example", "a.example.", "1e3", "0xg", "1.example", "127.0.0.1.example", "a-1", "x1"]
)
def test_any_other_host_is_a_name(host: str) -> None:
    assert parse_host_address(host) is None


@each_case(
    "host",
    ["256.1.1.1", "1.2.3.4.5", "4294967296", "1.2.3.256", "1.16777216", "08", "1.2.3.08", "a.1", "a.0x1", "1..1", ".1",
     ":", "::g", "1::2::3", "fe80::1%eth0", "::ffff:127.1"],
)  # fmt: skip
def test_a_host_that_looks_like_an_address_and_is_none_is_an_error(host: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_host_address(host)


NUMBERS = st.one_of(
    st.integers(0, 2**33).map(str),
    st.integers(0, 2**33).map(lambda number: f"0{number:o}"),
    st.integers(0, 2**33).map(hex),
    st.integers(0, 300).map(str),
    st.text("0123456789abcxX", max_size=4),
)
NUMERIC_HOSTS = st.lists(NUMBERS, min_size=1, max_size=5).map(".".join)


@given(NUMERIC_HOSTS)
@example("127.1")
def test_what_the_c_library_reads_as_an_address_is_that_address(host: str) -> None:
    try:
        packed = socket.inet_aton(host)
    except OSError:
        return
    address = parse_host_address(host)
    assert address is not None
    assert address.packed == packed


@given(st.integers(0, 2**32 - 1))
def test_an_address_is_read_as_it_is_written(number: int) -> None:
    address = IPv4Address(number)
    assert parse_host_address(str(address)) == parse_host_address(str(number)) == address


@given(st.integers(0, 2**128 - 1))
def test_an_ipv6_address_is_read_as_it_is_written(number: int) -> None:
    address = IPv6Address(number)
    assert parse_host_address(str(address)) == parse_host_address(address.exploded) == address
