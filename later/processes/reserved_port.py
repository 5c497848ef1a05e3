"""A listen address that several processes of ours share, and no other process.

Each of them binds it for itself (SO_REUSEPORT), and the kernel distributes connections among them. But then any other
process of the same user could join them, and two daemons on one port would each get half of the requests. So the
supervisor first takes the address by listening on it alone, and then holds it with a socket that does not listen.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress

from later.address_types import Address


class ReservedPort:
    """A port that is held until `close`. `address` has the real port even if 0 was asked for.

    `addresses` are numeric: a name may resolve to something else a minute later, or to nothing.
    """

    def __init__(self, host: str, sockets: list[socket.socket], stack: ExitStack) -> None:
        self.addresses = [_numeric_address(*sock.getsockname()) for sock in sockets]
        self.address = Address(host, self.addresses[0].port)
        self._stack = stack

    def close(self) -> None:
        self._stack.close()


async def reserve_port(address: Address) -> ReservedPort:
    """Hold every numeric address of `address`.

    Raises:
        OSError: the address is in use, is not one of this machine's, or does not resolve.
    """
    resolved = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        port = address.port
        for family, _, _, _, (host, _, *scope) in dict.fromkeys(resolved):
            sockets.append(stack.enter_context(_reserve(family, (host, port, *scope))))
            port = sockets[0].getsockname()[1]
        return ReservedPort(address.host, sockets, stack.pop_all())
    raise AssertionError("an exit stack swallows nothing")


def _numeric_address(host: str, port: int, flow: int = 0, scope: int = 0) -> Address:
    """Return the address of a socket; a link-local one with its interface."""
    return Address(f"{host}%{scope}" if scope else host, port)


def _reserve(family: int, address: tuple[object, ...]) -> socket.socket:
    """Return a socket that is bound to the address, that does not listen, and beside which our processes can bind.

    Of several processes that want an address at the same moment, one gets it: the kernel lets only one socket listen.
    It is made shareable before it stops listening; otherwise the address would be free for a moment.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as the servers' own sockets
        if address[1]:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # earlier connections in TIME_WAIT do not matter
            sock.bind(address)
            sock.listen()
        else:
            sock.bind(address)  # a free port; listening and stopping would lose a port that was not asked for by number
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # from now on no other process can bind here
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with suppress(OSError):  # ENOTCONN if it does not listen, and on macOS if it does: there it goes on listening
            sock.shutdown(socket.SHUT_RDWR)
    except BaseException:
        sock.close()
        raise
    return sock
