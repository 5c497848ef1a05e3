"""The table of receivers in later.toml: which files a host has, and what is wrong with a table."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from later.core.receiver_tls import ReceiverTls, find_receiver, parse_receivers


def test_a_host_has_the_files_of_its_name_or_of_its_smallest_zone() -> None:
    names = {"bank.example", "*.bank.example", "*.eu.bank.example", "10.0.0.5"}
    expected = {
        "bank.example": "bank.example",
        "api.bank.example": "*.bank.example",
        "a.eu.bank.example": "*.eu.bank.example",
        "eu.bank.example": "*.bank.example",
        "10.0.0.5": "10.0.0.5",
        "mybank.example": None,
        "example": None,
        "evilbank.example": None,
    }
    assert {host: find_receiver(host, names) for host in expected} == expected
    assert find_receiver("zone.example", {"*.zone.example"}) is None


def test_the_table_is_read() -> None:
    table = tomllib.loads("""
        [receivers."*.Bank.example"]
        cert = "a.pem"
        key = "a.key"
        ca = "ca.pem"
        [receivers."10.0.0.5"]
        ca = "b.pem"
    """)
    assert parse_receivers(table["receivers"]) == {
        "*.bank.example": ReceiverTls(cert=Path("a.pem"), key=Path("a.key"), ca=Path("ca.pem")),
        "10.0.0.5": ReceiverTls(ca=Path("b.pem")),
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a.pem", "receivers: expected tables"),
        ({"a": "a.pem"}, 'receivers."a": expected the names of files'),
        ({"a": {}}, 'receivers."a": expected the names of files'),
        ({"a": {"cert": 1}}, 'receivers."a": expected the names of files'),
        ({"a": {"crt": "x"}}, 'receivers."a".crt: expected one of cert, key, ca'),
        ({"a": {"key": "x"}}, 'receivers."a": expected cert, too'),
        ({"a:443": {"ca": "x"}}, 'receivers."a:443": expected a host'),
        ({"https://a": {"ca": "x"}}, 'receivers."https://a": expected a host'),
        ({"a*": {"ca": "x"}}, 'receivers."a*": expected a host'),
        ({"a": {"ca": "x"}, "A.": {"ca": "x"}}, 'receivers."A.": this host is given twice'),
    ],
)
def test_a_wrong_table_is_refused_where_it_is_wrong(table: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # the text is what is tested
        parse_receivers(table)
    assert str(caught.value).startswith(message)
