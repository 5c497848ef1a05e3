"""An address that several processes of ours listen on, and nobody else.

Each of them binds it for itself (SO_REUSEPORT), and the kernel deals connections out to them. But then any other
process of the same user could join them, and two daemons on one port would each get half of the requests. So whoever
starts them looks first whether somebody listens there, and then holds the address with a socket that never listens.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

from later.values import Address


class Reserved:
    """Held until it is closed. `address` has a port also where 0 was asked for; `bound` is what its name came to."""

    def __init__(self, host: str, sockets: list[socket.socket], held: ExitStack) -> None:
        names = [sock.getsockname() for sock in sockets]
        self.bound = [Address(name[0], name[1]) for name in names]
        self.address = Address(host, self.bound[0].port)
        self._held = held

    def close(self) -> None:
        self._held.close()


async def reserve(address: Address) -> Reserved:
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
        return Reserved(address.host, sockets, held.pop_all())
    raise AssertionError("an exit stack swallows nothing")


def _hold(family: int, place: tuple[object, ...]) -> socket.socket:
    """SO_REUSEADDR is for the traces that earlier connections leave; without it from then on, nobody slips in."""
    if place[1]:
        _check_that_nobody_listens(family, place)
    holding = _bound(family, place, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return holding


def _check_that_nobody_listens(family: int, place: tuple[object, ...]) -> None:
    with _bound(family, place, socket.SO_REUSEADDR) as alone:
        alone.listen()


def _bound(family: int, place: tuple[object, ...], *options: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as the servers' own
        sock.bind(place)
    except BaseException:
        sock.close()
        raise
    return sock
