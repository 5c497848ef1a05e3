"""The addresses of this machine."""

from __future__ import annotations

import socket

from later.core.address_table import IPAddress

ANY_PORT = 9


def is_own_address(address: IPAddress) -> bool:
    """Return True if `address` is one of this machine's.

    A datagram to it would come from itself: the kernel says from which address it would, and nothing is sent.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            datagrams.connect((str(address), ANY_PORT))
            return bool(datagrams.getsockname()[0] == str(address))
    except OSError:  # it cannot be reached, and the call will say why
        return False
