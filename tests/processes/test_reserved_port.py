"""A port that processes of ours share, and nobody else."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from later.option_types import Address
from later.processes.reserved_port import ReservedPort, reserve_port

ANY = Address("127.0.0.1", 0)


@pytest.fixture
async def reserved() -> AsyncIterator[ReservedPort]:
    held = await reserve_port(ANY)
    yield held
    held.close()


def a_server(address: Address, *options: int) -> socket.socket:
    """As servers bind: SO_REUSEADDR, and whatever else."""
    server = socket.socket()
    for option in (socket.SO_REUSEADDR, *options):
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        server.bind(address)
        server.listen()
    except OSError:
        server.close()
        raise
    return server


async def why_not(address: Address) -> int | None:
    """The number of the error that a reservation ends in."""
    with pytest.raises(OSError) as caught:
        await reserve_port(address)
    return caught.value.errno


async def test_any_port_becomes_one_that_has_a_number(reserved: ReservedPort) -> None:
    assert reserved.address.port > 0
    assert reserved.addresses == [reserved.address]


async def test_any_port_is_the_same_for_all_that_a_name_means() -> None:
    held = await reserve_port(Address("localhost", 0))
    assert {address.port for address in held.addresses} == {held.address.port}
    assert held.address.host == "localhost"
    held.close()


async def test_processes_share_it_and_get_all_its_connections(reserved: ReservedPort) -> None:
    servers = [a_server(reserved.address, socket.SO_REUSEPORT) for _ in range(2)]
    for server in servers:
        server.settimeout(0)
    clients = [socket.create_connection(reserved.address) for _ in range(50)]
    accepted = [connection for server in servers for connection in all_of(server)]
    assert len(accepted) == len(clients)
    for sock in (*servers, *clients, *accepted):
        sock.close()


def all_of(server: socket.socket) -> list[socket.socket]:
    accepted = []
    try:
        while True:
            accepted.append(server.accept()[0])
    except BlockingIOError:
        return accepted


async def test_nobody_else_listens_there_even_before_the_first_process_does(reserved: ReservedPort) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        a_server(reserved.address)
    assert await why_not(reserved.address) == errno.EADDRINUSE


async def test_one_that_has_been_let_go_of_and_named_is_held_as_well() -> None:
    (held := await reserve_port(ANY)).close()
    again = await reserve_port(held.address)
    with pytest.raises(OSError, match="Address already in use"):
        a_server(again.address)
    servers = [a_server(again.address, socket.SO_REUSEPORT) for _ in range(2)]
    with pytest.raises(OSError, match="Address already in use"):
        a_server(again.address)
    assert await why_not(again.address) == errno.EADDRINUSE
    for sock in servers:
        sock.close()
    again.close()


async def test_it_is_held_while_no_process_listens_there_any_more(reserved: ReservedPort) -> None:
    a_server(reserved.address, socket.SO_REUSEPORT).close()
    assert await why_not(reserved.address) == errno.EADDRINUSE


async def test_a_held_address_takes_no_connection_that_nobody_would_answer() -> None:
    (held := await reserve_port(ANY)).close()
    again = await reserve_port(held.address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(again.address)
    again.close()


def test_of_those_that_want_one_at_the_same_moment_one_gets_it() -> None:
    racers = 4
    (free := asyncio.run(reserve_port(ANY))).close()
    line_up = Barrier(racers)

    def race() -> ReservedPort | None:
        line_up.wait()
        try:
            return asyncio.run(reserve_port(free.address))
        except OSError:
            return None

    with ThreadPoolExecutor(racers) as threads:
        for _ in range(100):
            running = [threads.submit(race) for _ in range(racers)]
            winners = [held for one in running if (held := one.result()) is not None]
            assert len(winners) == 1
            winners[0].close()


async def test_an_address_where_somebody_listens_is_refused_whether_he_would_share_it_or_not() -> None:
    for options in ((), (socket.SO_REUSEPORT,)):
        with a_server(ANY, *options) as server:
            assert await why_not(Address(*server.getsockname())) == errno.EADDRINUSE


async def test_what_earlier_connections_left_behind_is_no_hindrance() -> None:
    with a_server(ANY) as server:
        address = Address(*server.getsockname())
        with socket.create_connection(address):
            server.accept()[0].close()  # who closes first waits for strays, for a minute: TIME_WAIT
    held = await reserve_port(address)
    a_server(address, socket.SO_REUSEPORT).close()
    held.close()


async def test_it_is_free_once_it_is_let_go() -> None:
    held = await reserve_port(ANY)
    held.close()
    a_server(held.address).close()


@pytest.mark.parametrize("host", ["no-such-name.invalid", "192.0.2.1"])
async def test_an_address_that_is_none_of_ours_is_refused(host: str) -> None:
    assert await why_not(Address(host, 0))
