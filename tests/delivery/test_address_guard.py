"""The address guard at the call: no connection is opened to an address that is refused, whatever leads to it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest
import structlog

from later.core.address_guard import AddressGuard
from later.core.address_table import IPAddress
from later.core.retry import Outcome, OutcomeKind
from later.delivery import resolver
from later.delivery.http_client import LocalFault
from later.delivery.own_address import OwnAddresses, is_own_address
from later.delivery.proxy import Proxy
from tests.builders import NO_GUARD, NOW, a_task
from tests.cases import each_case
from tests.delivery.forward_proxy import ForwardProxy
from tests.receivers import (
    DONE,
    Behavior,
    Connection,
    PolicySender,
    Receiver,
    a_sender,
    answers,
    answers_and_closes,
    reply_with_body,
)

pytestmark = pytest.mark.usefixtures("client")

LOOPBACK_HOSTS = (
    *(
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0x7f000001",
        "0X7F.0.0.0x1",
        "2130706433",
        "017700000001",
    ),
    *("017700000001", "0177.0.0.1", "127.0.0.0x1", "0", "0.0.0.0", "0x0", "①②⑦.0.0.1", "127。0。0。1", "127.0.0.１"),
    *("[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:7F00:0001]"),
    *("localhost", "LOCALHOST", "localhost.", "ⓛocalhost"),
    *("v4.example", "v6.example", "mapped.example", "V4.Example.", "both.example", "zero.example"),
)
"""Hosts of URLs that lead to this machine's loopback, as literals and as names."""

NAMES = {
    "localhost": ("127.0.0.1", "::1"),
    "v4.example": ("127.0.0.1",),
    "v6.example": ("::1",),
    "mapped.example": ("::ffff:127.0.0.1",),
    "both.example": ("::1", "127.0.0.1"),
    "zero.example": ("0.0.0.0", "::"),
    "some.example": ("127.0.0.2", "127.0.0.1"),
    "zone": ("127.0.0.1",),
    "shop.zone": ("127.0.0.1",),
    "a.shop.zone": ("127.0.0.1",),
    "xzone": ("127.0.0.1",),
    "shop.evilzone": ("127.0.0.1",),
    "zone.example": ("127.0.0.1",),
}


class NameServers:
    """A replacement for `getaddrinfo`: the addresses of each name, or one answer after the other."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Sequence[str]]] = {name: [found] for name, found in NAMES.items()}
        self.lookups: defaultdict[str, int] = defaultdict(int)

    def getaddrinfo(self, host: str, port: int, *_args: object, **_named: object) -> list[Any]:
        name = host.removesuffix(".")
        found = self.answers[name][min(self.lookups[name], len(self.answers[name]) - 1)]
        self.lookups[name] += 1
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in found
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> NameServers:
    servers = NameServers()
    monkeypatch.setattr(socket, "getaddrinfo", servers.getaddrinfo)
    monkeypatch.setattr(resolver, "CACHE_S", 0.0)
    return servers


def a_guard(**options: Any) -> AddressGuard:
    return AddressGuard(is_own=is_own_address, **options)


class Listeners:
    """Real listeners on one port, at addresses of this machine: they count the connections to each, and answer."""

    def __init__(self, reply: bytes = DONE) -> None:
        self.connections: defaultdict[str, int] = defaultdict(int)
        self.port = 0
        self._reply = reply

    @asynccontextmanager
    async def listen(self, *addresses: str) -> AsyncIterator[Listeners]:
        servers = []
        for address in addresses:
            server = await asyncio.start_server(self._serve, address, self.port)
            self.port = server.sockets[0].getsockname()[1]
            servers.append(server)
        try:
            yield self
        finally:
            for server in servers:
                server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections[writer.get_extra_info("sockname")[0]] += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._reply)
        writer.close()

    async def call(self, sender: PolicySender, host: str) -> Outcome:
        return await sender.send(a_task(callback=f"http://{host}:{self.port}/"), 1, NOW)


def refused(why: str) -> Outcome:
    message = f"this host's address may not be called: {why}"
    return Outcome(kind=OutcomeKind.FAILED, reason="address", message=message)


async def test_no_way_to_write_loopback_opens_a_connection(names: NameServers) -> None:
    async with Listeners().listen("127.0.0.1", "::1") as listeners, a_sender(guard=a_guard()) as sender:
        outcomes = {host: await listeners.call(sender, host) for host in LOOPBACK_HOSTS}
    reserved = {"0", "0.0.0.0", "0x0", "[::]", "zero.example"}
    assert outcomes == {host: refused("reserved" if host in reserved else "loopback") for host in LOOPBACK_HOSTS}
    assert listeners.connections == {}


async def test_without_the_guard_each_of_them_reaches_the_listener(names: NameServers) -> None:
    async with Listeners().listen("127.0.0.1", "::1") as listeners, a_sender(guard=NO_GUARD) as sender:
        for host in LOOPBACK_HOSTS:
            assert (await listeners.call(sender, host)).kind is OutcomeKind.DONE, host
    assert sum(listeners.connections.values()) >= len(LOOPBACK_HOSTS)


async def test_a_name_is_refused_by_the_kind_of_its_address(names: NameServers) -> None:
    kinds = {
        "loopback": "127.9.9.9", "private": "10.2.3.4", "link-local": "169.254.169.254", "shared": "100.64.0.1",
        "platform": "168.63.129.16", "multicast": "224.0.0.1", "translated": "64:ff9b::a00:1", "reserved": "240.0.0.1",
    }  # fmt: skip
    names.answers |= {f"{kind}.example": [(address,)] for kind, address in kinds.items()}
    counts: defaultdict[str, int] = defaultdict(int)

    def count(why: str) -> None:
        counts[why] += 1

    async with a_sender(guard=a_guard(), on_refused=count) as sender:
        for kind, address in kinds.items():
            outcome = await sender.send(a_task(callback=f"http://{kind}.example:9/"), 1, NOW)
            assert outcome == refused(kind)
            assert address not in outcome.message
    assert counts == dict.fromkeys(kinds, 1)


async def test_this_machines_own_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.core.address_guard.classify_address", lambda address: None)
    async with Listeners().listen("127.0.0.1", "::1") as listeners, a_sender(guard=a_guard()) as sender:
        assert await listeners.call(sender, "127.0.0.1") == refused("own")
        assert await listeners.call(sender, "[::1]") == refused("own")
    assert listeners.connections == {}
    assert not is_own_address(ip_address("192.0.2.77"))


def test_without_a_free_descriptor_no_address_is_said_to_be_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("later.delivery.own_address.socket.socket", cannot_tell)
    own = OwnAddresses(lambda: 0.0)
    for _ in range(2):
        with pytest.raises(OSError, match="open files"):
            own.have(ip_address("8.8.8.8"))


def cannot_tell(*_args: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_an_address_that_cannot_be_judged_now_is_not_called_and_costs_no_retry(names: NameServers) -> None:
    names.answers["mixed.example"] = [("10.0.0.1", "8.8.8.8")]
    through_proxy = {
        "guard": AddressGuard(is_own=cannot_tell, has_proxy=True),
        "proxy": Proxy.parse("http://127.0.0.1:9"),
    }
    for options in ({"guard": AddressGuard(is_own=cannot_tell)}, through_proxy):
        async with a_sender(**options) as sender:
            for host in ("8.8.8.8", "mixed.example")[: 1 if "proxy" in options else 2]:
                with pytest.raises(LocalFault, match="open files"):
                    await sender.send(a_task(callback=f"http://{host}:9/"), 1, NOW)


def test_the_kernel_is_asked_for_an_own_address_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(address: IPAddress) -> bool:
        asked.append(str(address))
        return str(address) == "8.8.8.8"

    monkeypatch.setattr("later.delivery.own_address.is_own_address", ask)
    now = 0.0
    own = OwnAddresses(lambda: now)
    for now in (5.0, 14.9, 15.0):  # noqa: B007 - the clock reads it
        assert (own.have(ip_address("8.8.8.8")), own.have(ip_address("1.1.1.1"))) == (True, False)
    assert asked == ["8.8.8.8", "1.1.1.1"] * 2


async def closes_at_the_second_request(connection: Connection) -> None:
    await connection.read_request()
    await connection.write(DONE)
    await connection.read_head()
    connection.close()


async def resets_at_the_second_request(connection: Connection) -> None:
    await connection.read_request()
    await connection.write(DONE)
    await connection.read_head()
    connection.reset()


@each_case("behavior", [answers_and_closes(DONE), closes_at_the_second_request, resets_at_the_second_request])
@each_case("moved_to", [("127.0.0.2",), ("::1",), ("::ffff:127.0.0.2", "0.0.0.0"), ("10.0.0.1", "127.0.0.2")])
async def test_a_name_that_moves_after_its_kept_connection_was_closed_is_judged_again(
    names: NameServers, behavior: Behavior, moved_to: Sequence[str]
) -> None:
    """A connection is opened for the second call, or when the receiver closes the kept one over it: by other parts."""
    names.answers["moves.example"] = [("127.0.0.1",), moved_to]
    names.lookups.clear()
    guard = a_guard(allow=["127.0.0.1/32"])
    kept = Receiver(behavior)
    async with kept.listen(), a_sender(guard=guard) as sender:
        listeners = Listeners()
        listeners.port = int(kept.url.rpartition(":")[2])
        async with listeners.listen("127.0.0.2", "::1"):
            outcomes = [await listeners.call(sender, "moves.example") for _ in range(2)]
    assert outcomes[0] == Outcome(kind=OutcomeKind.DONE, status=200)
    assert outcomes[1].reason == "address"
    assert (kept.connections, names.lookups["moves.example"], listeners.connections) == (1, 2, {})


async def test_a_kept_connection_is_judged_when_it_is_opened_only() -> None:
    judged: list[str] = []

    class Recorded(AddressGuard):
        def judge_address(self, host: str, address: str) -> None:
            judged.append(address)

    guard = Recorded(is_own=is_own_address)
    async with Receiver(answers(DONE, DONE, DONE)).listen() as receiver, a_sender(guard=guard) as sender:
        for _ in range(3):
            await sender.send(a_task(callback=receiver.url), 1, NOW)
    assert judged == ["127.0.0.1"]


async def test_of_several_addresses_an_allowed_one_is_called(names: NameServers) -> None:
    async with (
        Listeners().listen("127.0.0.1", "127.0.0.2") as listeners,
        a_sender(guard=a_guard(allow=["127.0.0.1/32"])) as sender,
    ):
        assert (await listeners.call(sender, "some.example")).kind is OutcomeKind.DONE
    assert listeners.connections == {"127.0.0.1": 1}


async def test_an_allowed_address_that_does_not_answer_is_no_connection(names: NameServers) -> None:
    async with Listeners().listen("127.0.0.2") as listeners, a_sender(guard=a_guard(allow=["127.0.0.1/32"])) as sender:
        outcome = await listeners.call(sender, "some.example")
    assert (outcome.reason, outcome.message) == ("connect", "no connection: Connection refused")
    assert listeners.connections == {}


async def test_a_redirect_to_a_refused_address_is_not_followed() -> None:
    async with Listeners().listen("127.0.0.2") as refuses:
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            redirect = reply_with_body(b"", status, f"Location: http://127.0.0.2:{refuses.port}/")
            async with (
                Listeners(redirect).listen("127.0.0.1") as listeners,
                a_sender(guard=a_guard(allow=["127.0.0.1/32"])) as sender,
            ):
                assert (await listeners.call(sender, "127.0.0.1")).reason == "status"
    assert refuses.connections == {}


async def test_networks_names_and_zones_are_allowed_and_deny_comes_first(names: NameServers) -> None:
    hosts = ("zone", "shop.zone", "A.Shop.Zone.", "xzone", "shop.evilzone", "zone.example", "127.0.0.1")
    allowed = {"zone.example", "shop.zone", "A.Shop.Zone."}
    guard = a_guard(allow=["zone.example", "*.zone", "10.0.0.0/8"])
    async with Listeners().listen("127.0.0.1") as listeners, a_sender(guard=guard) as sender:
        outcomes = {host: await listeners.call(sender, host) for host in hosts}
    assert {host for host, outcome in outcomes.items() if outcome.kind is OutcomeKind.DONE} == allowed
    assert listeners.connections == {"127.0.0.1": len(allowed)}
    guard = a_guard(allow=["127.0.0.0/8", "zone"], deny=["127.0.0.0/30"])
    async with Listeners().listen("127.0.0.1", "127.0.0.5") as listeners, a_sender(guard=guard) as sender:
        assert await listeners.call(sender, "zone") == refused("denied")
        assert (await listeners.call(sender, "127.0.0.5")).kind is OutcomeKind.DONE
    assert listeners.connections == {"127.0.0.5": 1}


async def test_with_https_only_http_is_not_called() -> None:
    not_https = Outcome(kind=OutcomeKind.FAILED, reason="address", message="this URL may not be called: http")
    async with Listeners().listen("127.0.0.1") as listeners:
        for is_on in (True, False):
            async with a_sender(guard=a_guard(https_only=True, is_on=is_on, allow=["127.0.0.0/8"])) as sender:
                assert await listeners.call(sender, "127.0.0.1") == not_https
    assert listeners.connections == {}


async def test_behind_a_proxy_addresses_are_judged_before_the_call_and_names_are_the_proxys(names: NameServers) -> None:
    guard = a_guard(has_proxy=True, deny=["198.41.0.0/24"])
    async with ForwardProxy().listen() as proxy, Receiver(answers(DONE)).listen() as receiver:
        port = receiver.url.rpartition(":")[2]
        async with a_sender(guard=guard, proxy=Proxy.parse(proxy.url)) as sender:
            for scheme in ("http", "https"):
                for host, why in (("127.1", "loopback"), ("[::ffff:10.0.0.1]", "private"), ("198.41.0.4", "denied")):
                    outcome = await sender.send(a_task(callback=f"{scheme}://{host}:{port}/"), 1, NOW)
                    assert outcome == refused(why)
            assert proxy.connections == 0
            outcome = await sender.send(a_task(callback=f"http://v4.example:{port}/"), 1, NOW)
    assert (outcome.kind, names.lookups) == (OutcomeKind.DONE, {})


async def test_a_refused_host_is_logged_once_a_minute_with_the_option_that_allows_it(names: NameServers) -> None:
    with structlog.testing.capture_logs() as logs:
        async with a_sender(guard=a_guard(deny=["10.9.0.0/16"])) as sender:
            for host, now in (("v4.example", NOW), ("v4.example", NOW + 59_999), ("v4.example", NOW + 60_000)):
                await sender.send(a_task(callback=f"http://{host}:9/"), 1, now)
            await sender.send(a_task(callback="http://[fd00::1]:9/"), 1, NOW + 60_000)
            await sender.send(a_task(callback="http://10.9.0.1:9/"), 1, NOW + 60_000)
    v4 = {"host": "v4.example", "address": "127.0.0.1", "why": "loopback", "allow": "--guard-allow 127.0.0.1/32"}
    v6 = {"host": "fd00::1", "address": "fd00::1", "why": "private", "allow": "--guard-allow fd00::1/128"}
    denied = {"host": "10.9.0.1", "address": "10.9.0.1", "why": "denied"}
    about = {"event": "callback refused", "log_level": "warning"}
    assert logs == [{**line, **about} for line in (v4, v4, v6, denied)]
