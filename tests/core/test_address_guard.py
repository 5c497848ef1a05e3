"""The table of addresses, the rules of the guard, and their order."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest

from later.core.address_guard import AddressGuard, AddressRules, Refusal, advice, parse_network, parse_rule
from later.core.address_table import AddressKind, classify_address, unwrap
from later.core.origin import Origin

REFUSED = {
    AddressKind.LOOPBACK: ("127.0.0.0", "127.255.255.255", "::1"),
    AddressKind.PRIVATE: (
        *("10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255"),
        *("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ),
    AddressKind.LINK_LOCAL: ("169.254.0.0", "169.254.169.254", "169.254.255.255", "fe80::1", "febf::ffff"),
    AddressKind.SHARED: ("100.64.0.0", "100.127.255.255"),
    AddressKind.PLATFORM: ("168.63.129.16",),
    AddressKind.MULTICAST: ("224.0.0.0", "239.255.255.255", "ff00::", "ff02::1"),
    AddressKind.TRANSLATED: (
        *(
            "192.88.99.0",
            "192.88.99.255",
            "64:ff9b::",
            "64:ff9b::808:808",
            "64:ff9b:1:ffff::1",
            "2001::",
            "2001:0:ffff::1",
        ),
        *("2002::", "2002:808:808::1", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ),
    AddressKind.RESERVED: (
        *("0.0.0.0", "0.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.2.1", "192.31.196.1", "192.52.193.1"),
        *(
            "192.175.48.1",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "240.0.0.0",
            "255.255.255.255",
        ),
        *(
            "::",
            "::7f00:1",
            "::ffff:0:7f00:1",
            "100::1",
            "1fff:ffff::",
            "4000::",
            "5f00::1",
            "fec0::1",
            "fbff::1",
            "fe00::1",
        ),
        *("2001:1::", "2001:1ff:ffff::", "2001:db8::1", "2620:4f:8000::1", "3fff::", "3fff:fff:ffff::"),
    ),
}
"""Addresses of each kind, among them the first and the last of its networks."""

ALLOWED = (
    *(
        "1.0.0.0",
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
    ),
    *("168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0"),
    *("192.0.3.0", "192.31.195.255", "192.31.197.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0"),
    *(
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
    ),
    *(
        "2000::",
        "2001:200::1",
        "2001:db7:ffff::",
        "2001:db9::",
        "2003::",
        "2600::1",
        "2620:4f:7fff::",
        "2620:4f:8001::",
    ),
    *("2a00:1450::1", "3ffe:ffff::", "3fff:1000::1"),
)
"""Neighbours of these networks, and other public addresses."""


def a_guard(is_own: bool = False, **options: object) -> AddressGuard:
    return AddressGuard(is_own=lambda address: is_own, **options)  # type: ignore[arg-type]  # any option


def test_every_kind_of_address_that_is_no_receivers_is_in_the_table() -> None:
    found = {text: classify_address(ip_address(text)) for texts in REFUSED.values() for text in texts}
    assert found == {text: kind for kind, texts in REFUSED.items() for text in texts}


def test_the_neighbours_of_the_tables_networks_are_not_in_it() -> None:
    assert {text: kind for text in ALLOWED if (kind := classify_address(ip_address(text)))} == {}


def test_no_random_address_is_allowed_that_the_standard_library_does_not_call_global() -> None:
    """Half of them are in networks that either knows: at random, an address of 128 bits is in none."""
    random_bits = random.Random(1).getrandbits
    networks = [
        *IPv4Address._constants._private_networks,  # type: ignore[attr-defined]  # there is no public list
        *IPv6Address._constants._private_networks,  # type: ignore[attr-defined]
        *(IPv4Network("0.0.0.0/0"), IPv6Network("::/0"), IPv6Network("2000::/3"), IPv6Network("2001::/16")),
    ]
    for network in networks:
        host_bits = network.max_prefixlen - network.prefixlen
        for _ in range(500):
            address = unwrap(network.network_address + (random_bits(host_bits) if host_bits else 0))
            if not address.is_global or address.is_multicast:
                assert classify_address(address) is not None, address


@pytest.mark.parametrize("mapped", ["::ffff:127.0.0.1", "::ffff:7f00:1", "0:0:0:0:0:FFFF:127.0.0.1"])
def test_an_ipv4_mapped_address_counts_as_the_one_in_it(mapped: str) -> None:
    assert a_guard().judge_address("h", mapped) == Refusal("loopback", "127.0.0.1")
    assert a_guard(allow=["127.0.0.0/8"]).judge_address("h", mapped) is None
    assert a_guard().judge_address("h", "::ffff:8.8.8.8") is None


def test_deny_comes_before_allow_and_allow_before_the_table_and_the_own_address() -> None:
    guard = a_guard(
        is_own=True, allow=["10.0.0.0/8", "8.8.8.8/32", "shop.internal"], deny=["10.9.0.0/16", "8.8.4.4/32"]
    )
    judged = {
        address: refusal and refusal.why
        for address in ("10.1.0.1", "10.9.0.1", "8.8.8.8", "8.8.4.4", "9.9.9.9", "127.0.0.1")
        for refusal in [guard.judge_address("h", address)]
    }
    assert judged == {
        "10.1.0.1": None, "10.9.0.1": "denied", "8.8.8.8": None, "8.8.4.4": "denied", "9.9.9.9": "own",
        "127.0.0.1": "loopback",
    }  # fmt: skip
    assert guard.judge_address("shop.internal", "192.168.0.1") is None
    assert guard.judge_address("shop.internal", "10.9.0.1") == Refusal("denied", "10.9.0.1")


def test_a_link_local_address_has_no_zone_for_the_guard() -> None:
    assert a_guard().judge_address("h", "fe80::1%eth0") == Refusal("link-local", "fe80::1")


def test_a_zone_has_the_names_below_it_and_nothing_else() -> None:
    rules = AddressRules.of(["*.pods", "shop.internal"])
    hosts = (
        "a.pods",
        "b.a.pods.",
        "pods",
        "xpods",
        "a.xpods",
        "pods.a",
        "shop.internal",
        "shop.internal.",
        "a.shop.internal",
    )
    assert [host for host in hosts if rules.have_name(host)] == [
        "a.pods",
        "b.a.pods.",
        "shop.internal",
        "shop.internal.",
    ]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        (" 127.1 ", "127.0.0.1/32"),
        ("[::1]", "::1/128"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("FD00::/8", "fd00::/8"),
        ("Shop.Internal.", "shop.internal"),
        ("*.Bücher.example", "*.xn--bcher-kva.example"),
        ("a_b", "a_b"),
    ],
)
def test_a_rule_has_one_form_however_it_is_written(text: str, rule: str) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "*.1.2.3.4", "a.*", "http://a", "a:80", "a b", "10.0.0.1/8", "::1%eth0", "a/b", "a?b", "a#b"],
)
def test_other_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="networks, addresses, names or zones"):
        parse_rule(text)


@pytest.mark.parametrize("text", ["", "shop.internal", "*.pods", "10.0.0.1/8", "300.0.0.0/8"])
def test_only_networks_are_denied(text: str) -> None:
    with pytest.raises(ValueError, match="networks and addresses, like"):
        parse_network(text)


def test_a_guard_that_is_off_judges_nothing_but_https() -> None:
    off = a_guard(is_on=False, deny=["10.0.0.0/8"])
    assert off.judge_address("h", "10.0.0.1") is None
    assert off.judge_url(Origin.of("http://10.0.0.1/")) is None
    https_only = a_guard(is_on=False, https_only=True)
    assert https_only.judge_url(Origin.of("http://h/")) == Refusal("http")
    assert https_only.judge_url(Origin.of("https://10.0.0.1/")) is None


def test_a_refusal_says_what_can_be_done_about_it() -> None:
    refusal = Refusal("private", "10.2.3.4")
    assert (refusal.message, refusal.allow_option) == (
        "this host's address may not be called: private", "--guard-allow 10.2.3.4/32",
    )  # fmt: skip
    assert advice(refusal.message) == "its operator can allow it with --guard-allow"
    assert advice(Refusal("denied", "10.2.3.4").message) == "its operator refuses it with --guard-deny"
    assert advice(Refusal("http").message) == "its operator refuses it with --https-only"
    assert advice(Refusal("proxy").message) == ""
