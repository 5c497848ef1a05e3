"""One function opens every socket of a client; what this machine lacks for one is no outcome."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from aiohappyeyeballs import AddrInfoType

from later.core.retry import OutcomeKind
from later.delivery.aiohttp_client import AiohttpClient
from later.delivery.client_settings import ClientSettings
from later.delivery.connector import OpenSocket, open_socket
from later.delivery.http_client import HttpClient, LocalFault
from later.delivery.own_client import OwnClient
from later.delivery.proxy import Proxy
from tests import receivers
from tests.builders import NO_GUARD, NOW, a_task
from tests.cases import each_case
from tests.delivery.forward_proxy import ForwardProxy
from tests.receivers import DONE, FakeNameServers, Receiver, a_sender, answers, answers_and_closes

pytestmark = pytest.mark.usefixtures("client")


def a_client(open_socket: OpenSocket, proxy: Proxy | None = None) -> HttpClient:
    """Return a client of the kind that the test runs with."""
    if receivers.client_name == "aiohttp":
        return AiohttpClient(
            ClientSettings(max_lookups=1, max_idle=8, guard=NO_GUARD, proxy=proxy, open_socket=open_socket)
        )
    return OwnClient(ClientSettings(max_lookups=1, max_idle=8, guard=NO_GUARD, proxy=proxy, open_socket=open_socket))


class RecordedSockets:
    """Opens sockets, `allowed` of them at most, and keeps the hosts that they are for."""

    def __init__(self, allowed: int = 1000) -> None:
        self.hosts: list[str] = []
        self._allowed = allowed

    def open(self, host: str, address: AddrInfoType) -> socket.socket:
        self.hosts.append(host)
        if len(self.hosts) > self._allowed:
            raise OSError(errno.EPERM, "refused")
        return open_socket(host, address)


def fails_with(number: int) -> OpenSocket:
    def fail(host: str, address: AddrInfoType) -> socket.socket:
        raise OSError(number, os.strerror(number))

    return fail


@each_case("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL])
async def test_what_this_machine_lacks_is_no_outcome(number: int) -> None:
    async with a_sender(client=a_client(fails_with(number))) as sender:
        with pytest.raises(LocalFault, match=os.strerror(number)):
            await sender.send(a_task(callback="http://127.0.0.1:9/"), 1, NOW)


async def test_what_this_machine_lacks_for_a_proxy_is_no_outcome() -> None:
    client = a_client(fails_with(errno.EMFILE), Proxy.parse("http://127.0.0.1:9"))
    async with a_sender(client=client) as sender:
        with pytest.raises(LocalFault, match="Too many open files"):
            await sender.send(a_task(callback="https://receiver.example/"), 1, NOW)


@each_case("number", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EPERM])
async def test_other_errors_are_no_connection(number: int) -> None:
    async with a_sender(client=a_client(fails_with(number))) as sender:
        outcome = await sender.send(a_task(callback="http://127.0.0.1:9/"), 1, NOW)
    assert (outcome.reason, outcome.message) == ("connect", f"no connection: {os.strerror(number)}")


async def test_a_function_that_refuses_is_asked_again_after_a_kept_connection_was_closed() -> None:
    sockets = RecordedSockets(allowed=1)
    receiver = Receiver(answers_and_closes(DONE))
    async with receiver.listen(), a_sender(client=a_client(sockets.open)) as sender:
        kinds = [(await sender.send(a_task(callback=receiver.url), 1, NOW)).kind for _ in range(2)]
    assert (kinds, len(sockets.hosts), receiver.connections) == ([OutcomeKind.DONE, OutcomeKind.FAILED], 2, 1)


async def test_the_function_gets_the_host_of_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", FakeNameServers().getaddrinfo)
    sockets = RecordedSockets()
    async with Receiver(answers(DONE)).listen() as receiver, a_sender(client=a_client(sockets.open)) as sender:
        await sender.send(a_task(callback=receiver.url.replace("127.0.0.1", "Receiver.Example")), 1, NOW)
        await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert sockets.hosts == ["receiver.example", "127.0.0.1"]


@each_case("scheme", ["http", "https"])
async def test_the_function_gets_the_host_of_the_proxy(scheme: str) -> None:
    sockets = RecordedSockets()
    async with ForwardProxy().listen() as proxy:
        client = a_client(sockets.open, Proxy.parse(proxy.url))
        async with a_sender(client=client) as sender:
            await sender.send(a_task(callback=f"{scheme}://receiver.example:9/"), 1, NOW)
    assert sockets.hosts == ["127.0.0.1"]
