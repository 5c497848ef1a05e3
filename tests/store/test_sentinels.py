"""A store that is found by sentinels: who is asked, who is believed, and what happens at a failover."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis.exceptions as errors
from redis.asyncio.connection import AbstractConnection
from structlog.testing import capture_logs

from later.address_types import Address
from later.core.clock import Clock
from later.core.errors import StoreDown, StoreMismatch
from later.store import primary
from later.store.client import StoreClient
from later.store.connections import MAX_CONNECTIONS, connect
from later.store.primary import check_role
from later.store.schema import check_store
from later.store.sentinels import Opinion, Sentinels, rank
from tests.sentinel_service import HOST, SENTINEL_PASSWORD, USER, SentinelService, run_sentinel_service, url_of

TIMEOUT_S = 10.0
WRITE = ("SET", "later:x", "1")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SentinelService]:
    with run_sentinel_service(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def steady_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelService]:
    """A service that no test changes: its sentinels take seconds to know each other."""
    with run_sentinel_service(tmp_path_factory.mktemp("steady")) as running:
        yield running


@asynccontextmanager
async def client_of(
    url: str, timeout_s: float = TIMEOUT_S, note_jump: Callable[[float], None] = lambda seconds: None
) -> AsyncIterator[StoreClient]:
    clock = Clock(time.monotonic, time.time)
    redis = connect(url, clock, timeout_s, note_jump)
    client = StoreClient(redis, clock, timeout_s=timeout_s, check=lambda run: check_store(run, "later", 4))
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture
async def client(service: SentinelService) -> AsyncIterator[StoreClient]:
    async with client_of(service.url) as client:
        await client.open()
        yield client


def sentinels_of(client: StoreClient) -> Sentinels:
    assert client.sentinels is not None
    return client.sentinels


async def write(client: StoreClient, key: str) -> None:
    """Write a key, again and again, as a caller would, until it succeeds."""
    deadline = time.monotonic() + 40
    while True:
        try:
            await client.execute("set", ("SET", key, "1"))
            return
        except StoreDown:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def lose_connections(client: StoreClient) -> None:
    """Close all connections to the primary, as a fault of the network does."""
    client._connections.doubt_primary()
    await client._connections.drop_all()


def next_failover(client: StoreClient) -> asyncio.Future[tuple[Address, Address]]:
    """Return the addresses of the primary before and after the next failover that the client notices."""
    noticed = asyncio.get_running_loop().create_future()

    async def note(before: Address, now: Address) -> None:
        noticed.set_result((before, now))

    sentinels_of(client).on_failover.append(note)
    return noticed


async def test_the_primary_is_found_and_used(service: SentinelService, client: StoreClient) -> None:
    await client.execute("set", WRITE)
    with service.connect(service.first) as primary:
        assert primary.get("later:x") == b"1"
    assert sentinels_of(client).used == service.first


async def test_the_death_of_the_primary_is_survived(service: SentinelService, client: StoreClient) -> None:
    noticed = next_failover(client)
    service.kill(service.first)
    await write(client, "y")
    newest = await asyncio.to_thread(service.wait_for_another, service.first)
    with service.connect(newest) as primary:
        assert primary.get("y") == b"1"
    assert noticed.result() == (service.first, newest)


async def test_a_primary_that_hangs_is_left(service: SentinelService) -> None:
    async with client_of(service.url, timeout_s=2) as client:
        await client.execute("set", WRITE)
        service.servers[service.first].send_signal(signal.SIGSTOP)
        try:
            await write(client, "y")
            newest = await asyncio.to_thread(service.wait_for_another, service.first)
            with service.connect(newest) as primary:
                assert primary.get("y") == b"1"
        finally:
            service.servers[service.first].send_signal(signal.SIGCONT)


async def test_a_primary_that_is_replaced_and_goes_on_is_left_without_any_error(
    service: SentinelService, client: StoreClient
) -> None:
    service.refuse_demotion()
    noticed = next_failover(client)
    newest = await asyncio.to_thread(service.fail_over)
    async with asyncio.timeout(2):
        assert await noticed == (service.first, newest)
    await client.execute("set", ("SET", "y", "1"))
    with service.connect(newest) as primary, service.connect(service.first) as first:
        assert first.execute_command("ROLE")[0] == b"master"
        assert (primary.get("y"), first.get("y")) == (b"1", None)


async def test_a_listener_is_closed_when_the_primary_changes(service: SentinelService, client: StoreClient) -> None:
    listener = client.new_connection(b"")
    await listener.connect()  # type: ignore[no-untyped-call]  # redis-py's
    await listener.send_command("SUBSCRIBE", "news")
    await listener.read_response()
    service.refuse_demotion()
    noticed = next_failover(client)
    await asyncio.to_thread(service.fail_over)
    await noticed
    with pytest.raises(errors.ConnectionError):
        await listener.read_response()
    await listener.disconnect(nowait=True)


async def test_the_clock_of_the_new_primary_counts_at_once(service: SentinelService, client: StoreClient) -> None:
    clock = client._clock
    noticed = next_failover(client)
    await asyncio.to_thread(service.fail_over)
    await noticed
    assert not clock.is_steady()
    await client.execute("set", WRITE)
    assert clock.is_steady()


async def test_a_new_primary_whose_clock_is_another_is_told(service: SentinelService) -> None:
    jumps: list[float] = []
    async with client_of(service.url, note_jump=jumps.append) as client:
        await client.execute("set", WRITE)
        client._clock._servers[None].move(-20_000)  # as of a primary whose clock was 20 s behind that of the next one
        noticed = next_failover(client)
        with capture_logs() as logged:
            await asyncio.to_thread(service.fail_over)
            await noticed
            await client.execute("set", WRITE)
    assert jumps == [pytest.approx(20, abs=1)]
    assert [line["by_s"] for line in logged if line["event"] == "store clock jumped"] == [pytest.approx(20, abs=1)]


@pytest.mark.parametrize("was_checked_before", [False, True])
async def test_a_new_primary_that_evicts_is_refused(
    service: SentinelService, client: StoreClient, was_checked_before: bool
) -> None:
    for address in service.replicas:
        with service.connect(address) as replica:
            replica.config_set("maxmemory-policy", "allkeys-lru")
            if was_checked_before:
                client._checked.add(replica.info("server")["run_id"])
    noticed = next_failover(client)
    await asyncio.to_thread(service.fail_over)
    await noticed
    with pytest.raises(StoreMismatch, match="maxmemory-policy is allkeys-lru"):
        await client.execute("set", WRITE)


async def test_one_sentinel_of_three_is_enough_and_names_the_others(service: SentinelService) -> None:
    first = next(iter(service.sentinels))
    async with client_of(url_of([first])) as client:
        await client.execute("set", WRITE)
        assert sorted(sentinels_of(client)._sentinels) == sorted(service.sentinels)
        service.kill(first)
        await lose_connections(client)
        await client.execute("set", WRITE)


async def test_without_a_sentinel_the_error_says_why(service: SentinelService) -> None:
    async with client_of(service.url, timeout_s=1) as client:
        for sentinel in service.sentinels:
            service.kill(sentinel)
        with pytest.raises(StoreDown, match=r"no sentinel answers: 127.0.0.1:\d+: .*Connect call failed"):
            await client.execute("set", WRITE)


async def test_an_unknown_service_is_named(steady_service: SentinelService) -> None:
    async with client_of(url_of(list(steady_service.sentinels), "nobody"), timeout_s=1) as client:
        with pytest.raises(StoreDown, match='the sentinels watch no service "nobody"'):
            await client.execute("set", WRITE)


async def test_a_replica_is_never_used_whoever_names_it(steady_service: SentinelService) -> None:
    replica = next(address for address in steady_service.servers if address != steady_service.primary())
    async with lying_sentinel(replica) as first, lying_sentinel(replica) as second:
        async with client_of(url_of([first, second]), timeout_s=1) as client:
            with pytest.raises(StoreDown, match=f"{replica} is a slave, not the primary"):
                await client.execute("set", WRITE)
        async with client_of(url_of([first, second, *steady_service.sentinels][:3])) as client:
            await client.execute("set", WRITE)
            assert sentinels_of(client).used == steady_service.primary()
            await asyncio.sleep(1.5)  # the watch asks meanwhile, and goes on to believe nobody who names a replica
            assert sentinels_of(client).used == steady_service.primary()


async def test_a_server_that_cannot_be_reached_is_passed_over(steady_service: SentinelService) -> None:
    nowhere = Address(HOST, 1)
    async with (
        lying_sentinel(nowhere) as first,
        lying_sentinel(nowhere) as second,
        client_of(url_of([first, second, *steady_service.sentinels][:3])) as client,
    ):
        await client.execute("set", WRITE)
        assert sentinels_of(client).used == steady_service.primary()


async def test_passwords_of_servers_and_of_sentinels_differ(tmp_path: Path) -> None:
    with run_sentinel_service(tmp_path, has_users=True) as service:
        async with client_of(service.url) as client:
            await client.execute("set", WRITE)
        wrong = service.url.replace(f"sentinel_password={SENTINEL_PASSWORD}", "sentinel_password=wrong")
        async with client_of(wrong, timeout_s=1) as client:
            with pytest.raises(StoreDown, match=r"no sentinel answers: .*invalid username-password pair"):
                await client.execute("set", WRITE)
        async with client_of(service.url.replace(f":{USER}@", ":wrong@"), timeout_s=5) as client:
            began = time.monotonic()
            with pytest.raises(StoreDown, match="the store refuses this user"):
                await client.execute("set", WRITE)
            assert time.monotonic() - began < 4, "it is of no use to try again"


async def test_all_who_wait_while_no_primary_is_found_hear_why(service: SentinelService) -> None:
    async with client_of(service.url, timeout_s=1) as client:
        await client.execute("set", WRITE)
        for address in service.servers:
            service.kill(address)
        calls = [client.execute("set", WRITE) for _ in range(10 * MAX_CONNECTIONS)]
        began = time.monotonic()
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - began < 5
        assert {type(error) for error in failed} == {StoreDown}
        assert [str(error) for error in failed if "the store cannot be reached: " not in str(error)] == []


async def test_a_store_that_is_closed_while_it_connects_leaves_no_tasks(steady_service: SentinelService) -> None:
    async def write_or_fail(client: StoreClient) -> None:
        with suppress(StoreDown):
            await client.execute("set", WRITE)

    for step in range(12):
        async with client_of(steady_service.url) as client:
            writes = [asyncio.create_task(write_or_fail(client)) for _ in range(3)]
            await asyncio.sleep(0.002 * step)
        await asyncio.gather(*writes)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_connection_that_looked_before_a_failover_does_not_lead_back(
    service: SentinelService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary, "CONNECT_TIMEOUT_S", TIMEOUT_S)
    async with client_of(service.url, timeout_s=4 * TIMEOUT_S) as client:
        await client.execute("set", WRITE)
        service.refuse_demotion()
        is_checking, may_end = asyncio.Event(), asyncio.Event()

        async def check_slowly(connection: AbstractConnection) -> None:
            await check_role(connection)
            is_checking.set()
            await may_end.wait()

        with monkeypatch.context() as patch:
            patch.setattr(primary, "check_role", check_slowly)
            slow: Any = client.new_connection(b"")
            connecting = asyncio.create_task(slow.connect())
            await is_checking.wait()
        noticed = next_failover(client)
        newest = await asyncio.to_thread(service.fail_over)
        assert await noticed == (service.first, newest)
        may_end.set()
        await connecting
        assert (slow.port, sentinels_of(client).failovers) == (newest.port, 1)
        await slow.disconnect(nowait=True)


async def test_the_watch_goes_on_whatever_fails_in_it(service: SentinelService) -> None:
    async with client_of(service.url) as client:
        await client.execute("set", WRITE)
        noticed, failed = next_failover(client), list[Address]()
        sentinels = sentinels_of(client)
        is_primary = sentinels._is_primary

        async def fail_once(address: Address) -> bool:
            if not failed:
                failed.append(address)
                raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")
            return await is_primary(address)

        sentinels._is_primary = fail_once
        service.refuse_demotion()
        newest = await asyncio.to_thread(service.fail_over)
        assert await noticed == (service.first, newest)
        assert failed == [newest]


async def test_names_of_hosts_are_looked_up_anew(tmp_path: Path) -> None:
    with run_sentinel_service(tmp_path, host="localhost") as service:
        async with client_of(service.url) as client:
            await client.execute("set", WRITE)
            assert sentinels_of(client).used == Address("localhost", service.first.port)
            noticed = next_failover(client)
            newest = await asyncio.to_thread(service.fail_over)
            assert await noticed == (Address("localhost", service.first.port), newest)
            await client.execute("set", WRITE)


def test_most_sentinels_decide_and_of_as_many_the_latest_failover() -> None:
    old, new = Address("a", 1), Address("b", 1)
    assert rank([Opinion(old, 0, []), Opinion(new, 1, []), Opinion(new, 1, [])]) == [new, old]
    assert rank([Opinion(old, 0, []), Opinion(new, 1, []), Opinion(None, 0, [])]) == [new, old]
    assert rank([Opinion(old, 3, []), Opinion(new, 1, [])]) == [old, new]
    assert rank([Opinion(None, 0, [])]) == []


@asynccontextmanager
async def lying_sentinel(primary: Address) -> AsyncIterator[Address]:
    """Run a sentinel that names this server as the primary, and knows no others."""

    connections = set[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        parser = hiredis.Reader()
        while data := await reader.read(65_536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                writer.write(reply_to([part.upper() for part in command]))
        writer.close()
        await writer.wait_closed()

    def reply_to(command: list[bytes]) -> bytes:
        host, port = primary.host.encode(), b"%d" % primary.port
        if command[:2] == [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME"]:
            return b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(host), host, len(port), port)
        if command[:2] == [b"SENTINEL", b"MASTER"]:
            return b"*2\r\n$12\r\nconfig-epoch\r\n$1\r\n9\r\n"
        if command[0] == b"SENTINEL":
            return b"*0\r\n"
        return b"+OK\r\n"

    server = await asyncio.start_server(answer, HOST, 0)
    async with server:
        yield Address(HOST, server.sockets[0].getsockname()[1])
        await asyncio.wait(connections)
