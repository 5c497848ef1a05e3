"""The address that the host of a URL is, in whatever form it is written.

A name server is not asked for `127.1`, `0x7f000001` or `2130706433`: they are 127.0.0.1, to browsers and to the C
library. So every check and every call must read them alike.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

_DIGITS = {8: re.compile(r"[0-7]*"), 10: re.compile(r"[0-9]+"), 16: re.compile(r"[0-9a-fA-F]*")}


@lru_cache(maxsize=4096)
def parse_host_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a URL's ASCII host is, or None if it is a name (WHATWG URL, host parsing).

    An IPv4 address has one to four numbers, each decimal, octal (`0177`) or hexadecimal (`0x7f`); the last one fills
    the rest. An IPv6 address is written without its brackets.

    Raises:
        ValueError: it is neither; the text says why.
    """
    if ":" in host:
        try:
            if "%" not in host:
                return IPv6Address(host)
        except AddressValueError:
            pass
        raise ValueError("this is no IPv6 address, or it has a zone")
    parts = host.removesuffix(".").split(".")
    if not parts[-1].isdecimal() and _parse_number(parts[-1]) is None:
        return None
    numbers = [_parse_number(part) for part in parts]
    *bytes_, last = [-1 if number is None else number for number in numbers]
    if len(parts) > 4 or not all(0 <= byte <= 255 for byte in bytes_) or not 0 <= last < 256 ** (5 - len(parts)):
        raise ValueError("a host that ends in a number is an IPv4 address, and this is none")
    return IPv4Address(int.from_bytes(bytes(bytes_).ljust(4, b"\0")) + last)


def _parse_number(text: str) -> int | None:
    """Return the number that a part of an IPv4 address is, or None if it is none."""
    digits, base = text, 10
    if text[:2] in ("0x", "0X"):
        digits, base = text[2:], 16
    elif len(text) > 1 and text.startswith("0"):
        digits, base = text[1:], 8
    return int(digits or "0", base) if _DIGITS[base].fullmatch(digits) else None
