"""Callbacks that can be called, and those that never can."""

from __future__ import annotations

import pytest

from later.core.callback_url import check_callback
from later.core.errors import Refused
from tests.cases import each_case


@each_case(
    "url",
    [
        "http://h:1/",
        "http://h:65535/",
        "http://h:00080/",
        "http://h:/",
        "http://a.b./",
        "http://my_service/",
        "http://" + "a" * 63 + "/",
        "http://" + ".".join(["a" * 49] * 5) + "abcd/",
        "http://" + ".".join(["a" * 49] * 5) + "abcd./",
        "http://127.1/",
        "http://0x7f000001/",
        "http://0/",
        "http://１２７.0.0.1/",
        "http://[::ffff:127.0.0.1]:80/",
        "http://straße.example/",
        "http://φάκελος.example/",
        "http://_a.münchen.example/",
        "http://h?",
        "http://h/?",
        "http://h/%",
    ],
)  # fmt: skip
def test_a_callback_that_can_be_called_is_admitted(url: str) -> None:
    assert check_callback(url) == url


@each_case(
    ("url", "reason"),
    [
        ("http://h:0/", "port"),
        ("http://h:00000/", "port"),
        ("http://h:65536/", "from 1 to 65535"),
        ("http://h:99999/", "from 1 to 65535"),
        ("http://h:000080/", "port"),
        ("http://h:+80/", "port"),
        ("http://h:-0/", "port"),
        ("http://h:8_0/", "port"),
        ("http://h:８０/", "port"),
        ("http://[::1]:0/", "port"),
        ("http://a..b/", "labels"),
        ("http://.a/", "labels"),
        ("http://a../", "labels"),
        ("http://./", "labels"),
        ("http://../", "labels"),
        ("http://" + "a" * 64 + "/", "labels"),
        ("http://" + ".".join(["a" * 49] * 5) + "abcde/", "253"),
        ("http://a!b/", "labels"),
        ("http://a,b/", "labels"),
        ("http://a$(b)/", "labels"),
        ("http://a<b/", "labels"),
        ("http://a%2Eb/", "%"),
        ("http://127.0.0.1%2F/", "%"),
        ("http://[fe80::1%25eth0]/", "%"),
        ("http://[fe80::1%eth0]/", "%"),
        ("http://[v1.a]/", "labels"),
        ("http://256.1.1.1/", "IPv4"),
        ("http://1.2.3.4.5/", "IPv4"),
        ("http://a.1/", "IPv4"),
        ("http://1.2.3.08/", "IPv4"),
        ("http://[::ffff:127.1]/", "IPv6"),
        ("http://_a.straße.example/", "IDNA 2008"),
        ("http://_a.φάκελος.example/", "IDNA 2008"),
    ],
)
def test_a_callback_that_can_never_be_called_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        check_callback(url)
    assert caught.value.field == "callback"
    assert reason in caught.value.detail.rpartition(": ")[2]
