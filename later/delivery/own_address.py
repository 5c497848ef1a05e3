"""The addresses of this machine."""

from __future__ import annotations

import errno
import socket
from collections import OrderedDict
from collections.abc import Callable

from later.core.address_table import IPAddress

KNOWN_FOR_S = 10.0
"""How long the kernel's answer is used again, as long as that of a name server: it takes several system calls."""
MAX_KNOWN = 4096
ANY_PORT = 9
UNREACHABLE = frozenset(
    {
        errno.EACCES, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EINVAL,
        errno.ENETDOWN, errno.ENETUNREACH, errno.EPERM,
    }
)  # fmt: skip
"""The errors of the kernel for an address to which it has no route."""


class OwnAddresses:
    """Tells whether an address is one of this machine's. `monotonic` is a clock in s."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known: OrderedDict[IPAddress, tuple[bool, float]] = OrderedDict()
        """Answers, with the time (s) until which each is used; the oldest first."""

    def have(self, address: IPAddress) -> bool:
        """Return True if `address` is one of this machine's. Raises OSError if this machine cannot tell now."""
        now = self._monotonic()
        is_own, known_until = self._known.get(address, (False, 0.0))
        if now < known_until:
            return is_own
        is_own = is_own_address(address)
        self._known[address] = is_own, now + KNOWN_FOR_S
        self._known.move_to_end(address)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return is_own


def is_own_address(address: IPAddress) -> bool:
    """Return True if `address` is one of this machine's.

    A datagram to it would come from itself: the kernel says from which address it would, and nothing is sent.

    Raises:
        OSError: this machine lacks something, such as a free descriptor. To say no would let the address be called.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            datagrams.connect((str(address), ANY_PORT))
            return bool(datagrams.getsockname()[0] == str(address))
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return False  # the call will say why
