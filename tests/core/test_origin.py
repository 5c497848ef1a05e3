"""Origins of callbacks."""

from __future__ import annotations

import pytest

from later.core.origin import Origin
from tests.cases import each_case


@each_case(
    ("callback", "origin"),
    [
        ("http://receiver.example/x?y", ("http", "receiver.example", 80)),
        ("HTTPS://Receiver.Example", ("https", "receiver.example", 443)),
        ("http://receiver.example:8080?y=/z", ("http", "receiver.example", 8080)),
        ("https://h:80/", ("https", "h", 80)),
        ("http://bücher.example/x", ("http", "xn--bcher-kva.example", 80)),
        ("https://BÜCHER.example:8443?ü", ("https", "xn--bcher-kva.example", 8443)),
        ("https://[::1]:8443/{}", ("https", "::1", 8443)),
        ("http://under_score.example", ("http", "under_score.example", 80)),
        ("http://127.1:8080/x?y", ("http", "127.0.0.1", 8080)),
        ("http://0x7f000001", ("http", "127.0.0.1", 80)),
        ("https://0177.1/?", ("https", "127.0.0.1", 443)),
        ("http://2130706433:08080/%41", ("http", "127.0.0.1", 8080)),
        ("http://0/", ("http", "0.0.0.0", 80)),
        ("http://127.0.0.1./", ("http", "127.0.0.1", 80)),
        ("http://[0:0:0::1]:81/", ("http", "::1", 81)),
    ],
)
def test_an_origin_is_what_is_called(callback: str, origin: tuple[str, str, int]) -> None:
    assert Origin.of(callback) == origin


@each_case(
    "callback",
    [
        "", "nonsense", "//h/", "http://", "http:///x", "ftp://h/", "http://:80/", "http://h:0/", "http://h:99999/",
        "http://256.1.1.1/", "http://[fe80::1%25eth0]/", "http://user@h/", "http://user:password@h/", "http://@h/",
    ],
)  # fmt: skip
def test_what_cannot_be_called_has_no_origin(callback: str) -> None:
    with pytest.raises(ValueError):
        Origin.of(callback)


@each_case(
    ("origin", "authority"),
    [
        (Origin("http", "h", 80), "h"),
        (Origin("https", "h", 443), "h"),
        (Origin("http", "h", 443), "h:443"),
        (Origin("https", "h", 80), "h:80"),
        (Origin("http", "h.example.", 80), "h.example"),
        (Origin("http", "::1", 80), "[::1]"),
        (Origin("http", "::1", 8080), "[::1]:8080"),
    ],
)
def test_an_authority_names_only_a_port_of_its_own(origin: Origin, authority: str) -> None:
    assert origin.authority == authority
