"""The table of addresses that are no receiver's: networks of this machine, private ones, and those of protocols.

The table is later's own. `ipaddress.is_global` changes with the version of Python, and some versions call NAT64, 6to4
and multicast addresses global.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network


class AddressKind(StrEnum):
    """The kind of an address that is refused unless it is allowed."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    """Among them is 169.254.169.254, where clouds serve the credentials of a machine."""
    SHARED = "shared"
    """A provider's own network behind carrier-grade NAT (RFC 6598)."""
    PLATFORM = "platform"
    """A cloud's platform service on a public address."""
    MULTICAST = "multicast"
    TRANSLATED = "translated"
    """NAT64, 6to4 and Teredo, whatever address they embed: a gateway would pass the call on to it."""
    RESERVED = "reserved"


_IPV4 = {
    "0.0.0.0/8": AddressKind.RESERVED,  # to Linux, 0.0.0.0 is this machine
    "10.0.0.0/8": AddressKind.PRIVATE,
    "100.64.0.0/10": AddressKind.SHARED,
    "127.0.0.0/8": AddressKind.LOOPBACK,
    "168.63.129.16/32": AddressKind.PLATFORM,
    "169.254.0.0/16": AddressKind.LINK_LOCAL,
    "172.16.0.0/12": AddressKind.PRIVATE,
    "192.0.0.0/24": AddressKind.RESERVED,
    "192.0.2.0/24": AddressKind.RESERVED,
    "192.31.196.0/24": AddressKind.RESERVED,
    "192.52.193.0/24": AddressKind.RESERVED,
    "192.88.99.0/24": AddressKind.TRANSLATED,
    "192.168.0.0/16": AddressKind.PRIVATE,
    "192.175.48.0/24": AddressKind.RESERVED,
    "198.18.0.0/15": AddressKind.RESERVED,
    "198.51.100.0/24": AddressKind.RESERVED,
    "203.0.113.0/24": AddressKind.RESERVED,
    "224.0.0.0/4": AddressKind.MULTICAST,
    "240.0.0.0/4": AddressKind.RESERVED,
}
"""IANA's registries of special-purpose and of multicast addresses, and one cloud's platform service."""

_IPV6 = {
    "::1/128": AddressKind.LOOPBACK,
    "64:ff9b::/96": AddressKind.TRANSLATED,
    "64:ff9b:1::/48": AddressKind.TRANSLATED,
    "2001::/32": AddressKind.TRANSLATED,
    "2001::/23": AddressKind.RESERVED,
    "2001:db8::/32": AddressKind.RESERVED,
    "2002::/16": AddressKind.TRANSLATED,
    "2620:4f:8000::/48": AddressKind.RESERVED,
    "3fff::/20": AddressKind.RESERVED,
    "fc00::/7": AddressKind.PRIVATE,
    "fe80::/10": AddressKind.LINK_LOCAL,
    "ff00::/8": AddressKind.MULTICAST,
}
"""The kinds of addresses inside 2000::/3 that are refused, and of some outside it: all of those are."""

_GLOBAL_UNICAST = 1
"""The first three bits of 2000::/3, the only network whose addresses IANA assigns to public hosts."""


def _as_bits(table: dict[str, AddressKind]) -> tuple[tuple[int, int, AddressKind], ...]:
    """Return each network as (its first address, its mask, its kind): a test is one operation."""
    networks = [(IPv4Network(text) if "." in text else IPv6Network(text), kind) for text, kind in table.items()]
    return tuple((int(network.network_address), int(network.netmask), kind) for network, kind in networks)


_IPV4_BITS, _IPV6_BITS = _as_bits(_IPV4), _as_bits(_IPV6)


def unwrap(address: IPAddress) -> IPAddress:
    """Return the IPv4 address in an IPv4-mapped one (`::ffff:127.0.0.1`), to which the kernel would connect."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def classify_address(address: IPAddress) -> AddressKind | None:
    """Return the kind of an unwrapped address if it is in the table, or None if it may be a receiver's."""
    bits = int(address)
    for network, mask, kind in _IPV4_BITS if address.version == 4 else _IPV6_BITS:
        if bits & mask == network:
            return kind
    is_public = address.version == 4 or bits >> 125 == _GLOBAL_UNICAST
    return None if is_public else AddressKind.RESERVED
