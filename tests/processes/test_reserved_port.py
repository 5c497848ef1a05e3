"""A port that our processes share, and no other process."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from later.address_types import Address
from later.processes.reserved_port import ReservedPort, reserve_port
from tests.cases import each_case

ANY = Address("127.0.0.1", 0)


@pytest.fixture
async def reserved() -> AsyncIterator[ReservedPort]:
    held = await reserve_port(ANY)
    yield held
    held.close()


def a_server(address: Address, *options: int) -> socket.socket:
    """Return a socket that listens as servers do, with SO_REUSEADDR and these options."""
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


async def reservation_error(address: Address) -> int | None:
    """Return the errno with which a reservation fails."""
    with pytest.raises(OSError) as caught:
        await reserve_port(address)
    return caught.value.errno


async def test_port_0_becomes_a_real_port(reserved: ReservedPort) -> None:
    assert reserved.address.port > 0
    assert reserved.addresses == [reserved.address]


async def test_port_0_is_the_same_port_at_all_addresses_of_a_name() -> None:
    held = await reserve_port(Address("localhost", 0))
    assert {address.port for address in held.addresses} == {held.address.port}
    assert held.address.host == "localhost"
    held.close()


async def test_processes_share_the_port_and_get_all_its_connections(reserved: ReservedPort) -> None:
    servers = [a_server(reserved.address, socket.SO_REUSEPORT) for _ in range(2)]
    for server in servers:
        server.settimeout(0)
    clients = [socket.create_connection(reserved.address) for _ in range(50)]
    accepted = [connection for server in servers for connection in accept_all(server)]
    assert len(accepted) == len(clients)
    for sock in (*servers, *clients, *accepted):
        sock.close()


def accept_all(server: socket.socket) -> list[socket.socket]:
    accepted = []
    try:
        while True:
            accepted.append(server.accept()[0])
    except BlockingIOError:
        return accepted


async def test_no_other_process_can_listen_before_the_first_one_does(reserved: ReservedPort) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        a_server(reserved.address)
    assert await reservation_error(reserved.address) == errno.EADDRINUSE


async def test_a_port_can_be_reserved_again_by_its_number() -> None:
    (held := await reserve_port(ANY)).close()
    again = await reserve_port(held.address)
    with pytest.raises(OSError, match="Address already in use"):
        a_server(again.address)
    servers = [a_server(again.address, socket.SO_REUSEPORT) for _ in range(2)]
    with pytest.raises(OSError, match="Address already in use"):
        a_server(again.address)
    assert await reservation_error(again.address) == errno.EADDRINUSE
    for sock in servers:
        sock.close()
    again.close()


async def test_the_port_is_held_after_the_last_process_stops_listening(reserved: ReservedPort) -> None:
    a_server(reserved.address, socket.SO_REUSEPORT).close()
    assert await reservation_error(reserved.address) == errno.EADDRINUSE


async def test_a_held_port_refuses_connections() -> None:
    (held := await reserve_port(ANY)).close()
    again = await reserve_port(held.address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(again.address)
    again.close()


def test_of_several_concurrent_reservations_one_succeeds() -> None:
    racers = 4
    (free := asyncio.run(reserve_port(ANY))).close()
    barrier = Barrier(racers)

    def race() -> ReservedPort | None:
        barrier.wait()
        try:
            return asyncio.run(reserve_port(free.address))
        except OSError:
            return None

    with ThreadPoolExecutor(racers) as threads:
        for _ in range(100):
            futures = [threads.submit(race) for _ in range(racers)]
            winners = [held for future in futures if (held := future.result()) is not None]
            assert len(winners) == 1
            winners[0].close()


async def test_an_address_in_use_is_refused_even_if_it_is_shareable() -> None:
    for options in ((), (socket.SO_REUSEPORT,)):
        with a_server(ANY, *options) as server:
            assert await reservation_error(Address(*server.getsockname())) == errno.EADDRINUSE


async def test_earlier_connections_in_time_wait_do_not_matter() -> None:
    with a_server(ANY) as server:
        address = Address(*server.getsockname())
        with socket.create_connection(address):
            server.accept()[0].close()  # the end that closes first stays in TIME_WAIT for a minute
    held = await reserve_port(address)
    a_server(address, socket.SO_REUSEPORT).close()
    held.close()


async def test_the_port_is_free_after_a_close() -> None:
    held = await reserve_port(ANY)
    held.close()
    a_server(held.address).close()


@each_case("host", ["no-such-name.invalid", "192.0.2.1"])
async def test_an_address_of_another_machine_is_refused(host: str) -> None:
    assert await reservation_error(Address(host, 0))
