"""An address that several processes of ours listen on, and nobody else.

Each of them binds it for itself (SO_REUSEPORT), and the kernel deals connections out to them. But then any other
process of the same user could join them, and two daemons on one port would each get half of the requests. So whoever
starts them takes the address for itself first, by listening there alone, and then holds it with a socket that does not
listen any more.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress

from later.option_types import Address


class ReservedPort:
    """Held until it is closed. `address` has a port also where 0 was asked for; `bound` is what its name came to, in

    numbers: a name may mean something else a minute later, or nothing.
    """

    def __init__(self, host: str, sockets: list[socket.socket], held: ExitStack) -> None:
        self.addresses = [_in_numbers(*sock.getsockname()) for sock in sockets]
        self.address = Address(host, self.addresses[0].port)
        self._held = held

    def close(self) -> None:
        self._held.close()


async def reserve_port(address: Address) -> ReservedPort:
    """Raises OSError: the address is in use, is not ours to have, or is none."""
    places = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as held:
        sockets: list[socket.socket] = []
        port = address.port
        for family, _, _, _, (host, _, *scope) in dict.fromkeys(places):
            sockets.append(held.enter_context(_hold(family, (host, port, *scope))))
            port = sockets[0].getsockname()[1]
        return ReservedPort(address.host, sockets, held.pop_all())
    raise AssertionError("an exit stack swallows nothing")


def _in_numbers(host: str, port: int, flow: int = 0, scope: int = 0) -> Address:
    """With the interface where the address is one of a link."""
    return Address(f"{host}%{scope}" if scope else host, port)


def _hold(family: int, place: tuple[object, ...]) -> socket.socket:
    """Of several that want a place at the same moment, one gets it: the kernel lets one socket alone listen there.

    It is to be shared before it stops listening, or there would be a moment at which it is nobody's.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as the servers' own
        if place[1]:
            _listen_alone(sock, place)
        else:
            sock.bind(place)  # a port that nobody has; what listens and stops would lose one that it has not named
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with suppress(OSError):  # ENOTCONN where it does not listen, and on macOS where it does: it goes on there
            sock.shutdown(socket.SHUT_RDWR)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_alone(sock: socket.socket, place: tuple[object, ...]) -> None:
    """SO_REUSEADDR is for the traces that earlier connections leave; without it from then on, nobody slips in."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(place)
    sock.listen()
